"""What commands used in their past runs: of one job's, of one fingerprint, or of those that ended last."""

from __future__ import annotations

import re

from broker.core import sizing
from broker.core.estimates import FEWEST, History
from broker.core.fingerprint import LENGTH, similar
from broker.service import history
from broker.service.context import Broker
from broker.service.rows import unknown_job
from broker.store.contract import Tx
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.stats import Asked, CommandStats, Stats

_KEY = re.compile(rf"[0-9a-f]{{{LENGTH}}}(\.[0-9a-f]{{{LENGTH}}})?")


async def stats(broker: Broker, job: int | None, fingerprint: str | None, limit: int) -> Stats:
    """Refused: `unknown_job`; `invalid_spec` for what is no fingerprint, or for both at once. Of what never ended the
    answer has no run."""
    if job is not None and fingerprint is not None:
        raise _unfit("job", "names a command already", "give job or fingerprint")
    if fingerprint is not None and not _KEY.fullmatch(fingerprint):
        raise _unfit("fingerprint", "is no fingerprint", "as job stats shows it: 16 hexadecimal digits")

    def fn(tx: Tx) -> Stats:
        if job is not None:
            return Stats(commands=[_of_job(tx, job)])
        if fingerprint is not None:
            return Stats(commands=[_told(tx, fingerprint, history.history(tx, fingerprint))])
        return Stats(
            commands=[_told(tx, row["similar"], history.of_row(row)) for row in tx.all("recent_commands", limit=limit)]
        )

    return await broker.store.read(fn)


def _of_job(tx: Tx, job: int) -> CommandStats:
    row = tx.one("what_was_asked", job=job)
    if row is None:
        raise unknown_job(tx, job)
    if row["fingerprint"] is None:
        raise _unfit("job", "was submitted before such figures were kept", "submit it again")
    known = history.history(tx, row["fingerprint"])
    return _told(tx, row["fingerprint"], known, job)


def _told(tx: Tx, key: str, known: History, job: int | None = None) -> CommandStats:
    """`job`: whose words are compared with what was used; None: the last one's."""
    seen = sizing.used(known, key if len(key) > LENGTH else None)
    shown = seen.last_job if job is None else job
    row = tx.one("what_was_asked", job=shown) if shown is not None else None
    spec = JobSpec.model_validate_json(row["json"]) if row is not None else None
    return CommandStats(
        fingerprint=similar(key) if seen.values_differ else key,
        command=row["command"] if row is not None else None,
        job=seen.last_job,
        runs=seen.runs,
        failed=seen.failed,
        values_differ=seen.values_differ,
        median_run_s=_short(seen.median_s),
        worst_run_s=_short(seen.worst_s),
        rss_gb=_short(seen.rss_gb),
        vram_gb=_short(seen.vram_gb),
        cpus=_short(seen.cpus),
        gpu=_short(seen.gpu),
        asked=Asked(cpus=spec.cpus, ram_gb=spec.ram_gb, gpus=spec.gpus, vram_gb=spec.vram_gb) if spec else None,
        suggestions=(sizing.advice(spec, seen) or None) if spec else None,
        note=None if seen.runs >= FEWEST else f"{seen.runs} runs were completed: {FEWEST} are needed for a suggestion",
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _unfit(field: str, message: str, hint: str) -> Refused:
    return Refused(ProblemCode.INVALID_SPEC, f"{field} {message}", field=field, hint=hint)
