"""A typed client of the broker, over its private socket or TCP.

Operations are methods; a refusal is raised as `Refused`, a broker that can't be reached as `Unreachable`.
Calls at the same time don't wait for each other: each has a connection of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ValidationError

from broker.line import Answer, Asks, Broken, Endpoint, Line
from broker.wire.adoptions import AdoptRequest
from broker.wire.events import EventList, EventType
from broker.wire.jobs import (
    Artifact,
    CancelAnswer,
    CancelRequest,
    Explained,
    Graph,
    Job,
    JobList,
    JobSpec,
    PreemptRequest,
    Preview,
    PreviewRequest,
    RetryRequest,
    StoppedJob,
    SubmitMany,
    Submitted,
    SubmittedMany,
    Updated,
    UpdateRequest,
    Waited,
)
from broker.wire.leases import Lease, LeaseRequest, LeaseState
from broker.wire.outcomes import ArtifactList, ArtifactSize, ResultKept
from broker.wire.problems import Problem, Refused
from broker.wire.projects import ProjectChange, ProjectEntry, ProjectList, Reloaded
from broker.wire.schedules import Schedule, ScheduleList, ScheduleRequest
from broker.wire.snapshots import Snapshot, SnapshotKept
from broker.wire.states import JobState, Scope
from broker.wire.system import TokenList, TokenMade, TokenRequest, Whoami
from broker.wire.watches import Watch, WatchRequest
from broker.wire.workers import (
    LogSize,
    Poll,
    PollAnswer,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Worker,
    WorkerList,
    WorkerUpdate,
)

M = TypeVar("M", bound=BaseModel)
Query = Mapping[str, str | int | float | bool | None | Sequence[int]]

ANSWER_S = 30.0
COPY_S = 600.0
MARGIN_S = 10.0  # how much longer than it asked to wait a waiting call is given


class Unreachable(Exception):
    """No answer, or one that is not the broker's: it may be starting, restarting, or gone. Try again."""


