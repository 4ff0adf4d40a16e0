"""`jobd-mcp` as a program: what it writes, when it ends, and what it outlives."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from jobd_mcp import local
from jobd_mcp.local import alive
from support.waiting import eventually_sync

SCRIPT = str(Path(sys.executable).with_name("jobd-mcp"))
INITIALIZE = {
    "jsonrpc": "2.0", "id": 0, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}  # fmt: skip
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def call(id_: int, tool: str, **arguments: object) -> dict:
    return {"jsonrpc": "2.0", "id": id_, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def environ_of(state: Path, **more: str) -> dict[str, str]:
    return {"JOBD_STATE_DIR": str(state), "PATH": os.environ["PATH"], "HOME": str(state), **more}


class Session:
    """A client that speaks raw lines, so that every byte of stdout is seen."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ
        )
        self.raw = b""

    def say(self, *messages: dict) -> None:
        for message in messages:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, id_: int, within_s: float = 25) -> dict:
        """The answer with this id; whatever else is said before it must be a message too."""
        deadline = time.monotonic() + within_s
        while True:
            for line in self.raw.splitlines():
                message = json.loads(line)
                if message.get("id") == id_:
                    return message
            left = deadline - time.monotonic()
            readable, _, _ = select.select([self.process.stdout], [], [], max(0, left))
            assert readable, f"no answer {id_} within {within_s} s; stdout so far: {self.raw!r}"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"stdout ended: {self.process.stderr.read()!r}"
            self.raw += data
            while not self.raw.endswith(b"\n"):
                self.raw += os.read(self.process.stdout.fileno(), 65536)

    def greet(self) -> None:
        self.say(INITIALIZE)
        assert "result" in self.hear(0)
        self.say(INITIALIZED)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if not stream.closed:
                with suppress(OSError):
                    stream.close()
        self.process.wait(10)


@contextmanager
def session(environ: dict[str, str]) -> Iterator[Session]:
    one = Session(environ)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture
def background(state_dir: Path) -> Iterator[Path]:
    """A state directory whose broker, if one gets started in the background, is stopped after the test."""
    yield state_dir
    local.down(environ_of(state_dir), "keep")


def submit_and_wait(one: Session) -> None:
    """Leave a wait in flight."""
    one.say(call(1, "job_submit", command="true"))
    id_ = one.hear(1)["result"]["structuredContent"]["id"]
    one.say(call(2, "job_wait", job=id_, timeout_s=40))


def test_it_imports_nothing_heavy() -> None:
    probe = "import sys, jobd_mcp.pipe; print([m for m in ('asyncio','pydantic','mcp','httpx','anyio','ssl') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_help_and_unknown_arguments() -> None:
    version = subprocess.run([SCRIPT, "--version"], capture_output=True, text=True, check=False)
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.strip().count(".") == 2
    assert "JOBD_URL" in subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, check=True).stdout
    wrong = subprocess.run([SCRIPT, "--serve"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--serve" in wrong.stderr


@pytest.mark.guarantee("G20")
@pytest.mark.trial("B15")
def test_only_messages_reach_stdout_whatever_comes_in(broker) -> None:
    noisy = {**broker.environ, "JOBD_LOG_LEVEL": "debug", "PYTHONWARNINGS": "always", "PYTHONVERBOSE": ""}

    with session(noisy) as one:
        one.greet()
        one.process.stdin.write(b"\n  \nnonsense\n[]\n{}\n\xff\xfe\x00\n" + b"[" * 5000 + b"\n")
        one.say(call(1, "job_submit", command="echo\u2028\u0000"), call(2, "job_list"), call(3, "job_explode"))
        for id_ in (1, 2, 3):
            one.hear(id_)
        raw = one.raw

    assert raw.endswith(b"\n")
    for line in raw.split(b"\n")[:-1]:
        assert json.loads(line)["jsonrpc"] == "2.0"


def test_a_message_that_is_too_long_is_refused_by_its_id_and_the_session_goes_on(broker) -> None:
    with session(broker.environ) as one:
        one.greet()
        one.say(call(7, "job_submit", command="x" * (9 << 20)))
        assert one.hear(7)["error"]["data"]["code"] == "payload_too_large"
        one.say(call(8, "job_list"))
        assert one.hear(8)["result"]["isError"] is False


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.trial("B60")
def test_it_ends_when_stdin_closes(broker, waiting: bool) -> None:
    with session(broker.environ) as one:
        one.greet()
        if waiting:
            submit_and_wait(one)
        one.process.stdin.close()
        assert one.process.wait(5) == 0
        assert one.process.stderr.read() == b""


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.trial("B60")
def test_it_ends_when_stdout_closes(broker, waiting: bool) -> None:
    with session(broker.environ) as one:
        one.greet()
        if waiting:
            submit_and_wait(one)
        one.process.stdout.close()
        assert one.process.wait(5) == 0
        assert b"Traceback" not in one.process.stderr.read()


@pytest.mark.trial("B60")
def test_it_ends_when_its_parent_is_killed_even_if_stdin_stays_open(broker) -> None:
    read, write = os.pipe()
    parent = subprocess.Popen(
        ["sh", "-c", f"{SCRIPT} <&0 >/dev/null & echo $!; wait"],
        stdin=read, stdout=subprocess.PIPE, env=broker.environ, text=True,
    )  # fmt: skip
    try:
        pid = int(parent.stdout.readline())
        os.write(write, json.dumps(INITIALIZE).encode() + b"\n")
        parent.kill()
        parent.wait()
        eventually_sync(lambda: not alive(pid), within_s=5)
    finally:
        parent.stdout.close()
        os.close(read)
        os.close(write)


@pytest.mark.trial("B60")
def test_it_does_not_spin_while_it_waits(broker) -> None:
    with session(broker.environ) as one:
        one.greet()
        submit_and_wait(one)
        before, began = one.cpu_s(), time.monotonic()
        select.select([], [], [], 1.5)
        assert one.cpu_s() - before <= 0.1 * (time.monotonic() - began)


def test_answers_are_still_given_to_a_client_that_closed_stdin_at_once(broker) -> None:
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in (INITIALIZE, INITIALIZED, call(1, "job_list")))
    done = subprocess.run([SCRIPT], input=lines, capture_output=True, env=broker.environ, timeout=20, check=True)
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == [0, 1]


def test_a_named_socket_where_nobody_answers_is_one_line_on_stderr(state_dir: Path) -> None:
    environ = environ_of(state_dir, JOBD_URL=f"unix://{state_dir}/broker.sock")
    done = subprocess.run(
        [SCRIPT], stdin=subprocess.PIPE, capture_output=True, text=True, env=environ, timeout=20, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "mcp.sock" in done.stderr
    assert not state_dir.exists()  # what is named is not started


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"JOBD_LEASE_S": "soon"}, "JOBD_LEASE_S"),
        ({"JOBD_LEASES": "1"}, "JOBD_LEASE_S?"),
        ({"JOBD_URL": "ftp://x"}, "JOBD_URL"),
    ],
)
def test_a_broker_that_cannot_start_says_why_on_stderr(state_dir: Path, settings: dict[str, str], said: str) -> None:
    with session(environ_of(state_dir, **settings)) as one:
        assert one.process.wait(20) == 1
        assert one.process.stdout.read() == b""
        told = one.process.stderr.read().decode()
        assert said in told
        assert "Traceback" not in told


