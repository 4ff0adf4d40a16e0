"""Long runs of the state machines: `python -m support.machines [--stories N] [--seed N] [operations | logs]`, from `tests`.

Processes tell stories beside each other, each from a seed of its own; what fails is printed with the command that tells
it again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass

from hypothesis import seed

from support.machines.logs import Bench, log_protocol
from support.machines.operations import Operations
from support.machines.running import tell

AT_ONCE = 100
"""Stories of one process: few, so that a run shows progress, and a failure is told again soon."""


@dataclass(frozen=True)
class Plan:
    stories: int
    steps: int


PLANS = {"operations": Plan(3000, 100), "logs": Plan(15_000, 60)}


def tell_one(name: str, stories: int, number: int) -> None:
    steps = PLANS[name].steps
    if name == "operations":
        tell(seed(number)(Operations), stories, steps, anew=True)
        return
    bench = Bench()
    try:
        tell(seed(number)(log_protocol(bench)), stories, steps, anew=True)
    finally:
        bench.close()


def tell_all(name: str, stories: int, first: int, processes: int) -> int:
    """How many processes failed. Each tells AT_ONCE stories from the next seed."""
    started, failed = time.monotonic(), 0
    at_once = AT_ONCE if name == "operations" else 5 * AT_ONCE
    waiting = [first + number for number in range(-(-stories // at_once))]
    count = len(waiting)
    running: dict[int, subprocess.Popen[str]] = {}
    print(f"{name}: {stories} stories of {PLANS[name].steps} steps, seeds {first} to {waiting[-1]}", flush=True)
    while waiting or running:
        while waiting and len(running) < processes:
            number = waiting.pop(0)
            command = [sys.executable, "-m", "support.machines", name, "--one", str(at_once), "--seed", str(number)]
            running[number] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        number, process = next(iter(running.items()))
        said, _ = process.communicate()
        del running[number]
        if process.returncode:
            failed += 1
            print(said)
            print(f"FAILED; again: python -m support.machines {name} --one {at_once} --seed {number}")
        done = count - len(waiting) - len(running)
        print(f"{name}: {done} of {count}, {failed} failed, {time.monotonic() - started:.0f} s", flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="support.machines", description=__doc__)
    parser.add_argument("machine", nargs="*", help="operations, logs; default: both")
    parser.add_argument("--stories", type=int, help="how many, instead of 3,000 and 15,000")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", type=int, help="in this process alone, so many stories")
    asked = parser.parse_args()
    names = asked.machine or list(PLANS)
    if unknown := set(names) - PLANS.keys():
        parser.error(f"there is no machine {', '.join(sorted(unknown))}; there are {', '.join(PLANS)}")
    if asked.one is not None:
        for name in names:
            tell_one(name, asked.one, asked.seed)
        return 0
    failed = sum(tell_all(name, asked.stories or PLANS[name].stories, asked.seed, asked.processes) for name in names)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