class BrokerClient:
    """`async with BrokerClient("unix:///…/broker.sock") as broker: await broker.job_submit(JobSpec(command="true"))`"""

    def __init__(self, url: str, token: str | None = None, line: Asks | None = None) -> None:
        """`line`: what the calls travel on, instead of HTTP to `url`."""
        self._url = url.rstrip("/")
        self._line = line or Line(Endpoint.of(url), {"Authorization": f"Bearer {token}"} if token else {})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._line.aclose()

    # ---- jobs

    async def job_submit(self, spec: JobSpec) -> Submitted:
        """Submit, durably. After `Unreachable` the job may exist: a `Submission` with a key can be repeated."""
        return await self._call(Submitted, "POST", "/v1/jobs", body=spec)

    async def job_submit_many(self, specs: Sequence[JobSpec], *, idempotency_key: str | None = None) -> SubmittedMany:
        """All of them, or none."""
        said = SubmitMany(jobs=list(specs), idempotency_key=idempotency_key)
        return await self._call(SubmittedMany, "POST", "/v1/jobs/batch", body=said)

    async def job_list(
        self,
        *,
        state: JobState | None = None,
        project: str | None = None,
        array: int | None = None,
        name: str | None = None,
        limit: int = 20,
        cursor: str | None = None,
    ) -> JobList:
        query: Query = {
            "state": state.value if state else None,
            "project": project,
            "array": array,
            "name": name,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._call(JobList, "GET", "/v1/jobs", query=query)

    async def job_get(self, job: int, *, detail: Literal["concise", "full"] = "concise") -> Job:
        return await self._call(Job, "GET", f"/v1/jobs/{job}", query={"detail": detail})

    async def job_wait(
        self,
        job: Sequence[int] = (),
        *,
        array: int | None = None,
        mode: Literal["all", "any"] = "all",
        timeout_s: float = 40,
    ) -> Waited:
        """Waits at most `timeout_s` (≤ 40 s); `done` tells whether they have ended."""
        query: Query = {"job": list(job), "array": array, "mode": mode, "timeout_s": timeout_s}
        return await self._call(Waited, "GET", "/v1/jobs/wait", query=query, answer_s=timeout_s + MARGIN_S)

    async def job_logs(
        self,
        job: int,
        *,
        tail: int | None = None,
        head: int | None = None,
        grep: str | None = None,
        context: int = 0,
        cursor: int | None = None,
        attempt: int | None = None,
        stream: Literal["stdout", "stderr"] | None = None,
    ) -> str:
        """Output as text for reading; its last line says how to read on."""
        query: Query = {
            "tail": tail,
            "head": head,
            "grep": grep,
            "context": context,
            "cursor": cursor,
            "attempt": attempt,
            "stream": stream,
        }
        return (await self._answer("GET", f"/v1/jobs/{job}/log", query=query)).body.decode("utf-8", "replace")

    async def job_output(self, job: int, *, attempt: int | None = None) -> AsyncIterator[bytes]:
        """All output so far, exact bytes, in slices."""
        cursor = 0
        while True:
            query: Query = {"raw": True, "cursor": cursor, "attempt": attempt}
            answer = await self._answer("GET", f"/v1/jobs/{job}/log", query=query)
            if not answer.body:
                return
            cursor += len(answer.body)
            yield answer.body

    async def job_artifacts(self, job: int, *, attempt: int | None = None) -> ArtifactList:
        """The files that a job left, as far as the broker has them."""
        return await self._call(ArtifactList, "GET", f"/v1/jobs/{job}/artifacts", query={"attempt": attempt})

    async def job_artifact(self, job: int, name: str, *, attempt: int | None = None) -> bytes:
        """One of them, whole."""
        path = f"/v1/jobs/{job}/artifacts/{quote(name)}"
        return (await self._answer("GET", path, query={"attempt": attempt})).body

    async def job_cancel(self, request: CancelRequest) -> CancelAnswer:
        return await self._call(CancelAnswer, "POST", "/v1/jobs/cancel", body=request)

    async def job_retry(self, job: int, request: RetryRequest | None = None) -> Submitted:
        """A new job that does an ended one again; of an array its failed members."""
        return await self._call(Submitted, "POST", f"/v1/jobs/{job}/retry", body=request or RetryRequest())

    async def job_graph(self, job: int | None = None, *, project: str | None = None) -> Graph:
        return await self._call(Graph, "GET", "/v1/jobs/graph", query={"job": job, "project": project})

    async def job_explain(self, job: int) -> Explained:
        """Why a job waits."""
        return await self._call(Explained, "GET", f"/v1/jobs/{job}/explain")

    async def job_preview(self, spec: dict[str, Any]) -> Preview:
        """What a submit of this specification would come to now. Nothing is kept of it."""
        return await self._call(Preview, "POST", "/v1/jobs/preview", body=PreviewRequest(spec=spec))

    async def job_adopt(self, request: AdoptRequest) -> Submitted:
        """Make a process that is running already a job."""
        return await self._call(Submitted, "POST", "/v1/jobs/adopt", body=request)

    async def job_preempt(self, job: int, *, reason: str | None = None, force: bool = False) -> StoppedJob:
        """Stop a preemptible job that runs, to make room."""
        request = PreemptRequest(reason=reason, force=force)
        return await self._call(StoppedJob, "POST", f"/v1/jobs/{job}/preempt", body=request)

    async def job_update(self, job: int, **changes: Any) -> Updated:
        """Change a job that has not ended, or all live members of an array."""
        return await self._call(Updated, "PATCH", f"/v1/jobs/{job}", body=UpdateRequest.model_validate(changes))

    async def job_events(
        self,
        *,
        since: int = 0,
        type: EventType | None = None,  # noqa: A002 - the event's own word
        job: int | None = None,
        project: str | None = None,
        worker: str | None = None,
        actor: str | None = None,
        limit: int = 50,
        last: int | None = None,
    ) -> EventList:
        query: Query = {
            "since": since,
            "type": type.value if type else None,
            "job": job,
            "project": project,
            "worker": worker,
            "actor": actor,
            "limit": limit,
            "last": last,
        }
        return await self._call(EventList, "GET", "/v1/events", query=query)

    async def worker_list(self) -> WorkerList:
        return await self._call(WorkerList, "GET", "/v1/workers")

    async def worker_update(self, worker: str, request: WorkerUpdate) -> Worker:
        return await self._call(Worker, "PATCH", f"/v1/workers/{quote(worker, safe='')}", body=request)

    async def worker_remove(self, worker: str) -> WorkerList:
        return await self._call(WorkerList, "DELETE", f"/v1/workers/{quote(worker, safe='')}")

    # ---- leases

    async def lease_request(self, request: LeaseRequest) -> Lease:
        """Ask for a lease. Not idempotent: after `Unreachable` there may be one, which expires by itself."""
        return await self._call(Lease, "POST", "/v1/leases", body=request)

    async def lease_get(self, job: int, *, unless: LeaseState | None = None, wait_s: float = 0) -> Lease:
        """Waits at most `wait_s` (≤ 40 s) while it stands as `unless` says."""
        query: Query = {"unless": unless.value if unless else None, "wait_s": wait_s}
        return await self._call(Lease, "GET", f"/v1/leases/{job}", query=query, answer_s=wait_s + MARGIN_S)

    async def lease_renew(self, job: int) -> Lease:
        return await self._call(Lease, "POST", f"/v1/leases/{job}/renew")

    async def lease_release(self, job: int, *, force: bool = False) -> Lease:
        return await self._call(Lease, "DELETE", f"/v1/leases/{job}", query={"force": force})

    # ---- the code of jobs

    async def snapshot_put(self, sha256: str, data: bytes) -> SnapshotKept:
        """Keep what a job is to run in; named by its own sha256."""
        headers = {"Content-Type": "application/octet-stream"}
        path = f"/v1/snapshots/{sha256}"
        return _parsed(SnapshotKept, await self._answer("PUT", path, headers=headers, content=data, answer_s=COPY_S))

    async def snapshot_get(self, sha256: str) -> bytes:
        """The same bytes, for a worker."""
        return (await self._answer("GET", f"/v1/snapshots/{sha256}", answer_s=COPY_S)).body

    async def job_snapshot(self, job: int) -> Snapshot:
        """The code of a job, with the diff."""
        return await self._call(Snapshot, "GET", f"/v1/jobs/{job}/snapshot")

    # ---- jobs by the clock

    async def schedule_put(self, name: str, request: ScheduleRequest) -> Schedule:
        return await self._call(Schedule, "PUT", f"/v1/schedules/{quote(name, safe='')}", body=request)

    async def schedule_list(self) -> ScheduleList:
        return await self._call(ScheduleList, "GET", "/v1/schedules")

    async def schedule_get(self, name: str) -> Schedule:
        return await self._call(Schedule, "GET", f"/v1/schedules/{quote(name, safe='')}")

    async def schedule_pause(self, name: str) -> Schedule:
        return await self._call(Schedule, "POST", f"/v1/schedules/{quote(name, safe='')}/pause")

    async def schedule_resume(self, name: str) -> Schedule:
        return await self._call(Schedule, "POST", f"/v1/schedules/{quote(name, safe='')}/resume")

    async def schedule_remove(self, name: str) -> ScheduleList:
        return await self._call(ScheduleList, "DELETE", f"/v1/schedules/{quote(name, safe='')}")

    # ---- waits that are kept

    async def watch_create(self, request: WatchRequest) -> Watch:
        return await self._call(Watch, "POST", "/v1/watches", body=request)

    async def watch_get(self, watch: str) -> Watch:
        return await self._call(Watch, "GET", f"/v1/watches/{quote(watch, safe='')}")

    async def watch_cancel(self, watch: str) -> Watch:
        return await self._call(Watch, "POST", f"/v1/watches/{quote(watch, safe='')}/cancel")

    # ---- the broker itself

    async def whoami(self) -> Whoami:
        return await self._call(Whoami, "GET", "/v1/whoami")

    async def token_create(self, name: str, scopes: Sequence[Scope]) -> TokenMade:
        return await self._call(TokenMade, "POST", "/v1/tokens", body=TokenRequest(name=name, scopes=list(scopes)))

    async def token_list(self) -> TokenList:
        return await self._call(TokenList, "GET", "/v1/tokens")

    async def token_revoke(self, name: str) -> TokenList:
        return await self._call(TokenList, "DELETE", f"/v1/tokens/{quote(name, safe='')}")

    # ---- projects and settings

    async def project_list(self) -> ProjectList:
        return await self._call(ProjectList, "GET", "/v1/projects")

    async def project_set(self, name: str, values: Mapping[str, Any]) -> ProjectEntry:
        """Null takes a change back."""
        body = ProjectChange(values=dict(values))
        return await self._call(ProjectEntry, "PUT", f"/v1/projects/{quote(name, safe='')}", body=body)

    async def reload(self) -> Reloaded:
        return await self._call(Reloaded, "POST", "/v1/reload")

    # ---- what workers say

    async def register(self, worker_id: str, said: Registration) -> Registered:
        return await self._call(Registered, "POST", f"/v1/workers/{worker_id}/register", body=said)

    async def poll(self, worker_id: str, said: Poll) -> PollAnswer:
        """Long: the broker parks it for up to `wait_s`."""
        return await self._call(
            PollAnswer, "POST", f"/v1/workers/{worker_id}/poll", body=said, answer_s=said.wait_s + MARGIN_S
        )

    async def report(self, worker_id: str, said: Report) -> ReportAnswer:
        return await self._call(ReportAnswer, "POST", f"/v1/workers/{worker_id}/report", body=said)

    async def put_log(
        self,
        worker_id: str,
        job: int,
        attempt: int,
        token: str,
        epoch: int,
        stream: Literal["log", "index"],
        offset: int,
        data: bytes,
        end: int | None = None,
    ) -> LogSize:
        """Bytes of output at `offset`. The answered size is the only cursor; a gap is refused with it.

        `end`: all that its holder has, now that nothing is added.
        """
        answer = await self._answer(
            "PUT",
            f"/v1/jobs/{job}/assignments/{attempt}/log",
            query={"offset": offset, "stream": stream, "crc32": zlib.crc32(data), "end": end},
            headers=_holder(worker_id, token, epoch),
            content=data,
        )
        return _parsed(LogSize, answer)

    async def put_result(
        self, worker_id: str, job: int, attempt: int, token: str, epoch: int, data: bytes
    ) -> ResultKept:
        """What came out of a delivery, as JSON. A repeat changes nothing."""
        path = f"/v1/jobs/{job}/assignments/{attempt}/result"
        answer = await self._answer("PUT", path, headers=_holder(worker_id, token, epoch), content=data)
        return _parsed(ResultKept, answer)

    async def put_artifact(
        self,
        worker_id: str,
        job: int,
        attempt: int,
        token: str,
        epoch: int,
        artifact: Artifact,
        offset: int,
        data: bytes,
    ) -> ArtifactSize:
        """Bytes of an artifact at `offset`. The answered size is the only cursor."""
        answer = await self._answer(
            "PUT",
            f"/v1/jobs/{job}/assignments/{attempt}/artifacts/{quote(artifact.name)}",
            query={
                "offset": offset,
                "crc32": zlib.crc32(data),
                "size": artifact.size,
                "sha256": artifact.sha256,
            },
            headers=_holder(worker_id, token, epoch),
            content=data,
        )
        return _parsed(ArtifactSize, answer)

    # ---- one way to ask

    async def _call(
        self,
        model: type[M],
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: BaseModel | None = None,
        answer_s: float = ANSWER_S,
    ) -> M:
        # Only what was said: an older broker refuses a field that it does not know, even with its default.
        content = body.model_dump_json(exclude_none=True, exclude_unset=True).encode() if body is not None else None
        headers = {"Content-Type": "application/json"} if body is not None else {}
        answer = await self._answer(method, path, query=query, headers=headers, content=content, answer_s=answer_s)
        return _parsed(model, answer)

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        answer_s: float = ANSWER_S,
    ) -> Answer:
        target = path + _query_string(query) if query else path
        try:
            answer = await self._line.ask(method, target, headers or {}, content, answer_s)
        except Broken as error:
            raise Unreachable(f"{self._url}: {error}") from error
        if answer.status >= 400:
            raise _refusal(answer)
        return answer


