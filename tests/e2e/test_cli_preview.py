"""`job preview`, against a real broker and worker: what a submit would say, with estimates from jobs that really ran."""

from __future__ import annotations

from support.installation import Installation


def test_preview_takes_what_submit_takes_and_submits_nothing(up: Installation) -> None:
    said = up.good("preview", "--cpus", "1", "--", "sh", "-c", "echo never printed")
    assert said.text.startswith("would be accepted\n")
    assert "fits" in said.text
    answer = up.good("preview", "--json", "--cpus", "1", "--", "sh", "-c", "echo never printed").json()
    assert (answer["valid"], answer["spec"]["argv"], answer["sources"]["cpus"]) == (
        True,
        ["sh", "-c", "echo never printed"],
        "job",
    )
    assert "never printed" not in up.good("list").text


def test_what_would_be_refused_exits_125_and_says_all_of_it(up: Installation) -> None:
    said = up.job("preview", "--gpus", "-1", "--count", "0", "true")
    assert said.code == 125
    assert said.text.splitlines()[0] == "would be refused"
    assert [line.partition(":")[0] for line in said.text.splitlines()[1:]] == ["gpus", "count"]


def test_what_really_ran_is_the_estimate_of_the_next(up: Installation) -> None:
    for value in (1, 2, 3):
        assert up.job("submit", "--wait", f"sleep 0.1; echo preview-{value}").code == 0
    answer = up.good("preview", "--json", "sleep 0.1; echo preview-4").json()
    assert 0.1 <= answer["run_estimate_s"] < 60
    assert answer["basis"].endswith("run: median of 3 runs of this command with other values")
    assert "runs for about" in up.good("preview", "sleep 0.1; echo preview-4").text
