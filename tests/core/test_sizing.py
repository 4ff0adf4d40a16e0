"""What past runs used, beside what is asked."""

from __future__ import annotations

from broker.core.estimates import History, Run, Use
from broker.core.sizing import advice, used, would_do
from broker.wire.jobs import JobSpec

KEY = "a" * 16 + "." + "b" * 16
SAME, OTHER = "b" * 16, "c" * 16


def run(exact: str = SAME, run_s: float = 100, **use: float) -> Run:
    return Run(exact, run_s, Use(1, **use))


def said(history: History, **spec: object) -> list[str]:
    return advice(JobSpec(command="train.py", **spec), used(history, KEY))


def test_what_is_far_too_much_is_named_with_what_was_seen_and_what_would_do() -> None:
    history = History(tuple(run(rss_mb=mb * 1024) for mb in [9.5] * 13 + [11]))
    assert said(history, ram_gb=64) == ["asks 64 GB, used at most 11 GB in 14 runs: ram_gb 14 would do"]
    assert said(history, ram_gb=16) == []
    assert said(history) == []


def test_what_is_too_small_is_named_and_a_failure_for_want_of_memory_shows_it() -> None:
    done, failed = (run(rss_mb=4096),) * 3, (run(rss_mb=8100),)
    assert said(History(done), ram_gb=8) == []
    (line,) = said(History(done, failed), ram_gb=8)
    assert line.startswith("asks 8 GB, and 7.91 GB were used")
    assert line.endswith("too small, ram_gb 10 would do")


def test_nothing_is_suggested_of_fewer_runs_than_three_nor_of_failures_alone() -> None:
    assert said(History((run(rss_mb=100),) * 2, (run(rss_mb=100),) * 9), ram_gb=64) == []
    assert said(History((), (run(rss_mb=100),) * 9), ram_gb=64) == []
    assert said(History((run(cpu_s=1),) * 2, (run(cpu_s=1),) * 9), cpus=16) == []


def test_runs_whose_memory_nobody_could_tell_are_not_counted_as_small() -> None:
    assert said(History((run(), run(), run(), Run(SAME, 5.0))), ram_gb=64) == []
    assert said(History((run(rss_mb=100), run(rss_mb=100), run(), run())), ram_gb=64) == []


def test_this_very_command_counts_where_it_ran_often_enough_and_else_its_like() -> None:
    like = (run(OTHER, rss_mb=30 * 1024),) * 5
    assert used(History((*like, *[run(rss_mb=1024)] * 3)), KEY).rss_gb == 1
    seen = used(History((*like, run(rss_mb=1024))), KEY)
    assert (seen.rss_gb, seen.runs, seen.values_differ) == (30, 6, True)


def test_of_several_gpus_nothing_is_said_of_memory_since_its_spread_is_not_known() -> None:
    history = History((run(vram_mb=8 * 1024, gpu=60),) * 3)
    assert said(history, vram_gb=40) == ["asks 40 GB, used at most 8 GB in 3 runs: vram_gb 10 would do"]
    assert said(history, vram_gb=40, gpus=4) == []


def test_processors_and_devices_that_were_idle_are_named() -> None:
    history = History((run(cpu_s=120, gpu=0.5),) * 3)
    assert said(history, cpus=16, gpus=1) == [
        "asks 16 cpus, used 1.2 on average in the busiest of 3 runs: cpus 2 may do",
        "asks 1 GPU, busy for at most 0.5 % of the time in 3 runs",
    ]
    assert said(History((run(run_s=0.1, cpu_s=0.1),) * 3), cpus=16) == []


def test_room_is_left_in_whole_gibibytes() -> None:
    assert [would_do(gb) for gb in (0.01, 1, 11, 40)] == [1, 2, 14, 50]
