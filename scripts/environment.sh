#!/bin/sh
# Make .venv in this clone and install a lock into it: scripts/environment.sh requirements.lock
# Needs a Python of 3.11 or later, in PATH or named by $PYTHON. Writes nothing outside the clone.
set -eu
cd "$(dirname "$0")/.."
lock=$1

fits() {
    command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14 python; do
        if fits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "jobd-mcp needs Python 3.11 or later; none is in PATH. Name one: make PYTHON=/path/to/python3 ..." >&2
    exit 1
}

if ! fits .venv/bin/python; then
    python=$(find_python)
    rm -rf .venv
    if ! "$python" -m venv .venv; then
        rm -rf .venv
        echo "$python can't make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv" >&2
        exit 1
    fi
fi

echo "Installing $lock into .venv (once) ..."
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
.venv/bin/python -m pip install --quiet --require-hashes --only-binary :all: -r "$lock"
.venv/bin/python -m pip install --quiet --no-index --no-deps --no-build-isolation --editable .
