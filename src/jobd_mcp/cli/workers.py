"""`job workers`: the list, and what an operator does with one of them."""

from __future__ import annotations

import os

import click

from jobd_mcp.cli import machines, rendering
from jobd_mcp.cli.connection import connect
from jobd_mcp.cli.operation_command import JSON_FLAG, Shape, bare_words, json_flag, operation_command, show
from jobd_mcp.cli.surface import by_name

_LIST = Shape("worker_list", machines.workers)
_UPDATE = Shape("worker_update", rendering.worker, bare="worker")
_REMOVE = Shape("worker_remove", machines.workers, bare="worker")
# One word each for the common changes: `job workers drain w1` is `job workers update w1 --drain`.
_WORDS = {
    "cordon": "Give a worker no new work. What runs there goes on.",
    "drain": "Cordon a worker; the event worker_drained tells when its last job has ended.",
    "resume": "Give a worker work again.",
}


def workers_group() -> click.Group:
    lists = operation_command("list", _LIST)

    def call(**values: object) -> None:
        context = click.get_current_context()
        if context.invoked_subcommand is None:
            context.invoke(lists, **values)

    group = click.Group(
        "workers",
        callback=call,
        params=[json_flag()],
        invoke_without_command=True,
        help=f"{lists.help} With a command: what an operator does with one of them.",
        short_help=lists.help,
    )
    group.add_command(operation_command("update", _UPDATE))
    for word in _WORDS:
        group.add_command(_word(word))
    group.add_command(operation_command("remove", _REMOVE))
    return group


def _word(word: str) -> click.Command:
    operation = by_name()[_UPDATE.operation]

    def call(worker: str, **values: object) -> None:
        answer = connect(os.environ).call(operation, {"worker": worker, word: True})
        show(answer.body, values[JSON_FLAG] is True, lambda: rendering.worker(answer.json()))

    return click.Command(word, callback=call, params=[bare_words(operation, "worker"), json_flag()], help=_WORDS[word])
