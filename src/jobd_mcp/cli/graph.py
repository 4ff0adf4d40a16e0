"""`job graph`: who waits for whom, as a tree for people or in the language of Graphviz."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import click

from jobd_mcp.cli import rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.operation_command import JSON_FLAG, bare_words, json_flag, show
from jobd_mcp.cli.options import arguments_of, options_of
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object

USUAL_POLICY = "success"


def graph_command() -> click.Command:
    operation = by_name()["job_graph"]

    def call(**values: object) -> None:
        answer = connect(os.environ).call(operation, arguments_of(operation, values))
        lines = dot if values["dot"] is True else tree
        show(answer.body, values[JSON_FLAG] is True, lambda: list(lines(answer.json())))

    return click.Command(
        "graph",
        callback=call,
        params=[
            bare_words(operation, "job", required=False),
            *options_of(operation, without=["job"]),
            click.Option(["--dot"], is_flag=True, help="For Graphviz: job graph 42 --dot | dot -Tsvg."),
            json_flag(),
        ],
        help=f"{operation.description} A job: all that it waits for, and all that waits for it.",
    )


@dataclass(frozen=True)
class _Picture:
    nodes: dict[Json, Schema]
    parents: dict[Json, list[Schema]]
    children: dict[Json, list[Schema]]
    cut: bool

    @staticmethod
    def of(answer: Json) -> _Picture:
        known = as_object(answer)
        picture = _Picture({}, defaultdict(list), defaultdict(list), known.get("cut") is True)
        for node in map(as_object, as_list(known.get("nodes"))):
            picture.nodes[_id(node["id"])] = node
        for edge in map(as_object, as_list(known.get("edges"))):
            picture.parents[_id(edge["child"])].append(edge)
            picture.children[_id(edge["parent"])].append(edge)
        return picture


def _id(value: Json) -> Json:
    assert isinstance(value, int), "ids are numbers"
    return value


def tree(answer: Json) -> Iterator[str]:
    """Each job once, below the first that it waits for; the others that it waits for are named beside it."""
    picture = _Picture.of(answer)
    told: set[Json] = set()
    for node in picture.nodes:
        if not picture.parents[node]:
            yield from _branch(picture, node, told, "", "", "")
    if picture.cut:
        yield "… and more; ask for one of these jobs"
    if not picture.nodes:
        yield "No job waits for another."


def _branch(picture: _Picture, node: Json, told: set[Json], head: str, below: str, beside: str) -> Iterator[str]:
    if node in told:
        return
    told.add(node)
    yield f"{head}{_line(picture.nodes[node])}{beside}"
    mine = [edge for edge in picture.children[node] if _first_parent(picture, edge) == node]
    for number, edge in enumerate(mine, 1):
        is_last = number == len(mine)
        child = _id(edge["child"])
        yield from _branch(
            picture,
            child,
            told,
            below + ("└─ " if is_last else "├─ "),
            below + ("   " if is_last else "│  "),
            _beside(picture, edge),
        )


def _first_parent(picture: _Picture, edge: Schema) -> Json:
    return _id(picture.parents[_id(edge["child"])][0]["parent"])


def _beside(picture: _Picture, edge: Schema) -> str:
    """By which policy, if it is not the usual one, and for whom else it waits."""
    others = [rendering.text(other["parent"]) for other in picture.parents[_id(edge["child"])] if other is not edge]
    policy = rendering.text(edge.get("policy"))
    said = [policy.replace("_", " ")] if policy != USUAL_POLICY else []
    return "".join(f" ({part})" for part in [*said, *([f"also after {', '.join(others)}"] if others else [])])


def _line(node: Schema) -> str:
    if not node.get("state"):
        return f"{rendering.text(node.get('id'))} (removed)"
    count = f" [{rendering.text(node.get('count'))} jobs]" if node.get("count") else ""
    return f"{rendering.text(node.get('id'))} {rendering.what(node)}{count} {rendering.text(node.get('state'))}"


def dot(answer: Json) -> Iterator[str]:
    """A digraph, from what is waited for to what waits."""
    picture = _Picture.of(answer)
    yield "digraph jobs {"
    yield "  node [shape=box];"
    for id_, node in picture.nodes.items():
        yield f"  {id_} [label={json.dumps(_line(node), ensure_ascii=False)}];"
    for edges in picture.parents.values():
        for edge in edges:
            policy = edge.get("policy")
            label = f" [label={json.dumps(policy)}]" if policy != USUAL_POLICY else ""
            yield f"  {edge['parent']} -> {edge['child']}{label};"
    if picture.cut:
        yield '  more [label="and more", shape=plaintext];'
    yield "}"
