"""Once more, by command and with real processes: retries, keys, the graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.installation import Installation


@pytest.mark.guarantee("G52")
def test_a_job_that_failed_is_retried_with_a_change_and_completes(up: Installation, tmp_path: Path) -> None:
    old = up.good("submit", "--json", "--env", "CODE=3", "exit $CODE").json()["id"]
    assert up.job("wait", str(old)).code == 3

    said = up.good("retry", str(old), "--set", 'env={"CODE": "0"}', "--set", "name=again").text

    assert f"again for {old}" in said
    new = up.good("list", "--json").json()["jobs"][0]
    assert (new["name"], new["retry_of"]) == ("again", old)
    assert up.job("wait", str(new["id"])).code == 0
    refused = up.job("retry", str(old))
    assert (refused.code, f"job {new['id']}" in refused.err) == (125, True)
    assert "gpu" in up.job("retry", str(old), "--set", "gpu=1").err


def test_the_failed_members_of_an_array_are_retried_with_their_index(up: Installation, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    command = f"echo $JOBD_ARRAY_INDEX {{i}}; test {{i}} = 0 || test -e {flag}"
    array = up.good("submit", "--json", "--count", "3", command).json()["array"]
    assert up.job("wait", "--array", str(array)).code == 1
    flag.touch()

    again = up.good("retry", "--json", str(array)).json()

    assert (again["count"], again["retry_of"]) == (2, array)
    assert up.job("wait", "--array", str(again["array"])).code == 0
    assert up.good("logs", "--raw", str(again["array"] + 1)).out == b"2 2\n"


@pytest.mark.guarantee("G53")
@pytest.mark.trial("B38")
def test_a_submit_that_is_repeated_under_its_key_runs_once_also_after_a_restart(
    up: Installation, tmp_path: Path
) -> None:
    command = ("submit", "--json", "--idempotency-key", "k", f"echo x >> {tmp_path}/ran")
    first = up.good(*command).json()
    assert up.job("wait", str(first["id"])).code == 0
    up.good("down")
    up.good("up")

    second = up.good(*command).json()

    assert (second["id"], second["repeated"]) == (first["id"], True)
    refused = up.job("submit", "--idempotency-key", "k", "false")
    assert (refused.code, "another key" in refused.err) == (125, True)
    assert (tmp_path / "ran").read_text() == "x\n"


def test_the_graph_as_a_tree_and_for_graphviz_and_a_preview_of_a_cancel(up: Installation) -> None:
    first = up.good("submit", "--json", "--name", "one", "--project", "g", "sleep 60").json()["id"]
    second = up.good("submit", "--json", "--name", "two", "--project", "g", "--depends-on", str(first), "true").json()[
        "id"
    ]

    tree = up.good("graph", str(second)).text.splitlines()
    assert tree[0].startswith(f"{first} one ")
    assert tree[1] == f"└─ {second} two queued"
    assert f"{first} -> {second};" in up.good("graph", "--project", "g", "--dot").text

    told = up.good("cancel", "--project", "g", "--dry-run").text
    assert "nothing was changed" in told
    up.good("cancel", "--project", "g", "--force")
    assert up.state_of(second) == "cancelled"
