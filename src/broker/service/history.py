"""How long jobs ran and what they used: noted in the transaction that ends them, read where somebody asks of one to come."""

from __future__ import annotations

import json

from broker.core import estimates
from broker.core.estimates import MOST_KEPT, UNKNOWN, Estimate, History, Run, Use
from broker.core.fingerprint import similar
from broker.core.states import Cause
from broker.store.contract import Row, Tx
from broker.wire.jobs import Peak
from broker.wire.workers import Final, Outcome

_DONE = frozenset({Cause.SUCCEED, Cause.LATE_SUCCEED})
_KEPT = {"rss_mb", "vram_mb", "cpu_s", "gpu"}
_FAILED = frozenset({Cause.FAIL, Cause.LATE_FAIL, Cause.TIME_LIMIT})


def note(tx: Tx, job: int, cause: Cause, final: Final, peak: Peak | None) -> None:
    """Keep how long this one ran, by its supervisor's clock: whoever was away meanwhile does not lengthen it; and what
    it used.

    A run that was stopped says nothing; nor does one whose supervisor can't say.
    """
    if final.duration_s is None or final.outcome not in (Outcome.EXITED, Outcome.LIMIT):
        return
    seen = peak.model_dump(include=_KEPT, exclude_none=True) if peak is not None else {}
    use = json.dumps({"job": job} | seen)
    if cause in _DONE:
        tx.run("note_run", job=job, run_s=final.duration_s, use=use, most=MOST_KEPT, now=tx.now_ms)
    elif cause in _FAILED:
        tx.run("note_failed_run", job=job, run_s=final.duration_s, use=use, most=MOST_KEPT, now=tx.now_ms)


def history(tx: Tx, fingerprint: str | None) -> History:
    """What is known of commands like this one."""
    row = tx.one("run_times", similar=similar(fingerprint)) if fingerprint is not None else None
    return UNKNOWN if row is None else of_row(row)


def of_row(row: Row) -> History:
    """`runs` and `failed` as they are kept."""
    return History(_runs(row["runs"]), _runs(row["failed"]))


def estimate(tx: Tx, fingerprint: str | None, ran_s: float = 0.0) -> Estimate:
    """How long a job of this fingerprint will have run at its end, if it has run for `ran_s` already."""
    return estimates.estimate(fingerprint, history(tx, fingerprint), ran_s)


def _runs(text: str) -> tuple[Run, ...]:
    return tuple(Run(exact, run_s, Use(**use[0]) if use else None) for exact, run_s, *use in json.loads(text))
