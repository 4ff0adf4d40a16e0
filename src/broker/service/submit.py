"""A job is accepted: on disk, with its events, before the answer is sent."""

from __future__ import annotations

import hashlib
import json
import re
import shlex

from broker.core import graph
from broker.core.effective import Effective, Source, effective, seconds
from broker.core.fingerprint import fingerprint
from broker.core.matching import Shape
from broker.core.placement import Demand
from broker.core.quotas import Over
from broker.failpoint import failpoint
from broker.places import DEVICE_NAMES
from broker.service import views
from broker.service.context import Broker, Caller
from broker.service.quotas import Owner, Quotas, token_with_quota
from broker.service.rows import unknown_job
from broker.service.transition import event, event_of_array, join_line
from broker.store.contract import Tx, Value
from broker.wire.events import EventType
from broker.wire.jobs import JobSpec, Submitted
from broker.wire.leases import LESSEE
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import JobState

COMMAND_SHOWN = 200
USES_A_GPU = re.compile(r"(?<![a-z0-9])(cuda|torchrun|pytorch|torch)(?![a-z])", re.IGNORECASE)
CHOOSES_DEVICES = re.compile(rf"(?<!\w)({'|'.join(DEVICE_NAMES)})=[\"']?[\w$]")


async def submit(broker: Broker, caller: Caller, spec: JobSpec) -> Submitted:
    """One job, or an array of `count` whose ids are one block.

    What is valid but fits no worker now is accepted and waits, saying so; so does what depends on other jobs. What the
    specification leaves open is decided here, once: a later change of a project's defaults is for later jobs.
    """
    whole = effective(spec, broker.settings.projects)
    admit_environment(whole.spec)
    answer = await broker.store.run(lambda tx: accept(tx, broker, caller, whole), admits=True)
    if isinstance(answer, Refused):
        raise answer
    failpoint("submitted")
    return answer


def accept(tx: Tx, broker: Broker, caller: Caller, whole: Effective) -> Submitted | Refused:
    """Keep it, in this transaction. A refusal for a quota is returned, not raised: its event is kept."""
    spec = whole.spec
    token = token_with_quota(broker.settings, caller.actor, caller.token)
    parents, verdict = parents_of(tx, spec)
    quotas = broker.quotas(tx)
    if (denied := _denied(tx, quotas, spec, token, caller.actor)) is not None:
        return denied
    wants = Shape.of(spec, token)
    shape, place = _shape(tx, wants), place_of(spec)
    until = _schedule_until(broker, spec) if verdict.open == 0 else None
    row = _row(tx, whole, shape, place, caller.actor)
    row |= {"blocked": verdict.open, "schedule_until": until, "quota_token": token}
    first = _insert(tx, spec.count, row)
    count = spec.count or 1
    tx.run_many(
        "add_dependency",
        [{"child": job, "parent": parent} for job in range(first, first + count) for parent in parents],
    )
    _count(tx, spec, token, count)
    if verdict.open == 0:
        join_line(tx, first, shape)  # members have the same priority, and stand behind the first one
    if spec.count is None:
        event(tx, EventType.JOB_SUBMITTED, job=first, project=spec.project, actor=caller.actor)
    else:
        event_of_array(tx, EventType.JOB_SUBMITTED, first, caller.actor)
    hopeless = (
        views.waits_for(verdict.because) if verdict.because else views.hopeless(tx, broker.fits, wants, place, quotas)
    )
    if spec.count is None:
        return Submitted(id=first, state=JobState.QUEUED, waiting=hopeless, warnings=warnings_of(whole))
    return Submitted(
        array=first,
        count=count,
        ids=f"{first}..{first + count - 1}",
        state=JobState.QUEUED,
        waiting=hopeless,
        warnings=warnings_of(whole),
    )


def _denied(tx: Tx, quotas: Quotas, spec: JobSpec, token: str | None, actor: str) -> Refused | None:
    """The refusal for a quota, said in an event: that is kept, and nothing else of the submit."""
    found = quotas.denies(spec.project, token, spec.count or 1, Demand.of(spec).gpus)
    if found is None:
        return None
    owner, over = found
    numbers = {"limit": over.limit, "have": round(over.have, 3)} | ({"need": over.need} if over.need else {})
    data = {"reason": "quota", "quota": str(owner), "field": over.field, **numbers}
    event(tx, EventType.JOB_DENIED, project=spec.project, actor=actor, data=data)
    return over_quota(owner, over)


