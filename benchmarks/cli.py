"""Milliseconds from the start of a `job` command to its end, with a broker that runs already and 1,000 jobs.

    python benchmarks/cli.py [--starts 20] [--jobs 1000] [--runs 3]

This is what a person waits for. For comparison: a bare interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures import Table, percentile
from private import Private

from broker.wire.jobs import JobSpec

COMMANDS = {
    "job list": ("list",),
    "job list --limit 200": ("list", "--limit", "200"),
    "job status": ("status", "1"),
    "job workers": ("workers",),
    "job top --once": ("top", "--once"),
    "job --help": ("--help",),
}


def took_ms(words: Sequence[str], environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, env=dict(environ), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


async def measure(starts: int, jobs: int, table: Table) -> None:
    job = str(Path(sys.executable).with_name("job"))
    programs = {"bare interpreter": (sys.executable, "-c", "pass")}
    programs |= {name: (job, *words) for name, words in COMMANDS.items()}
    async with Private() as own:
        async with own.client() as client:
            await client.job_submit(JobSpec(argv=["true"], count=jobs, name="one of many"))
        for name, words in programs.items():
            took_ms(words, own.environ)  # once for the disk's cache
            took = [took_ms(words, own.environ) for _ in range(starts)]
            table.add(name, p50_ms=percentile(took, 0.5), p99_ms=percentile(took, 0.99))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("cli: from the start of the command to its end")
    for _ in range(arguments.runs):
        await measure(arguments.starts, arguments.jobs, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
