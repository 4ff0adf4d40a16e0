"""What a job's specification amounts to: the most specific word on each field counts, field by field.

The job's own, else its project's, else the floor's that `[projects._default]` moves, else the field's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from broker.wire.jobs import FLOOR_TABLE, Conditions, JobSpec

FLOOR = Conditions(idle_timeout_s=24 * 3600, max_wall_s=7 * 24 * 3600)
"""As shipped: no silent job holds a machine for ever."""


class Source(StrEnum):
    """Whose word it is. The order here is the strength."""

    UPDATE = "update"
    JOB = "job"
    PROJECT = "project"
    FLOOR = "floor"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Effective:
    """`spec`: every condition has the value that counts. `sources`: whose it is, of every field that has one."""

    spec: JobSpec
    sources: Mapping[str, Source]


def effective(spec: JobSpec, projects: Mapping[str, Conditions]) -> Effective:
    """The specification of a job that is submitted now. What a table does not name is left to the next one.

    Not given is not the same as 0, false, empty or "none": those are given.
    """
    values: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    tables = (
        (Source.FLOOR, FLOOR),
        (Source.FLOOR, projects.get(FLOOR_TABLE)),
        (Source.PROJECT, projects.get(spec.project)),
        (Source.JOB, spec),
    )
    for source, table in tables:
        for name, value in given(table).items() if table is not None else ():
            if name in Conditions.model_fields or table is spec:
                values[name] = value
                sources[name] = source
    complete = spec.model_copy(update={name: values[name] for name in values if name in Conditions.model_fields})
    said = {name for name in JobSpec.model_fields if getattr(complete, name) is not None}
    return Effective(
        complete, {name: sources.get(name, Source.DEFAULT) for name in JobSpec.model_fields if name in said}
    )


def given(model: Conditions) -> dict[str, Any]:
    """What was said: a null says nothing."""
    return {name: value for name in model.model_fields_set if (value := getattr(model, name)) is not None}


def seconds(limit: float | str | None) -> float | None:
    """How long a limit allows; None: it is off, or was never set."""
    return limit if isinstance(limit, float | int) else None
