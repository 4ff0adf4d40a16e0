"""When a queued job starts, if what runs and what is ahead take as long as before; no number where that is not known."""

from __future__ import annotations

from broker.core.forecast import MOST_AHEAD, Queued, Running, able, forecast
from broker.core.matching import Machine, Shape
from broker.core.placement import Demand, Held, Host
from broker.wire.machines import Cpus, Facts, Given, Gpu, GpuHealth, GpuProcess, GpuShare, GpuState, Ram
from broker.wire.workers import WorkerState

GIB = 1024


def shape(cpus: float = 1, vram_gb: float | None = None, ram_gb: float = 0) -> Shape:
    demand = Demand(int(vram_gb is not None), None if vram_gb is None else int(vram_gb * GIB), ram_gb)
    return Shape(cpus, (), None, "default", demand)


def box(name: str = "box", slots: float = 4, free: float | None = None, host: Host | None = None) -> Machine:
    gpus = len(host.devices) if host is not None else 0
    return Machine(name, True, slots, slots if free is None else free, frozenset(), gpus=gpus, host=host)


def runs(left_s: float | None, name: str = "1.1", worker: str = "box", cpus: float = 1) -> Running:
    return Running(name, worker, cpus, left_s)


def test_it_starts_now_where_there_is_room_and_nothing_is_ahead() -> None:
    found = forecast(shape(), [], [box()], [])
    assert (found.start_s, found.basis) == (0, "a worker has room for it now")


def test_it_starts_when_enough_of_what_runs_has_ended() -> None:
    full = box(free=0)
    running = [runs(10, "1.1"), runs(30, "2.1", cpus=3)]
    assert forecast(shape(1), [], [full], running).start_s == 10
    later = forecast(shape(4), [], [full], running)
    assert (later.start_s, later.basis) == (30, "if 2 that run take as long as such jobs did before")


def test_what_is_ahead_has_its_turn_first_and_what_does_not_fit_is_passed_by() -> None:
    full, running = box(free=0), [runs(10, cpus=4)]
    four = [Queued(shape(), 100.0)] * 4
    assert forecast(shape(), four, [full], running).start_s == 110
    assert forecast(shape(), four[:3], [full], running).start_s == 10
    assert forecast(shape(), [Queued(shape(5), 100.0)], [full], running).start_s == 10
    assert forecast(shape(), [Queued(shape(3), 100.0), Queued(shape(4), 9.0)], [full], running).start_s == 10


def test_work_spreads_over_workers() -> None:
    two = [box("a", 1), box("b", 1)]
    ahead = [Queued(shape(), 10.0), Queued(shape(), 30.0), Queued(shape(), 10.0)]
    found = forecast(shape(), ahead, two, [])
    assert (found.start_s, found.basis) == (20, "if 3 ahead of it take as long as such jobs did before")


def test_without_history_of_what_is_in_the_way_there_is_no_number() -> None:
    found = forecast(shape(4), [], [box(free=2)], [runs(10, "1.1"), runs(None, "2.1")])
    assert found.start_s is None
    assert found.basis == "too little is known of how long what is in its way runs: 2.1"
    assert forecast(shape(3), [], [box(free=2)], [runs(10, "1.1"), runs(None, "2.1")]).start_s == 10
    ahead = forecast(shape(4), [Queued(shape(), None)], [box()], [])
    assert (ahead.start_s, ahead.basis) == (None, "too little is known of how long jobs ahead of it run (1 of 1)")


def test_it_starts_not_before_what_it_depends_on_has_ended() -> None:
    assert forecast(shape(), [], [box()], [], ready_s=50).start_s == 50
    assert forecast(shape(4), [], [box(free=0)], [runs(20, cpus=4)], ready_s=50).start_s == 50
    assert forecast(shape(4), [], [box(free=0)], [runs(80, cpus=4)], ready_s=50).start_s == 80


def test_workers_that_could_never_take_it_or_take_nothing_are_not_able() -> None:
    closed = Machine("closed", True, 4, 4, frozenset(), WorkerState.CORDONED)
    offline = Machine("offline", False, 4, 4, frozenset())
    assert [
        one.name for one in able(shape(2), [closed, offline, box("small", 1), box("a"), box("b")], frozenset("b"))
    ] == ["a"]
    assert forecast(shape(), [], [], []).basis is None


def test_the_work_of_one_forecast_is_bounded() -> None:
    found = forecast(shape(), [Queued(shape(), 1.0)] * (MOST_AHEAD + 1), [box()], [])
    assert (found.start_s, found.basis) == (None, f"more than {MOST_AHEAD} jobs are ahead of it")


def card(held_gb: float, used_gb: float, foreign_gb: float = 0) -> Host:
    """One card of 24 GiB, of which 1.1 has reserved and uses some."""
    used = [(int(used_gb * GIB), "1.1"), (int(foreign_gb * GIB), None)]
    processes = [GpuProcess(pid=pid, mb=mb, job=job) for pid, (mb, job) in enumerate(used) if mb]
    free_mb = 24 * GIB - 400 - sum(mb for mb, _ in used)
    gpu = Gpu.model_validate(
        {"uuid": "GPU-0", "index": 0, "health": GpuHealth.OK, "total_mb": 24 * GIB, "free_mb": free_mb}
        | {"driver_mb": 400, "processes": processes}
    )
    facts = Facts(
        number=1, cpus=Cpus(logical=8, usable=8), ram_gb=Ram(total=64, available=9), gpu_state=GpuState.OK, gpus=[gpu]
    )
    given = Given(gpus=[GpuShare(uuid="GPU-0", mb=int(held_gb * GIB))], ram_gb=40)
    return Host("box", facts, (), (Held("1.1", given),))


def test_what_an_end_gives_back_of_a_device_counts_what_its_processes_use() -> None:
    assert forecast(shape(vram_gb=20), [], [box(host=card(18, 18))], [runs(60)]).start_s == 60
    assert forecast(shape(vram_gb=20), [], [box(host=card(18, 2))], [runs(60)]).start_s == 60
    assert forecast(shape(ram_gb=30), [], [box(host=card(2, 2))], [runs(60)]).start_s == 60
    foreign = forecast(shape(vram_gb=20), [], [box(host=card(2, 2, foreign_gb=18))], [runs(60)])
    assert (foreign.start_s, foreign.basis) == (None, "no end of a job makes room for it: others use what it needs")


def test_devices_are_given_to_those_ahead_first() -> None:
    ahead = [Queued(shape(vram_gb=16), 100.0)]
    assert forecast(shape(vram_gb=16), ahead, [box(host=card(18, 18))], [runs(60)]).start_s == 160
