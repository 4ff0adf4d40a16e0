"""The program behind the page on scheduling runs, and starts every job once."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from support.scripts import ROOT


def test_the_program_of_the_page_gives_its_table_and_its_picture(tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "scheduling.py"), "--jobs", "80", "--plot", str(picture)],
        capture_output=True,
        text=True,
        check=True,
    )
    page = (ROOT / "docs" / "scheduling.md").read_text()
    names = [line.split("|")[1].strip() for line in done.stdout.splitlines()]
    assert len(names) == 8
    assert all(f"| {name} |" in page for name in names if name and name != "---")
    assert ET.parse(picture).getroot().tag.endswith("svg")
