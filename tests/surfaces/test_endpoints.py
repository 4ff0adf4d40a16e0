"""The same promises on every way in: stdio through `jobd-mcp` and HTTP at /mcp, in both protocol eras."""

from __future__ import annotations

import asyncio
import json
import time

import anyio
import pytest

from broker.wire.jobs import JobSpec

PLAIN = {"command": "true"}


@pytest.mark.trial("B52")
async def test_every_tool_is_listed_with_its_hints(connect) -> None:
    async with connect() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() >= {
            "job_submit", "job_list", "job_get", "job_wait", "job_logs", "job_cancel", "job_preempt", "job_events",
            "worker_list",
        }  # fmt: skip
        for tool in tools.values():
            hints = tool.annotations
            assert hints is not None
            assert None not in (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.title)
            assert hints.open_world_hint is False
            assert tool.title
            assert 0 < len(tool.description) <= 2000
        assert tools["job_cancel"].annotations.destructive_hint is True
        assert tools["job_list"].annotations.read_only_hint is True
        assert tools["job_logs"].output_schema is None


@pytest.mark.trial("B52")
async def test_the_guide_is_short_enough_that_no_client_cuts_it(connect) -> None:
    async with connect() as client:
        assert client.instructions is not None
        assert 500 < len(client.instructions) < 2000
        assert "job_submit" in client.instructions[:600]


async def test_a_job_goes_in_and_is_found_again(connect) -> None:
    async with connect() as client:
        submitted = await client.call_tool("job_submit", {**PLAIN, "name": "héllo", "labels": {"a": "b"}})
        assert not submitted.is_error
        id_ = submitted.structured_content["id"]
        assert json.loads(submitted.content[0].text) == submitted.structured_content
        got = await client.call_tool("job_get", {"job": id_})
        assert got.structured_content["name"] == "héllo"
        assert None not in got.structured_content.values()
        listed = await client.call_tool("job_list", {})
        assert listed.structured_content["jobs"][0]["id"] == id_


@pytest.mark.trial("B63")
async def test_every_field_of_a_specification_arrives(connect) -> None:
    fields = {
        "argv": ["echo", "3", '["a"]'], "cwd": "/tmp", "env": {"A": "{}"}, "venv": "/v", "name": "n", "project": "p",
        "profile": "none",
        "labels": {"k": "true"}, "priority": 7, "cpus": 1.5, "needs": ["big"], "worker": "w",
        "on_worker_lost": "orphan", "checkpoint_grace_s": 3.0, "dependency_policy": "any_exit",
        "max_wall_s": 60.0, "idle_timeout_s": "none", "first_output_timeout_s": 2.5, "scheduling_timeout_s": 3600.0,
        "gpu_idle_timeout_s": 900.0,
        "preemptible": True, "on_preempt": "requeue", "gpus": 2, "vram_gb": 1.5, "ram_gb": 2.0,
        "resources": {"license": 1}, "os": "linux", "arch": "arm64",
    }  # fmt: skip
    of_arrays: dict[str, object] = {
        "command": '["not a list"] {x}', "conda": "c", "count": 3, "sweep": {"x": ["1", 2.5, True, "3"]},
        "sweep_mode": "random", "sweep_seed": 7, "max_parallel": 2, "max_failures": 1,
    }  # fmt: skip
    below = {"depends_on", "depends_on_array", "depends_on_each", *of_arrays}
    assert set(fields) == set(JobSpec.model_fields) - below
    async with connect() as client:
        fields["depends_on"] = [(await client.call_tool("job_submit", {"command": "true"})).structured_content["id"]]
        id_ = (await client.call_tool("job_submit", fields)).structured_content["id"]
        spec = (await client.call_tool("job_get", {"job": id_, "detail": "full"})).structured_content["spec"]
        assert {name: spec.get(name) for name in fields} == fields
        array = (await client.call_tool("job_submit", of_arrays)).structured_content
        assert array["count"] == 3
        after = {"command": "true", "count": 3, "depends_on_each": [array["array"]], "depends_on_array": array["array"]}
        assert (await client.call_tool("job_submit", after)).structured_content["count"] == 3


@pytest.mark.trial("B55")
async def test_texts_from_sloppy_clients_are_understood_and_commands_are_not_mangled(connect) -> None:
    async with connect() as client:
        told = {"command": '{"a": 1}', "priority": "3", "cpus": "0.5", "needs": '["big"]', "env": "{}", "labels": None,
                "max_wall_s": "60", "idle_timeout_s": "none"}  # fmt: skip
        id_ = (await client.call_tool("job_submit", told)).structured_content["id"]
        got = await client.call_tool("job_get", {"job": str(id_), "detail": "full"})
        spec = got.structured_content["spec"]
        assert (spec["command"], spec["priority"], spec["cpus"], spec["needs"]) == ('{"a": 1}', 3, 0.5, ["big"])
        assert (spec["max_wall_s"], spec["idle_timeout_s"]) == (60, "none")