def _holder(worker_id: str, token: str, epoch: int) -> dict[str, str]:
    """By which right bytes are sent."""
    return {
        "X-Jobd-Worker": worker_id,
        "X-Jobd-Epoch": str(epoch),
        "X-Jobd-Token": token,
        "Content-Type": "application/octet-stream",
    }


def _query_string(query: Query) -> str:
    said = {key: _said(value) for key, value in query.items() if value is not None}
    return f"?{urlencode(said, doseq=True)}" if said else ""


def _said(value: str | float | Sequence[int]) -> str | float | Sequence[int]:
    return str(value).lower() if isinstance(value, bool) else value


def _refusal(answer: Answer) -> Exception:
    try:
        problem = Problem.model_validate_json(answer.body)
    except ValidationError:
        return Unreachable(f"status {answer.status} without a problem document")
    return Refused(
        problem.code,
        problem.detail,
        hint=problem.hint,
        field=problem.field,
        errors=problem.errors,
        retryable=problem.retryable,
        size=problem.size,
    )


def _parsed(model: type[M], answer: Answer) -> M:
    """Fields that a newer broker added, also deep inside, are left out, not refused."""
    try:
        return model.model_validate_json(answer.body, extra="ignore")
    except ValidationError as error:
        raise Unreachable(f"an answer that can't be understood: {error}") from error
