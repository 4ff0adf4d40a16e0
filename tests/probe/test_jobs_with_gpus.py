"""Jobs with devices: a real broker and real workers, over a library that stands in for the driver's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import CancelRequest, Peak
from broker.wire.machines import GpuHealth, WorkerGpu
from broker.wire.states import JobState
from support.fleet import Fleet, ended, output_of, submit
from support.gpu_scenarios import H100, RTX, A, B
from support.hardware import Hardware
from support.waiting import eventually

SETTINGS = {"heartbeat_s": "0.2", "lease_s": "20", "poll_s": "2", "probe_s": "0.1", "sweep_s": "0.5"}


@pytest.fixture
def fleet(short_dir: Path, hardware: Hardware) -> Iterator[Fleet]:
    fleet = Fleet(short_dir, settings=dict(SETTINGS), within={"w1": hardware.words})
    yield fleet
    fleet.close()


async def ready(fleet: Fleet, client: BrokerClient, number: int, **extra: str) -> None:
    """The broker, and a worker with so many devices."""
    await fleet.start_worker("w1", slots=16, **extra)

    async def shown() -> bool:
        gpus = [gpu for worker in (await client.worker_list()).workers for gpu in worker.gpus or ()]
        return [gpu.health.value for gpu in gpus] == ["ok"] * number

    await eventually(shown, within_s=40)


async def states(client: BrokerClient, jobs: list[int]) -> list[JobState]:
    return [(await client.job_get(job)).state for job in jobs]


async def are(client: BrokerClient, jobs: list[int], *expected: JobState) -> None:
    async def check() -> bool:
        return await states(client, jobs) == list(expected)

    await eventually(check, within_s=60)


def uses(directory: Path, job: int, gb: int, card: int = 0) -> str:
    """A line of the hardware: this job's process has so much of a card."""
    return f"process {card} {(directory / str(job)).read_text().strip()} {gb * 1024} compute"


async def holding(client: BrokerClient, directory: Path, **fields: object) -> int:
    """A job that runs until it is stopped, and leaves its pid."""
    said = f"echo $$ > {directory}/new.$JOBD_JOB_ID; mv {directory}/new.$JOBD_JOB_ID {directory}/$JOBD_JOB_ID; "
    return await submit(client, said + "exec sleep 900", **fields)


async def cards(client: BrokerClient) -> list[WorkerGpu]:
    """The devices of the only worker."""
    [worker] = (await client.worker_list()).workers
    assert worker.gpus is not None
    return worker.gpus


R, Q = JobState.RUNNING, JobState.QUEUED


@pytest.mark.guarantee("G31")
@pytest.mark.trial("B44")
async def test_the_race_for_a_card_is_won_by_two_and_what_they_leave_is_used(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(RTX)
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1)
        jobs = [await holding(client, short_dir, vram_gb=10) for _ in range(6)]
        await are(client, jobs, R, R, Q, Q, Q, Q)
        await eventually(lambda: all((short_dir / str(job)).exists() for job in jobs[:2]), within_s=30)
        both = "\n".join(uses(short_dir, job, 10) for job in jobs[:2])
        hardware.is_now(f"{RTX}\n{both}")

        async def seen() -> bool:
            [card] = await cards(client)
            assert card.vram_gb is not None
            return (card.vram_gb.free or 99) < 4

        await eventually(seen, within_s=30)
        assert await states(client, jobs) == [R, R, Q, Q, Q, Q]
        said = (await client.job_get(jobs[2])).waiting
        assert said is not None and (said.code, said.need) == ("gpus_busy", 10)
        small = await submit(client, "echo $CUDA_VISIBLE_DEVICES", vram_gb=3)
        assert (await ended(client, small)).state is JobState.COMPLETED
        assert await output_of(client, small) == f"{A}\n".encode()

        await client.job_cancel(CancelRequest(job=[jobs[0]]))
        hardware.is_now(f"{RTX}\n{uses(short_dir, jobs[1], 10)}")
        await are(client, jobs, JobState.CANCELLED, R, R, Q, Q, Q)


@pytest.mark.trial("B45")
async def test_a_card_with_foreign_memory_takes_what_fits_beside_it_and_more_when_it_is_free(
    fleet: Fleet, hardware: Hardware
) -> None:
    hardware.is_now(f"{RTX}\nprocess 0 1 10240 compute")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1)
        assert (await ended(client, await submit(client, "exit 0", vram_gb=13))).state is JobState.COMPLETED
        large, alone = await submit(client, "exit 0", vram_gb=16), await submit(client, "exit 0", gpus=1)
        said = (await client.job_get(large)).waiting
        assert said is not None and said.code == "gpus_busy" and "10 used by others" in said.message
        assert (await client.job_get(alone)).state is Q
        hardware.is_now(RTX)
        assert [(await ended(client, job)).state for job in (large, alone)] == [JobState.COMPLETED] * 2