REFUSALS = [
    ("job_submit", {"comand": "true"}, ["comand", "did you mean command?"]),
    ("job_submit", {"command": "true", "argv": ["true"]}, ["invalid_spec", "exactly one of command"]),
    ("job_submit", {"command": " "}, ["invalid_spec", "command is empty"]),
    ("job_submit", {}, ["invalid_spec"]),
    ("job_submit", {"command": "true", "priority": 51}, ["invalid_spec", "priority"]),
    ("job_submit", {"command": "true", "priority": "high"}, ["priority", "whole number"]),
    ("job_submit", {"command": "true", "cpus": -1}, ["cpus"]),
    ("job_submit", {"command": "true", "cpus": 1e300}, ["cpus"]),
    ("job_submit", {"command": "a\0b"}, ["command", "NUL"]),
    ("job_submit", {"command": "true", "env": {"A B": "1"}}, ["env"]),
    ("job_get", {"job": 999999}, ["unknown_job", "999999"]),
    ("job_get", {"job": "../workers"}, ["job", "whole number"]),
    ("job_get", {}, ["job", "required"]),
    ("job_wait", {"job": [1], "timeout_s": "soon"}, ["timeout_s", "a number"]),
    ("job_list", {"state": "happy"}, ["state"]),
    ("job_logs", {"job": 999999}, ["unknown_job"]),
    ("job_cancel", {}, ["job"]),
]


@pytest.mark.guarantee("G22")
async def test_a_refusal_is_a_result_to_act_on(connect) -> None:
    async with connect() as client:
        before = (await client.call_tool("job_list", {})).structured_content["total"]
        for tool, arguments, said in REFUSALS:
            result = await client.call_tool(tool, arguments)
            assert result.is_error, (tool, arguments)
            assert result.structured_content is None
            text = result.content[0].text
            assert "Traceback" not in text
            assert "retryable: no" in text
            for part in said:
                assert part in text, (tool, arguments, text)
        assert (await client.call_tool("job_list", {})).structured_content["total"] == before


@pytest.mark.guarantee("G20")
@pytest.mark.trial("B58")
async def test_a_wait_returns_by_itself_and_says_how_to_go_on(connect) -> None:
    async with connect() as client:
        id_ = (await client.call_tool("job_submit", PLAIN)).structured_content["id"]
        began = time.monotonic()
        waited = await client.call_tool("job_wait", {"job": id_, "timeout_s": 0.5})
        assert 0.4 < time.monotonic() - began < 10
        assert waited.structured_content["done"] is False
        assert waited.structured_content["pending"] == [id_]
        assert "again" in waited.structured_content["next"]


@pytest.mark.trial("B58")
async def test_progress_tells_the_states_and_always_rises(connect) -> None:
    told: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total, message))

    async with connect() as client:
        id_ = (await client.call_tool("job_submit", PLAIN)).structured_content["id"]
        await client.call_tool("job_wait", {"job": id_, "timeout_s": 0.7}, progress_callback=hear)
    assert len(told) >= 2
    assert [progress for progress, _, _ in told] == sorted({progress for progress, _, _ in told})
    assert all(total == 0.7 and message == f"{id_} queued" for _, total, message in told)


@pytest.mark.guarantee("G20")
@pytest.mark.trial("B57")
async def test_other_calls_are_answered_during_a_wait(connect) -> None:
    async with connect() as client:
        id_ = (await client.call_tool("job_submit", PLAIN)).structured_content["id"]
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(client.call_tool, "job_wait", {"job": id_, "timeout_s": 4})
            began = time.monotonic()
            for _ in range(3):
                assert not (await client.call_tool("job_list", {})).is_error
            assert time.monotonic() - began < 3.5
            await client.call_tool("job_cancel", {"job": id_})
        # The waits end with the job, long before their time.
        assert time.monotonic() - began < 3.9


@pytest.mark.guarantee("G20")
async def test_a_client_that_gives_up_a_wait_cancels_the_wait_and_not_the_job(connect, broker) -> None:
    async with connect() as client:
        id_ = (await client.call_tool("job_submit", PLAIN)).structured_content["id"]
        with anyio.move_on_after(0.5):
            await client.call_tool("job_wait", {"job": id_, "timeout_s": 30})
        assert (await client.call_tool("job_get", {"job": id_})).structured_content["state"] == "queued"
    async with connect() as second:
        assert (await second.call_tool("job_get", {"job": id_})).structured_content["state"] == "queued"


async def test_log_answers_are_plain_text(connect) -> None:
    async with connect() as client:
        id_ = (await client.call_tool("job_submit", PLAIN)).structured_content["id"]
        shown = await client.call_tool("job_logs", {"job": id_})
        assert not shown.is_error
        assert shown.structured_content is None
        assert "no output yet" in shown.content[0].text


async def test_an_unknown_tool_is_no_crash(connect) -> None:
    async with connect() as client:
        with pytest.raises(Exception, match=r"(?i)unknown tool"):
            result = await client.call_tool("job_explode", {})
            raise RuntimeError(result.content[0].text)
        assert not (await client.call_tool("job_list", {})).is_error


async def test_eight_clients_at_once_each_get_their_own_answers(broker, connect) -> None:
    async def one(number: int) -> None:
        async with connect() as client:
            id_ = (await client.call_tool("job_submit", {"command": f"echo {number}"})).structured_content["id"]
            got = await client.call_tool("job_get", {"job": id_})
            assert got.structured_content["command"] == f"echo {number}"

    await asyncio.gather(*(one(number) for number in range(8)))
