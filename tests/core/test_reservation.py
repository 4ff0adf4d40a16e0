"""Room that is kept: what passes never takes what the job needs that it is kept for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.matching import Machine, Shape, reasons
from broker.core.placement import Demand, Held, Host, choose
from broker.core.reservation import (
    NEVER,
    Running,
    Start,
    expected_end,
    is_much_sooner,
    may_pass,
    start_on,
    with_,
    without,
)
from broker.wire.machines import Cpus, Facts, Given, Gpu, GpuHealth, GpuProcess, GpuShare, GpuState, Ram

GIB = 1024


def card(index: int, *processes: GpuProcess, total_gb: int = 24) -> Gpu:
    free_mb = total_gb * GIB - sum(process.mb or 0 for process in processes)
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        health=GpuHealth.OK,
        total_mb=total_gb * GIB,
        free_mb=free_mb,
        processes=list(processes),
    )


def machine(slots: float, *gpus: Gpu, held: tuple[Held, ...] = (), used: float = 0) -> Machine:
    ram = Ram(total=64, available=64)
    cpus = Cpus(logical=8, usable=8)
    facts = Facts(number=1, cpus=cpus, ram_gb=ram, gpu_state=GpuState.OK, gpus=list(gpus))
    host = Host("w", facts, held=held)
    return Machine("w", online=True, slots=slots, free=slots - used, tags=frozenset(), gpus=len(gpus), host=host)


def shape(cpus: float = 1, gpus: int = 0, vram_gb: int | None = None) -> Shape:
    return Shape(cpus, (), None, "p", Demand(gpus, None if vram_gb is None else vram_gb * GIB))


def runs(there: Machine, wants: Shape, name: str, ends_at: float) -> tuple[Machine, Running] | None:
    """The machine with one job more on it, if it fits."""
    if reasons(wants, there):
        return None
    assert there.host is not None
    what = choose(wants.demand, there.host) if wants.demand else None
    host = there.host.with_(Held(name, what)) if what is not None else there.host
    return replace(there, free=there.free - wants.cpus, host=host), Running(name, wants.cpus, ends_at, what)


SHAPES = st.builds(
    shape,
    st.sampled_from([0.5, 1, 2, 3]),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(1, 24)),
).filter(lambda one: one.demand.gpus > 0 or one.demand.vram_mb is None)
ENDS = st.one_of(st.integers(1, 50).map(float), st.just(NEVER))


@settings(max_examples=300)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(SHAPES, ENDS), max_size=6),
    SHAPES,
    st.lists(st.tuples(SHAPES, ENDS), max_size=6),
)
@pytest.mark.guarantee("G37")
def test_whoever_passes_the_job_starts_no_later_than_was_expected(
    cards: int, before: list[tuple[Shape, float]], waits: Shape, behind: list[tuple[Shape, float]]
) -> None:
    there, running = machine(8, *(card(n) for n in range(cards))), []
    for n, (wants, ends_at) in enumerate(before):
        if (more := runs(there, wants, f"{n}.1", ends_at)) is not None:
            there, one = more
            running.append(one)
    start = start_on(waits, there, running, now=0)
    if start is None or not reasons(waits, there):
        return
    for n, (wants, ends_at) in enumerate(behind):
        more = runs(there, wants, f"{100 + n}.1", ends_at)
        if more is not None and may_pass(waits, start, there, running, replace(more[1], assignment="")):
            there, one = more
            running.append(one)

    by_then = [one for one in running if one.assignment in start.after or one.ends_at < start.at]
    assert not reasons(waits, without(there, by_then))
    again = start_on(waits, there, running, now=0)
    assert again is not None and again.at <= start.at


@given(st.lists(st.tuples(SHAPES, ENDS), min_size=1, max_size=6), SHAPES)
def test_no_more_is_waited_for_than_is_needed(before: list[tuple[Shape, float]], waits: Shape) -> None:
    there, running = machine(8, card(0), card(1)), []
    for n, (wants, ends_at) in enumerate(before):
        if (more := runs(there, wants, f"{n}.1", ends_at)) is not None:
            there, one = more
            running.append(one)
    start = start_on(waits, there, running, now=0)
    if start is None:
        return
    after = [one for one in running if one.assignment in start.after]

    assert not reasons(waits, without(there, after))
    for one in after:
        assert reasons(waits, without(there, [other for other in after if other is not one]))


def share(mb: int | None = None) -> Given:
    return Given(gpus=[GpuShare(uuid="GPU-0", mb=mb)])


@pytest.mark.parametrize(
    ("given_", "processes", "free_gb"),
    [
        (share(10 * GIB), [GpuProcess(pid=1, mb=9 * GIB, job="1.1")], 24),
        (share(10 * GIB), [], 24),
        (share(10 * GIB), [GpuProcess(pid=1, mb=9 * GIB, name="blender")], 15),
        (share(10 * GIB), [GpuProcess(pid=1, mb=9 * GIB, seen=False)], 24),
        (share(), [GpuProcess(pid=1, mb=20 * GIB, job="1.1"), GpuProcess(pid=2, mb=2 * GIB)], 22),
        (share(), [GpuProcess(pid=1, mb=20 * GIB, seen=False)], 24),
    ],
)
def test_what_a_job_uses_is_free_after_its_end_and_what_others_use_is_not(
    given_: Given, processes: list[GpuProcess], free_gb: int
) -> None:
    there = machine(8, card(0, *processes), held=(Held("1.1", given_),))

    host = without(there, [Running("1.1", 1, 5, given_)]).host

    assert host is not None and host.facts is not None
    assert host.facts.gpus[0].free_mb == free_gb * GIB
    assert host.held == ()


def test_memory_of_a_job_whose_size_is_not_told_is_free_too() -> None:
    process = GpuProcess(pid=1, mb=None, job="1.1")
    gpu = card(0, process).model_copy(update={"free_mb": 12 * GIB})
    there = machine(8, gpu, held=(Held("1.1", share(10 * GIB)),))

    host = without(there, [Running("1.1", 1, 5, share(10 * GIB))]).host

    assert host is not None and host.facts is not None
    assert host.facts.gpus[0].free_mb == 22 * GIB


def test_when_a_job_ends_is_the_earlier_of_its_limit_and_what_jobs_like_it_took() -> None:
    assert expected_end(1000, limit_s=60, grace_s=10) == 71_000
    assert expected_end(1000, limit_s=60, grace_s=10, estimate_s=5) == 6000
    assert expected_end(1000, limit_s=None, grace_s=10, estimate_s=5) == 6000
    assert expected_end(1000, limit_s=None, grace_s=10) == NEVER
    assert expected_end(1000, limit_s=-20, grace_s=10) == 1000


@pytest.mark.parametrize(
    ("at", "kept_at", "sooner"), [(100, 100, False), (60, 100, False), (40, 100, True), (NEVER, NEVER, False)]
)
def test_another_worker_is_kept_instead_only_if_much_is_won(at: float, kept_at: float, sooner: bool) -> None:
    assert is_much_sooner(Start(at, ()), Start(kept_at, ()), now=0) is sooner
    assert is_much_sooner(Start(at, ()), Start(NEVER, ()), now=0) is (at < NEVER)


def test_one_more_on_a_machine_takes_its_room() -> None:
    there = with_(machine(4, card(0)), 2, share())

    assert there.free == 2
    assert [reason.code for reason in reasons(shape(3, 1), there)] == ["busy", "gpus_busy"]
