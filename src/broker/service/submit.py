"""A job is accepted: on disk, with its events, before the answer is sent."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio.to_thread

from broker.core import arrays, gate, graph
from broker.core.effective import Effective, Source, seconds
from broker.core.fingerprint import fingerprint
from broker.core.matching import Shape
from broker.core.placement import Demand
from broker.core.quotas import Over
from broker.core.states import TERMINAL
from broker.failpoint import failpoint
from broker.places import DEVICE_NAMES
from broker.service import array_counts, keys, snapshots, views
from broker.service.completing import completed
from broker.service.context import Broker, Caller
from broker.service.quotas import Owner, token_with_quota
from broker.service.rows import unknown_job
from broker.service.transition import count, event, join_line
from broker.service.wake import JobReady, TimeToCome
from broker.store.contract import Tx, Value
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec, Reason, Submission, Submitted
from broker.wire.leases import LESSEE
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState

COMMAND_SHOWN = 200
TWICE_WITHIN_S = 60
MOST_DEPENDENCIES = 100_000
USES_A_GPU = re.compile(r"(?<![a-z0-9])(cuda|torchrun|pytorch|torch)(?![a-z])", re.IGNORECASE)
CHOOSES_DEVICES = re.compile(rf"(?<!\w)({'|'.join(DEVICE_NAMES)})=[\"']?[\w$]")


async def submit(broker: Broker, caller: Caller, said: Submission) -> Submitted:
    """One job, or an array of `count` or `sweep` whose ids are one block.

    What is valid but fits no worker now is accepted and waits, saying so; so does what depends on other jobs. What the
    specification leaves open is decided here, once: a later change of a project's defaults is for later jobs. With a
    key it is submitted once, however often it is asked for.
    """
    key = keys.of(said, caller, "submit", said.project)
    if (known := await keys.answered(broker.store, key, Submitted)) is not None:
        return known
    spec = await snapshots.taken(broker, caller, said.spec)
    whole = await completed(broker, spec)
    admit_environment(whole.spec)
    if arrays.is_array(spec):  # thousands are judged: others have their turn meanwhile
        members = await anyio.to_thread.run_sync(members_of, whole.spec)
    else:
        members = members_of(whole.spec)

    def fn(tx: Tx) -> Submitted | Denial:
        return keys.once(tx, key, Submitted, lambda: accept(tx, broker, caller, whole, members))

    answer = await broker.store.run(fn, admits=True)
    if isinstance(answer, Denial):
        raise answer.refused
    failpoint("submitted")
    return answer


@dataclass(frozen=True, slots=True)
class Members:
    """The jobs of one specification: what the first one runs, and of an array what is each one's own."""

    first: JobSpec
    size: int = 1
    index: int = 0
    values: str | None = None
    others: Sequence[list[str | int | None]] = ()
    """Of each but the first: index, name, command, place, fingerprint and values; what is left out is as the first one's."""


def members_of(spec: JobSpec, only: Sequence[int] | None = None) -> Members:
    """Every member, or those with these indexes, judged. Raises Refused for the first that can't be a job, and names it
    and the field."""
    values = arrays.members(spec)
    if not arrays.is_array(spec):
        return Members(spec)
    index, *others = range(len(values)) if only is None else only
    first = arrays.admitted(spec, index, values[index])
    own_of_first = json.dumps(values[index]) if values[index] else None
    if not arrays.is_templated(spec) and spec.sweep is None:
        return Members(first, 1 + len(others), index, own_of_first, [[other] for other in others])
    own = [_own(arrays.admitted(spec, other, values[other]), other, values[other]) for other in others]
    return Members(first, 1 + len(own), index, own_of_first, own)


def _own(spec: JobSpec, index: int, values: arrays.Values) -> list[str | int | None]:
    return [index, spec.name, shown(spec), place_of(spec), fingerprint(spec), json.dumps(values) if values else None]


