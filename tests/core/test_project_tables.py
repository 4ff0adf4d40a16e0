"""`[projects.NAME]` in jobd.toml: read whole, or refused with the place and the nearest name."""

from __future__ import annotations

import pytest

from broker.core.effective import given
from broker.wire.projects import Quota
from broker.wire.settings import BrokerSettings, ConfigurationError, WorkerSettings, load

GOOD = """
lease_s = 30
[projects._default]
max_wall_s = "none"
[projects.train]
priority = 0
needs = []
preemptible = false
idle_timeout_s = 0.5
"""


def test_a_table_says_what_stands_in_it_and_nothing_else() -> None:
    read = load(BrokerSettings, {}, GOOD)

    assert read.lease_s == 30
    assert {name: given(table) for name, table in read.projects.items()} == {
        "_default": {"max_wall_s": "none"},
        "train": {"priority": 0, "needs": [], "preemptible": False, "idle_timeout_s": 0.5},
    }
    load(WorkerSettings, {}, GOOD)  # not its business, and no fault


def test_quotas_stand_in_tables_of_their_own() -> None:
    text = (
        "[projects.p]\npriority = 9\n[projects.p.quota]\ngpus = 2\n[tokens.agent.quota]\nqueued = 5\nwhen_over = 'hold'"
    )

    read = load(BrokerSettings, {}, text)

    assert (read.projects["p"].priority, read.projects["p"].quota) == (9, Quota(gpus=2))
    assert read.tokens["agent"].quota == Quota(queued=5, when_over="hold")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[projects.train]\nmax_wal_s = 3", r"projects\.train\.max_wal_s in jobd\.toml.*did you mean max_wall_s\?"),
        (
            "[projects._default]\nidle_timeout = 3",
            r"projects\._default\.idle_timeout in jobd\.toml.*did you mean idle_timeout_s\?",
        ),
        ("[projects.train]\ncommand = 'x'", r"projects\.train\.command.*no default for that; it takes cpus,"),
        ("[projects.train]\nmax_wall_s = 0", r"projects\.train\.max_wall_s in jobd\.toml: give seconds, above 0"),
        ("[projects.train]\npriority = 101", r"projects\.train\.priority in jobd\.toml: .*100"),
        ("[projects.train]\non_preempt = 'kill'", r"projects\.train\.on_preempt in jobd\.toml: .*'stop' or 'requeue'"),
        ("[projects.'a b']\npriority = 1", r"projects\.a b in jobd\.toml: use letters"),
        ("[projects._defaults]\npriority = 1", r"projects\._defaults in jobd\.toml: use letters"),
        ("[projects.p]\nshare = 0", r"projects\.p\.share in jobd\.toml: .*greater than 0"),
        ("[projects.p.quota]\nrunnin = 1", r"projects\.p\.quota\.runnin.*limits nothing.*did you mean running\?"),
        ("[projects.p.quota]\nwhen_over = 'x'", r"projects\.p\.quota\.when_over in jobd\.toml: .*'deny' or 'hold'"),
        ("[tokens.t]\npriority = 1", r"tokens\.t\.priority in jobd\.toml: a token has only a quota; it takes quota\."),
        ("[tokens.t.quota]\ngpus = -1", r"tokens\.t\.quota\.gpus in jobd\.toml: .*greater than or equal to 0"),
        ("projects = 3", r"projects in jobd\.toml"),
        ("[projects]\ntrain = 3", r"projects\.train in jobd\.toml"),
        ("[project.train]\npriority = 1", r"did you mean projects\?"),
    ],
)
def test_a_table_that_is_wrong_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load(BrokerSettings, {}, text)


def test_the_environment_has_no_tables() -> None:
    with pytest.raises(ConfigurationError, match="JOBD_PROJECTS: projects can only be set in"):
        load(BrokerSettings, {"JOBD_PROJECTS": "train"})
