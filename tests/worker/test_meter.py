"""What an assignment has used, and when its devices stood idle: from samples, without a machine."""

from __future__ import annotations

import pytest

from broker.wire.jobs import Peak
from broker.wire.machines import Gpu, GpuHealth, GpuProcess
from broker.wire.workers import Final, Outcome
from worker.meter import Meter
from worker.probe.trees import TreeUse

A, B = "GPU-a", "GPU-b"
GAP_S = 15.0


def gpu(uuid: str = A, utilisation: int | None = 0, **fields: object) -> Gpu:
    known = {"index": 0, "health": GpuHealth.OK, "total_mb": 24576, "free_mb": 20000, "processes": [], **fields}
    return Gpu.model_validate({"uuid": uuid, "utilisation": utilisation, **known})


def ours(mb: int | None = 4096, job: str = "1.1") -> GpuProcess:
    return GpuProcess(pid=7, mb=mb, job=job)


def idle_after(*looks: list[Gpu], uuids: tuple[str, ...] = (A,), every_s: float = 5) -> float:
    meter = Meter("1.1", uuids)
    for number, gpus in enumerate(looks):
        meter.saw_devices(gpus, number * every_s, GAP_S)
    return meter.idle_s()


def test_devices_that_show_no_use_are_idle_from_the_first_look() -> None:
    assert idle_after([gpu()], [gpu()], [gpu(processes=[ours()])]) == 10


@pytest.mark.guarantee("G33")
@pytest.mark.parametrize(
    "unknown",
    [
        [gpu(utilisation=None)],
        [gpu(health=GpuHealth.LOST, utilisation=None)],
        [gpu(health=GpuHealth.UNKNOWN)],
        [gpu(health=GpuHealth.UNHEALTHY)],
        [gpu(B)],
        [],
    ],
    ids=["not told", "lost", "unknown", "unhealthy", "not there", "nothing is known"],
)
def test_what_is_not_known_is_never_idle(unknown: list[Gpu]) -> None:
    assert idle_after(*[unknown] * 100) == 0
    assert idle_after([gpu()], [gpu()], unknown) == 0
    assert idle_after([gpu()], unknown, [gpu()], [gpu()]) == 5  # it begins anew


def test_one_busy_device_of_several_is_enough_and_one_unknown_too() -> None:
    assert idle_after(*[[gpu(A), gpu(B, 1)]] * 5, uuids=(A, B)) == 0
    assert idle_after(*[[gpu(A), gpu(B, None)]] * 5, uuids=(A, B)) == 0
    assert idle_after(*[[gpu(A), gpu(B)]] * 5, uuids=(A, B)) == 20


def test_a_device_that_only_others_keep_busy_is_idle_for_the_job_and_one_of_which_that_is_not_sure_is_not() -> None:
    other = GpuProcess(pid=8, mb=1, job="2.1")
    assert idle_after(*[[gpu(A, 90, processes=[other])]] * 3) == 10
    assert idle_after(*[[gpu(A, 90, processes=[other, ours()])]] * 3) == 0
    assert idle_after(*[[gpu(A, 90, processes=[GpuProcess(pid=9, mb=1, seen=False)])]] * 3) == 0
    assert idle_after(*[[gpu(A, 90, processes=[])]] * 3) == 0
    assert idle_after(*[[gpu(A, 90, processes=None)]] * 3) == 0


@pytest.mark.guarantee("G33")
def test_time_in_which_nobody_looked_is_not_counted() -> None:
    meter = Meter("1.1", (A,))
    for at in (0, 5, 10, 4000, 4005):
        meter.saw_devices([gpu()], at, GAP_S)
    assert meter.idle_s() == 5


def test_a_job_without_devices_is_never_idle() -> None:
    assert idle_after(*[[gpu()]] * 5, uuids=()) == 0


def test_peaks_are_the_largest_and_the_gpu_is_a_mean_of_the_devices_that_it_had() -> None:
    meter = Meter("1.1", (A, B))
    for rss_mb, cpu_s in ((100, 1), (700, 5), (50, 9)):
        meter.saw_tree(TreeUse(rss_mb, cpu_s))
    looks = [
        [gpu(A, 100, processes=[ours(1000)]), gpu(B, 50, processes=[ours(2000), ours(999, "2.1")])],
        [gpu(A, 20, processes=[ours(10)]), gpu(B, None)],
        [gpu(A, None), gpu(B, None)],
    ]
    for number, gpus in enumerate(looks):
        meter.saw_devices(gpus, number, GAP_S)
    assert meter.peak() == Peak(rss_mb=700, vram_mb=3000, cpu_s=9, gpu=47.5)


def test_what_is_not_told_is_left_out() -> None:
    meter = Meter("1.1", (A,))
    assert meter.peak() is None and not meter.moved()
    meter.saw_devices([gpu(utilisation=None, processes=[ours(None)])], 0, GAP_S)
    assert meter.peak() is None
    meter.saw_tree(TreeUse(None, 2))
    assert meter.peak() == Peak(cpu_s=2)


def test_small_movements_are_not_told() -> None:
    meter = Meter("1.1")
    meter.saw_tree(TreeUse(1000, 100))
    assert meter.moved() and meter.told == Peak(rss_mb=1000, cpu_s=100)
    meter.saw_tree(TreeUse(1040, 109))
    assert not meter.moved() and meter.told == Peak(rss_mb=1000, cpu_s=100)
    meter.saw_tree(TreeUse(1060, 109))
    assert meter.moved() and meter.told == Peak(rss_mb=1060, cpu_s=109)


def test_an_hour_of_work_is_told_a_few_dozen_times() -> None:
    meter = Meter("1.1")
    told = 0
    for second in range(0, 3600, 5):
        meter.saw_tree(TreeUse(500, second * 4))
        told += meter.moved()
    assert told < 60


def test_the_end_counts_what_the_kernel_says_for_a_job_that_was_never_looked_at() -> None:
    assert Meter("1.1").at_the_end(Final(outcome=Outcome.EXITED, max_rss_mb=12.34, cpu_s=0.5)) == Peak(
        rss_mb=12.3, cpu_s=0.5
    )
    assert Meter("1.1").at_the_end(Final(outcome=Outcome.REFUSED)) is None


def test_the_next_worker_goes_on_from_it_but_for_idleness() -> None:
    meter = Meter("1.1", (A,))
    meter.saw_tree(TreeUse(700, 5))
    meter.saw_devices([gpu(A, 0, processes=[ours()])], 0, GAP_S)
    meter.saw_devices([gpu(A, 0, processes=[ours()])], 5, GAP_S)
    again = Meter("1.1", (A,))
    again.load(meter.dump())
    assert again.peak() == meter.peak()
    assert (meter.idle_s(), again.idle_s()) == (5, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rss_mb": "much"}', "null"])
def test_what_can_not_be_read_is_nothing(text: str) -> None:
    meter = Meter("1.1")
    meter.load(text)
    assert meter.peak() is None
