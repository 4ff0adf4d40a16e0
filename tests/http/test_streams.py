"""Following output and events: exact bytes, resumed without gap or repeat, ended in every kind of end."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass

import pytest

from broker.wire.jobs import CancelRequest
from broker.wire.workers import Outcome
from support.scripted_worker import ScriptedWorker

ROW_STDOUT, ROW_STDERR = 1, 2


@dataclass
class Message:
    kind: str
    id: str | None
    data: dict


async def follow(
    site, path: str, *, last: str | None = None, most: int | None = None, within_s: float = 15
) -> list[Message]:
    """The messages of a stream until it ends, or `most` of them."""
    messages: list[Message] = []
    headers = {"Last-Event-ID": last} if last else {}
    async with asyncio.timeout(within_s), site.unix.stream("GET", path, headers=headers, timeout=within_s) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if line.startswith(":"):
                continue
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
            elif fields:
                messages.append(Message(fields["event"], fields.get("id"), json.loads(fields["data"])))
                fields = {}
                if most is not None and len(messages) == most:
                    break
    return messages


def text(messages: list[Message], stream: str | None = None) -> bytes:
    return b"".join(
        base64.b64decode(m.data["base64"])
        for m in messages
        if m.kind == "output" and stream in (None, m.data["stream"])
    )


async def started(site, **spec: object):
    job = (await site.unix.post("/v1/jobs", json={"command": "true", **spec})).json()["id"]
    worker = ScriptedWorker(site.operator)
    await worker.register()
    return job, worker, await worker.running()


def index_row(offset: int, length: int, stream: int) -> bytes:
    import struct

    return struct.pack("<QIBxxxd", offset, length, stream, 1.0)


async def write_index(worker, delivery, data: bytes, offset: int = 0) -> None:
    await worker.client.put_log(
        worker.id, delivery.job, delivery.attempt, delivery.token, worker.epoch, "index", offset, data
    )


async def test_output_is_followed_as_it_comes_and_told_apart(site) -> None:
    job, worker, delivery = await started(site)
    following = asyncio.create_task(follow(site, f"/v1/jobs/{job}/log/stream"))
    await worker.write(delivery, b"out\xff\n")
    await write_index(worker, delivery, index_row(0, 5, ROW_STDOUT))
    await worker.write(delivery, b"err\n", offset=5)
    await write_index(worker, delivery, index_row(5, 4, ROW_STDERR), offset=24)
    await worker.finish(delivery, final_size=9, final_index_size=48)

    messages = await following

    assert text(messages, "stdout") == b"out\xff\n"
    assert text(messages, "stderr") == b"err\n"
    assert messages[-1].kind == "end"
    assert messages[-1].data == {"state": "completed", "exit_code": 0, "log_complete": True}


async def test_a_follower_that_was_cut_resumes_without_gap_or_repeat(site) -> None:
    job, worker, delivery = await started(site)
    await worker.write(delivery, b"first\n")
    await write_index(worker, delivery, index_row(0, 6, ROW_STDOUT))
    first = await follow(site, f"/v1/jobs/{job}/log/stream", most=1)
    await worker.write(delivery, b"second\n", offset=6)
    await write_index(worker, delivery, index_row(6, 7, ROW_STDOUT), offset=24)
    await worker.finish(delivery, final_size=13, final_index_size=48)

    rest = await follow(site, f"/v1/jobs/{job}/log/stream", last=first[-1].id)

    assert (text(first), text(rest)) == (b"first\n", b"second\n")


@pytest.mark.trial("B77")
async def test_following_waits_for_the_tail_that_comes_after_the_end(site) -> None:
    job, worker, delivery = await started(site)
    await worker.finish(delivery, final_size=5)
    following = asyncio.create_task(follow(site, f"/v1/jobs/{job}/log/stream"))
    await asyncio.sleep(0.1)

    await worker.write(delivery, b"tail\n")

    assert text(await following) == b"tail\n"


async def test_following_goes_on_over_a_new_attempt(site) -> None:
    job, worker, delivery = await started(site)
    await worker.write(delivery, b"one\n")
    await worker.finish(delivery, Outcome.NEVER_EXECUTED, final_size=4)
    second = await worker.one()
    await worker.ack(second)
    await worker.start(second)
    following = asyncio.create_task(follow(site, f"/v1/jobs/{job}/log/stream?attempt=1"))
    await worker.write(second, b"two\n")
    await worker.finish(second, final_size=4)

    messages = await following

    assert [(m.data["attempt"], base64.b64decode(m.data["base64"])) for m in messages[:-1]] == [
        (1, b"one\n"),
        (2, b"two\n"),
    ]


@pytest.mark.trial("B83")
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled", "cancelled-queued", "orphaned"])
async def test_following_ends_in_every_kind_of_end(site, end: str) -> None:
    if end == "cancelled-queued":
        job = (await site.unix.post("/v1/jobs", json={"command": "true"})).json()["id"]
        following = asyncio.create_task(follow(site, f"/v1/jobs/{job}/log/stream"))
        await site.operator.job_cancel(CancelRequest(job=[job]))
        assert (await following)[-1].data["state"] == "cancelled"
        return
    job, worker, delivery = await started(site, on_worker_lost="orphan")
    following = asyncio.create_task(follow(site, f"/v1/jobs/{job}/log/stream"))
    match end:
        case "completed":
            await worker.finish(delivery)
        case "failed":
            await worker.finish(delivery, exit_code=9)
        case "cancelled":
            await site.operator.job_cancel(CancelRequest(job=[job]))
            await worker.finish(delivery, Outcome.STOPPED)
        case "orphaned":
            await worker.finish(delivery, Outcome.LOST)

    assert (await following)[-1].data["state"] == end


@pytest.mark.trial("B83")
async def test_a_snapshot_answers_at_once_whatever_the_job_does(site) -> None:
    queued = (await site.unix.post("/v1/jobs", json={"command": "true", "worker": "nobody"})).json()["id"]
    job, _, _ = await started(site)

    for asked in (queued, job):
        answer = await site.unix.get(f"/v1/jobs/{asked}/log", timeout=2)
        assert answer.status_code == 200
        assert answer.text


async def test_raw_output_is_the_exact_bytes_in_pages(site) -> None:
    job, worker, delivery = await started(site)
    data = bytes(range(256)) * 100
    await worker.write(delivery, data)

    first = await site.unix.get(f"/v1/jobs/{job}/log?raw=true")
    rest = await site.unix.get(f"/v1/jobs/{job}/log?raw=true&cursor=100")

    assert first.content == data
    assert rest.content == data[100:]
    assert first.headers["x-jobd-size"] == str(len(data))


async def test_raw_output_of_one_stream_is_its_exact_bytes(site) -> None:
    job, worker, delivery = await started(site)
    await worker.write(delivery, b"out\n\xffERR\nmore")
    rows = index_row(0, 4, ROW_STDOUT) + index_row(4, 5, ROW_STDERR) + index_row(9, 4, ROW_STDOUT)
    await write_index(worker, delivery, rows)
    await worker.finish(delivery, final_size=13, final_index_size=72)

    both = [
        (await site.unix.get(f"/v1/jobs/{job}/log?raw=true&stream={name}")).content for name in ("stdout", "stderr")
    ]

    assert both == [b"out\nmore", b"\xffERR\n"]


async def test_events_are_followed_and_resumed_by_their_number(site) -> None:
    following = asyncio.create_task(follow(site, "/v1/events/stream?since=0", most=8))
    _, worker, delivery = await started(site)
    await worker.finish(delivery)

    messages = await following
    resumed = await follow(site, "/v1/events/stream", last=messages[5].id, most=2)

    seqs = [m.data["seq"] for m in messages]
    assert seqs == sorted(set(seqs))
    assert [m.data["seq"] for m in resumed] == seqs[6:8]


@pytest.mark.parametrize("last", ["x", "1.x", "-1.0", "1.5.5", "9" * 50])
async def test_a_strange_last_event_id_is_refused(site, last: str) -> None:
    job, _, _ = await started(site)

    assert (await site.unix.get(f"/v1/jobs/{job}/log/stream", headers={"Last-Event-ID": last})).status_code == 422