def over_quota(owner: Owner, over: Over) -> Refused:
    """What a submit is told that a quota forbids."""
    table = f"[{'tokens' if owner.token else 'projects'}.{owner.name}.quota]"
    return Refused(
        ProblemCode.QUOTA_EXCEEDED,
        over.said_of(str(owner)),
        hint=f"wait until some have ended, or have {over.field} raised in {table}",
        retryable=True,
    )


def _count(tx: Tx, spec: JobSpec, token: str | None, count: int) -> None:
    gpus = count * Demand.of(spec).gpus
    tx.run("count_state", project=spec.project, state=JobState.QUEUED.value, by=count, gpus=gpus)
    if token is not None:
        tx.run("count_token_state", token=token, state=JobState.QUEUED.value, by=count, gpus=gpus)


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


def warnings_of(whole: Effective) -> list[str] | None:
    spec = whole.spec
    text = spec.command if spec.command is not None else " ".join(spec.argv or [])
    said = []
    chooses = CHOOSES_DEVICES.search(text)
    if chooses:
        said.append(
            f"its command sets {chooses[1]}: then it uses devices that it was not given, and that nobody counts"
        )
    if Demand.of(spec).gpus:
        return said or None
    if (found := USES_A_GPU.search(text)) and not chooses:
        said.append(
            f"it mentions {found[0]} and asks for no GPU, so it will see none: set gpus or vram_gb if it needs one"
        )
    own = whole.sources.get("gpu_idle_timeout_s") is Source.JOB  # a project's is for those of its jobs that have some
    if own and seconds(spec.gpu_idle_timeout_s) is not None:
        said.append("gpu_idle_timeout_s limits nothing: the job asks for no GPU")
    return said or None


def parents_of(tx: Tx, spec: JobSpec) -> tuple[list[int], graph.Verdict]:
    """The jobs to wait for, read in the transaction that inserts: none can end unseen in between.

    Refused: an unknown id (also the job's own: ids are given out after this), and an end that forbids the start.
    """
    parents = []
    for job in sorted(set(spec.depends_on or ())):
        row = tx.one("job_owner", job=job)
        if row is None:
            raise unknown_job(tx, job, field="depends_on")
        parents.append(graph.Parent(row["id"], JobState(row["state"])))
    verdict = graph.decide(spec.dependency_policy, parents)
    if verdict.because is not None and verdict.standing is graph.Standing.NEVER:
        raise Refused(
            ProblemCode.DEPENDENCY_UNSATISFIABLE,
            f"job {verdict.because.id} is {verdict.because.state}: with dependency_policy={spec.dependency_policy} this job could never start",
            field="depends_on",
            hint="leave that job out, or choose another dependency_policy (success, any_exit, failure)",
        )
    return [parent.id for parent in parents], verdict


def _shape(tx: Tx, wants: Shape) -> int:
    key = wants.key()
    known = tx.one("shape_id", key=key)
    return tx.insert("add_shape", key=key) if known is None else int(known["id"])


def _schedule_until(broker: Broker, spec: JobSpec) -> int | None:
    limit_s = seconds(spec.scheduling_timeout_s)
    return None if limit_s is None else broker.listening.now_ms() + int(limit_s * 1000)


def _row(tx: Tx, whole: Effective, shape: int, place: str, actor: str) -> dict[str, Value]:
    spec = whole.spec
    kept = {"json": spec.model_dump_json(exclude_none=True), "sources": json.dumps(whole.sources)}
    return {
        "spec": tx.insert("add_spec", **kept),
        "shape": shape,
        "project": spec.project,
        "name": spec.name,
        "command": _shown(spec),
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
        "env_kept": int(bool(spec.env)),
        "fingerprint": fingerprint(spec),
        "actor": actor,
        "now": tx.now_ms,
    }


def _insert(tx: Tx, count: int | None, row: dict[str, Value]) -> int:
    first = tx.insert("add_job", **row)
    if count is not None:
        tx.run("make_array_head", id=first)
        tx.run("add_array_members", array=first, count=count)
    return first


def _shown(spec: JobSpec) -> str:
    text = spec.command if spec.command is not None else shlex.join(spec.argv or [])
    return cut(text)


def cut(text: str) -> str:
    """One line, as it is shown."""
    text = " ".join(text.split())
    return text if len(text) <= COMMAND_SHOWN else text[: COMMAND_SHOWN - 1] + "…"


def place_of(spec: JobSpec) -> str:
    """A key of the directory and environment that the job needs: what a worker's refusal of them holds for."""
    place = [spec.cwd, spec.venv, spec.conda]
    if not any(place):
        return ""
    return hashlib.sha256(json.dumps(place).encode()).hexdigest()[:32]
