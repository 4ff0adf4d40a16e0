"""What is derived from the code: the OpenAPI document, and the marked regions of README.md and docs/*.md.

`make docs` writes it. With --check nothing is written: each difference is shown, and the exit code is 1.
A region is what stands between `<!-- generated: NAME -->` and `<!-- end of generated -->`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from broker.app import create_app
from broker.core.effective import FLOOR, given
from broker.core.states import ASSIGNMENT_OVER, TABLE, TERMINAL, Cause
from broker.wire.events import EventType
from broker.wire.jobs import Conditions
from broker.wire.problems import ProblemCode
from broker.wire.projects import Preemption, Profile, Project, Quota, Rule
from broker.wire.settings import (
    AT_RUN_TIME,
    OTHER_KEYS,
    BrokerSettings,
    ClientSettings,
    Settings,
    WorkerSettings,
    is_file_only,
)
from jobd_mcp.cli.faults import Fault
from jobd_mcp.operations import Operation, operations
from jobd_mcp.schemas import Schema

ROOT = Path(__file__).resolve().parent.parent
OPENAPI = Path("src/jobd_mcp/openapi.json")
REGION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end of generated -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def code(words: Iterator[str] | list[str]) -> str:
    return " ".join(f"`{word}`" for word in words)


def settings() -> str:
    """Every setting once, under the first program that reads it."""
    said: set[str] = set()
    text = ""
    for title, model in (
        ("Every program", Settings),
        ("`job`, `jobd-mcp` and the Python client", ClientSettings),
        ("The broker", BrokerSettings),
        ("The worker", WorkerSettings),
    ):
        fields = {
            name: field
            for name, field in model.model_fields.items()
            if name not in said and not is_file_only(model, name)
        }
        said |= fields.keys()
        rows = []
        for name, field in fields.items():
            given = field.default is not PydanticUndefined and field.default not in (None, [])
            default = f"`{field.default}`" if given else ""
            rows.append([f"`JOBD_{name.upper()}`", f"`{name}`", default, field.description or ""])
        text += f"### {title}\n\n{table(['Environment', 'jobd.toml', 'Default', 'Meaning'], rows)}\n"
    rows = [[f"`JOBD_{name.upper()}`", meaning] for name, meaning in OTHER_KEYS.items()]
    text += f"### Only in the environment\n\n{table(['Environment', 'Meaning'], rows)}\n"
    tables = [
        [f"`{_head(name, field.annotation)}`", field.description or ""]
        for name, field in BrokerSettings.model_fields.items()
        if is_file_only(BrokerSettings, name)
    ]
    return text + f"### Only in jobd.toml\n\n{table(['Table', 'Meaning'], tables)}"


def _head(name: str, annotation: object) -> str:
    if annotation is Preemption:
        return f"[{name}]"
    return f"[[{name}]]" if get_origin(annotation) is list else f"[{name}.NAME]"


def project_defaults() -> str:
    """What a project can have defaults for, and what counts where nobody says anything."""
    rows = []
    for name, field in Conditions.model_fields.items():
        floor = given(FLOOR).get(name)
        shown = f"`{floor:g}` (floor)" if floor is not None else _shown_default(field.default)
        rows.append([f"`{name}`", shown, field.description or ""])
    return table(["Field", "Where nobody says", "Meaning"], rows)


def project_own() -> str:
    """What a project has besides defaults for its jobs."""
    own = [name for name in Project.model_fields if name not in Conditions.model_fields and name != "quota"]
    return _fields(Project, own)


def quota() -> str:
    return _fields(Quota, list(Quota.model_fields))


def profile() -> str:
    """What a profile can say besides what a project can."""
    return _fields(Profile, [name for name in Profile.model_fields if name not in Conditions.model_fields])


def rule() -> str:
    return _fields(Rule, list(Rule.model_fields))


def at_run_time() -> str:
    return code(sorted(AT_RUN_TIME)) + "\n"


def preemption() -> str:
    return _fields(Preemption, list(Preemption.model_fields))


def _fields(model: type[BaseModel], names: list[str]) -> str:
    rows = [(name, model.model_fields[name]) for name in names]
    shown = [[f"`{name}`", _shown_default(field.default), field.description or ""] for name, field in rows]
    return table(["Field", "Where nobody says", "Meaning"], shown)


def _shown_default(value: object) -> str:
    return "" if value is None or value is PydanticUndefined else f"`{str(value).lower()}`"


def events() -> str:
    return table(["Event", "Meaning"], [[f"`{event.value}`", event.means] for event in EventType])


def faults() -> str:
    return table(["Code", "What is wrong", "What mends it"], [[f"`{f}`", f.means, f"{f.mended_by}."] for f in Fault])


def problems() -> str:
    return code([problem.value for problem in ProblemCode]) + "\n"


def transitions() -> str:
    rows = []
    for cause, rule in TABLE.items():
        job_to = f"`{rule.job_to}`" if rule.job_to else "stays"
        assignment_to = f"`{rule.assignment_to}`" if rule.assignment_to else "-"
        rows.append(
            [
                f"`{cause}`",
                f"{code(sorted(rule.job_from))} → {job_to}",
                f"{code(sorted(rule.assignment_from)) or '-'} → {assignment_to}",
                rule.means,
            ]
        )
    return table(["Cause", "Job", "Assignment", "When"], rows)


def chart() -> str:
    """The states of a job, one arrow for each pair; the causes stand on it."""
    arrows: dict[tuple[str, str], list[Cause]] = {}
    for cause, rule in TABLE.items():
        for source in sorted(rule.job_from):
            if rule.job_to is not None and rule.job_to is not source:
                arrows.setdefault((source.value, rule.job_to.value), []).append(cause)
    lines = ["stateDiagram-v2", "    [*] --> queued: submit"]
    lines += [f"    {source} --> {target}: {', '.join(causes)}" for (source, target), causes in arrows.items()]
    lines += [f"    {state} --> [*]" for state in sorted(TERMINAL)]
    return "```mermaid\n" + "\n".join(lines) + "\n```\n"


def states() -> str:
    final = code(sorted(TERMINAL))
    over = code(sorted(ASSIGNMENT_OVER))
    return f"Terminal states of a job: {final}. An assignment is over when it is one of {over}.\n"


def tools() -> str:
    rows = [
        [
            f"`{operation.name}`",
            f"`{operation.method} {operation.path}`",
            operation.scope or "",
            _hints(operation),
            first_sentence(operation),
        ]
        for operation in surface()
        if operation.tool
    ]
    return table(["Tool", "Route", "Scope", "Hints", "What it does"], rows)


def tools_in_short() -> str:
    """For a reader who wants to know what an agent can do, not by which route."""
    rows = [
        [f"`{operation.name}`", _hints(operation) or "writes", first_sentence(operation)]
        for operation in surface()
        if operation.tool
    ]
    return table(["Tool", "Hints", "What it does"], rows)


def guaranteed_by(root: Path) -> dict[str, list[str]]:
    """Promise → the tests that are marked with its id."""
    return marked(root, "guarantee")


def trials_of(root: Path) -> dict[str, list[str]]:
    """Trial → the tests that show its right outcome."""
    return marked(root, "trial")


def marked(root: Path, mark: str) -> dict[str, list[str]]:
    """Id → the tests that `pytest.mark.<mark>` gives it to, as `tests/room/test_file.py::test_name`."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for id_ in _ids(node, mark):
                    found.setdefault(id_, []).append(f"{path.relative_to(root)}::{node.name}")
    return found


