"""Run seeds: `python -m simulation --seed 42` tells one, `--seeds 0..59` many, each in a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

from fastapi import FastAPI

from broker.app import create_app
from simulation.network import asked
from simulation.story import Story, Told

MOST_SHOWN = 6
MOST_CPU_S = 60
MOST_BYTES = 3 << 30
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
        with _memory() as base:
            told = _told(arguments.seed, base, keep=True)
        sys.stdout.write("\n".join([*told.lines, *told.violations, f"digest {told.digest}"]) + "\n")
        return 1 if told.violations else 0
    with _memory() as base:
        return _many(list(_seeds(arguments.seeds)), arguments, base)


def _many(seeds: list[int], said: argparse.Namespace, base: str) -> int:
    began, failed, jobs_run, faults = time.monotonic(), [], 0, 0
    _app()  # imported and built once, before the forks
    for count, told in enumerate(_all_told(seeds, said.jobs, base), 1):
        jobs_run, faults = jobs_run + told.jobs, faults + told.faults
        if said.digests:
            print(f"digest {told.seed} {told.digest}", flush=True)
        if told.violations:
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


def _all_told(seeds: list[int], at_once: int, base: str) -> Iterator[Told]:
    """Each in a child of its own, as they end; none is left when nobody listens any more."""
    context = multiprocessing.get_context("fork")
    waiting, under_way = list(reversed(seeds)), {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < at_once:
                seed = waiting.pop()
                mine, its = context.Pipe(duplex=False)
                child = context.Process(target=_tell, args=(seed, base, its))
                child.start()
                its.close()
                under_way[mine] = seed, child
            for mine in wait(list(under_way)):
                seed, child = under_way.pop(mine)
                try:
                    told = mine.recv()
                except EOFError:
                    child.join()
                    told = Told(seed, violations=[f"its process ended with {child.exitcode}: too long, or too large?"])
                child.join()
                yield told
    finally:
        for _, child in under_way.values():
            child.kill()
            child.join()


def _tell(seed: int, base: str, its: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        told = _told(seed, base, keep=False)
    except BaseException:
        told = Told(seed, violations=[traceback.format_exc()])
    its.send(told)
    its.close()
    os._exit(0)  # without the farewell of what was left unfinished on purpose


def _told(seed: int, base: str, *, keep: bool) -> Told:
    gc.disable()  # what a dead process was doing must not be cleaned up
    directory = Path(base) / str(seed)
    directory.mkdir()
    try:
        return Story(seed, directory, _app(), keep=keep).tell_it()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _memory() -> Iterator[str]:
    """A directory in memory, where there is one; a child that was killed leaves nothing behind."""
    with tempfile.TemporaryDirectory(
        prefix="jobd-simulation-", dir=_FAST if os.access(_FAST, os.W_OK) else None
    ) as base:
        yield base


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