def accept(
    tx: Tx,
    broker: Broker,
    caller: Caller,
    whole: Effective,
    members: Members | None = None,
    retry_of: int | None = None,
) -> Submitted | Denial:
    """Keep it, in this transaction. A refusal for a quota is returned, not raised: its event is kept. `retry_of`: the
    job, or array, that it does again."""
    spec, members = whole.spec, members or Members(whole.spec)
    token = token_with_quota(broker.settings, caller.actor, caller.token)
    parents, verdict = parents_of(tx, spec, members.size, whole=retry_of is None)
    quotas = broker.quotas(tx)
    if (found := quotas.denies(spec.project, token, members.size, Demand.of(spec).gpus)) is not None:
        denied = Denial(spec.project, *found)
        denied.say(tx, caller.actor)
        return denied
    wants, place = Shape.of(spec, token), place_of(members.first)
    until = _schedule_until(broker, spec)
    row = row_of(tx, whole, members.first, shape_id(tx, wants), place, caller.actor)
    ready = verdict.open == 0 and not row["hold"] and row["not_before"] is None
    row |= {"blocked": verdict.open, "schedule_until": until if ready else None, "quota_token": token}
    if row["not_before"] is not None:
        row["waits_until"] = gate.lasts_until(spec.not_before, broker.listening.now_ms())
    first = tx.insert("add_job", **row)
    count(tx, spec.project, token, JobState.QUEUED, members.size, members.size * Demand.of(spec).gpus)
    jobs = range(first, first + members.size)
    if arrays.is_array(spec):
        wants = _make_array(tx, spec, members, wants, row, first)
    tx.run_many("add_dependency", [{"child": job, "parent": parent} for job in jobs for parent in parents])
    for array in sorted(set(spec.depends_on_array or ())):
        tx.run("depend_on_array", array=array, children=json.dumps(list(jobs)))
    if spec.depends_on_each:
        _depend_on_each(tx, spec, first, until)
    _join(tx, spec, first, shape_id(tx, wants), ready=ready)
    if row["not_before"] is not None:
        tx.tell(TimeToCome())
    waiting = waits_at_submit(spec, tx.now_ms, verdict) or views.hopeless(tx, broker.fits, wants, place, quotas)
    said = warnings_of(tx, whole) or []
    if retry_of is None:
        said += twice(tx, spec, first, caller.actor)
    return _submitted(tx, spec, members, first, caller.actor, waiting, said or None, retry_of)


def waits_at_submit(spec: JobSpec, now_ms: int, verdict: graph.Verdict) -> Reason | None:
    """What it waits for before any worker may have it."""
    held = gate.holds(hold=spec.hold, not_before=gate.instant(spec.not_before, now_ms))
    because = verdict.because
    if because is None or spec.hold:  # a hold outlasts whatever else it waits for
        return held
    return views.waits_for(because)


def _make_array(tx: Tx, spec: JobSpec, members: Members, wants: Shape, row: dict[str, Value], first: int) -> Shape:
    """The other members, and the array as a whole. What its members are to dispatch: where only some may run at once,
    jobs of their own kind, so that one look passes all of them by."""
    if spec.max_parallel is not None:
        wants = replace(wants, array=first)
    shape = shape_id(tx, wants)
    tx.run("make_array_head", id=first, index=members.index, shape=shape, values=members.values)
    tx.run("add_array_members", array=first, members=json.dumps(members.others))
    tx.run(
        "add_array",
        id=first,
        size=members.size,
        project=spec.project,
        name=spec.name,
        command=shown(spec),
        shape=shape if spec.max_parallel is not None else None,
        max_parallel=spec.max_parallel,
        max_failures=spec.max_failures,
        now=row["now"],
    )
    tx.run("count_of_state", array=first, state=JobState.QUEUED.value, by=members.size)
    return wants


