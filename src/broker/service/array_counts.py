"""Arrays as they stand in the tables: members per state, kept and never counted, and what follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from broker.core import arrays, graph
from broker.service.wake import ArrayChanged, JobReady
from broker.store.contract import Row, Tx
from broker.wire.jobs import Reason
from broker.wire.states import DependencyPolicy, JobState


def counts(tx: Tx, array: int) -> Counter[JobState]:
    """Members per state; empty for an array that there is not."""
    return Counter({JobState(row["state"]): row["n"] for row in tx.all("array_counts", array=array)})


def moved(tx: Tx, array: int, out_of: JobState, into: JobState, by: int = 1) -> bool:
    """Members went from one state into another. Whether the whole stands otherwise now to those that depend on it."""
    row = tx.one("array", array=array)
    if row is None:
        return False
    before = counts(tx, array)
    tx.run("count_of_state", array=array, state=out_of.value, by=-by)
    tx.run("count_of_state", array=array, state=into.value, by=by)
    tx.tell(ArrayChanged(array))
    after = before + Counter({into: by}) - Counter({out_of: by})
    if row["shape"] is not None:
        _hold(tx, row, is_full=arrays.is_full(after, row["max_parallel"]))
    return arrays.has_turned(before, after)


def set_most(tx: Tx, row: Row, most: int) -> None:
    """So many members of this array may run at once from now on. Who runs already goes on."""
    tx.run("set_max_parallel", array=row["id"], most=most)
    _hold(tx, row, is_full=arrays.is_full(counts(tx, row["id"]), most))


def _hold(tx: Tx, row: Row, *, is_full: bool) -> None:
    """Dispatch passes the members by, all at once, while as many run as may: it is changed with the counts, and asked with
    each look for a head. Who runs already is never asked: a process that was taken for lost comes back, whatever runs in
    its place."""
    if tx.run("hold_shape", shape=row["shape"], held=int(is_full)) and not is_full:
        tx.tell(JobReady(row["shape"]))


def given_up(tx: Tx, array: int) -> str | None:
    """Why no other member of it is to start; None: they may."""
    row = tx.one("array", array=array)
    if row is None or row["max_failures"] is None:
        return None
    found = counts(tx, array)
    if not arrays.has_failed(found, row["max_failures"]):
        return None
    return f"{found[JobState.FAILED]} members of array {array} have failed: max_failures={row['max_failures']}"


def throttle(tx: Tx, array: int) -> Reason | None:
    """What keeps one more member from a start."""
    row = tx.one("array", array=array)
    if row is None or not arrays.is_full(counts(tx, array), row["max_parallel"]):
        return None
    most = row["max_parallel"]
    said = f"array {array} may run {most} {'member' if most == 1 else 'members'} at once: so many run"
    return Reason(code="array_throttle", message=said, need=1, have=0)


def verdict(tx: Tx, policy: DependencyPolicy, of_jobs: graph.Verdict, waited_for: Sequence[int]) -> graph.Verdict:
    """How parents stand to a job, with the arrays among them."""
    found = of_jobs
    for array in waited_for:
        members = counts(tx, array)
        parent = graph.Parent(array, arrays.aggregate(members), array=True)
        match arrays.standing(policy, members):
            case graph.Standing.NEVER:
                return graph.Verdict(graph.Standing.NEVER, parent)
            case graph.Standing.OPEN if found.standing is not graph.Standing.NEVER:
                found = graph.Verdict(graph.Standing.OPEN, found.because or parent, found.open + 1)
            case _:
                pass
    return found


def parents(tx: Tx, child: int) -> list[int]:
    """The arrays that a job depends on."""
    return [row["array"] for row in tx.all("arrays_waited_for", child=child)]


def open_parent(tx: Tx, child: int) -> graph.Parent | None:
    """The first job that this one waits for, else the first array."""
    row = tx.one("open_parent", child=child)
    if row is not None:
        return graph.Parent(row["id"], JobState(row["state"]))
    row = tx.one("open_array", child=child)
    return None if row is None else graph.Parent(row["id"], arrays.aggregate(counts(tx, row["id"])), array=True)
