"""Profiles, rules, roots, changes at run time and a file that is read again, in a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.app import run_broker
from broker.client import BrokerClient
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.settings import BrokerSettings, load
from support.scripted_worker import SteppedClock
from support.waiting import eventually

SETTINGS: dict[str, Any] = {
    "profiles": {"gpu24": {"vram_gb": 24, "max_wall_s": 60}, "small": {"cpus": 2}},
    "rules": [{"match": ["train"], "profile": "gpu24", "name": "training"}],
    "projects": {"p": {"priority": 5, "share": 3, "cpus": 4, "quota": {"running": 1, "when_over": "hold"}}},
}


@pytest.mark.guarantee("G46")
async def test_a_job_has_its_profile_and_says_whose_word_each_value_is(make_bench: Callable[..., Any]) -> None:
    bench = await make_bench(**SETTINGS)

    job = await bench.submit(project="p", profile="gpu24")
    full = await bench.client.job_get(job, detail="full")

    assert (full.spec["vram_gb"], full.spec["max_wall_s"], full.spec["cpus"]) == (24, 60, 4)
    wanted = {"vram_gb": "profile gpu24", "cpus": "project", "profile": "job", "idle_timeout_s": "floor"}
    assert {name: full.sources[name] for name in wanted} == wanted


async def test_an_unknown_profile_is_refused_alone_and_among_many(make_bench: Callable[..., Any]) -> None:
    bench = await make_bench(**SETTINGS)
    wrong = JobSpec(command="true", profile="gpu25")

    with pytest.raises(Refused, match="no profile gpu25") as refused:
        await bench.client.job_submit(wrong)
    with pytest.raises(Refused, match=r"jobs\.1: there is no profile gpu25; nothing was submitted"):
        await bench.client.job_submit_many([JobSpec(command="true"), wrong])
    preview = await bench.client.job_preview({"command": "true", "profile": "gpu25"})

    assert (refused.value.field, refused.value.hint) == ("profile", "did you mean gpu24?")
    assert not preview.valid and preview.errors and preview.errors[0].field == "profile"
    assert (await bench.client.job_list()).total == 0


@pytest.mark.guarantee("G46")
async def test_a_rule_warns_in_submit_and_preview(make_bench: Callable[..., Any]) -> None:
    bench = await make_bench(**SETTINGS)

    said = await bench.client.job_submit(JobSpec(command="python train.py"))
    preview = await bench.client.job_preview({"command": "python train.py"})

    assert said.warnings == ["looks like training: profile gpu24 would fit"]
    assert preview.warnings == said.warnings and "vram_gb" not in (preview.spec or {})


@pytest.mark.guarantee("G46")
async def test_a_directory_says_the_project_where_it_really_is(make_bench: Callable[..., Any], tmp_path: Path) -> None:
    vision, other = tmp_path / "vision", tmp_path / "other"
    for directory in (vision / "deep", other):
        directory.mkdir(parents=True)
    (vision / "away").symlink_to(other)
    (tmp_path / "short").symlink_to(vision)
    bench = await make_bench(projects={"vision": {"roots": [str(vision)], "cpus": 2}})

    async def of(cwd: object, **fields: Any) -> tuple[str, str]:
        found = await bench.client.job_preview({"command": "true", "cwd": str(cwd), **fields})
        assert found.spec is not None and found.sources is not None
        return found.spec["project"], found.sources.get("project", "")

    assert await of(vision / "deep") == ("vision", "root")
    assert await of(tmp_path / "short" / "deep") == ("vision", "root")
    assert await of(f"{vision}/../other") == ("default", "default")
    assert await of(vision / "away") == ("default", "default")
    assert await of(f"{vision}2") == ("default", "default")
    assert await of("vision/deep") == ("default", "default")
    assert await of(vision, project="mine") == ("mine", "job")
    assert await of(vision, project="default") == ("default", "job")


@pytest.mark.guarantee("G46")
async def test_a_change_at_run_time_counts_key_by_key_and_can_be_taken_back(make_bench: Callable[..., Any]) -> None:
    bench = await make_bench(**SETTINGS)

    changed = await bench.client.project_set("p", {"priority": 20, "quota.gpus": 2, "profile": "small"})

    assert (changed.values["priority"], changed.sources["priority"]) == (20, "run time")
    assert (changed.values["share"], changed.sources["share"]) == (3, "project")
    assert changed.values["quota"] == {"running": 1, "when_over": "hold", "gpus": 2}
    assert changed.changed_by and changed.changed_at
    assert (await bench.client.job_preview({"command": "true", "project": "p"})).spec["profile"] == "small"

    back = await bench.client.project_set("p", {"priority": None, "quota": None, "profile": None})

    assert (back.values["priority"], back.sources["priority"]) == (5, "project")
    assert back.values["quota"] == {"running": 1, "when_over": "hold"} and back.changed_at is None
    events = (await bench.client.job_events(type=EventType.PROJECT_CHANGED)).events
    assert [event.data["values"] for event in events] == [
        {"priority": 20, "quota.gpus": 2, "profile": "small"},
        {"priority": None, "quota.gpus": None, "profile": None},
    ]


async def test_a_repeat_is_no_event(bench: Any) -> None:
    for _ in range(2):
        await bench.client.project_set("new", {"share": 2})

    assert len((await bench.client.job_events(type=EventType.PROJECT_CHANGED)).events) == 1
    assert [one.name for one in (await bench.client.project_list()).projects] == ["new"]


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"priority": 3, "prioritty": 3}, "values.prioritty", "did you mean priority?"),
        ({"priority": 3, "share": 0}, "values.share", "nothing was changed"),
        ({"priority": 3, "quota": {"gpu": 2}}, "values.quota.gpu", "did you mean quota.gpus?"),
        ({"priority": 3, "quota.gpus": -1}, "values.quota.gpus", "nothing was changed"),
        ({"priority": 3, "quota": 4}, "values.quota", "it takes"),
        ({"priority": 3, "roots": ["/x"]}, "values.roots", "job reload"),
        ({"priority": 3, "profile": "gpu"}, "values.profile", "jobd.toml"),
    ],
)
async def test_a_change_that_is_wrong_is_refused_whole(bench: Any, values: Any, field: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        await bench.client.project_set("p", values)

    assert (refused.value.code, refused.value.field) == (ProblemCode.INVALID_REQUEST, field)
    assert said in (refused.value.hint or "")
    assert (await bench.client.project_list()).projects == []


@pytest.mark.guarantee("G46")
@pytest.mark.trial("B72")
async def test_a_change_outlives_the_broker_and_the_file_stays_beneath(short_dir: Path) -> None:
    settings = BrokerSettings.model_validate(SETTINGS)
    state = short_dir / "state"
    async with run_broker(settings, state, {}), BrokerClient(f"unix://{state}/broker.sock") as client:
        await client.project_set("p", {"priority": 20, "profile": "small"})
    without = settings.model_copy(update={"profiles": {}, "rules": []})  # the profile is in the file no more
    async with run_broker(without, state, {}), BrokerClient(f"unix://{state}/broker.sock") as client:
        [entry] = (await client.project_list()).projects

    assert (entry.values["priority"], entry.values["share"]) == (20, 3)
    assert "profile" not in entry.values


@pytest.mark.guarantee("G46")
async def test_what_a_quota_held_starts_when_the_quota_is_raised(make_bench: Callable[..., Any]) -> None:
    bench = await make_bench(**SETTINGS)
    worker = await bench.registered(slots=64)
    jobs = [await bench.submit(project="p") for _ in range(2)]
    first = await worker.poll()
    assert [one.job for one in first.deliveries] == jobs[:1]

    parked = asyncio.create_task(worker.poll(wait_s=5))
    await eventually(lambda: worker.id in bench.broker.wake._parked, within_s=20)
    await bench.client.project_set("p", {"quota.running": 2})

    assert [one.job for one in (await parked).deliveries] == jobs[1:]


@pytest.mark.guarantee("G46")
async def test_whose_turn_it_is_follows_a_change_at_once(bench: Any) -> None:
    worker = await bench.registered(slots=1)
    older, newer = await bench.submit(project="p"), await bench.submit(project="q")

    await bench.client.project_set("q", {"priority": 50})

    assert [one.job for one in (await worker.poll()).deliveries] == [newer]
    assert older < newer


def _file(path: Path, text: str) -> Callable[[], BrokerSettings]:
    path.write_text(text)
    return lambda: load(BrokerSettings, {}, path.read_text(), str(path))


GOOD = "lease_s = 30\n[projects.p]\npriority = 5\n"


@pytest.mark.guarantee("G46")
async def test_a_file_read_again_counts_at_once_and_says_what_does_not(short_dir: Path) -> None:
    file, state = short_dir / "jobd.toml", short_dir / "state"
    reread = _file(file, GOOD)
    async with (
        run_broker(reread(), state, {}, clock=SteppedClock(), reread=reread) as broker,
        BrokerClient(f"unix://{state}/broker.sock") as client,
    ):
        await client.project_set("p", {"share": 2})
        file.write_text("lease_s = 40\n[projects.p]\npriority = 9\nshare = 7\n[profiles.big]\ncpus = 8\n")

        said = await client.reload()

        assert (sorted(said.changed), said.needs_restart) == (["profiles", "projects"], ["lease_s"])
        assert broker.settings.lease_s == 30
        [entry] = (await client.project_list()).projects
        assert (entry.values["priority"], entry.values["share"]) == (9, 2)
        assert (await client.job_preview({"command": "true", "profile": "big"})).spec["cpus"] == 8
        assert (await client.reload()).changed == []
        assert len((await client.job_events(type=EventType.CONFIGURATION_RELOADED)).events) == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            "[projects.p]\npriority = 9\n[projects.q]\nprioritty = 1\n",
            r"projects\.q\.prioritty.*did you mean priority\?.*line 4",
        ),
        ("[projects.p]\npriority = 9\nshare = \n", "line 3"),
        ("[projects.p]\npriority = 9\n[profile.x]\n", r"profile in .*line 3.*did you mean profiles\?"),
        ("max_losses = 0\n[projects.p]\npriority = 9\n", "max_losses in .*line 1"),
        ("[projects.p]\npriority = 9\nprofile = 'x'\n", r"projects\.p\.profile: there is no profile x.*line 3"),
    ],
)
@pytest.mark.guarantee("G46")
async def test_a_file_that_is_wrong_is_refused_whole_with_its_place(short_dir: Path, wrong: str, said: str) -> None:
    file, state = short_dir / "jobd.toml", short_dir / "state"
    reread = _file(file, GOOD)
    async with (
        run_broker(reread(), state, {}, reread=reread) as broker,
        BrokerClient(f"unix://{state}/broker.sock") as client,
    ):
        before = broker.settings
        file.write_text(wrong)

        with pytest.raises(Refused, match=said):
            await client.reload()

        assert broker.settings == before
        [entry] = (await client.project_list()).projects
        assert entry.values["priority"] == 5


async def test_what_is_wrong_with_profiles_rules_and_roots_is_said_when_the_file_is_read() -> None:
    for text, said in (
        ("[profiles.x]\ngpu = 1", r"profiles\.x\.gpu in .*did you mean gpus\?.*line 2"),
        ("[profiles.none]\ngpus = 1", "no profile can have this name"),
        ("[[rules]]\nmatch = ['a']\nprofil = 'x'", r"rules\.0\.profil"),
        ("[[rules]]\nmatch = ['a']\nprofile = 'gpu'\n[profiles.gpus]", "did you mean gpus"),
        ("[projects.p]\nroots = ['a/b']", "give a whole path"),
        ("[projects.p]\nroots = ['/a/../b']", "without"),
        ("[projects.p]\nroots = ['/a']\n[projects.q]\nroots = ['/a']", r"projects\.q\.roots: /a is one of p already"),
        ("[projects._default]\nroots = ['/a']", "roots are of one project"),
    ):
        with pytest.raises(Exception, match=said):
            load(BrokerSettings, {}, text)