def _depend_on_each(tx: Tx, spec: JobSpec, first: int, until: int | None) -> None:
    """Each member waits for others of its own. Refused: one of these has ended so that it could never start."""
    for array in set(spec.depends_on_each or ()):
        tx.run("depend_on_same", array=first, parent=array)
        if (alone := tx.one("without_partner", array=first, parent=array)) is not None:
            raise Refused(
                ProblemCode.INVALID_SPEC,
                f"depends_on_each: array {array} has no member {alone['array_index']}",
                field="depends_on_each",
                hint="name the array that has it, or give depends_on_array",
            )
    ends = [state.value for state in TERMINAL if graph.of_parent(spec.dependency_policy, state) is graph.Standing.NEVER]
    never = tx.one("never_met", array=first, ends=json.dumps(ends))
    if never is not None:
        parent = graph.Parent(never["id"], JobState(never["state"]))
        raise _unsatisfiable(spec, parent, "depends_on_each", f"member {never['array_index']}")
    arrays_open = len([one for one in set(spec.depends_on_array or ()) if _is_open(tx, spec, one)])
    tx.run("members_with_parents", array=first, arrays=arrays_open)
    tx.run("members_without_clock", array=first, schedule_until=until)


def _is_open(tx: Tx, spec: JobSpec, array: int) -> bool:
    return arrays.standing(spec.dependency_policy, array_counts.counts(tx, array)) is graph.Standing.OPEN


def _join(tx: Tx, spec: JobSpec, first: int, shape: int, *, ready: bool) -> None:
    """What waits for nothing but a worker stands in line."""
    if not arrays.is_array(spec):
        if ready:
            join_line(tx, first, shape)
    elif tx.run("join_lines_of_array", array=first) or ready:
        tx.tell(JobReady(shape))


def _submitted(
    tx: Tx,
    spec: JobSpec,
    members: Members,
    first: int,
    actor: str,
    waiting: Reason | None,
    warnings: list[str] | None,
    retry_of: int | None,
) -> Submitted:
    """The answer, and the event."""
    data: dict[str, Any] = {} if retry_of is None else {"retry_of": retry_of}
    if not arrays.is_array(spec):
        event(tx, EventType.JOB_SUBMITTED, job=first, project=spec.project, actor=actor, data=data)
        return Submitted(id=first, state=JobState.QUEUED, waiting=waiting, retry_of=retry_of, warnings=warnings)
    data["count"] = members.size
    event(tx, EventType.ARRAY_SUBMITTED, job=first, project=spec.project, actor=actor, data=data)
    return Submitted(
        retry_of=retry_of,
        array=first,
        count=members.size,
        ids=f"{first}..{first + members.size - 1}",
        state=JobState.QUEUED,
        waiting=waiting,
        warnings=warnings,
    )


@dataclass(frozen=True, slots=True)
class Denial:
    """A submit that a quota forbids: nothing of it is kept but the event."""

    project: str
    owner: Owner
    over: Over

    def say(self, tx: Tx, actor: str) -> None:
        over = self.over
        numbers = {"limit": over.limit, "have": round(over.have, 3)} | ({"need": over.need} if over.need else {})
        data = {"reason": "quota", "quota": str(self.owner), "field": over.field, **numbers}
        event(tx, EventType.JOB_DENIED, project=self.project, actor=actor, data=data)

    @property
    def refused(self) -> Refused:
        """What its submitter is told."""
        owner = self.owner
        table = f"[{'tokens' if owner.token else 'projects'}.{owner.name}.quota]"
        return Refused(
            ProblemCode.QUOTA_EXCEEDED,
            self.over.said_of(str(owner)),
            hint=f"wait until some have ended, or have {self.over.field} raised in {table}",
            retryable=True,
        )


def admit_environment(spec: JobSpec) -> None:
    """Devices that a job takes by its environment would be counted by nobody."""
    if taken := next((name for name in DEVICE_NAMES if name in (spec.env or {})), None):
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"{taken} says which devices a job was given: it can't be set",
            field="env",
            hint="ask for devices with gpus or vram_gb; a job that asks for none sees none",
        )
    if LESSEE in (spec.env or {}):
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"{LESSEE} says whose memory of a device is a lease's: it can't be set",
            field="env",
            hint="job lease asks for devices for a process that is no job",
        )


