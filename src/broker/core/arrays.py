"""Arrays: what their members are, and how they stand as a whole. Pure.

An array is one specification and many jobs. What differs between them is put into its texts: `{i}` is a member's index,
`{lr}` its value on the axis `lr`. Nothing else that stands in braces is touched, nor is what the shell knows as `${i}`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, assert_never

from pydantic import ValidationError

from broker.core import graph
from broker.core.states import OWNED, TERMINAL
from broker.wire.jobs import MAX_COUNT, JobSpec
from broker.wire.misfits import misfit
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import DependencyPolicy, JobState, SweepMode

INDEX = "i"
OF_AN_ARRAY = (
    "count",
    "sweep",
    "sweep_mode",
    "sweep_seed",
    "max_parallel",
    "max_failures",
    "depends_on_each",
)
"""What a specification says of the array, and of none of its members."""
TEXTS = ("command", "argv", "cwd", "env", "venv", "conda", "name", "labels")
"""Fields in whose texts placeholders are replaced: members have the same requirements."""
NOT_ENDED = tuple(state for state in JobState if state not in TERMINAL)

Values = Mapping[str, Any]
"""A member's value on each axis of its sweep."""
Counts = Mapping[JobState, int]
"""How many members are in each state."""


def is_array(spec: JobSpec) -> bool:
    return spec.count is not None or spec.sweep is not None


def members(spec: JobSpec) -> list[Values]:
    """The values of each member, in the order of their indexes. Raises Refused, with the field that is to blame."""
    _admit(spec)
    if spec.sweep is None:
        return [{}] * (spec.count or 1)
    return [dict(zip(spec.sweep, values, strict=True)) for values in _combinations(spec)]


def _admit(spec: JobSpec) -> None:
    for name in ("max_parallel", "max_failures", "depends_on_each"):
        if getattr(spec, name) is not None and not is_array(spec):
            raise _unfit(name, "is of an array, and this is one job", "give count or sweep, or leave it out")
    for name in ("sweep_mode", "sweep_seed"):
        if getattr(spec, name) is not None and spec.sweep is None:
            raise _unfit(name, "is of a sweep, and there is none", "give sweep, or leave it out")
    if spec.sweep is not None:
        _admit_sweep(spec, spec.sweep)


def _admit_sweep(spec: JobSpec, sweep: Mapping[str, Sequence[Any]]) -> None:
    if INDEX in sweep:
        raise _unfit(f"sweep.{INDEX}", f"{{{INDEX}}} is the index of a member", "give the axis another name")
    lengths = {name: len(values) for name, values in sweep.items()}
    match spec.sweep_mode or SweepMode.GRID:
        case SweepMode.GRID:
            size = prod(lengths.values())
        case SweepMode.ZIP:
            size = min(lengths.values())
            if size != max(lengths.values()):
                raise _unfit("sweep", f"zip takes lists of one length, and these have {lengths}", "or use the grid")
        case SweepMode.RANDOM:
            _admit_random(spec, prod(lengths.values()))
            return
        case mode:
            assert_never(mode)
    if spec.sweep_seed is not None:
        raise _unfit("sweep_seed", "is of random, and nothing is drawn", "give sweep_mode=random, or leave it out")
    if spec.count is not None:
        raise _unfit(
            "count", f"the sweep has {size} members by itself", "leave it out; with sweep_mode=random it is how many"
        )
    if size > MAX_COUNT:
        raise _unfit(
            "sweep", f"has {size} members; an array has at most {MAX_COUNT}", "or draw some: sweep_mode=random"
        )


def _admit_random(spec: JobSpec, size: int) -> None:
    if spec.count is None:
        raise _unfit("count", "is needed with sweep_mode=random", "say how many of the combinations are drawn")
    if spec.count > size:
        raise _unfit("count", f"the sweep has {size} combinations, and {spec.count} are to be drawn", "draw fewer")


def _unfit(field: str, message: str, hint: str) -> Refused:
    return Refused(ProblemCode.INVALID_SPEC, f"{field}: {message}", field=field, hint=hint)


def _combinations(spec: JobSpec) -> Iterator[tuple[Any, ...]]:
    assert spec.sweep is not None, "the caller has looked"
    axes = list(spec.sweep.values())
    match spec.sweep_mode or SweepMode.GRID:
        case SweepMode.GRID:
            return product(*axes)
        case SweepMode.ZIP:
            return zip(*axes, strict=True)
        case SweepMode.RANDOM:
            drawn = _drawn(spec.count or 1, prod(len(axis) for axis in axes), spec.sweep_seed or 0)
            return (_combination(axes, number) for number in drawn)
        case mode:
            assert_never(mode)


def _drawn(count: int, size: int, seed: int) -> Iterator[int]:
    """Different numbers below `size`, by the seed alone: the same on every machine, and in every version of Python."""
    seen: set[int] = set()
    tried = 0
    while len(seen) < count:
        number = int.from_bytes(hashlib.sha256(f"{seed}/{tried}".encode()).digest()) % size
        tried += 1
        if number not in seen:
            seen.add(number)
            yield number