def _ids(function: ast.FunctionDef | ast.AsyncFunctionDef, mark: str) -> Iterator[str]:
    """The arguments of its `pytest.mark.<mark>(...)`."""
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Attribute(attr=name), args=ids) if name == mark:
                for id_ in ids:
                    if not isinstance(id_, ast.Constant) or not isinstance(id_.value, str):
                        raise TypeError(f"{function.name}: write the id of a {mark} as a plain text")
                    yield id_.value
            case _:
                pass


def guarantees() -> str:
    return _tests_by_id(guaranteed_by(ROOT))


def trials() -> str:
    return _tests_by_id(trials_of(ROOT))


def _tests_by_id(tests: Mapping[str, Sequence[str]]) -> str:
    sections = []
    for id_ in sorted(tests, key=lambda id_: int(id_[1:])):
        lines = [f"- `{test.removeprefix('tests/')}`" for test in sorted(tests[id_])]
        sections.append("\n".join([f"**{id_}**", "", *lines]))
    return "\n\n".join(sections) + "\n"


def other_routes() -> str:
    rows = [
        [
            f"`{operation.method} {operation.path}`",
            operation.scope or "public",
            first_sentence(operation),
            operation.because or "",
        ]
        for operation in surface()
        if not operation.tool
    ]
    return table(["Route", "Scope", "What it does", "Why it is no tool"], rows)


def first_sentence(operation: Operation) -> str:
    line = operation.description.replace("\n", " ") or operation.title
    return re.split(r"(?<=[.]) ", line)[0]


def _hints(operation: Operation) -> str:
    hints = {"read-only": operation.read_only, "destructive": operation.destructive, "idempotent": operation.idempotent}
    return ", ".join(
        word for word, true in hints.items() if true and not (word == "idempotent" and operation.read_only)
    )


def surface() -> list[Operation]:
    document: Schema = json.loads(openapi_text())
    return operations(document)


def openapi_text() -> str:
    return json.dumps(create_app(None).openapi(), indent=1, ensure_ascii=False) + "\n"


REGIONS: Mapping[str, Callable[[], str]] = {
    "settings": settings,
    "project-defaults": project_defaults,
    "project-own": project_own,
    "profile": profile,
    "rule": rule,
    "at-run-time": at_run_time,
    "quota": quota,
    "preemption": preemption,
    "events": events,
    "faults": faults,
    "problems": problems,
    "transitions": transitions,
    "chart": chart,
    "states": states,
    "tools": tools,
    "tools-in-short": tools_in_short,
    "guarantees": guarantees,
    "trials": trials,
    "other-routes": other_routes,
}


def regenerated(text: str) -> str:
    """`text` with every region as the code has it now. An unknown name is an error."""
    return REGION.sub(lambda match: f"{match[1]}\n{REGIONS[match[2]]().strip()}\n\n{match[4]}", text)


def expected(root: Path) -> Iterator[tuple[Path, str]]:
    """Each derived file, and what it should contain."""
    yield root / OPENAPI, openapi_text()
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        text = page.read_text()
        if "<!-- generated: " in text:
            yield page, regenerated(text)


def differences(root: Path) -> Iterator[str]:
    for path, text in expected(root):
        name = str(path.relative_to(root))
        found = path.read_text() if path.exists() else ""
        if found != text:
            lines = list(
                difflib.unified_diff(found.splitlines(), text.splitlines(), name, f"{name} (as the code has it)", n=1)
            )
            yield "\n".join(lines[:40])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    if parser.parse_args().check:
        found = list(differences(ROOT))
        if found:
            sys.exit("\n".join([*found, "Derived files differ from the code: make docs"]))
        return
    for path, text in expected(ROOT):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