def warnings_of(tx: Tx, whole: Effective) -> list[str] | None:
    spec = whole.spec
    said = [
        f"{{{name}}} stands nowhere in it: members that differ on {name} only are the same"
        for name in arrays.unused_axes(spec)
    ]
    said += [
        f"job {job} is the first member of array {job} only: depends_on_array waits for all of them"
        for job in spec.depends_on or ()
        if tx.one("array", array=job) is not None and job + 1 not in (spec.depends_on or ())
    ]
    said += [whole.suggested] if whole.suggested is not None else []
    return (said + _warnings_about_devices(whole)) or None


def twice(tx: Tx, spec: JobSpec, job: int, actor: str) -> list[str]:
    """A warning, if the same was submitted a moment ago: after a lost answer people and programs submit again. What one
    call submits together is meant."""
    hash_ = hashlib.sha256(json.dumps([actor, spec.model_dump_json(exclude_none=True)]).encode()).hexdigest()[:32]
    since = tx.now_ms - TWICE_WITHIN_S * 1000
    earlier = tx.one("recent_spec", hash=hash_, since=since, now=tx.now_ms)
    tx.run("keep_recent_spec", hash=hash_, job=job, now=tx.now_ms)
    if earlier is None:
        return []
    ago = (tx.now_ms - earlier["at"]) / 1000
    return [
        f"job {earlier['job']}, from {ago:.0f} s ago, has the same specification: if it is a repeat, cancel one of them"
    ]


def _warnings_about_devices(whole: Effective) -> list[str]:
    spec = whole.spec
    text = spec.command if spec.command is not None else " ".join(spec.argv or [])
    said = []
    chooses = CHOOSES_DEVICES.search(text)
    if chooses:
        said.append(
            f"its command sets {chooses[1]}: then it uses devices that it was not given, and that nobody counts"
        )
    if Demand.of(spec).gpus:
        return said
    if (found := USES_A_GPU.search(text)) and not chooses:
        said.append(
            f"it mentions {found[0]} and asks for no GPU, so it will see none: set gpus or vram_gb if it needs one"
        )
    own = whole.sources.get("gpu_idle_timeout_s") == Source.JOB  # a project's is for those of its jobs that have some
    if own and seconds(spec.gpu_idle_timeout_s) is not None:
        said.append("gpu_idle_timeout_s limits nothing: the job asks for no GPU")
    return said


def parents_of(tx: Tx, spec: JobSpec, size: int = 1, *, whole: bool = True) -> tuple[list[int], graph.Verdict]:
    """The jobs to wait for, read in the transaction that inserts: none can end unseen in between; `size`: of so many.
    `whole`: they are all members of their array.

    Refused: an unknown id (also the job's own: ids are given out after this), and an end that forbids the start.
    """
    wanted = sorted(set(spec.depends_on or ()))
    if len(wanted) * size > MOST_DEPENDENCIES:
        raise Refused(
            ProblemCode.INVALID_SPEC,
            f"depends_on: {size} members after {len(wanted)} jobs each are more than {MOST_DEPENDENCIES} dependencies",
            field="depends_on",
            hint="depends_on_array names all members of an array at once",
        )
    parents = []
    for job in wanted:
        row = tx.one("job_owner", job=job)
        if row is None:
            raise unknown_job(tx, job, field="depends_on")
        parents.append(graph.Parent(row["id"], JobState(row["state"])))
    _known_arrays(tx, spec, size if whole else None)
    verdict = graph.decide(spec.dependency_policy, parents)
    verdict = array_counts.verdict(tx, spec.dependency_policy, verdict, sorted(set(spec.depends_on_array or ())))
    if verdict.because is not None and verdict.standing is graph.Standing.NEVER:
        field = "depends_on_array" if verdict.because.array else "depends_on"
        raise _unsatisfiable(spec, verdict.because, field, "this job")
    return [parent.id for parent in parents], verdict