@pytest.mark.trial("B40")
@pytest.mark.trial("B41")
@pytest.mark.trial("B42")
async def test_each_job_sees_the_devices_that_are_recorded_for_it_by_uuid_and_others_none(
    fleet: Fleet, hardware: Hardware
) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    await fleet.start_broker()
    told = 'echo "$CUDA_VISIBLE_DEVICES/$CUDA_DEVICE_ORDER"'
    async with fleet.client() as client:
        await ready(fleet, client, 2)
        for asked, devices in (
            ({"gpus": 2}, [A, B]),
            ({"vram_gb": 60}, [B]),  # only the big one has it
            ({"vram_gb": 2}, [A]),
            ({}, None),
        ):
            job = await submit(client, told, **asked)
            found = await ended(client, job)
            assert (found.state, found.gpus) == (JobState.COMPLETED, devices)
            assert await output_of(client, job) == f"{','.join(devices or ())}/PCI_BUS_ID\n".encode()


@pytest.mark.trial("B47")
async def test_a_card_that_is_lost_takes_nothing_new_and_its_job_goes_on(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 2)
        running = await holding(client, short_dir, gpus=1)
        await are(client, [running], R)
        assert (await client.job_get(running)).gpus == [A]
        hardware.is_now(f"{RTX}\n{H100}\nfail DeviceGetMemoryInfo 15 0")

        async def lost() -> bool:
            return [card.health.value for card in await cards(client)] == ["lost", "ok"]

        await eventually(lost, within_s=30)
        two, one = await submit(client, "exit 0", gpus=2), await submit(client, "exit 0", gpus=1)
        done = await ended(client, one)
        assert (done.state, done.gpus) == (JobState.COMPLETED, [B])
        said = (await client.job_get(two)).waiting
        assert said is not None and said.code == "gpus_unusable"
        assert await states(client, [running, two]) == [R, Q]
        [warning] = (await client.job_get(running)).warnings or []
        assert A in warning and "is lost" in warning
        [event] = (await client.job_events(type=EventType.WORKER_GPUS_CHANGED)).events
        [change] = (event.data or {})["changed"]
        assert (change["uuid"], change["now"], change["jobs"]) == (A, "lost", [f"{running}.1"])
        hardware.is_now(f"{RTX}\n{H100}")
        await eventually(lambda: no_warning(client, running), within_s=30)


async def no_warning(client: BrokerClient, job: int) -> bool:
    return (await client.job_get(job)).warnings is None


@pytest.mark.guarantee("G33")
@pytest.mark.trial("B48")
async def test_memory_that_stays_when_its_job_is_gone_keeps_the_card_from_others_until_it_is_free(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 2)
        job = await holding(client, short_dir, vram_gb=6)
        await are(client, [job], R)
        assert (await client.job_get(job)).gpus == [A]
        await eventually((short_dir / str(job)).exists, within_s=30)
        left = uses(short_dir, job, 5)
        hardware.is_now(f"{RTX}\n{H100}\n{left}")

        async def attributed() -> bool:
            first = (await cards(client))[0]
            assert first.vram_gb is not None
            return first.jobs == [f"{job}.1"] and (first.vram_gb.free or 99) < 19

        await eventually(attributed, within_s=30)
        await client.job_cancel(CancelRequest(job=[job]))  # and the driver goes on naming its process
        await are(client, [job], JobState.CANCELLED)

        async def held() -> bool:
            return (await cards(client))[0].health is GpuHealth.MEMORY_HELD

        await eventually(held, within_s=30)
        first = (await cards(client))[0]
        assert first.held is not None
        assert first.held.gb == 5.0 and first.held.since is not None
        assert f"{job}.1 had it and is gone" in (first.why or "")
        other = await ended(client, await submit(client, "exit 0", vram_gb=2))
        assert (other.state, other.gpus) == (JobState.COMPLETED, [B])
        both = await submit(client, "exit 0", gpus=2)
        assert (await client.job_get(both)).state is Q

        hardware.is_now(f"{RTX}\n{H100}")
        assert (await ended(client, both)).state is JobState.COMPLETED
        events = (await client.job_events(type=EventType.WORKER_GPUS_CHANGED)).events
        assert [(event.data or {})["changed"][0]["now"] for event in events] == ["memory_held", "ok"]


@pytest.mark.guarantee("G33")
async def test_a_job_whose_card_stands_idle_is_stopped_and_one_whose_use_is_not_told_is_not(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(f"{RTX}\nfail DeviceGetUtilizationRates 3 0")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1)
        untold = await submit(client, "sleep 3", gpus=1, gpu_idle_timeout_s=0.5)
        assert (await ended(client, untold)).state is JobState.COMPLETED

        hardware.is_now(f"{RTX}\nutilisation 0 70")
        busy = await submit(client, "sleep 3", gpus=1, gpu_idle_timeout_s=0.5)
        assert (await ended(client, busy)).state is JobState.COMPLETED

        hardware.is_now(RTX)
        trap = "trap 'echo saved; exit 0' TERM; while :; do sleep 0.05; done"
        idle = await ended(client, await submit(client, trap, gpus=1, gpu_idle_timeout_s=0.5))
        assert (idle.state, idle.exit_code) == (JobState.FAILED, 0)
        assert idle.reason is not None and idle.reason.code == "gpu_idle_timeout"
        assert idle.reason.limit_s == 0.5 and (idle.reason.seen_s or 0) >= 0.5


