"""Changes of projects while the broker runs, over what the file says. Pure.

A change names a key as the file does, `quota.gpus` for one of the quota. It wins over the file on that key, and on no
other; null takes it back.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from broker.core.effective import given
from broker.core.order import word_of
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import IN_THE_FILE_ONLY, KEYS, QUOTA, Profile, Project, Quota


@dataclass(frozen=True, slots=True)
class Change:
    """One key of one project. `value` as the models say it."""

    project: str
    field: str
    value: Any


def over(file: Mapping[str, Project], changes: Iterable[Change]) -> dict[str, Project]:
    """The tables as they count. A project without a quota of its own has changes made to that of `_default`."""
    found = dict(file)
    for project, values in _by_project(changes).items():
        table = file.get(project)
        said: dict[str, Any] = given(table) if table is not None else {}
        of_quota = {name.removeprefix(QUOTA): value for name, value in values.items() if name.startswith(QUOTA)}
        said |= {name: value for name, value in values.items() if not name.startswith(QUOTA)}
        if of_quota:
            base = word_of(file, project, "quota")
            whole = base.quota if base is not None else None
            said["quota"] = (_quota(whole) if whole is not None else {}) | of_quota
        found[project] = Project.model_validate(said)
    return found


def judged(project: str, said: Mapping[str, Any], profiles: Mapping[str, Profile]) -> list[Change]:
    """What was asked for, as it is kept; a value of None takes a change back. Raises Refused for the first fault."""
    return [Change(project, field, _value(field, value, profiles)) for field, value in _flat(said).items()]


def usable(changes: Iterable[Change], profiles: Mapping[str, Profile]) -> list[Change]:
    """Those that could still be made. What this version or this file no longer knows is left out, and not forgotten."""
    found = []
    for change in changes:
        with suppress(Refused):
            _value(change.field, change.value, profiles)
            found.append(change)
    return found


def _flat(said: Mapping[str, Any]) -> dict[str, Any]:
    """A quota may be given whole, as in the file; null as a whole takes each of its keys back."""
    flat: dict[str, Any] = {}
    for field, value in said.items():
        if field == "quota" and value is None:
            flat |= {QUOTA + name: None for name in Quota.model_fields}
        elif field == "quota" and isinstance(value, Mapping):
            flat |= {f"{QUOTA}{name}": one for name, one in value.items()}
        else:
            flat[field] = value
    return flat


def _value(field: str, value: Any, profiles: Mapping[str, Profile]) -> Any:
    if field not in KEYS:
        raise _unknown(field)
    if value is None:
        return None
    model, name = (Quota, field.removeprefix(QUOTA)) if field.startswith(QUOTA) else (Project, field)
    try:
        read = model.model_validate({name: value})
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise Refused(
            ProblemCode.INVALID_REQUEST, f"{field}: {message}", field=f"values.{field}", hint="nothing was changed"
        ) from None
    if field == "profile" and value not in profiles:
        near = difflib.get_close_matches(str(value), profiles, n=1)
        raise Refused(
            ProblemCode.INVALID_REQUEST,
            f"there is no profile {value}",
            field="values.profile",
            hint=f"did you mean {near[0]}?" if near else "profiles stand in jobd.toml, as [profiles.NAME]",
        )
    return json.loads(read.model_dump_json(include={name}))[name]


def _unknown(field: str) -> Refused:
    if field == "quota":
        return Refused(
            ProblemCode.INVALID_REQUEST,
            "a quota is a table of limits",
            field="values.quota",
            hint=f"it takes {', '.join(Quota.model_fields)}, each also as quota.KEY",
        )
    if field in IN_THE_FILE_ONLY:
        return Refused(
            ProblemCode.INVALID_REQUEST,
            f"{field} can't be changed at run time",
            field=f"values.{field}",
            hint=f"set {field} in jobd.toml, then job reload",
        )
    near = difflib.get_close_matches(field, KEYS, n=1)
    return Refused(
        ProblemCode.INVALID_REQUEST,
        f"a project has no {field}",
        field=f"values.{field}",
        hint=f"did you mean {near[0]}?" if near else f"it takes {', '.join(KEYS)}",
    )


def _by_project(changes: Iterable[Change]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for change in changes:
        found.setdefault(change.project, {})[change.field] = change.value
    return found


def _quota(quota: Quota) -> dict[str, Any]:
    return {name: getattr(quota, name) for name in quota.model_fields_set}
