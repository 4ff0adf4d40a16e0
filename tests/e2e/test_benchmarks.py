"""The benchmarks speak the protocol as it is: those that say each message themselves are run, small."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import processes_of

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SERVING = {"private.py", "raw_http.py", "figures.py"}
SMALL = {
    "submit.py": (
        ["--jobs", "32", "--array", "50", "--runs", "1"],
        ["1 client ", "16 clients ", "an array of 50 in one request "],
    ),
    "cycle.py": (
        ["--cycles", "32", "--workers", "4", "--depths", "100", "--ineligible", "100", "--runs", "1"],
        ["100 queued, one by one ", "100 queued, batches of 8 ", "1,000 queued behind 100, batches of 8 "],
    ),
    "queries.py": (["--jobs", "200", "--asks", "3", "--runs", "1"], ["job_get ", "job_list, name of most "]),
    "arrays.py": (
        ["--members", "60", "--workers", "2", "--asks", "3", "--runs", "1"],
        ["submit, count ", "aggregate, while it runs ", "cancel "],
    ),
    "many.py": (
        [
            *("--cycles", "32", "--submits", "16", "--idle", "5", "--streams", "5", "--finished", "100"),
            *("--hour", "64", "--situations", "few", "all of these", "--runs", "1"),
        ],
        ["few ", "all of these ", "an hour of work "],
    ),
    "tool_call.py": (["--calls", "3", "--runs", "1"], ["private socket ", "/mcp "]),
    "recovery.py": (
        ["--kills", "2", "--lease-s", "1", "--sweep-s", "0.2"],
        ["assignment expired ", "runs elsewhere ", "most "],
    ),
    "stdio.py": (["--starts", "1", "--runs", "1"], ["jobd-mcp to tools/list "]),
}


@pytest.mark.parametrize("program", SMALL)
def test_a_benchmark_measures_every_row_and_leaves_nothing(program: str, short_dir: Path) -> None:
    arguments, rows = SMALL[program]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / program), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(short_dir), "TMPDIR": str(short_dir)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {line.strip() for line in done.stdout.splitlines()}
    assert all(any(line.startswith(row) for line in shown) for row in rows), done.stdout
    assert not [path for path in short_dir.iterdir() if path.name.startswith("jobd-bench-")]
    assert not processes_of(short_dir)


def test_every_benchmark_is_named_in_the_readme_and_run_by_make_bench() -> None:
    programs = {file.name for file in BENCHMARKS.glob("*.py")} - SERVING
    readme = (BENCHMARKS / "README.md").read_text()
    [loop] = [line for line in (BENCHMARKS.parent / "Makefile").read_text().splitlines() if "for program in" in line]
    assert programs == {f"{word}.py" for word in loop.partition(" in ")[2].partition(";")[0].split()}
    assert {name for name in programs if f"`{name}`" not in readme} == set()
