"""Who makes room: as few as it takes, the cheapest first, and nobody where it would not help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.matching import Machine, Shape, reasons
from broker.core.preemption import Site, Victim, chosen, chosen_on
from broker.core.reservation import Running, without


def site(slots: float, *victims: Victim, worker: str = "w", going: float = 0, firm: float = 0) -> Site:
    used = sum(victim.running.cpus for victim in victims) + going + firm
    machine = Machine(worker, online=True, slots=slots, free=slots - used, tags=frozenset())
    return Site(worker, machine, [Running("9.1", going, 0, stopping=True)] if going else [], victims)


def victim(job: int, cpus: float = 1, priority: int = 0, work_s: float = 10) -> Victim:
    return Victim(job, job, Running(f"{job}.1", cpus, 0), priority, work_s)


def shape(cpus: float) -> Shape:
    return Shape(cpus, (), None, "p")


def jobs(found: object) -> list[int] | None:
    return None if found is None else [one.job for one in found]  # type: ignore[attr-defined]


VICTIMS = st.lists(
    st.tuples(st.sampled_from([0.5, 1, 2, 4]), st.integers(-50, 50), st.floats(0, 1000)), max_size=7
).map(lambda drawn: [victim(n, *one) for n, one in enumerate(drawn)])


@given(VICTIMS, st.sampled_from([1, 2, 4, 8]), st.sampled_from([0, 1, 2]), st.sampled_from([0, 1]))
@pytest.mark.guarantee("G39")
def test_nobody_is_stopped_who_is_not_needed_and_only_if_it_helps(
    victims: list[Victim], wanted: float, going: float, firm: float
) -> None:
    there = site(sum(one.running.cpus for one in victims) + going + firm + 0.5, *victims, going=going, firm=firm)

    found = chosen_on(shape(wanted), there)

    def fits(gone: list[Victim]) -> bool:
        return not reasons(shape(wanted), without(there.machine, [*there.going, *(one.running for one in gone)]))

    if found is None:
        assert not fits(victims)
        return
    assert fits(list(found))
    for one in found:
        assert not fits([other for other in found if other is not one])


def test_the_least_important_goes_first_and_then_who_has_done_least() -> None:
    low, fresh, old = victim(1, priority=-5, work_s=900), victim(2, work_s=5), victim(3, work_s=50)

    assert jobs(chosen_on(shape(1), site(3, old, fresh, low))) == [1]
    assert jobs(chosen_on(shape(2), site(3, old, fresh, low))) == [1, 2]


def test_a_large_one_that_is_enough_spares_the_small_ones_before_it() -> None:
    assert jobs(chosen_on(shape(4), site(5, victim(1, work_s=1), victim(2, cpus=4, work_s=90)))) == [2]


def test_what_is_being_stopped_already_will_do() -> None:
    assert jobs(chosen_on(shape(2), site(3, victim(1), going=2))) == []


def test_the_worker_where_it_costs_least_is_taken() -> None:
    a = site(1, victim(1, priority=5, work_s=1), worker="a")
    b = site(1, victim(2, priority=0, work_s=900), worker="b")
    c = site(1, worker="c", firm=1)

    found = chosen(shape(1), [a, b, c])

    assert found is not None and (found[0].worker, jobs(found[1])) == ("b", [2])
    assert chosen(shape(1), [c]) is None
