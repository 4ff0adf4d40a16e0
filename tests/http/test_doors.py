"""Who may come in: every live route against every kind of caller, as the route itself declares."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from fastapi.routing import iter_route_contexts

from broker.app import bind_tcp, bind_unix, create_app
from broker.http import surface
from broker.http.auth import PUBLIC_PATHS
from broker.wire.settings import ConfigurationError
from broker.wire.states import Scope
from support.scripted_worker import ScriptedWorker

WAYS = {"job": "1", "attempt": "1", "worker": "0" * 32, "name": "x", "watch": "0" * 32, "sha256": "0" * 64}


@dataclass(frozen=True)
class Door:
    method: str
    path: str
    scope: str | None


def doors() -> Iterator[Door]:
    for context in iter_route_contexts(create_app(None).routes):
        route = context.route if hasattr(context, "route") else context
        declared = surface.of_route(route) or surface.of_route(context)
        assert declared is not None, context
        for method in context.methods or ():
            if method != "HEAD":
                yield Door(method, context.path.replace(":path}", "}").format(**WAYS), declared["scope"])


DOORS = sorted(doors(), key=str)


def test_the_matrix_sees_all_routes() -> None:
    assert len(DOORS) >= 19
    assert {door.path for door in DOORS if door.scope is None} == PUBLIC_PATHS


async def call(client: httpx.AsyncClient, door: Door, headers: dict[str, str]) -> int:
    """The status; a stream is not read to its end."""
    request = client.build_request(door.method, door.path, headers=headers, timeout=10)
    answer = await client.send(request, stream=True)
    await answer.aclose()
    return answer.status_code


@pytest.mark.guarantee("G19")
@pytest.mark.trial("B119")
async def test_each_route_opens_for_its_scope_and_for_no_other(site) -> None:
    wrong: list[str] = []
    for door in DOORS:
        expected_without = 200 if door.scope is None else 401
        for token, headers in {
            "none": {},
            "wrong": {"Authorization": "Bearer jobd_read_guess"},
            "basic": {"Authorization": "Basic YTpi"},
        }.items():
            if (got := await call(site.tcp, door, headers)) != expected_without:
                wrong.append(f"{door} with {token} token: {got}")
        for scope in Scope:
            opens = door.scope is None or _may(scope, door.scope)
            got = await call(site.tcp, door, site.bearer(scope.value))
            if (got == 403) == opens or got >= 500 or got == 401:
                wrong.append(f"{door} with scope {scope}: {got}")

    assert not wrong, "\n".join(wrong)


def _may(scope: Scope, needed: str) -> bool:
    return scope.value == needed or scope is Scope.OPERATOR or (needed == "read" and scope is Scope.SUBMIT)


@pytest.mark.guarantee("G19")
@pytest.mark.trial("B71")
async def test_a_foreign_host_or_origin_reaches_no_route_by_either_door(site) -> None:
    for door in DOORS:
        for client in (site.tcp, site.unix):
            good = site.bearer("operator")
            assert await call(client, door, good | {"Host": "evil.example"}) == 421
            assert await call(client, door, good | {"Origin": "https://evil.example"}) == 403
            assert await call(client, door, good | {"Origin": "null"}) == 403
            assert await call(client, door, good | {"X-Forwarded-Host": "localhost", "Host": "evil.example"}) == 421


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "localhost"])
async def test_loopback_names_are_served(site, host: str) -> None:
    answer = await site.tcp.get("/livez", headers={"Host": host.format(port=site.port)})

    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/LIVEZ", "//livez", "/livez/", "/livez/..", "/livez%2f", "/metrics", "/nope"])
@pytest.mark.guarantee("G19")
@pytest.mark.trial("B119")
async def test_only_the_listed_public_paths_answer_without_a_token_and_by_exact_path(site, path: str) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "TRACE", "POST"):
        assert (await site.tcp.request(method, path)).status_code in (401, 404)


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer",
        b"Bearer \xff\xfe",
        "Bearer жетон".encode(),
        b"Bearer " + b"x" * 60_000,
        b"",
        b"bearer  a b c",
    ],
)
@pytest.mark.trial("B118")
async def test_odd_credentials_are_refused_and_break_nothing(site, header: bytes) -> None:
    answer = await site.tcp.get("/v1/jobs", headers=[(b"Authorization", header)])

    assert answer.status_code in (400, 401)


async def test_a_revoked_token_is_refused_at_once(site) -> None:
    assert (await site.tcp.get("/v1/jobs", headers=site.bearer("read"))).status_code == 200

    await site.operator.token_revoke("read")

    assert (await site.tcp.get("/v1/jobs", headers=site.bearer("read"))).status_code == 401


@pytest.mark.guarantee("G19")
async def test_a_token_is_kept_as_its_hash_and_shown_once(site) -> None:
    listed = (await site.unix.get("/v1/tokens")).text
    database = b"".join(path.read_bytes() for path in site.socket.parent.glob("jobd.sqlite3*"))

    for token in site.tokens.values():
        assert token not in listed
        assert token.encode() not in database


@pytest.mark.guarantee("G19")
async def test_a_worker_may_only_speak_for_itself(site) -> None:
    from broker.client import BrokerClient
    from broker.wire.problems import ProblemCode, Refused

    async with BrokerClient(f"http://127.0.0.1:{site.port}", site.tokens["worker"]) as client:
        await ScriptedWorker(client, "mine").register()
        with pytest.raises(Refused) as refused:
            await ScriptedWorker(client, "other").register()

    assert refused.value.code is ProblemCode.FORBIDDEN
    assert [
        token.worker is not None for token in (await site.operator.token_list()).tokens if token.name == "worker"
    ] == [True]


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", ":8765", "localhost", "127.0.0.1:x", "127.0.0.1:99999"]
)
@pytest.mark.guarantee("G19")
@pytest.mark.trial("B71")
def test_anything_wider_than_loopback_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        bind_tcp(address, allow_remote=False)

    assert "JOBD_LISTEN" in str(refused.value)


def test_a_port_that_is_taken_is_said_in_one_line(free_port: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        taken.listen()
        with pytest.raises(ConfigurationError, match="in use"):
            bind_tcp(f"127.0.0.1:{free_port}", allow_remote=False)


@pytest.mark.guarantee("G19")
@pytest.mark.trial("B117")
async def test_socket_and_files_are_for_this_user_alone(site) -> None:
    state = site.socket.parent
    await site.unix.post("/v1/jobs", json={"command": "true"})

    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in [state, *state.rglob("*")]}

    assert modes["broker.sock"] == 0o600
    assert [name for name, mode in modes.items() if mode & 0o077] == []


@pytest.mark.trial("B117")
def test_a_planted_link_in_place_of_the_state_directory_is_refused(short_dir: Path) -> None:
    elsewhere = short_dir / "elsewhere"
    elsewhere.mkdir()
    (short_dir / "state").symlink_to(elsewhere)

    with pytest.raises(PermissionError):
        bind_unix(short_dir / "state" / "broker.sock")
