"""`job`, as a person or a script uses it, against a real broker and worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.installation import JOB, Installation
from support.waiting import eventually_sync


def test_up_twice_exits_0_and_starts_one_broker(up: Installation) -> None:
    first, second = up.good("up", "--json").json(), up.good("up", "--json").json()
    assert first["pid"] == second["pid"]
    assert second["started"] is False


def test_submit_says_the_id_and_wait_exits_with_the_code_of_the_job(up: Installation) -> None:
    assert up.good("submit", "true").text.startswith("job ")
    job = up.submit("exit 3")
    waited = up.job("wait", str(job))
    assert waited.code == 3
    assert f"job {job} failed: exit code 3" in waited.text


def test_submit_with_wait_exits_with_the_code_of_the_job(up: Installation) -> None:
    assert up.job("submit", "--wait", "exit 5").code == 5
    assert up.job("submit", "--wait", "--", "true").code == 0


def test_of_several_jobs_the_first_code_that_is_not_zero_counts(up: Installation) -> None:
    jobs = [str(up.submit(f"exit {code}")) for code in (0, 7, 9)]
    assert up.job("wait", *jobs).code == 7
    assert up.job("wait", jobs[2], jobs[1]).code == 9


def test_of_an_array_too_the_first_bad_member_counts_and_a_block_of_ids_can_be_named(up: Installation) -> None:
    answer = up.good("submit", "--json", "--count", "4", "exit $((JOBD_ARRAY_INDEX == 2 ? 6 : 0))").json()
    assert up.job("wait", "--array", str(answer["array"])).code == 6
    assert up.job("wait", str(answer["ids"])).code == 6


def test_a_wait_that_gives_up_exits_124_and_the_job_goes_on(up: Installation) -> None:
    job = up.submit("--", "sleep", "60")
    assert up.job("wait", "--timeout-s", "0.2", str(job)).code == 124
    assert up.state_of(job) in ("queued", "assigned", "running")
    cancelled = up.good("cancel", str(job))
    assert f"job {job}" in cancelled.text
    assert up.job("wait", str(job)).code == 130


def test_run_behaves_like_the_command_it_runs(up: Installation) -> None:
    done = up.job("run", "--", "sh", "-c", r"printf 'a\000\377b\n'; printf 'to stderr\n' >&2; exit 4")
    assert (done.out, done.err, done.code) == (b"a\x00\xffb\n", "to stderr\n", 4)


def test_run_exits_as_a_shell_would_for_signals_and_missing_programs(up: Installation) -> None:
    assert up.job("run", "kill -KILL $$").code == 128 + signal.SIGKILL
    missing = up.job("run", "--", "no-such-program-anywhere")
    assert missing.code == 127
    assert "no-such-program-anywhere" in missing.err


def test_run_shows_output_while_the_job_is_running(up: Installation, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    following = up.start("run", f"echo first; until [ -e {gate} ]; do sleep 0.05; done; echo second")
    assert following.stdout is not None
    assert following.stdout.readline() == b"first\n"
    gate.touch()
    assert following.communicate(timeout=30)[0] == b"second\n"
    assert following.returncode == 0


def test_ctrl_c_in_run_cancels_the_job_and_exits_130(up: Installation) -> None:
    following = up.start("run", "echo started; exec sleep 60")
    assert following.stdout is not None
    assert following.stdout.readline() == b"started\n"
    following.send_signal(signal.SIGINT)
    said = following.communicate(timeout=30)[1].decode()
    assert following.returncode == 130, said
    assert "cancelling job" in said
    assert up.ids("jobs", ["list", "--state", "running"]) == []


def test_a_second_ctrl_c_leaves_a_job_that_takes_its_time(up: Installation) -> None:
    following = up.start("run", "--checkpoint-grace-s", "3", "trap '' TERM; echo started; while :; do sleep 0.1; done")
    assert following.stdout is not None
    assert following.stderr is not None
    assert following.stdout.readline() == b"started\n"
    following.send_signal(signal.SIGINT)
    said = following.stderr.readline().decode()
    following.send_signal(signal.SIGINT)
    rest = following.communicate(timeout=2.5)[1].decode()
    assert following.returncode == 130, said + rest
    job = said.split("job ")[1].split(";")[0].split()[-1]
    assert up.job("wait", job).code == 130


def test_the_job_runs_in_the_directory_of_the_caller_with_what_env_adds(up: Installation, tmp_path: Path) -> None:
    done = up.good("run", "--env", "GREETING=hello there", 'pwd; echo "$GREETING"', cwd=tmp_path)
    assert done.text == f"{tmp_path}\nhello there\n"


def test_an_active_venv_is_passed_on_unless_no_env_is_said(up: Installation, tmp_path: Path) -> None:
    tool = tmp_path / "venv" / "bin" / "only-here"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\necho from the venv\n")
    tool.chmod(0o755)
    active = {"VIRTUAL_ENV": str(tmp_path / "venv")}
    assert up.good("run", "--", "only-here", extra=active).text == "from the venv\n"
    assert up.job("run", "--no-env", "--", "only-here", extra=active).code == 127


def test_logs_print_everything_and_raw_prints_the_exact_bytes(up: Installation) -> None:
    job = up.submit(r"printf '\033]0;title\007\033[31mred\033[0m \000\377\n'; seq 3000")
    assert up.job("wait", str(job)).code == 0
    numbers = "".join(f"{number}\n" for number in range(1, 3001))
    assert up.good("logs", str(job), "--raw").out == b"\x1b]0;title\x07\x1b[31mred\x1b[0m \x00\xff\n" + numbers.encode()
    assert up.good("logs", str(job)).text == f"red \ufffd\n{numbers}"
    assert "2999" not in up.good("logs", str(job), "--head", "5").text


def test_logs_of_a_job_without_output_say_so_and_exit_0(up: Installation) -> None:
    job = up.submit("--needs", "no-such-tag", "true")
    done = up.good("logs", str(job))
    assert done.out == b""
    assert "no output yet" in done.err
    up.good("cancel", str(job))


def test_a_reader_that_goes_away_gets_no_traceback(up: Installation) -> None:
    job = up.submit("seq 200000")
    up.job("wait", str(job))
    line = f"'{JOB}' logs {job} | head -n 1"
    done = subprocess.run(["bash", "-c", line], env=up.environ, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_json_is_the_answer_of_the_operation_unchanged(up: Installation) -> None:
    job = up.submit("true")
    up.job("wait", str(job))
    socket = up.state / "broker.sock"
    line = ["curl", "-sS", "--unix-socket", str(socket), f"http://localhost/v1/jobs/{job}"]
    program = (
        "import http.client,socket,sys\n"
        "c=http.client.HTTPConnection('localhost'); c.sock=socket.socket(socket.AF_UNIX); c.sock.connect(sys.argv[1])\n"
        "c.request('GET', sys.argv[2]); sys.stdout.buffer.write(c.getresponse().read())\n"
    )
    direct = subprocess.run(
        [sys.executable, "-c", program, str(socket), f"/v1/jobs/{job}"], capture_output=True, check=True
    )
    assert up.good("status", str(job), "--json").out.rstrip(b"\n") == direct.stdout, line


def test_tables_for_people_name_jobs_workers_and_events(up: Installation) -> None:
    job = up.submit("--name", "training-run", "true")
    up.job("wait", str(job))
    assert "training-run" in up.good("list").text
    assert "online" in up.good("workers").text
    assert "job_completed" in up.good("events", "--job", str(job)).text
    shown = up.good("status", str(job), "--detail", "full").text
    assert f"{job}.1" in shown


def test_a_worker_is_drained_tagged_and_resumed_by_one_word_each(up: Installation) -> None:
    [worker] = up.good("workers", "--json").json()["workers"]
    name = str(worker["name"])
    try:
        assert up.good("workers", "drain", name).text.splitlines()[0] == f"worker {name} is drained"
        assert "drained" in up.good("workers").text
        waits = up.submit("true")
        assert "no new work for" in up.good("status", str(waits)).text
        assert up.good("workers", "cordon", name, "--json").json()["state"] == "cordoned"
        tagged = up.good("workers", "update", name, "--tags", "fast", "--resume").text
        assert f"worker {name} is online" in tagged and " fast" in tagged
        assert up.job("wait", str(waits)).code == 0
        refused = up.job("workers", "remove", name)
        assert (refused.code, "is there" in refused.err) == (125, True)
        assert "exclude each other" in up.job("workers", "update", name, "--drain", "--resume").err
        assert "there is no worker nobody" in up.job("workers", "drain", "nobody").err
    finally:
        up.good("workers", "update", name, "--resume")


def test_tokens_are_made_listed_and_revoked(up: Installation) -> None:
    made = up.good("token", "create", "--scope", "read", "--json").json()
    name, secret = str(made["name"]), str(made["token"])
    assert name.startswith("read-")
    listed = up.good("token", "list").text
    assert name in listed
    assert secret not in listed
    up.good("token", "revoke", name)
    again = up.job("token", "revoke", "no-such-token")
    assert again.code == 125
    assert "(unknown_token)" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["status", "999999"], "(unknown_job)"),
        (["logs", "999999"], "(unknown_job)"),
        (["cancel", "999999"], "(unknown_job)"),
        (["submit"], "command"),
        (["submit", "two", "words"], "--"),
        (["submit", "--cpus", "-1", "true"], "(invalid_spec)"),
        (["submit", "--command", "true", "--", "true"], "(invalid_spec)"),
        (["lst"], "did you mean list?"),
        (["list", "--stat", "queued"], "--state"),
        (["list", "--state", "sleeping"], "queued"),
        (["status", "one"], "not a valid integer"),
    ],
)
@pytest.mark.trial("B75")
def test_an_error_is_one_line_and_a_hint_never_a_traceback(up: Installation, words: list[str], said: str) -> None:
    done = up.job(*words)
    assert done.code == 125
    assert said in done.err
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    assert lines[0].startswith("job: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2


def test_without_a_broker_only_submit_and_run_start_one(installation: Installation) -> None:
    refused = installation.job("list")
    assert (refused.code, refused.err) == (125, "job: no broker is running; start it with job up\n")
    assert installation.good("run", "echo here").text == "here\n"
    assert installation.good("list").code == 0


def test_following_goes_on_over_a_restart_of_the_broker_without_loss_or_repeat(installation: Installation) -> None:
    gate = installation.directory / "gate"
    job = installation.submit(f"seq 1 500; until [ -e {gate} ]; do sleep 0.05; done; seq 501 1000")
    following = installation.start("logs", "-f", str(job))
    assert following.stdout is not None
    assert following.stdout.readline() == b"1\n"
    installation.good("down", "--keep-jobs")
    gate.touch()
    installation.good("up")
    out = following.communicate(timeout=60)[0]
    assert following.returncode == 0
    assert out.decode().split() == [str(number) for number in range(2, 1001)]


def test_down_refuses_while_jobs_run_keeps_them_or_stops_them(installation: Installation) -> None:
    job = installation.submit("--", "sleep", "60")
    eventually_sync(lambda: installation.state_of(job) == "running")
    refused = installation.job("down")
    assert refused.code == 125
    assert str(job) in refused.err
    installation.good("down", "--keep-jobs")
    assert installation.job("list").code == 125
    installation.good("up")
    eventually_sync(lambda: installation.state_of(job) == "running")
    installation.good("down", "--stop-jobs")
    installation.good("up")
    assert installation.state_of(job) == "cancelled"


def test_a_worker_joins_over_tcp_with_a_token_of_its_scope(installation: Installation) -> None:
    port = _free_port()
    listening = {"JOBD_LISTEN": f"127.0.0.1:{port}"}
    broker = installation.start("broker", "--listen", f"127.0.0.1:{port}")
    worker: subprocess.Popen[bytes] | None = None
    try:
        eventually_sync(lambda: installation.job("workers", extra=listening).code == 0)
        token = installation.directory / "token"
        token.write_text(str(installation.good("token", "create", "--scope", "worker", "--json").json()["token"]))
        elsewhere = {"JOBD_STATE_DIR": str(installation.directory / "elsewhere")}
        url = f"http://127.0.0.1:{port}"
        worker = installation.start(
            "worker", "--join", url, "--token-file", str(token), "--worker-name", "second", extra=elsewhere
        )
        done = installation.good("run", "--worker", "second", "--cwd", "/", "echo $JOBD_JOB_ID; pwd")
        assert done.text.endswith("\n/\n")
        seen = installation.good("workers", "--json").json()["workers"]
        assert [entry["name"] for entry in seen] == ["second"]  # type: ignore[attr-defined]
        command = Path(f"/proc/{worker.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        assert "jobd worker" in command
        assert token.read_text() not in command
    finally:
        for process in (worker, broker):
            if process is not None:
                process.terminate()
                process.communicate(timeout=20)
    assert broker.returncode == 0


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_and_complete_commands_and_options(
    installation: Installation, shell: str
) -> None:
    assert "_JOB_COMPLETE" in installation.good("completion", shell).text
    words = {"_JOB_COMPLETE": "bash_complete", "COMP_WORDS": "job submit --chec", "COMP_CWORD": "2"}
    assert "--checkpoint-grace-s" in installation.job(extra=words).text


def test_commands_load_nothing_heavy() -> None:
    program = (
        "import sys, jobd_mcp.cli.program, jobd_mcp.cli.jobs, jobd_mcp.cli.logs, jobd_mcp.cli.events\n"
        "print([name for name in ('mcp', 'fastapi', 'pydantic', 'httpx', 'asyncio', 'anyio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.serial
def test_a_list_takes_less_than_two_fifths_of_a_second(up: Installation) -> None:
    def once() -> float:
        began = time.monotonic()
        up.good("list")
        return time.monotonic() - began

    assert min(once() for _ in range(5)) < 0.4


def test_every_command_explains_itself(installation: Installation) -> None:
    listed = installation.good("--help").text
    for name in ("submit", "run", "list", "status", "logs", "wait", "cancel", "workers", "events", "token"):
        assert f"\n  {name} " in listed
        assert installation.good(name, "--help").text.startswith(f"Usage: job {name}")
    assert json.dumps(listed).isascii()
    assert os.environ.get("JOBD_STATE_DIR") is None


def test_a_time_limit_exits_124_and_says_which_it_was(up: Installation) -> None:
    waited = up.job("submit", "--wait", "--max-wall-s", "1", "--", "sleep", "60")
    assert waited.code == 124
    assert "max_wall_s=1" in waited.text
    ran = up.job("run", "--idle-timeout-s", "1", "trap 'exit 0' TERM; while :; do sleep 0.05; done")
    assert ran.code == 124
    assert "idle_timeout_s=1" in ran.err


def test_a_job_that_nobody_takes_in_time_exits_124(up: Installation) -> None:
    waited = up.job("submit", "--wait", "--needs", "no-such-tag", "--scheduling-timeout-s", "1", "true")
    assert waited.code == 124
    assert "scheduling_timeout" in waited.text


def test_a_limit_is_turned_off_by_a_word_and_the_status_says_whose_word_each_value_is(up: Installation) -> None:
    job = str(up.submit("--max-wall-s", "none", "--no-preemptible", "true"))
    lines = up.good("status", job, "--detail", "full").text.splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines if line.startswith("  ")}
    assert shown["max_wall_s"] == ["none"]
    assert shown["preemptible"] == ["False"]
    assert shown["idle_timeout_s"] == ["86400", "(floor)"]
    assert shown["cpus"] == ["1", "(default)"]
    refused = up.job("submit", "--max-wall-s", "soon", "true")
    assert refused.code != 0
    assert 'or "none": no limit' in refused.err


def test_a_preempted_job_exits_130_and_one_that_may_not_be_is_refused(up: Installation) -> None:
    job, firm = up.submit("--preemptible", "--", "sleep", "60"), up.submit("--", "sleep", "60")
    for each in (job, firm):
        eventually_sync(lambda each=each: up.state_of(each) == "running")
    refused = up.job("preempt", str(firm))
    assert refused.code != 0
    assert "preemptible" in refused.err
    assert "stopping: TERM" in up.good("preempt", str(job), "--reason", "room").text
    waited = up.job("wait", str(job))
    assert waited.code == 130
    assert f"job {job} preempted: room" in waited.text
    up.good("cancel", str(firm))
