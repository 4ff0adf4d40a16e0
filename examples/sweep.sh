#!/bin/sh
# A sweep, from the shell: six members, four at once; one of them fails. Needs `job` in PATH.
#
#     sh examples/sweep.sh
set -eu

job up # a broker and one worker in the background; a repeat changes nothing

# {lr} and {seed} are a member's values, {i} is its index; ${seed} would be the shell's own.
array=$(job submit --json --name 'train-{i}' --sweep lr=0.1,0.01 --sweep seed=1,2,3 --max-parallel 4 \
    'echo "lr={lr} seed={seed} of member {i}"; [ {seed} != 3 ] || [ {lr} != 0.1 ]' |
    sed -n 's/.*"array": *\([0-9]*\).*/\1/p')

code=0
job wait --array "$array" || code=$? # exits with the first code that is not zero
echo "array $array: one of its members exited with $code"

job list # the array is one line
job list --array "$array" --state failed

job logs "$((array + 4))" # ids of the members are one block
