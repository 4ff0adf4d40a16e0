"""YAML as plain data: JSON's kinds of values and nothing else.

Aliases are refused, since a few lines of them can stand for gigabytes; so are tags, which name things to make, and keys
that are given twice. Words are read as YAML 1.2 does: `no` and `on` are text, `0755` is no octal number.
"""

from __future__ import annotations

import re

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from jobd_mcp.schemas import Json

_KINDS = (
    ("tag:yaml.org,2002:null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF")),
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+"), list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"),
        list("-+0123456789."),
    ),
)


class NotPlain(ValueError):
    """What is wrong, and its line."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


class _Plain(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[
        str, list[tuple[str, re.Pattern[str]]]
    ] = {}  # a class of its own has rules of its own

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]  # the stubs say nothing of it
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise NotPlain("anchors and aliases are not taken", _line(event))
        if getattr(event, "tag", None):
            raise NotPlain(f"the tag {event.tag} is not taken", _line(event))
        node: Node | None = super().compose_node(parent, index)
        return node


for _tag, _pattern, _first in _KINDS:
    _Plain.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern.pattern})$"), _first)


def parse(text: str) -> tuple[Json, dict[tuple[str | int, ...], int]]:
    """The data, and the line of each member by its path. Raises NotPlain."""
    lines: dict[tuple[str | int, ...], int] = {}
    loader = _Plain(text)
    try:
        root = loader.get_single_node()
        return (_value(root, (), lines) if root is not None else None), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotPlain(error.problem or "not YAML", mark.line + 1 if mark else 1) from None
    except yaml.YAMLError as error:
        raise NotPlain(str(error).partition("\n")[0], 1) from None
    except RecursionError:
        raise NotPlain("nested too deep", 1) from None
    finally:
        loader.dispose()


def _value(node: Node, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]) -> Json:
    lines[path] = _line(node)
    if isinstance(node, SequenceNode):
        return [_value(one, (*path, number), lines) for number, one in enumerate(node.value)]
    if isinstance(node, MappingNode):
        made: dict[str, Json] = {}
        for key, one in node.value:
            if not isinstance(key, ScalarNode):
                raise NotPlain("a key is no text", _line(key))
            if key.value in made:
                raise NotPlain(f"{key.value} is given twice", _line(key))
            made[key.value] = _value(one, (*path, key.value), lines)
            lines[*path, key.value] = _line(key)
        return made
    assert isinstance(node, ScalarNode)
    return _scalar(node)


def _scalar(node: ScalarNode) -> Json:
    text: str = node.value
    match node.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            if len(text) > 40:
                raise NotPlain("a number has too many digits", _line(node))
            return int(text)
        case "float":
            return float(text)
        case _:
            return text


def _line(of: Node | yaml.Event) -> int:
    mark = of.start_mark
    return mark.line + 1 if mark is not None else 1
