"""Which project and which profile a job has that names none, and what its command looks like. Pure.

A rule's pattern is searched piece by piece, from left to right: whatever pattern and command are, that costs no more
than their lengths multiplied, so no rule can hold up a submit.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from broker.core.effective import Chosen, Source
from broker.core.order import word_of
from broker.wire.jobs import OFF, JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.projects import Profile, Project, Rule

MOST_JUDGED = 4096
"""Characters of a command at which rules look."""


@dataclass(frozen=True, slots=True)
class Choice:
    profile: Chosen | None
    suggested: str | None = None


def choice(
    spec: JobSpec, projects: Mapping[str, Project], profiles: Mapping[str, Profile], rules: Sequence[Rule]
) -> Choice:
    """The job's own word, else that of a rule that applies, else its project's. Raises Refused for an unknown profile."""
    if spec.profile is not None:
        return Choice(_named(spec.profile, profiles, Source.JOB, "profile"))
    found = list(_that_match(spec, rules))
    applied = next(((number, rule) for number, rule in found if rule.apply), None)
    if applied is not None:
        number, rule = applied
        return Choice(_named(rule.profile, profiles, f"rule {number}", None))
    table = word_of(projects, spec.project, "profile")
    of_project = None
    if table is not None and table.profile is not None:
        source = Source.PROJECT if table is projects.get(spec.project) else Source.FLOOR
        of_project = _named(table.profile, profiles, source, None)
    if not found or (of_project is not None and of_project.name == found[0][1].profile):
        return Choice(of_project)
    return Choice(of_project, _suggestion(*found[0]))


def _named(name: str, profiles: Mapping[str, Profile], source: str, field: str | None) -> Chosen | None:
    if name == OFF:
        return None
    if name in profiles:
        return Chosen(name, profiles[name], source)
    near = difflib.get_close_matches(name, profiles, n=1)
    known = f"there are {', '.join(sorted(profiles))}" if profiles else "jobd.toml has no [profiles.NAME]"
    raise Refused(
        ProblemCode.INVALID_SPEC,
        f"there is no profile {name}",
        field=field,
        hint=f"did you mean {near[0]}?" if near else known,
    )


def _suggestion(number: int, rule: Rule) -> str:
    looks = rule.name or f"rule {number}"
    return f"looks like {looks}: profile {rule.profile} would fit"


def _that_match(spec: JobSpec, rules: Sequence[Rule]) -> Iterator[tuple[int, Rule]]:
    """In the order of the file, with their numbers from 1."""
    if not rules:
        return
    text = spec.command if spec.command is not None else shlex.join(spec.argv or [])
    text = text[:MOST_JUDGED].lower()
    for number, rule in enumerate(rules, 1):
        if any(occurs(pattern.lower(), text) for pattern in rule.match):
            yield number, rule


def occurs(pattern: str, text: str) -> bool:
    """Whether it is somewhere in the text. The earliest place of each piece leaves most for the next: nothing is
    tried twice."""
    at = 0
    for piece in filter(None, pattern.split("*")):
        found = _first(piece, text, at)
        if found is None:
            return False
        at = found + len(piece)
    return True


def _first(piece: str, text: str, start: int) -> int | None:
    if "?" not in piece:
        at = text.find(piece, start)
        return at if at >= 0 else None
    for at in range(start, len(text) - len(piece) + 1):
        if all(wanted in ("?", text[at + i]) for i, wanted in enumerate(piece)):
            return at
    return None


def project_of(directory: str, roots: Sequence[tuple[str, str]]) -> str | None:
    """Whose root this directory is in: the longest root, and whole names only. Both sides without links and `..`."""
    inside = [(len(root), name) for root, name in roots if PurePosixPath(directory).is_relative_to(root)]
    return max(inside)[1] if inside else None
