"""An estimate is the middle of what was seen, says of how much, and says nothing where too little was."""

from __future__ import annotations

from broker.core.estimates import FEWEST, MOST_USED, History, Run, estimate

KEY = "s" * 16 + "." + "a" * 16


def runs(*seconds: float, exact: str = "a") -> tuple[Run, ...]:
    return tuple(Run(exact * 16, run_s) for run_s in seconds)


def test_too_few_samples_give_no_number_and_say_how_many() -> None:
    found = estimate(KEY, History(runs(60, 70)))
    assert (found.run_s, found.upper_s, found.samples) == (None, None, 2)
    assert found.basis == f"2 runs of this command so far: {FEWEST} are needed"
    assert estimate(None, History(runs(1, 1, 1))).run_s is None


def test_the_same_command_counts_before_those_with_other_values() -> None:
    history = History((*runs(100, 100, 100, exact="b"), *runs(10, 12, 11)))
    found = estimate(KEY, history)
    assert (found.run_s, found.upper_s, found.samples) == (11, 12, 3)
    assert found.basis == "median of 3 runs of this command"
    fewer = estimate(KEY, History((*runs(100, 110, 120, exact="b"), *runs(10))))
    assert (fewer.run_s, fewer.samples, fewer.basis) == (105, 4, "median of 4 runs of this command with other values")


def test_an_early_crash_does_not_shorten_it() -> None:
    found = estimate(KEY, History(runs(60, 61, 62), failed=runs(1, 1, 1, 1, 1)))
    assert found.run_s == 61
    assert found.basis == "median of 3 runs of this command; 5 failed and are not counted"


def test_one_that_runs_already_is_none_of_those_that_ended_before() -> None:
    history = History(runs(10, 20, 30, 40, 50))
    assert estimate(KEY, history, ran_s=25).run_s == 40
    beyond = estimate(KEY, history, ran_s=60)
    assert (beyond.run_s, beyond.basis) == (None, "it runs longer than the last 5 runs of this command")


def test_the_last_runs_count() -> None:
    history = History((*runs(*[1000] * 12), *runs(*[10] * MOST_USED)))
    found = estimate(KEY, history)
    assert (found.run_s, found.upper_s, found.samples) == (10, 10, MOST_USED)


def test_nine_of_ten_end_before_the_upper_one() -> None:
    assert estimate(KEY, History(runs(*range(1, 21)))).upper_s == 19
    assert estimate(KEY, History(runs(1, 2, 3))).upper_s == 3
