#!/bin/sh
# A machine dies under its job, and another one finishes it. Real processes, all killed with kill -9; half a minute.
#
#     sh examples/recovery.sh
#
# Needs `job` in PATH and ps. It starts a broker and workers of its own in a new directory and removes them again:
# your own broker is not touched.
set -eu

here=$(mktemp -d)
export JOBD_STATE_DIR="$here/broker" JOBD_LEASE_S=3 JOBD_SWEEP_S=0.5
unset JOBD_URL JOBD_TOKEN JOBD_WORKER_NAME JOBD_LISTEN || true

# A worker as on a machine of its own; only the checkpoints are on a disk that all machines see.
machine() { # NAME
    JOBD_STATE_DIR="$here/$1" JOBD_URL="unix://$here/broker/broker.sock" JOBD_WORKER_NAME="$1" \
        JOBD_CHECKPOINT_ROOT="$here/checkpoints" job worker >"$here/$1.log" 2>&1 &
}

# A process and all that descends from it, the ancestors first.
tree() { # PID
    echo "$1"
    for child in $(ps -o pid= --ppid "$1"); do tree "$child"; done
}

seen() { # WHAT COMMAND...: wait until WHAT shows in the answer
    what=$1
    shift
    for _ in $(seq 300); do
        if "$@" 2>/dev/null | grep -q "$what"; then return; fi
        sleep 0.1
    done
    echo "not seen within half a minute: $what" >&2
    exit 1
}

state() {
    job status "$id" --json | sed -n 's/.*"state": *"\([a-z]*\)".*/\1/p'
}

end() {
    # shellcheck disable=SC2046 # several words are wanted
    kill -9 $(for pid in ${anna:-} ${boris:-} ${broker:-}; do tree "$pid"; done) 2>/dev/null || true
    { wait; } 2>/dev/null
    rm -rf "$here"
}
trap end EXIT

job broker >"$here/broker.log" 2>&1 &
broker=$!
machine anna
anna=$!
seen online job workers

# A long job that can resume: it keeps the number of its last step in JOBD_CHECKPOINT_DIR.
id=$(job submit --json --name train '
    step=$(cat "$JOBD_CHECKPOINT_DIR/step" 2>/dev/null || echo 0)
    echo "attempt $JOBD_ATTEMPT begins after step $step"
    while [ "$step" -lt 12 ]; do
        step=$((step + 1))
        sleep 0.5
        echo "$step" >"$JOBD_CHECKPOINT_DIR/step"
        echo "step $step of 12"
    done' | sed -n 's/.*"id": *\([0-9]*\).*/\1/p')
seen "step 4 of 12" job logs "$id"
echo "job $id is $(state); now its machine dies"

# One of them may have ended by itself since it was listed.
# shellcheck disable=SC2046
kill -9 $(tree "$anna") 2>/dev/null || true
{ wait "$anna" || true; } 2>/dev/null
anna=

# Nobody says so: the broker hears nothing, and its lease runs out.
seen assignment_expired job events --job "$id"
echo "job $id is $(state), its assignment:"
job events --job "$id" | grep -E 'assignment_expired|job_requeued'

machine boris
boris=$!
job wait "$id" # exits with the job's own code
echo "job $id is $(state). What the second attempt printed:"
job logs "$id"
