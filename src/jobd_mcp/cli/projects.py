"""`job projects`: what counts for each; `job projects set`: what an operator changes at run time; and `job reload`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from jobd_mcp.cli.columns import Column
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.operation_command import JSON_FLAG, Shape, bare_words, json_flag, operation_command, show
from jobd_mcp.cli.options import option
from jobd_mcp.cli.rendering import table, text
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object, inlined

_COLUMNS = (
    Column("PROJECT", most=24),
    *(Column(head, right=True) for head in ("PRIORITY", "SHARE", "QUEUED", "RUNNING", "GPUS", "USED")),
    Column("SET", is_open=True),
)


def projects_group() -> click.Group:
    lists = operation_command("list", Shape("project_list", project_list))

    def call(**values: object) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            context.invoke(lists, **values)

    group = click.Group(
        "projects",
        callback=call,
        params=[json_flag()],
        invoke_without_command=True,
        help=f"{lists.help} With a command: what an operator changes.",
        short_help=lists.help,
    )
    group.add_command(set_command())
    return group


def set_command() -> click.Command:
    from broker.wire.projects import KEYS

    operation = by_name()["project_set"]
    schemas = _schemas()

    def call(name: str, reset: tuple[str, ...], **values: object) -> None:
        said: dict[str, Json] = dict.fromkeys(reset)
        for key in KEYS:
            value = values.get(_python_name(key))
            if value is not None and value != ():
                said[key] = list(value) if isinstance(value, tuple) else value  # type: ignore[assignment]
        if not said:
            raise Failure("nothing to change is given", hint="as --priority 20, or --reset priority")
        answer = connect(os.environ).call(operation, {"name": name, "values": said})
        show(answer.body, values[JSON_FLAG] is True, lambda: project(answer.json()))

    options = [option(_python_name(key), schemas[key]) for key in KEYS]
    reset = click.Option(
        ["--reset"], multiple=True, metavar="KEY", help="Take a change back, as priority or quota.gpus. Repeatable."
    )
    return click.Command(
        "set",
        callback=call,
        params=[bare_words(operation, "name"), *options, reset, json_flag()],
        help=operation.description,
    )


def reload_command() -> click.Command:
    return operation_command("reload", Shape("reload", reloaded))


def project_list(answer: Json) -> list[str]:
    entries = [as_object(entry) for entry in as_list(as_object(answer).get("projects"))]
    if not entries:
        return ["no project is configured, and none has jobs"]
    return table(_COLUMNS, [_row(entry) for entry in entries])


def project(answer: Json) -> list[str]:
    """One line for each value, with whose it is."""
    entry = as_object(answer)
    sources = as_object(entry.get("sources"))
    values = as_object(entry.get("values"))
    return [f"project {text(entry.get('name'))}"] + [
        f"  {key} = {_shown(value)}  ({text(sources.get(key))})" for key, value in values.items()
    ]


def reloaded(answer: Json) -> list[str]:
    said = as_object(answer)
    changed = ", ".join(map(text, as_list(said.get("changed"))))
    lines = [f"changed: {changed}" if changed else "nothing has changed"]
    if rest := ", ".join(map(text, as_list(said.get("needs_restart")))):
        lines.append(f"counts from the broker's next start on: {rest}")
    return lines


def _row(entry: Schema) -> list[str]:
    values, sources = as_object(entry.get("values")), as_object(entry.get("sources"))
    jobs = as_object(entry.get("jobs"))
    own = [f"{key}={_shown(values[key])}" for key, source in sources.items() if source in ("project", "run time")]
    running = sum(count for state, count in jobs.items() if state != "queued" and isinstance(count, int))
    return [
        text(entry.get("name")),
        text(values.get("priority")),
        text(values.get("share")),
        text(jobs.get("queued", 0)),
        str(running),
        text(entry.get("gpus")),
        text(entry.get("used")),
        " ".join(own),
    ]


def _shown(value: Json) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(one)}" for key, one in value.items() if one is not None) + "}"
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    return text(value)


def _python_name(key: str) -> str:
    return key.replace(".", "_")


def _schemas() -> Mapping[str, Schema]:
    """Of each key, its value's, out of the models: the broker judges by the same."""
    from broker.wire.projects import QUOTA, Project, Quota

    found: dict[str, Schema] = {}
    for prefix, model in (("", Project), (QUOTA, Quota)):
        whole: Schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        document: Schema = {"components": {"schemas": whole.get("$defs", {})}}
        for key, schema in as_object(whole["properties"]).items():
            found[prefix + key] = {**inlined(document, schema), "default": None}
    return found