@pytest.mark.guarantee("G20")
@pytest.mark.trial("B56")
def test_it_survives_the_death_of_its_broker(background: Path) -> None:
    with session(environ_of(background)) as one:
        one.greet()
        one.say({"jsonrpc": "2.0", "id": 10, "method": "tools/list"})
        one.hear(10)
        submit_and_wait(one)
        one.say(call(3, "job_list"))
        one.hear(3)
        found = local.find(local.here(environ_of(background)))
        os.kill(found.pid, signal.SIGKILL)
        lost = one.hear(2, within_s=5)["result"]
        assert lost["isError"] is True
        assert "a repeat does no harm" in lost["content"][0]["text"]
        # The next call finds no broker, starts one, greets it again, and is answered.
        one.say(call(4, "job_list"))
        answer = one.hear(4)["result"]
        assert answer["structuredContent"]["total"] == 1
        again = local.find(local.here(environ_of(background)))
        assert again.pid != found.pid
        assert [json.loads(line).get("id") for line in one.raw.splitlines()].count(0) == 1
        assert b"jobd-replay" not in one.raw


async def test_a_broker_elsewhere_is_reached_by_its_url(broker) -> None:
    for mode in ("auto", "legacy"):
        environ = {"PATH": os.environ["PATH"], "JOBD_URL": broker.url, "JOBD_TOKEN": broker.token}
        async with Client(StdioServerParameters(command=SCRIPT, args=[], env=environ), mode=mode) as client:
            assert "job_submit" in {tool.name for tool in (await client.list_tools()).tools}
            id_ = (await client.call_tool("job_submit", {"command": "true"})).structured_content["id"]
            assert (await client.call_tool("job_get", {"job": id_})).structured_content["state"] == "queued"


@pytest.mark.parametrize(("token", "said"), [("wrong", "JOBD_TOKEN"), (None, "JOBD_TOKEN")])
def test_a_broker_elsewhere_that_refuses_us_is_one_line_on_stderr(broker, token: str | None, said: str) -> None:
    environ = {"PATH": os.environ["PATH"], "JOBD_URL": broker.url} | ({"JOBD_TOKEN": token} if token else {})
    with session(environ) as one:
        assert one.process.wait(20) == 1
        assert one.process.stdout.read() == b""
        told = one.process.stderr.read().decode()
        assert said in told
        assert told.count("\n") == 1


def test_a_client_that_never_reads_holds_up_nobody(broker) -> None:
    stuck = subprocess.Popen([SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=broker.environ)
    try:
        os.set_blocking(stuck.stdin.fileno(), False)
        line = b"".join(json.dumps({**call(1, "job_events"), "id": n}).encode() + b"\n" for n in range(20_000))
        eventually_sync(lambda: _stuffed(stuck.stdin.fileno(), line), within_s=20)

        with session(broker.environ) as one:
            one.greet()
            one.say(call(1, "job_list"))
            one.hear(1, within_s=10)
    finally:
        stuck.kill()
        stuck.stdin.close()
        stuck.stdout.close()
        stuck.wait()


def _stuffed(descriptor: int, data: bytes) -> bool:
    """Whether nothing more can be written: everything between us and the broker is full."""
    for _ in range(50):
        try:
            os.write(descriptor, data[:65536])
        except BlockingIOError:
            return True
    return False
