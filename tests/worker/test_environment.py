"""What a job's process is given."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from broker.wire.jobs import JobSpec
from worker import environment as subject
from worker.environment import (
    Identity,
    Places,
    User,
    conda_directory,
    environment,
    expanded,
    is_allowed,
    login_environment,
    program,
)
from worker.outbox import Outbox

LOGIN = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/home/ada",
    "USER": "ada",
    "LOGNAME": "ada",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
}
PLACES = Places(Path("/s/scratch"), Path("/s/checkpoints/7"), Path("/s/scratch"), Outbox(Path("/s/outbox/7.1")))
WHO = Identity(job=7, attempt=2, restarts=1)


def env_of(spec: JobSpec, who: Identity = WHO, tools: Path | None = None) -> dict[str, str]:
    return environment(LOGIN, spec, who, PLACES, tools)


def login_with_profile(home: Path, profile: str, limit_s: float = 10) -> dict[str, str]:
    """The login environment of a user whose shell is sh and whose profile says this."""
    (home / ".profile").write_text(profile)
    return login_environment(User("ada", str(home), "/bin/sh"), limit_s)


def test_the_login_environment_is_the_same_under_an_empty_environment() -> None:
    code = "from worker.environment import *; import json; print(json.dumps(login_environment(User.of_this_process(), 20)))"
    source = str(Path(subject.__file__).parent.parent)
    full = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ) | {"PYTHONPATH": source}, capture_output=True, check=True
    )
    empty = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, capture_output=True, check=True)
    assert full.stdout == empty.stdout
    assert b'"HOME"' in empty.stdout
    assert b'"PATH"' in empty.stdout


def test_nothing_of_the_environment_that_the_worker_was_started_with_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JOBD_TOKEN", "jobd_secret")
    monkeypatch.setenv("CUDA_HOME", "/from/the/worker")
    found = login_environment(User.of_this_process(), 20)
    assert "jobd_secret" not in str(found)
    assert found.get("CUDA_HOME") != "/from/the/worker"


def test_what_a_profile_exports_reaches_jobs_by_the_allow_list(tmp_path: Path) -> None:
    found = login_with_profile(
        tmp_path,
        'echo "Welcome, PATH=x"\nexport PATH="/opt/own/bin:$PATH" LC_TIME=de_DE.UTF-8 API_TOKEN=secret HF_HOME="/a b\nc"\n',
    )
    assert found["PATH"].startswith("/opt/own/bin:")
    assert found["LC_TIME"] == "de_DE.UTF-8"
    assert found["HF_HOME"] == "/a b\nc"
    assert "API_TOKEN" not in found
    assert found["USER"] == "ada"


def test_a_profile_that_hangs_costs_its_limit_and_leaves_a_working_environment(tmp_path: Path) -> None:
    before = time.monotonic()
    found = login_with_profile(tmp_path, "sleep 60\n", limit_s=0.3)
    assert time.monotonic() - before < 10
    assert found["PATH"]
    assert found["HOME"] == str(tmp_path)


def test_a_profile_that_starts_a_daemon_is_not_waited_for(tmp_path: Path) -> None:
    before = time.monotonic()
    found = login_with_profile(tmp_path, "sleep 5 &\nexport TZ=Europe/Paris\n", limit_s=4)
    assert time.monotonic() - before < 4
    assert found["TZ"] == "Europe/Paris"


def test_a_profile_that_exits_leaves_a_working_environment(tmp_path: Path) -> None:
    assert login_with_profile(tmp_path, "exit 3\n")["PATH"]


def test_a_job_knows_itself_and_sees_no_gpu() -> None:
    env = env_of(JobSpec(command="true", checkpoint_grace_s=30))
    assert env["JOBD_JOB_ID"] == "7"
    assert env["JOBD_ATTEMPT"] == "2"
    assert env["JOBD_RESTARTS"] == "1"
    assert env["JOBD_JOB_DIR"] == "/s/scratch"
    assert env["JOBD_CHECKPOINT_DIR"] == "/s/checkpoints/7"
    assert env["JOBD_CHECKPOINT_GRACE_S"] == "30"
    assert env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert "JOBD_ARRAY_INDEX" not in env


def test_a_job_sees_the_devices_that_it_was_given_and_no_others() -> None:
    who = Identity(7, 1, 0, gpus=("GPU-a", "GPU-b"))
    spec = JobSpec(command="true", env={"CUDA_VISIBLE_DEVICES": "5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"})
    env = env_of(spec, who)
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert env["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
    assert env_of(spec)["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("given", "rocr", "hip"), [(("GPU-a", "GPU-b"), "GPU-a,GPU-b", "0,1"), (("GPU-b",), "GPU-b", "0"), ((), "", "-1")]
)
def test_where_amds_runtime_is_a_job_sees_no_others_by_its_names_either(
    tmp_path: Path, given: tuple[str, ...], rocr: str, hip: str
) -> None:
    """HIP counts among what the runtime below has left, and takes an empty list for all."""
    (tmp_path / "kfd").touch()
    places = replace(PLACES, kfd=tmp_path / "kfd")
    env = environment(LOGIN, JobSpec(command="true"), Identity(7, 1, 0, gpus=given), places, None)
    assert (env["ROCR_VISIBLE_DEVICES"], env["HIP_VISIBLE_DEVICES"]) == (rocr, hip)

    env = environment(LOGIN, JobSpec(command="true"), WHO, replace(PLACES, kfd=tmp_path / "none"), None)
    assert not {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"} & set(env)


def test_a_member_of_an_array_knows_its_index() -> None:
    assert env_of(JobSpec(command="true"), Identity(7, 1, 0, array_index=0))["JOBD_ARRAY_INDEX"] == "0"


def test_what_the_job_asks_for_wins_except_over_its_own_identity() -> None:
    env = env_of(JobSpec(command="true", env={"PATH": "/mine", "PYTHONUNBUFFERED": "0", "JOBD_JOB_ID": "1"}))
    assert env["PATH"] == "/mine"
    assert env["PYTHONUNBUFFERED"] == "0"
    assert env["JOBD_JOB_ID"] == "7"


def test_a_venv_puts_its_bin_first() -> None:
    env = env_of(JobSpec(command="true", venv="/v"), tools=Path("/v"))
    assert env["PATH"] == "/v/bin:/usr/bin:/bin"
    assert env["VIRTUAL_ENV"] == "/v"
    assert "CONDA_PREFIX" not in env


def test_a_conda_environment_puts_its_bin_first() -> None:
    env = env_of(JobSpec(command="true", conda="ml"), tools=Path("/c/envs/ml"))
    assert env["PATH"].startswith("/c/envs/ml/bin:")
    assert env["CONDA_PREFIX"] == "/c/envs/ml"
    assert "VIRTUAL_ENV" not in env


def test_a_conda_environment_is_found_by_name_by_path_and_in_the_register(tmp_path: Path) -> None:
    login = LOGIN | {"HOME": str(tmp_path)}
    in_root, registered = tmp_path / "miniforge3" / "envs" / "ml", tmp_path / "elsewhere" / "vision"
    for directory in (in_root, registered):
        (directory / "bin").mkdir(parents=True)
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{registered}\n")
    assert conda_directory("ml", login) == in_root
    assert conda_directory("vision", login) == registered
    assert conda_directory("~/elsewhere/vision", login) == registered
    assert conda_directory("absent", login) is None


def test_a_command_is_run_by_a_shell_without_rc_files_and_argv_by_none() -> None:
    shell = program(JobSpec(command="echo $HOME | cat"))
    assert shell[-2:] == ["-c", "echo $HOME | cat"]
    assert shell[1:3] == ["--noprofile", "--norc"] or shell[0].endswith("/sh")
    assert program(JobSpec(argv=["python", "-c", "1"])) == ["python", "-c", "1"]


def test_a_tilde_is_the_home_of_the_workers_user() -> None:
    assert expanded("~", "/home/ada") == Path("/home/ada")
    assert expanded("~/data", "/home/ada") == Path("/home/ada/data")
    assert expanded("data", "/home/ada") == Path("/home/ada/data")
    assert expanded("/data", "/home/ada") == Path("/data")


def test_no_variable_of_a_session_or_of_ours_is_on_the_allow_list() -> None:
    for name in (
        "JOBD_TOKEN",
        "JOBD_URL",
        "SSH_AUTH_SOCK",
        "DISPLAY",
        "TERM",
        "BASH_ENV",
        "ENV",
        "LD_PRELOAD",
        "PYTHONPATH",
    ):
        assert not is_allowed(name)
