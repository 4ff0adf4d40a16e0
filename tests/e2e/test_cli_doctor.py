"""`job doctor` finds each fault that it knows, by its code. Every one is planted here, and taken out again."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from jobd_mcp.cli.doctor import Machine, examine
from jobd_mcp.cli.faults import Fault
from support.installation import Ended, Installation
from support.ports import port_that_was_free
from support.waiting import eventually_sync

GOOD_PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
NEWER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from jobd_mcp.cli.program import run
sys.exit(run())
"""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Broker and worker are up, the broker listens on TCP too, and nothing is wrong."""
    directory = Path(f"/tmp/jobd-doctor-{os.getpid()}")
    directory.mkdir(mode=0o700)
    made = Installation(directory, {"PATH": GOOD_PATH, "JOBD_LISTEN": f"127.0.0.1:{port_that_was_free()}"})
    try:
        made.good("up")
        eventually_sync(lambda: b"online" in made.good("workers").out)
        yield made
        made.good("down")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def codes(done: Ended) -> set[object]:
    findings = done.json()["findings"]
    assert isinstance(findings, list)
    assert all(finding["fix"] for finding in findings if finding["code"]), "each fault says what to do"
    return {finding["code"] for finding in findings} - {None}


def doctor(healthy: Installation, **extra: str) -> set[object]:
    return codes(healthy.job("doctor", "--json", extra=extra))


def script_missing(healthy: Installation) -> set[object]:
    return doctor(healthy, PATH="/usr/bin:/bin")


def script_of_another(healthy: Installation) -> set[object]:
    other = healthy.directory / "other" / "jobd-mcp"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    return doctor(healthy, PATH=f"{other.parent}:{GOOD_PATH}")


def broker_absent(healthy: Installation) -> set[object]:
    return doctor(healthy, JOBD_STATE_DIR=str(healthy.directory / "nothing-here"))


def worker_absent(healthy: Installation) -> set[object]:
    """The broker starts a worker again and again, which has no place for its state."""
    state = healthy.directory / "lonely"
    lonely = Installation(healthy.directory, {**healthy.settings, "JOBD_STATE_DIR": str(state)})
    lonely.settings.pop("JOBD_LISTEN")
    state.mkdir(mode=0o700)
    (state / "worker").write_text("in the way")
    up = lonely.start("up")
    try:
        eventually_sync(lambda: f"{state}/worker" in lonely.job("doctor").text.partition("log ends with: ")[2])
        return doctor(lonely)
    finally:
        up.terminate()  # it still waits for that worker
        up.communicate(timeout=60)
        lonely.good("down")


def workers_closed(healthy: Installation) -> set[object]:
    [worker] = healthy.good("workers", "--json").json()["workers"]
    healthy.good("workers", "cordon", str(worker["name"]))
    try:
        return doctor(healthy)
    finally:
        healthy.good("workers", "resume", str(worker["name"]))


def setting_wrong(healthy: Installation) -> set[object]:
    file = healthy.directory / "jobd.toml"
    file.write_text('lease_s = "soon"\n')
    assert doctor(healthy, JOBD_CONFIG=str(file)) == {"setting_wrong"}
    assert doctor(healthy, JOBD_CONFIG=str(healthy.directory / "no-such-file")) == {"setting_wrong"}
    shown = healthy.job("doctor", extra={"JOBD_SWEEP": "5"})
    assert (shown.code, "did you mean JOBD_SWEEP_S?" in shown.text) == (1, True)
    return doctor(healthy, JOBD_SWEEP="5")


def version_differs(healthy: Installation) -> set[object]:
    """This program as a newer one: its metadata say so."""
    metadata = healthy.directory / "newer" / "jobd_mcp-99.0.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: jobd-mcp\nVersion: 99.0.0\n")
    done = subprocess.run(
        [sys.executable, "-c", NEWER, str(metadata.parent.parent), "doctor", "--json"],
        env=healthy.environ,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return codes(Ended(done.returncode, done.stdout, done.stderr.decode()))


def state_not_private(healthy: Installation) -> set[object]:
    state = healthy.directory / "readable"
    state.mkdir(mode=0o755)
    state.chmod(0o755)
    shown = healthy.job("doctor", extra={"JOBD_STATE_DIR": str(state)})
    assert (shown.code, f"fix: chmod 700 {state}" in shown.text) == (1, True)
    return doctor(healthy, JOBD_STATE_DIR=str(state)) - {"broker_absent"}


def state_not_writable(healthy: Installation) -> set[object]:
    (healthy.directory / "file").write_text("in the way")
    return doctor(healthy, JOBD_STATE_DIR=str(healthy.directory / "file" / "state")) - {"broker_absent"}


def url_unreachable(healthy: Installation) -> set[object]:
    assert doctor(healthy, JOBD_URL="example.org") == {"url_unreachable"}
    return doctor(healthy, JOBD_URL=f"http://127.0.0.1:{port_that_was_free()}")


def token_refused(healthy: Installation) -> set[object]:
    url = f"http://{healthy.settings['JOBD_LISTEN']}"
    assert doctor(healthy, JOBD_URL=url) == {"token_refused"}
    token = str(healthy.good("token", "create", "--scope", "worker", "--json").json()["token"])
    assert doctor(healthy, JOBD_URL=url, JOBD_TOKEN=token) == {"token_refused"}
    read = str(healthy.good("token", "create", "--scope", "read", "--json").json()["token"])
    assert doctor(healthy, JOBD_URL=url, JOBD_TOKEN=read) == set()
    return doctor(healthy, JOBD_URL=url, JOBD_TOKEN="jobd_nonsense")


def state_on_network(healthy: Installation) -> set[object]:
    return on_machine(healthy, Machine(file_system_of=lambda _: "nfs4"))


def disk_short(healthy: Installation) -> set[object]:
    return on_machine(healthy, Machine(free_bytes=lambda _: 50 << 20))


def clock_differs(healthy: Installation) -> set[object]:
    return on_machine(healthy, Machine(now_s=lambda: time.time() + 60))


def on_machine(healthy: Installation, machine: Machine) -> set[object]:
    """A machine that a test can't make: its answers are planted. In this process, whose PATH may lack the scripts."""
    found = {finding.code for finding in examine(healthy.environ, machine)}
    return found - {None, Fault.SCRIPT_MISSING, Fault.SCRIPT_OF_ANOTHER}