async def test_what_a_job_used_is_kept_for_each_delivery(fleet: Fleet, hardware: Hardware, short_dir: Path) -> None:
    hardware.is_now(f"{RTX}\nutilisation 0 50")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1)
        job = await holding(client, short_dir, vram_gb=6)
        await eventually((short_dir / str(job)).exists, within_s=30)
        hardware.is_now(f"{RTX}\nutilisation 0 50\n{uses(short_dir, job, 4)}")

        async def peak() -> Peak | None:
            [delivery] = (await client.job_get(job, detail="full")).assignments or []
            found = delivery.peak
            return found if found is not None and found.vram_mb == 4096 and found.rss_mb else None

        while_it_runs = await eventually(peak, within_s=30)
        assert while_it_runs.gpu == 50
        fleet.kill_worker("w1")
        hardware.is_now(f"{RTX}\nutilisation 0 50")
        await ready(fleet, client, 1)
        await client.job_cancel(CancelRequest(job=[job]))
        await ended(client, job)
        at_the_end = await peak()
        assert at_the_end is not None and at_the_end.cpu_s is not None
        assert (at_the_end.rss_mb or 0) >= (while_it_runs.rss_mb or 0)


async def test_a_killed_worker_finds_its_jobs_devices_reserved_still(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(RTX)
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1, worker_resources="license=1")
        running = await holding(client, short_dir, gpus=1, resources={"license": 1})
        await are(client, [running], R)
        waits = await submit(client, "exit 0", vram_gb=1)
        fleet.kill_worker("w1")
        await ready(fleet, client, 1, worker_resources="license=1")
        assert await states(client, [running, waits]) == [R, Q]
        [worker] = (await client.worker_list()).workers
        assert worker.gpus is not None and worker.gpus[0].jobs == [f"{running}.1"]
        assert worker.resources is not None and worker.resources["license"].used == 1
        await client.job_cancel(CancelRequest(job=[running]))
        assert (await ended(client, waits)).state is JobState.COMPLETED


async def test_a_worker_that_finds_less_than_the_broker_knew_says_no_before_anything_runs(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    fleet.settings["probe_s"] = "600"
    hardware.is_now(RTX)
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 1)
        hardware.is_now(f"{RTX}\nprocess 0 1 20480 compute")  # and nobody looks for ten minutes
        job = await submit(client, f"touch {short_dir}/ran", vram_gb=10)

        async def refused() -> bool:
            deliveries = (await client.job_get(job, detail="full")).assignments or []
            return [(one.state.value, one.reason and one.reason.code) for one in deliveries] == [
                ("refused", "gpu_busy")
            ]

        await eventually(refused, within_s=30)
        waiting = (await client.job_get(job)).waiting
        assert waiting is not None and waiting.code in ("gpus_busy", "gpu_busy")
        assert not (short_dir / "ran").exists()


@pytest.mark.guarantee("G37")
@pytest.mark.trial("B37")
async def test_a_stream_for_one_card_does_not_starve_a_job_for_two_and_what_fits_nowhere_delays_nobody(
    fleet: Fleet, hardware: Hardware, short_dir: Path
) -> None:
    hardware.is_now(f"{RTX}\n{H100}")
    await fleet.start_broker()
    async with fleet.client() as client:
        await ready(fleet, client, 2)
        small = [await submit(client, f"sleep {1 + n % 3 / 2}", gpus=1, priority=-5) for n in range(8)]
        await are(client, small[:2], R, R)
        impossible = await submit(client, "exit 0", gpus=3, priority=50)
        later = await submit(client, "exit 0", gpus=1, priority=50, depends_on=[small[-1]])
        big = await submit(client, "exit 0", gpus=2)
        held: set[str] = set()

        async def big_has_ended() -> bool:
            waiting = [(await client.job_get(job)).waiting for job in (small[2], impossible, later)]
            held.update(reason.code for reason in waiting if reason is not None)
            return (await client.job_get(big)).state is JobState.COMPLETED

        await eventually(big_has_ended, within_s=60)
        assert [(await ended(client, job)).state for job in (*small, later)] == [JobState.COMPLETED] * 9

        started_at = {job: (await client.job_get(job)).started_at for job in (*small, big)}
        assert all(started_at[big] < started_at[job] for job in small[2:])
        assert {"reservation", "no_worker_fits", "dependencies"} <= held
        assert (await client.job_get(impossible)).state is Q