def _known_arrays(tx: Tx, spec: JobSpec, size: int | None) -> None:
    for field in ("depends_on_array", "depends_on_each"):
        for array in getattr(spec, field) or ():
            row = tx.one("array", array=array)
            if row is None:
                raise Refused(
                    ProblemCode.UNKNOWN_JOB,
                    f"there is no array {array}",
                    field=field,
                    hint="an array's id is that of its first member; depends_on takes single jobs",
                )
            if field == "depends_on_each" and size is not None and row["size"] != size:
                raise Refused(
                    ProblemCode.INVALID_SPEC,
                    f"{field}: array {array} has {row['size']} members, and this one {size}",
                    field=field,
                    hint="give both the same number, or depends_on_array",
                )


def _unsatisfiable(spec: JobSpec, parent: graph.Parent, field: str, who: str) -> Refused:
    return Refused(
        ProblemCode.DEPENDENCY_UNSATISFIABLE,
        f"{parent} is {parent.state}: with dependency_policy={spec.dependency_policy} {who} could never start",
        field=field,
        hint=f"leave that {'array' if parent.array else 'job'} out, or choose another dependency_policy (success, any_exit, failure)",
    )


def shape_id(tx: Tx, wants: Shape) -> int:
    key = wants.key()
    known = tx.one("shape_id", key=key)
    return tx.insert("add_shape", key=key) if known is None else int(known["id"])


def _schedule_until(broker: Broker, spec: JobSpec) -> int | None:
    limit_s = seconds(spec.scheduling_timeout_s)
    return None if limit_s is None else broker.listening.now_ms() + int(limit_s * 1000)


def row_of(tx: Tx, whole: Effective, first: JobSpec, shape: int, place: str, actor: str) -> dict[str, Value]:
    """`first`: what is run; of an array its first member, and what is kept is the whole."""
    spec = whole.spec
    kept = {
        "json": spec.model_dump_json(exclude_none=True),
        "sources": json.dumps(whole.sources),
        "snapshot": spec.snapshot,
    }
    return {
        "spec": tx.insert("add_spec", **kept),
        "shape": shape,
        "project": spec.project,
        "name": first.name,
        "command": shown(first),
        "priority": spec.priority,
        "cpus": spec.cpus,
        "gpus": Demand.of(spec).gpus,
        "place": place,
        "policy": spec.on_worker_lost.value,
        "grace_s": spec.checkpoint_grace_s,
        "preemptible": int(spec.preemptible),
        "on_preempt": spec.on_preempt.value,
        "max_wall_s": seconds(spec.max_wall_s),
        "scheduling_timeout_s": seconds(spec.scheduling_timeout_s),
        "dependency_policy": spec.dependency_policy.value,
        "retries": spec.retries,
        "retry_delay_s": spec.retry_delay_s,
        "retry_on": json.dumps(spec.retry_on) if spec.retry_on is not None else None,
        "not_before": gate.instant(spec.not_before, tx.now_ms),
        "waits_until": None,
        "hold": int(spec.hold),
        "env_kept": int(bool(spec.env)),
        "fingerprint": fingerprint(first),
        "actor": actor,
        "now": tx.now_ms,
    }


def shown(spec: JobSpec) -> str:
    text = spec.command if spec.command is not None else shlex.join(spec.argv or [])
    return cut(text)


def cut(text: str) -> str:
    """One line, as it is shown."""
    text = " ".join(text.split())
    return text if len(text) <= COMMAND_SHOWN else text[: COMMAND_SHOWN - 1] + "…"


def place_of(spec: JobSpec) -> str:
    """A key of the directory or copy, and of the environment, that the job needs: what a worker's refusal of them holds for."""
    place = [spec.cwd, spec.venv, spec.conda, *([spec.snapshot] if spec.copied else [])]
    if not any(place):
        return ""
    return hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