def broker_stranger(healthy: Installation) -> set[object]:
    """The broker that runs here is of another installation."""
    file = healthy.state / "installation"
    with kept(file):
        file.write_text("0" * 32)
        return doctor(healthy)


def socket_missing(healthy: Installation) -> set[object]:
    socket = healthy.state / "mcp.sock"
    socket.rename(socket.with_name("aside"))
    try:
        return doctor(healthy)
    finally:
        socket.with_name("aside").rename(socket)


def socket_open(healthy: Installation) -> set[object]:
    socket = healthy.state / "broker.sock"
    socket.chmod(0o666)
    try:
        return doctor(healthy)
    finally:
        socket.chmod(0o600)


def shell_missing(healthy: Installation) -> set[object]:
    return doctor(healthy, PATH=str(Path(sys.executable).parent))


def kept(file: Path) -> AbstractContextManager[None]:
    """What is in the file afterwards is what was in it before."""

    @contextlib.contextmanager
    def keeping() -> Iterator[None]:
        before = file.read_bytes()
        try:
            yield
        finally:
            file.write_bytes(before)

    return keeping()


PLANTED: dict[Fault, Callable[[Installation], set[object]]] = {fault: globals()[fault.value] for fault in Fault}


@pytest.mark.parametrize("fault", Fault)
def test_doctor_finds_a_planted_fault_by_its_code_and_no_other(healthy: Installation, fault: Fault) -> None:
    assert PLANTED[fault](healthy) == {fault.value}


def test_doctor_says_when_nothing_is_wrong(healthy: Installation) -> None:
    done = healthy.good("doctor")
    assert done.text.splitlines()[-1] == "nothing is wrong"
    assert "online: " in done.text


def test_the_docs_list_the_ten_commonest_and_the_rest() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    places = [page.index(f"| `{fault}` |") for fault in Fault]
    assert places == sorted(places)
    assert len(places) >= 10
