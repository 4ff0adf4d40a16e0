"""Projects as they count now, changes of them while the broker runs, and the file read again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anyio.to_thread

from broker.core.effective import FLOOR, Source, given
from broker.core.run_time import Change, judged, usable
from broker.service import usage, views
from broker.service.context import Broker, Caller
from broker.service.holding import owner_of_project, read
from broker.service.transition import event
from broker.service.wake import OrderChanged
from broker.store.contract import Row, Tx
from broker.wire.events import EventType
from broker.wire.jobs import FLOOR_TABLE
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Project, ProjectChange, ProjectEntry, ProjectList, Reloaded
from broker.wire.settings import AT_RUN_TIME, BrokerSettings, ConfigurationError

RUN_TIME = "run time"


async def remember(broker: Broker) -> None:
    """What was changed before this broker's start counts again."""
    broker.configuration.take_changes(await broker.store.read(lambda tx: _usable(tx, broker.configuration.file)))


async def change(broker: Broker, caller: Caller, project: str, said: ProjectChange) -> ProjectEntry:
    """All of it, or nothing. A repeat changes nothing and is no event."""
    configuration = broker.configuration
    async with configuration.changing:
        changes = judged(project, said.values, configuration.file.profiles)

        def fn(tx: Tx) -> list[Change]:
            before = {row["field"]: row["value"] for row in tx.all("project_changes") if row["project"] == project}
            changed = {one.field: one.value for one in changes if _kept(one) != before.get(one.field)}
            for field, value in changed.items():
                if value is None:
                    tx.run("take_change_back", project=project, field=field)
                else:
                    kept = json.dumps(value)
                    tx.run(
                        "change_project", project=project, field=field, value=kept, actor=caller.actor, now=tx.now_ms
                    )
            if changed:
                event(tx, EventType.PROJECT_CHANGED, project=project, actor=caller.actor, data={"values": changed})
            return _usable(tx, configuration.file)

        configuration.take_changes(await broker.store.run(fn))
        broker.wake.heard([OrderChanged()])
    return await broker.store.read(lambda tx: _entry(tx, broker, project, _rows_of(tx, project)))


async def list_projects(broker: Broker) -> ProjectList:
    """Those that are configured, those that were changed, and those that have jobs."""

    def fn(tx: Tx) -> ProjectList:
        names = {name for name in broker.settings.projects if name != FLOOR_TABLE}
        names |= {row["project"] for row in tx.all("projects_with_jobs")}
        return ProjectList(projects=[_entry(tx, broker, name, _rows_of(tx, name)) for name in sorted(names)])

    return await broker.store.read(fn)


async def reload(broker: Broker, caller: Caller) -> Reloaded:
    """The file as it is now counts, or nothing of it: a file that is wrong is refused, and all stays as it was."""
    configuration = broker.configuration
    if configuration.reread is None:
        raise Refused(ProblemCode.INVALID_REQUEST, "this broker was started without a file to read again")
    async with configuration.changing:
        try:
            read_now = await anyio.to_thread.run_sync(configuration.reread)
        except (ConfigurationError, OSError, UnicodeDecodeError) as error:
            raise Refused(
                ProblemCode.INVALID_REQUEST, str(error), hint="nothing was changed: the settings before still count"
            ) from None
        differ = [
            name for name in BrokerSettings.model_fields if getattr(read_now, name) != getattr(configuration.file, name)
        ]
        changed = [name for name in differ if name in AT_RUN_TIME]
        rest = [name for name in differ if name not in AT_RUN_TIME]
        taken = configuration.file.model_copy(update={name: getattr(read_now, name) for name in changed})

        def fn(tx: Tx) -> list[Change]:
            if changed:
                data = {"changed": changed, "needs_restart": rest}
                event(tx, EventType.CONFIGURATION_RELOADED, actor=caller.actor, data=data)
            return _usable(tx, taken)

        changes = await broker.store.run(fn)
        configuration.take_changes([])
        configuration.take_file(taken)
        configuration.take_changes(changes)
        broker.wake.heard([OrderChanged()])
    return Reloaded(changed=changed, needs_restart=rest)


def _kept(one: Change) -> str | None:
    return None if one.value is None else json.dumps(one.value)


def _usable(tx: Tx, file: BrokerSettings) -> list[Change]:
    found = [Change(row["project"], row["field"], json.loads(row["value"])) for row in tx.all("project_changes")]
    return usable(found, file.profiles)


def _rows_of(tx: Tx, project: str) -> list[Row]:
    return [row for row in tx.all("project_changes") if row["project"] == project]


def _entry(tx: Tx, broker: Broker, name: str, rows: Iterable[Row]) -> ProjectEntry:
    rows = list(rows)
    values, sources = _values(broker, name, {row["field"] for row in rows})
    counts = tx.all("live_counts", project=name)
    used = read(tx, owner_of_project(name))
    last = max(rows, key=lambda row: row["changed_at"], default=None)
    listened = broker.listening.now_ms()
    return ProjectEntry(
        name=name,
        values=values,
        sources=sources,
        changed_at=views.at(last["changed_at"]) if last is not None else None,
        changed_by=last["actor"] if last is not None else None,
        jobs={row["state"]: row["n"] for row in counts if row["n"]},
        gpus=used.gpus,
        used=round(usage.terms(broker).amount(used, listened), 1),
        gpu_hours_today=round(used.gpu_s_of_day(listened, tx.now_ms) / 3600, 3),
    )


def _values(broker: Broker, name: str, at_run_time: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Every key that has a value, and whose it is. A quota is the run time's as soon as one key of it is."""
    projects = broker.settings.projects
    layers = (
        (Source.DEFAULT, Project()),
        (Source.FLOOR, FLOOR),
        (Source.FLOOR, projects.get(FLOOR_TABLE)),
        (Source.PROJECT, projects.get(name)),
    )
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, table in layers:
        if table is None:
            continue
        said = table.model_dump(mode="json") if source is Source.DEFAULT else _said(table)
        for key, value in said.items():
            if value is not None:
                values[key] = value
                sources[key] = RUN_TIME if source is Source.PROJECT and key in at_run_time else source.value
    if any(key.startswith("quota.") for key in at_run_time):
        sources["quota"] = RUN_TIME
    return values, sources


def _said(table: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = table.model_dump(mode="json", exclude_unset=True)
    return {name: dumped[name] for name in given(table)}