def _combination(axes: Sequence[Sequence[Any]], number: int) -> tuple[Any, ...]:
    """The one of the grid with this number."""
    found = []
    for axis in reversed(axes):
        number, position = divmod(number, len(axis))
        found.append(axis[position])
    return tuple(reversed(found))


# ---- one member


def member(spec: JobSpec, index: int, values: Values) -> JobSpec:
    """What one member runs: its own specification, as if it had been submitted alone."""
    return spec.model_copy(update={**_rendered(spec, index, values), **dict.fromkeys(OF_AN_ARRAY)})


def admitted(spec: JobSpec, index: int, values: Values) -> JobSpec:
    """The same, judged: with its own words in place a member may be what no job may. Raises Refused, and names it."""
    own = _rendered(spec, index, values)
    try:
        JobSpec.model_validate({"command": "true", **own} if "argv" not in own else own)
    except ValidationError as error:
        found = misfit(error.errors(include_url=False, include_context=False, include_input=False)[0])
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"member {index}: {found.field or 'specification'}: {found.message}",
            field=found.field or None,
            hint="nothing was submitted",
        ) from None
    return spec.model_copy(update={**own, **dict.fromkeys(OF_AN_ARRAY)})


def is_templated(spec: JobSpec) -> bool:
    """Whether any member differs from the others in more than its index."""
    names = (INDEX, *(spec.sweep or ()))
    return any(_names_in(getattr(spec, field), names) for field in TEXTS)


def unused_axes(spec: JobSpec) -> list[str]:
    """Axes whose value stands nowhere: members that differ on them only are the same."""
    used = {name for field in TEXTS for name in _names_in(getattr(spec, field), tuple(spec.sweep or ()))}
    return [name for name in spec.sweep or () if name not in used]


def labels_of_member(labels: Mapping[str, str], index: int, values: Values) -> dict[str, str]:
    """The labels of one member, of those that its array has."""
    fill = _filling(index, values)
    return {name: fill(text) for name, text in labels.items()}


def _filling(index: int, values: Values) -> Callable[[str], str]:
    """What puts a member's words into a text."""
    words = {INDEX: str(index)} | {name: word(value) for name, value in values.items()}
    known = _placeholders(tuple(words))
    return lambda text: known.sub(lambda found: words[found[1]], text)


def _rendered(spec: JobSpec, index: int, values: Values) -> dict[str, Any]:
    fill = _filling(index, values)
    return {field: _mapped(said, fill) for field in TEXTS if (said := getattr(spec, field)) is not None}


def word(value: bool | float | str) -> str:
    """A value as it is put into a text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _placeholders(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(r"(?<!\$)\{(" + "|".join(map(re.escape, names)) + r")\}")  # re keeps those it has compiled


def _names_in(said: Any, names: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    if said is not None and names:
        known = _placeholders(names)

        def note(text: str) -> str:
            found.update(known.findall(text))
            return text

        _mapped(said, note)
    return found


def _mapped(said: Any, change: Callable[[str], str]) -> Any:
    """A text, a list of texts or a mapping to texts, with each of them changed."""
    if isinstance(said, str):
        return change(said)
    if isinstance(said, list):
        return [change(text) for text in said]
    return {name: change(text) for name, text in said.items()}


# ---- all of them


def active(counts: Counts) -> int:
    """Members that a worker has."""
    return sum(counts.get(state, 0) for state in OWNED)


def is_full(counts: Counts, max_parallel: int | None) -> bool:
    """Whether no more members may be given away now."""
    return max_parallel is not None and active(counts) >= max_parallel


def has_failed(counts: Counts, max_failures: int | None) -> bool:
    """Whether so many have failed that no other is to start."""
    return max_failures is not None and counts.get(JobState.FAILED, 0) >= max_failures


def aggregate(counts: Counts) -> JobState:
    """One word for all members: the state of those that have not ended, else the worst end."""
    there = {state for state, count in counts.items() if count > 0}
    if there & set(NOT_ENDED):
        return JobState.RUNNING if there - {JobState.QUEUED} else JobState.QUEUED
    worst = (state for state in WORST_FIRST if state in there)
    return next(worst, JobState.COMPLETED)


WORST_FIRST = (
    JobState.FAILED,
    JobState.ORPHANED,
    JobState.SCHEDULING_TIMEOUT,
    JobState.PREEMPTED,
    JobState.CANCELLED,
    JobState.COMPLETED,
)


def standing(policy: DependencyPolicy, counts: Counts) -> graph.Standing:
    """How an array as a whole stands to a job that depends on it: a failure of it is that any member did not complete."""
    is_live = any(counts.get(state, 0) for state in NOT_ENDED)
    bad = any(count for state, count in counts.items() if state in TERMINAL and state is not JobState.COMPLETED)
    if policy is DependencyPolicy.SUCCESS and bad:
        return graph.Standing.NEVER
    if is_live:
        return graph.Standing.OPEN
    return graph.of_parent(policy, JobState.FAILED if bad else JobState.COMPLETED)


def has_turned(before: Counts, after: Counts) -> bool:
    """Whether a change of one member changes how the whole stands to anybody."""
    return any(standing(policy, before) is not standing(policy, after) for policy in DependencyPolicy)
