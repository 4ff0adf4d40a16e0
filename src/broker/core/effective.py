"""What a job's specification amounts to: the most specific word on each field counts, field by field.

The job's own, else its profile's, else its project's, else the floor's that `[projects._default]` moves, else the
field's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from broker.wire.jobs import FLOOR_TABLE, Bundle, Conditions, JobSpec
from broker.wire.problems import ProblemCode, Refused

FLOOR = Conditions(idle_timeout_s=24 * 3600, max_wall_s=7 * 24 * 3600)
"""As shipped: no silent job holds a machine for ever."""


class Source(StrEnum):
    """Whose word it is. The order here is the strength."""

    JOB = "job"
    ROOT = "root"
    PROJECT = "project"
    FLOOR = "floor"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Effective:
    """`spec`: every condition has the value that counts. `sources`: whose it is, of every field that has one."""

    spec: JobSpec
    sources: Mapping[str, str]
    suggested: str | None = None
    """What a rule says of a job that chose no profile."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The profile of a job, and whose word that is."""

    name: str
    bundle: Bundle
    source: str


def effective(
    spec: JobSpec,
    projects: Mapping[str, Conditions],
    profile: Chosen | None = None,
    *,
    project_source: str = Source.JOB,
    suggested: str | None = None,
) -> Effective:
    """The specification of a job that is submitted now. What a table does not name is left to the next one.

    Not given is not the same as 0, false, empty or "none": those are given.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    tables: list[tuple[str, Conditions | None]] = [
        (Source.FLOOR, FLOOR),
        (Source.FLOOR, projects.get(FLOOR_TABLE)),
        (Source.PROJECT, projects.get(spec.project)),
        (f"profile {profile.name}" if profile is not None else "", profile.bundle if profile is not None else None),
        (Source.JOB, spec),
    ]
    for source, table in tables:
        for name, value in given(table).items() if table is not None else ():
            if name in Bundle.model_fields or table is spec:
                values[name] = value
                sources[name] = source
    update = {name: values[name] for name in values if name in Bundle.model_fields}
    if profile is not None:
        update["profile"], sources["profile"] = profile.name, profile.source
    if "project" in sources:
        sources["project"] = project_source
    complete = spec.model_copy(update=update)
    _admit(complete, sources)
    said = {name for name in JobSpec.model_fields if getattr(complete, name) is not None}
    whole = {name: sources.get(name, Source.DEFAULT) for name in JobSpec.model_fields if name in said}
    return Effective(complete, whole, suggested)


def _admit(spec: JobSpec, sources: Mapping[str, str]) -> None:
    """What each word allows by itself can contradict together."""
    if spec.gpus == 0 and spec.vram_gb is not None:
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"vram_gb ({sources['vram_gb']}) is of a GPU, and gpus ({sources['gpus']}) is 0",
            field="gpus",
            hint="profile none asks for nothing but what the job itself says",
        )


def given(model: Conditions) -> dict[str, Any]:
    """What was said: a null says nothing."""
    return {name: value for name in model.model_fields_set if (value := getattr(model, name)) is not None}


def seconds(limit: float | str | None) -> float | None:
    """How long a limit allows; None: it is off, or was never set."""
    return limit if isinstance(limit, float | int) else None
