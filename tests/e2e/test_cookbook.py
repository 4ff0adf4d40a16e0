"""The recipes of docs/cookbook.md do what they say, as they stand."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.installation import JOB, Installation
from support.scripts import ROOT

RECIPE = re.compile(r"^## (.+?)\n(?:(?!## |```).*\n)*```sh\n([\s\S]*?)^```$", re.MULTILINE)
RECIPES = RECIPE.findall((ROOT / "docs" / "cookbook.md").read_text())
TOLD = {
    "Sweep and collect": "loss 0.01 2",
    "One after the other": "completed",
    "Many, but few at once": "completed",
    "A batch from a file": "completed",
    "A Slurm script as it is": "completed",
    "The right size": "would be accepted",
    "Again, by itself and by hand": "mended",
    "A result, progress and files": "{'loss': 0.12}",
    "The code as it was": "first",
    "What runs already": "completed",
    "Once, however often it is asked for": "1 job",
    "Every night": "Europe/Berlin",
    "What is asked for again and again": "profile quick",
}


def test_every_recipe_is_run_here() -> None:
    page = (ROOT / "docs" / "cookbook.md").read_text()
    assert [title for title, _ in RECIPES] == list(TOLD) == re.findall(r"^## (.+)$", page, re.MULTILINE)


@pytest.mark.parametrize(("title", "text"), RECIPES, ids=[title for title, _ in RECIPES])
def test_a_recipe_does_what_it_says(up: Installation, tmp_path: Path, title: str, text: str) -> None:
    environ = up.environ
    environ["PATH"] = f"{JOB.parent}:{environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", text],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert TOLD[title] in done.stdout
