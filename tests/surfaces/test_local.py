"""Finding, starting and stopping this user's broker, with real processes."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from jobd_mcp import local
from support.processes import processes_of
from support.waiting import eventually_sync


def environ_of(state: Path, **more: str) -> dict[str, str]:
    return {"JOBD_STATE_DIR": str(state), "PATH": os.environ["PATH"], "HOME": str(state), **more}


@pytest.fixture
def state(state_dir: Path) -> Iterator[Path]:
    yield state_dir
    local.down(environ_of(state_dir), "keep")


def brokers(state: Path) -> list[int]:
    return [process.pid for process in processes_of(state) if "jobd_mcp.daemon jobd broker" in process.command]


@pytest.mark.guarantee("G20")
async def test_five_clients_that_start_at_once_end_up_with_one_broker(state: Path) -> None:
    script = Path(os.sys.executable).with_name("jobd-mcp")

    async def one() -> int:
        parameters = StdioServerParameters(command=str(script), args=[], env=environ_of(state))
        async with Client(parameters) as client:
            return (await client.call_tool("job_submit", {"command": "true"})).structured_content["id"]

    ids = await asyncio.gather(*(one() for _ in range(5)))
    assert sorted(ids) == [1, 2, 3, 4, 5]
    found = local.find(local.here(environ_of(state)))
    assert found is not None
    eventually_sync(lambda: brokers(state) == [found.pid])


def test_what_runs_in_the_background_is_on_its_own(state: Path) -> None:
    environ = environ_of(state, JOBD_TOKEN="secret-token", MY_SECRET="hidden", LANG="C.UTF-8", JOBD_JOB_ID="7")
    found = local.up(environ)
    assert found.restarts_worker
    process = Path(f"/proc/{found.pid}")
    seen = dict(part.split(b"=", 1) for part in (process / "environ").read_bytes().split(b"\0") if part)
    assert seen[b"LANG"] == b"C.UTF-8"
    assert not {b"JOBD_TOKEN", b"MY_SECRET", b"JOBD_JOB_ID"} & seen.keys()
    assert os.getsid(found.pid) not in (os.getsid(0), os.getpid())
    assert os.readlink(process / "cwd") == "/"
    parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    assert parent != os.getpid()  # a client that kills its children does not reach it
    assert local.here(environ).log.stat().st_mode & 0o777 == 0o600
    for path in (state / "broker.sock", state / "mcp.sock"):
        assert path.stat().st_mode & 0o777 == 0o600
    assert local.up(environ) == found
    eventually_sync(lambda: any("jobd worker" in process.command for process in processes_of(state)))
    assert local.down(environ)
    assert not local.alive(found.pid)
    assert not local.down(environ)


def test_a_broker_that_was_stopped_keeps_its_jobs_and_its_identity(state: Path) -> None:
    first = local.up(environ_of(state))
    assert local.down(environ_of(state))
    second = local.up(environ_of(state))
    assert second.installation == first.installation
    assert second.pid != first.pid


def answering(path: Path, body: bytes) -> socket.socket:
    """Somebody else on that path: answers every request with `body`."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    threading.Thread(target=serve, daemon=True).start()
    return listening


@pytest.mark.parametrize("body", [b'{"installation":"other","pid":1}', b"[]", b'{"installation":null}'])
@pytest.mark.guarantee("G19")
def test_a_stranger_on_the_same_path_is_not_talked_to(state_dir: Path, body: bytes) -> None:
    state_dir.mkdir(mode=0o700)
    (state_dir / "installation").write_text("ours\n")
    stranger = answering(state_dir / "broker.sock", body)
    try:
        with pytest.raises(local.Stranger, match="is not the broker of"):
            local.ensure(local.here(environ_of(state_dir)), environ_of(state_dir))
        with pytest.raises(local.Stranger):
            local.down(environ_of(state_dir))
    finally:
        stranger.shutdown(socket.SHUT_RDWR)
        stranger.close()


def test_a_directory_that_others_can_write_to_is_not_trusted(state_dir: Path) -> None:
    state_dir.mkdir(mode=0o700)
    state_dir.chmod(0o777)
    with pytest.raises(local.Stranger, match="other users"):
        local.find(local.here(environ_of(state_dir)))


def test_a_long_log_is_put_aside_at_the_next_start(state: Path) -> None:
    state.mkdir(mode=0o700)
    log = local.here(environ_of(state)).log
    with log.open("wb") as file:
        file.truncate(local.LOG_LIMIT_BYTES + 1)
    local.up(environ_of(state))
    assert log.stat().st_size < local.LOG_LIMIT_BYTES
    assert log.with_name("broker.log.1").stat().st_size == local.LOG_LIMIT_BYTES + 1


def test_settings_come_from_the_environment_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "jobd.toml"
    config.write_text('url = "http://127.0.0.1:1"\nstate_dir = "/somewhere"\n')
    environ = {"JOBD_CONFIG": str(config), "HOME": str(tmp_path)}
    assert local.setting(environ, "url") == "http://127.0.0.1:1"
    assert local.here(environ).state == Path("/somewhere")
    assert local.setting({**environ, "JOBD_URL": "unix:///x/broker.sock"}, "url") == "unix:///x/broker.sock"
    config.write_text("url = ")
    with pytest.raises(local.LocalError, match=r"jobd\.toml"):
        local.setting(environ, "url")
