#!/bin/sh
# A first job, from the shell: submit, wait, read, and use its exit code. Needs `job` in PATH.
#
#     sh examples/first_job.sh
set -eu

job up # a broker and one worker in the background; a repeat changes nothing

# --json prints the operation's own answer; one word after the options is shell text.
id=$(job submit --json --name first 'for i in 1 2 3; do echo "step $i of 3"; sleep 0.3; done' |
    sed -n 's/.*"id": *\([0-9]*\).*/\1/p')
echo "submitted job $id"

job wait "$id" # exits with the job's own code
job logs "$id" # everything it printed, byte for byte

# `job run` does all of that at once, and behaves like the command itself.
code=0
job run -- sh -c 'echo "this one fails"; exit 3' || code=$?
echo "the second job exited with $code"
