"""`jobd_mcp.job`, as a Python program that runs as a job uses it: each test is such a program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import eventually_sync
from worker.outbox import Outbox


def program(source: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source],
        env={"PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ran(source: str, **environ: str) -> str:
    out, err = program(source, **environ).communicate(timeout=30)
    assert not err, err
    return out


@pytest.fixture
def outbox(tmp_path: Path) -> Outbox:
    made = Outbox(tmp_path / "outbox")
    made.make()
    return made


def told(outbox: Outbox) -> dict[str, str]:
    return {
        "JOBD_JOB_ID": "7",
        "JOBD_RESULT_FILE": str(outbox.result),
        "JOBD_PROGRESS_FILE": str(outbox.progress),
        "JOBD_ARTIFACTS_DIR": str(outbox.artifacts),
    }


def test_it_imports_nothing_but_the_standard_library() -> None:
    source = "import sys; import jobd_mcp.job; print([m for m in sys.modules if '.' not in m])"
    loaded = set(json.loads(ran(source).replace("'", '"')))
    assert not loaded & {"pydantic", "mcp", "anyio", "click", "httpx", "broker", "worker"}
    assert loaded - {"jobd_mcp", "__main__"} <= {*sys.stdlib_module_names, "sitecustomize", "usercustomize"} | {
        name for name in loaded if name.startswith("_")
    }


def test_outside_of_a_job_all_of_it_does_nothing(tmp_path: Path) -> None:
    source = (
        "import os; os.chdir({!r}); from jobd_mcp import job; job.progress(0.5, 'x'); job.result({{'a': 1}}); "
        "job.on_checkpoint(print); print(job.resume_dir(), job.artifacts_dir(), os.listdir())"
    )
    assert ran(source.format(str(tmp_path))) == "None . []\n"


def test_what_it_says_is_understood(outbox: Outbox) -> None:
    source = (
        "from jobd_mcp import job\n"
        "job.progress(1 / 3, 'one\\nthird')\n"
        "job.result({'loss': 0.5})\n"
        "job.result({'loss': 0.25})\n"
        "(job.artifacts_dir() / 'm').write_text('x')\n"
    )
    ran(source, **told(outbox))
    said = outbox.how_far()
    assert said is not None
    assert (round(said.fraction, 3), said.message) == (0.333, "one third")
    assert json.loads(outbox.result.read_text()) == {"loss": 0.25}
    assert os.listdir(outbox.artifacts) == ["m"]


@pytest.mark.parametrize("value", ["float('nan')", "object()"])
def test_what_json_can_not_say_is_an_error_there_and_then(outbox: Outbox, value: str) -> None:
    _, err = program(f"from jobd_mcp import job; job.result({value})", **told(outbox)).communicate(timeout=30)
    assert "Error" in err
    assert not outbox.result.exists()


def test_a_checkpoint_is_written_and_said_before_the_program_ends(outbox: Outbox, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    environ = {**told(outbox), "JOBD_CHECKPOINT_DIR": str(checkpoints)}
    source = (
        "import pathlib, time\n"
        "from jobd_mcp import job\n"
        "def save():\n"
        f"    pathlib.Path({str(checkpoints)!r}, 'step').write_text('7')\n"
        "job.on_checkpoint(save)\n"
        "print(job.resume_dir(), flush=True)\n"
        "job.progress(0.1)\n"
        "while True: time.sleep(60)\n"
    )
    running = program(source, **environ)
    eventually_sync(outbox.progress.exists)
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=30)
    assert (out, err, running.returncode) == ("None\njobd-checkpoint-complete\n", "", 128 + signal.SIGTERM)
    assert ran("from jobd_mcp import job; print(job.resume_dir())", **environ) == f"{checkpoints}\n"
