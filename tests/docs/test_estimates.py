"""The figures of the estimates are those that the program gives: its history is fixed, so they are the same anywhere."""

from __future__ import annotations

import subprocess
import sys

from support.scripts import ROOT


def test_the_page_has_the_figures_of_the_program() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "estimates.py")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in (ROOT / "docs" / "performance.md").read_text()
