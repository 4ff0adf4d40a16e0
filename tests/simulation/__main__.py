"""Run seeds: `python -m simulation --seed 42` tells one, `--seeds 0..59` many, each in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from fastapi import FastAPI

from broker.app import create_app
from simulation.network import asked
from simulation.story import Story, Told

MOST_SHOWN = 6
_FAST = Path("/dev/shm")
_WARM = (
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs/1"),
    ("GET", "/v1/jobs/1/log"),
    ("GET", "/v1/jobs/wait"),
    ("POST", "/v1/jobs/cancel"),
    ("POST", "/v1/workers/1/register"),
    ("POST", "/v1/workers/1/report"),
    ("POST", "/v1/workers/1/poll"),
    ("PUT", "/v1/jobs/1/assignments/1/log"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="tell this one's story, line by line")
    parser.add_argument("--seeds", default="0..59", help="FIRST..LAST, or numbers with commas")
    parser.add_argument("--jobs", type=int, default=1, help="how many at the same time")
    parser.add_argument("--digests", action="store_true", help="print each seed's digest")
    parser.add_argument("--progress", action="store_true")
    parser.add_argument("--first", action="store_true", help="end with the first seed that fails")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        told = _told(arguments.seed, keep=True)
        sys.stdout.write("\n".join([*told.lines, *told.violations, f"digest {told.digest}"]) + "\n")
        return 1 if told.violations else 0
    return _many(list(_seeds(arguments.seeds)), arguments)


def _many(seeds: list[int], said: argparse.Namespace) -> int:
    began, failed, jobs_run, faults = time.monotonic(), [], 0, 0
    _app()  # imported and built once, before the forks
    with multiprocessing.get_context("fork").Pool(said.jobs, maxtasksperchild=1) as pool:
        for count, told in enumerate(pool.imap(_safely, seeds, chunksize=1), 1):
            jobs_run, faults = jobs_run + told.jobs, faults + told.faults
            if said.digests:
                print(f"digest {told.seed} {told.digest}", flush=True)
            if told.violations and not (said.first and failed):
                failed.append(told.seed)
                print(f"seed {told.seed} fails: python -m simulation --seed {told.seed}", flush=True)
                for line in told.violations[:MOST_SHOWN]:
                    print(f"  {line}", flush=True)
                if said.first:
                    break
            if said.progress and count % 50 == 0:
                print(f"{count} of {len(seeds)} seeds, {len(failed)} failed", file=sys.stderr, flush=True)
    print(
        f"{len(seeds)} seeds, {len(failed)} failed{f': {failed}' if failed else ''}; "
        f"{jobs_run} jobs, {faults} faults, {time.monotonic() - began:.1f} s",
        flush=True,
    )
    return 1 if failed else 0


def _safely(seed: int) -> Told:
    try:
        return _told(seed, keep=False)
    except BaseException:
        return Told(seed, violations=[traceback.format_exc()])


def _told(seed: int, *, keep: bool) -> Told:
    gc.disable()  # what a dead process was doing must not be cleaned up
    base = _FAST if os.access(_FAST, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="jobd-simulation-", dir=base))
    try:
        return Story(seed, directory, _app(), keep=keep).tell_it()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@functools.cache
def _app() -> FastAPI:
    """The routes; each asked once, since what it does at its first call it need not do in every child."""
    app = create_app(None)
    loop = asyncio.new_event_loop()
    for method, path in _WARM:
        with contextlib.suppress(Exception):
            loop.run_until_complete(asked(app, method, path, {}, b"{}", asyncio.Event()))
    loop.close()
    return app


def _seeds(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("..")
        yield from range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # without the farewell of what was left unfinished on purpose
