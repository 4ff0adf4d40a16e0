"""The tests that kill, freeze and cut, run for hours instead of seconds: `make chaos-long`.

    python scripts/chaos_long.py [--only NAME ...] [--share 0.1] [--seed 7] [--campaigns 15]

Campaigns run one after the other, each with a seed that is printed; `--seed` is that of the first, the others follow
it. What is printed at the end is the table of docs/reliability.md. Exit code 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JOBS, FAULTS = 1500, 1600


@dataclass(frozen=True)
class Layer:
    """Tests, and how often each of them is run in a whole long run."""

    name: str
    what: str
    tests: tuple[str, ...]
    times: int
    at_once: int = 2


LAYERS = (
    Layer("broker-points", "the broker dies at every named point", ("tests/chaos/test_broker_dies_at_every_point.py",), 30),
    Layer("worker-points", "the worker dies at every named point", ("tests/chaos/test_worker_dies_at_every_point.py",), 30),
    Layer("shim-points", "a shim dies at every named point", ("tests/worker/shims/test_shim_death.py",), 30),
    Layer("kill-tree", "every kind of descendant, every end", ("tests/worker/shims/test_kill_tree.py",), 100),
    Layer("messages", "lost messages and torn logs", ("tests/chaos/test_lost_messages.py", "tests/chaos/test_torn_logs.py"), 30),
    Layer("broker-away", "the broker away for three leases", ("tests/chaos/test_broker_away.py",), 10),
    Layer("power", "150 moments at which the power goes", ("tests/store/test_power_loss.py::test_no_acknowledged_commit_is_lost_by_a_power_loss",), 134),
    Layer("partitions", "network partitions", ("tests/e2e/test_partitions.py",), 20, at_once=1),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    what: str
    extent: str
    failed: int
    took_s: float
    seeds: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=["campaign", *(layer.name for layer in LAYERS)])
    parser.add_argument("--share", type=float, default=1.0, help="of the whole long run")
    parser.add_argument("--seed", type=int, help="of the first campaign")
    parser.add_argument("--campaigns", type=int, default=15, help="among which jobs and faults are divided")
    arguments = parser.parse_args()
    results = []
    if arguments.only is None or "campaign" in arguments.only:
        seed = random.SystemRandom().randrange(1_000_000) if arguments.seed is None else arguments.seed
        results.append(campaigns(arguments.campaigns, seed, arguments.share))
    for layer in LAYERS:
        if arguments.only is None or layer.name in arguments.only:
            results.append(repeated(layer, max(1, round(layer.times * arguments.share))))
    print("\n" + table(results))
    return 1 if any(result.failed for result in results) else 0


def campaigns(count: int, seed: int, share: float) -> Result:
    """`count` of them, with seeds that follow each other."""
    jobs, faults = (max(1, round(total * share / count)) for total in (JOBS, FAULTS))
    began, failed = time.monotonic(), []
    for number in range(count):
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            say(f"campaign {number + 1} of {count}, seed {seed + number}: {jobs} jobs, {faults} faults")
            code, _, _ = tests(
                ("tests/chaos/test_campaign.py",),
                Path(report.name),
                *("-s", f"--seed={seed + number}", f"--jobs={jobs}", f"--faults={faults}"),
            )
        if code:
            failed.append(seed + number)
    seeds = f"{seed} to {seed + count - 1}" if count > 1 else f"{seed}"
    said = f"{seeds}; failed: {', '.join(map(str, failed))}" if failed else seeds
    extent = f"{jobs * count:,} jobs, {faults * count:,} faults"
    return Result("real processes: everything at once", extent, len(failed), time.monotonic() - began, said)


def repeated(layer: Layer, times: int) -> Result:
    began = time.monotonic()
    say(f"{layer.what}: each test {times} times")
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        _, count, failed = tests(
            layer.tests, Path(report.name), f"--times={times}", "-n", f"{layer.at_once}", "--dist", "load"
        )
    return Result(layer.what, f"{count:,} runs", failed, time.monotonic() - began)


def tests(paths: tuple[str, ...], report: Path, *options: str) -> tuple[int, int, int]:
    """Exit code of pytest, how many tests ran, and how many of them failed."""
    command = [sys.executable, "-m", "pytest", "-q", "--durations=0", "--durations-min=999", "--tb=short"]
    done = subprocess.run([*command, f"--junitxml={report}", *options, *paths], cwd=ROOT, check=False)
    suites = list(ET.parse(report).getroot().iter("testsuite")) if report.stat().st_size else []
    count = sum(int(suite.get("tests", 0)) - int(suite.get("skipped", 0)) for suite in suites)
    failed = sum(int(suite.get("failures", 0)) + int(suite.get("errors", 0)) for suite in suites)
    return done.returncode, count, failed if suites else 1


def table(results: list[Result]) -> str:
    return "\n".join(
        [
            f"Commit `{commit()}`, {machine()}.",
            "",
            "| what | how much | failed | took | seeds |",
            "| --- | --- | --- | --- | --- |",
            *(f"| {r.what} | {r.extent} | {r.failed} | {r.took_s / 60:.0f} min | {r.seeds} |" for r in results),
        ]
    )


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "?"


def machine() -> str:
    return ", ".join(
        [f"{os.cpu_count()} cores", *_model(), f"Linux {platform.release()}", f"Python {platform.python_version()}"]
    )


def _model() -> Iterator[str]:
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    if found:
        yield found[1]


def say(text: str) -> None:
    print(f"\n== {time.strftime('%H:%M:%S')} {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
