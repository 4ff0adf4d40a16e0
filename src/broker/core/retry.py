"""Whether a failure is tried again, and when. Pure: chance comes in.

Only a failure of the workload itself uses a retry up. The n-th of them waits `retry_delay_s`, doubled n - 1 times, up to
`LONGEST_DELAY_S` or the delay itself if that is more; of that at least a half, and how much more is chance, so that many
that failed together don't come back together.
"""

from __future__ import annotations

import signal
from collections.abc import Collection

from broker.core.rows import JobRow
from broker.wire.workers import Final, Outcome

LONGEST_DELAY_S = 3600.0
MOST_DOUBLINGS = 40
SIGNALLED = 128
"""Added to a signal's number, as shells do: an exit code for programs that know no other."""


def is_tried_again(job: JobRow, final: Final) -> bool:
    """True if this end is a failure that uses a retry, and one is left. Neither a lease nor an
    adopted process is started again. Stops are for the caller to look at."""
    if final.outcome is not Outcome.EXITED or job.retried >= job.retries or job.leased or job.adopted is not None:
        return False
    return _is_asked_for(job.retry_on, final)


def _is_asked_for(codes: Collection[int] | None, final: Final) -> bool:
    """Without a list: any exit code but 0, and no signal, which is somebody's doing."""
    if final.exit_code is None:
        return codes is not None and _as_exit_code(final.signal) in codes
    return final.exit_code != 0 if codes is None else final.exit_code in codes


def _as_exit_code(name: str | None) -> int | None:
    """What a shell would make of a signal."""
    known = signal.Signals.__members__.get(name or "")
    return None if known is None else SIGNALLED + known.value


def delay_s(first_s: float, retried: int, chance: float) -> float:
    """How long the next start waits after so many retries before it; `chance`: from 0 up to 1."""
    longest = max(LONGEST_DELAY_S, first_s)
    whole = min(longest, first_s * (1 << min(retried, MOST_DOUBLINGS)))
    return whole * (0.5 + chance / 2)
