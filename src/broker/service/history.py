"""How long jobs ran: noted in the transaction that ends them, read where somebody asks how long one will."""

from __future__ import annotations

import json

from broker.core import estimates
from broker.core.estimates import MOST_KEPT, UNKNOWN, Estimate, History, Run
from broker.core.fingerprint import similar
from broker.core.states import Cause
from broker.store.contract import Tx
from broker.wire.workers import Final, Outcome

_DONE = frozenset({Cause.SUCCEED, Cause.LATE_SUCCEED})
_FAILED = frozenset({Cause.FAIL, Cause.LATE_FAIL, Cause.RETRY, Cause.LATE_RETRY, Cause.TIME_LIMIT})


def note(tx: Tx, job: int, cause: Cause, final: Final) -> None:
    """Keep how long this one ran, by its supervisor's clock: whoever was away meanwhile does not lengthen it.

    A run that was stopped says nothing; nor does one whose supervisor can't say.
    """
    if final.duration_s is None or final.outcome not in (Outcome.EXITED, Outcome.LIMIT):
        return
    if cause in _DONE:
        tx.run("note_run", job=job, run_s=final.duration_s, most=MOST_KEPT, now=tx.now_ms)
    elif cause in _FAILED:
        tx.run("note_failed_run", job=job, run_s=final.duration_s, most=MOST_KEPT, now=tx.now_ms)


def history(tx: Tx, fingerprint: str | None) -> History:
    """What is known of commands like this one."""
    row = tx.one("run_times", similar=similar(fingerprint)) if fingerprint is not None else None
    return UNKNOWN if row is None else History(_runs(row["runs"]), _runs(row["failed"]))


def estimate(tx: Tx, fingerprint: str | None, ran_s: float = 0.0) -> Estimate:
    """How long a job of this fingerprint will have run at its end, if it has run for `ran_s` already."""
    return estimates.estimate(fingerprint, history(tx, fingerprint), ran_s)


def _runs(text: str) -> tuple[Run, ...]:
    return tuple(Run(exact, run_s) for exact, run_s in json.loads(text))
