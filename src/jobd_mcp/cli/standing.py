"""How the jobs of a wait stand, in a few words for one line."""

from __future__ import annotations

from jobd_mcp.cli.connection import Connection
from jobd_mcp.cli.rendering import bar, duration, how_far, reason, text
from jobd_mcp.cli.surface import by_name
from jobd_mcp.schemas import Json, Schema, as_list, as_object

MOST_NAMED = 3
BAR = 20
_BLOCK = 100  # of so many jobs one answer names all that have not ended
_ANSWER_LIMIT_S = 5.0
_NOT_ENDED = ("running", "assigned", "queued")


def standing(connection: Connection, arguments: Schema, *, plain: bool) -> str:
    """Of the jobs that `job_wait` would wait for. Raises Failure if the broker does not answer."""

    def ask(operation: str, what: Schema) -> Schema:
        return as_object(connection.call(by_name()[operation], what, _ANSWER_LIMIT_S).json())

    array = arguments.get("array")
    if array is not None:
        counts = as_object(ask("job_list", {"array": array, "limit": 1}).get("counts"))
        known = {state: count for state, count in counts.items() if isinstance(count, int) and count}
        left = sum(known.get(state, 0) for state in _NOT_ENDED)
        told = ", ".join(f"{known[state]} {state}" for state in _NOT_ENDED if state in known)
        return _share(sum(known.values()) - left, sum(known.values()), told, plain=plain)
    ids = as_list(arguments.get("job"))
    if len(ids) <= MOST_NAMED:
        return ", ".join(_job(ask("job_get", {"job": id_}), plain=plain) for id_ in ids)
    left = 0
    for start in range(0, len(ids), _BLOCK):
        answer = ask("job_wait", {"job": ids[start : start + _BLOCK], "timeout_s": 0})
        left += len(as_list(answer.get("pending")))
    return _share(len(ids) - left, len(ids), "", plain=plain)


def _share(ended: int, total: int, told: str, *, plain: bool) -> str:
    return f"{bar(ended, total, BAR, plain=plain)} {ended} of {total} ended" + (f"; {told}" if told else "")


def _job(job: Schema, *, plain: bool) -> str:
    said = f"job {text(job.get('id'))} {text(job.get('state'))}"
    if job.get("stopping"):
        return f"{said}, stopping"
    if job.get("state") == "running":
        far = how_far(job, plain=plain)
        return f"{said} on {text(job.get('worker'))} for {_whole(job.get('duration_s'))}" + (f"  {far}" if far else "")
    why = reason(job.get("waiting"))
    return f"{said}: {why}" if why else said


def _whole(seconds: Json) -> str:
    return duration(float(round(seconds))) if isinstance(seconds, int | float) else "0 s"
