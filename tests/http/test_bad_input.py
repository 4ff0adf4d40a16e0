"""Bad input gets a problem document with code, field and hint. Never a 500, and nothing is half done."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.http.problems import STATUS
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def site(lasting_site):
    return lasting_site


BAD_SPECS = [
    ({"comand": "x"}, "comand", "did you mean command?"),
    ({"command": "x", "argv": ["y"]}, None, None),
    ({}, None, None),
    ({"command": ""}, None, None),
    ({"command": "  \n"}, None, None),
    ({"argv": []}, None, None),
    ({"argv": [""]}, None, None),
    ({"argv": "ls"}, "argv", None),
    ({"command": "x", "cpus": -1}, "cpus", None),
    ({"command": "x", "cpus": 0}, "cpus", None),
    ({"command": "x", "cpus": "many"}, "cpus", None),
    ({"command": "x", "priority": 51}, "priority", None),
    ({"command": "x", "priority": 1e300}, "priority", None),
    ({"command": "x", "count": 0}, "count", None),
    ({"command": "x", "count": 10**9}, "count", None),
    ({"command": "x", "count": 2, "max_parallel": 0}, "max_parallel", None),
    ({"command": "x", "max_failures": 1}, "max_failures", "give count or sweep, or leave it out"),
    ({"command": "x", "sweep": {}}, "sweep", None),
    ({"command": "x", "sweep": {"a": []}}, "sweep.a", None),
    ({"command": "x", "sweep": {"a": [[1]]}}, "sweep.a", None),
    ({"command": "x", "sweep": {"a b": [1]}}, "sweep", None),
    ({"command": "x", "sweep": {"a": [1, 2]}, "count": 2}, "count", None),
    ({"command": "x", "name": "n" * 197 + "{i}", "count": 1001}, "name", "nothing was submitted"),
    ({"command": "x", "checkpoint_grace_s": -0.1}, "checkpoint_grace_s", None),
    ({"command": "x", "on_worker_lost": "explode"}, "on_worker_lost", None),
    ({"command": "x", "needs": "cuda"}, "needs", None),
    ({"command": "x", "project": "a b"}, "project", None),
    ({"command": "x", "project": "../../etc"}, "project", None),
    ({"command": "x", "env": {"A=B": "c"}}, "env", None),
    ({"command": "x", "env": {"A": 1}}, "env", None),
    ({"command": "a\0b"}, "command", None),
    ({"command": "\ud800"}, "command", None),
    ({"command": "x" * 200_000}, "command", None),
    ({"command": "x", "venv": "a", "conda": "b"}, None, None),
    ({"command": "x", "gpus": -1}, "gpus", None),
    ({"command": "x", "gpus": 0, "vram_gb": 1}, None, None),
    ({"command": "x", "resources": {"license": 0}}, "resources.license", None),
    ({"command": "x", "container": "debian"}, "container", None),
    ([], None, None),
    ("x", None, None),
    (None, None, None),
]


@pytest.mark.parametrize(("body", "field", "hint"), BAD_SPECS)
@pytest.mark.guarantee("G22")
async def test_a_bad_specification_is_refused_with_code_field_and_hint(site, body, field, hint) -> None:
    before = (await site.operator.job_list()).total

    answer = await site.unix.post(
        "/v1/jobs", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )

    document = answer.json()
    assert (answer.status_code, document["code"]) == (422, "invalid_spec")
    assert answer.headers["content-type"] == "application/problem+json"
    if field:
        assert document["field"].startswith(field)
    if hint:
        assert document["hint"] == hint
    assert (await site.operator.job_list()).total == before


@pytest.mark.parametrize(("body", "field", "hint"), [spec for spec in BAD_SPECS if isinstance(spec[0], dict)])
async def test_a_preview_of_a_bad_specification_says_the_same_and_is_no_refusal(site, body, field, hint) -> None:
    answer = await site.unix.post(
        "/v1/jobs/preview",
        content=json.dumps({"spec": body}).encode(),
        headers={"Content-Type": "application/json"},
    )

    told = answer.json()
    assert (answer.status_code, told["valid"], told["errors"][0]["code"]) == (200, False, "invalid_spec")
    if field:
        assert told["errors"][0]["field"].startswith(field)
    if hint:
        assert told["errors"][0]["hint"] == hint


@pytest.mark.parametrize("body", [{}, {"spec": []}, {"spec": {"command": "true"}, "more": 1}])
async def test_only_a_call_that_is_no_preview_at_all_is_refused(site, body) -> None:
    answer = await site.unix.post("/v1/jobs/preview", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"\xff\xfe{}", 422),
        (b'{"command": "\xff"}', 422),
        (b"{", 422),
        (b"", 422),
        (b"[" * 5000, 422),
        (b'{"command": "x", "cpus": NaN}', 422),
        (b'{"command": "x", "cpus": 1e999}', 422),
        (b'{"command": "' + b"x" * 10_000_000 + b'"}', 413),
    ],
)
@pytest.mark.guarantee("G22")
@pytest.mark.trial("B118")
async def test_a_body_that_is_no_json_of_ours_is_refused(site, content: bytes, status: int) -> None:
    answer = await site.unix.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})

    assert answer.status_code == status
    assert answer.json()["code"] in {"invalid_spec", "invalid_request", "payload_too_large"}


@pytest.mark.trial("B118")
async def test_a_body_without_a_length_is_cut_off_at_the_limit(site) -> None:
    async def endless():
        for _ in range(100):
            yield b"x" * 1_000_000

    answer = await site.unix.post("/v1/jobs", content=endless(), headers={"Content-Type": "application/json"})

    assert answer.status_code == 413


@pytest.mark.parametrize("job", ["0", "-1", "abc", str(10**30), "1.5", "%00", "１"])
async def test_an_id_that_is_none_is_refused(site, job: str) -> None:
    for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/log", f"/v1/jobs/{job}/log/stream"):
        assert (await site.unix.get(path)).status_code in (404, 422)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/jobs/999", "unknown_job"),
        ("/v1/jobs/999/log", "unknown_job"),
        ("/v1/jobs/999/log/stream", "unknown_job"),
        ("/v1/jobs/wait?job=999", "unknown_job"),
        ("/v1/jobs/wait?array=999", "unknown_job"),
        ("/v1/jobs/wait", "invalid_request"),
        ("/v1/jobs/wait?job=1&timeout_s=-1", "invalid_request"),
        ("/v1/jobs/1/log?attempt=9", "unknown_attempt"),
        ("/v1/jobs/1/log?grep=(", "invalid_request"),
        ("/v1/jobs/1/log?tail=5&head=5", "invalid_request"),
        ("/v1/jobs/1/log?grep=x&tail=5", "invalid_request"),
        ("/v1/jobs/1/log?raw=true&head=5", "invalid_request"),
        ("/v1/jobs/1/log?context=2", "invalid_request"),
        ("/v1/jobs/1/log?tail=2&cursor=0", "invalid_request"),
        ("/v1/jobs?cursor=abc", "invalid_request"),
        ("/v1/jobs?state=done", "invalid_request"),
        ("/v1/events?type=nothing", "invalid_request"),
        ("/nothing", "not_found"),
    ],
)
async def test_a_question_without_an_answer_says_why(site, path: str, code: str) -> None:
    if (await site.operator.job_list()).total == 0:
        await site.unix.post("/v1/jobs", json={"command": "true"})
        await _one_attempt(site)

    answer = await site.unix.get(path)

    assert answer.json()["code"] == code
    assert answer.status_code == STATUS[ProblemCode(code)]


async def _one_attempt(site) -> None:
    from support.scripted_worker import ScriptedWorker

    worker = ScriptedWorker(site.operator)
    await worker.register()
    await worker.finish(await worker.running())


async def test_strings_from_sloppy_clients_are_understood_where_numbers_belong(site) -> None:
    answer = await site.unix.post("/v1/jobs", json={"command": "x", "priority": "3", "cpus": "1.5"})

    job = (await site.operator.job_get(answer.json()["id"], detail="full")).spec
    assert (job["priority"], job["cpus"]) == (3, 1.5)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=10), children, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(body=st.dictionaries(st.sampled_from([*JobSpec.model_fields, "x"]), json_values, max_size=5))
@pytest.mark.guarantee("G22")
async def test_no_specification_whatever_makes_a_fault(body) -> None:
    """The models alone: every value is accepted or refused, and nothing else is raised."""
    from pydantic import ValidationError

    try:
        spec = JobSpec.model_validate(body)
    except ValidationError:
        return
    assert JobSpec.model_validate_json(spec.model_dump_json(exclude_none=True)) == spec


async def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(ProblemCode)
