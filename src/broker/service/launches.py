"""Starts that failed on a worker, one after the other: kept until one succeeds, and in the end the worker is cordoned."""

from __future__ import annotations

import json

from broker.core.launching import Failure, Fault, counted, fault_of, with_one_more
from broker.core.rows import JobRow
from broker.service.context import Broker
from broker.service.workers import cordon
from broker.store.contract import Row, Tx
from broker.wire.workers import Final

_LONGEST_TEXT = 300


def failed(tx: Tx, broker: Broker, worker: Row, job: JobRow, final: Final) -> None:
    """A start that came to nothing, if this was one. `worker`: its row, as it was when the exchange began."""
    fault, most = fault_of(final), broker.settings.max_launch_failures
    if fault is None or most == 0:
        return
    what = f"job {job.id}" if fault is Fault.MACHINE else _command(tx, job)
    new = Failure(fault, what, job.project, (final.reason or final.reason_code or "")[:_LONGEST_TEXT])
    failures = with_one_more(_so_far(tx, worker["id"]), new)
    tx.run("note_launches", worker=worker["id"], failures=json.dumps(failures))
    if counted(failures) >= most:
        why = f"{counted(failures)} starts in a row failed there, and none succeeded between; the last: {new.text}"
        cordon(tx, worker["id"], why)


def succeeded(tx: Tx, worker: Row) -> None:
    """A process exists: whatever failed before, this worker can start jobs."""
    tx.run("forget_launches", worker=worker["id"])


def _so_far(tx: Tx, worker: str) -> list[Failure]:
    row = tx.one("worker", worker=worker)
    assert row is not None, "it is heard just now"
    return [Failure(Fault(fault), *rest) for fault, *rest in json.loads(row["launch_failures"])]


def _command(tx: Tx, job: JobRow) -> str:
    row = tx.one("command_of_job", job=job.id)
    return str(row["command"]) if row is not None else ""
