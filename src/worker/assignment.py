"""One assignment on this worker: admit → launch → release → follow → report → clear.

The shim does the work and keeps the truth in files; this is the part that talks. It may die at any line: a later
epoch begins again from the files with `resumed()`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

import anyio
import anyio.to_thread
import structlog

from broker.wire.jobs import JobSpec, Progress
from broker.wire.machines import Gpu
from broker.wire.outcomes import OutcomeLimits
from broker.wire.states import LimitCode, OnWorkerLost
from broker.wire.workers import (
    Ack,
    Adoptee,
    Delivery,
    Final,
    Finish,
    Held,
    Phase,
    Registered,
    Start,
    Stop,
    Verdict,
    VerdictWord,
)
from worker.admission import Admitted, Ground, Refusal, admit, look_at_given
from worker.backoff import Backoff
from worker.copies import Copies
from worker.environment import Identity, Places, environment
from worker.exchange import Exchange
from worker.home import Home
from worker.meter import Meter
from worker.outbox import Collected, Outbox
from worker.parcels import Parcels, Sender
from worker.probe.devices import Tree
from worker.probe.trees import TreeUse
from worker.probe.watch import Watch
from worker.process.clock import boot_s
from worker.process.failpoint import failpoint
from worker.process.records import AdopteeRecord
from worker.shims import LaunchError, Shim, Shims, ShimSpec
from worker.spool import Output, Spool

log = structlog.get_logger("worker.assignment")

LOOK_S = 0.5
"""How often a shim's files are looked at without a word from it: the bell only wakes."""
DEFAULT_LEASE_S = 60.0
"""Of a shim whose records don't say it."""
LATE_GO_S = 1.0
"""How long after the deadline of a `go` its start may still become visible; then an ack is asked for again."""


_LONGEST_LEFT = 200  # characters of it in a list
COPY = "copy"
USAGE = "usage"
"""The file in an assignment's directory that keeps what its meter has seen."""
START_TOLD_S = 0.02
"""A start is told within this time: a job that has ended by then costs one report, not two."""


@dataclass(frozen=True)
class Terms:
    """How long this job may go on without a word from its worker, or from the broker."""

    policy: OnWorkerLost
    lease_s: float
    exclusive_lease_s: float


@dataclass(frozen=True)
class Desk:
    """What every assignment of this worker shares."""

    home: Home
    ground: Ground
    shims: Shims
    exchange: Exchange
    spool: Spool
    parcels: Parcels
    checkpoints: Path
    linger_s: float
    log_cap: int
    copies: Copies
    watch: Watch | None = None

    def registered(self) -> Registered:
        """What the broker promised at the registration, which comes before any delivery."""
        assert self.exchange.registered is not None, "nothing is delivered before the registration"
        return self.exchange.registered


class Assignment:
    """What is listed, what is heard, and the life itself. Made by `delivered()` or `resumed()`; `run()` lives it."""

    def __init__(self, desk: Desk, job: int, attempt: int, token: str, terms: Terms) -> None:
        self.job, self.attempt, self.token = job, attempt, token
        self.phase = Phase.PREPARING
        self.stopping: Stop | None = None
        self.kill_failed: str | None = None
        self._checkpoints = 0  # how often the shim has noted one
        self._outbox = Outbox(desk.home.outbox(f"{job}.{attempt}"))
        self._progress: Progress | None = None
        self._progress_boot_s = 0.0  # when it was looked at last
        self.final: Final | None = None
        self.accepted = False  # the broker has the final report
        self.stale = False  # the broker wants none of it
        self._lost = False  # lease_lost was said while nothing had been executed
        self._listened = False  # the shim can be told
        self._released = False  # exec may have happened
        self._until_boot_s = 0.0
        self._delivery: Delivery | None = None
        self._shim: Shim | None = None
        self._terms = terms
        self._desk = desk
        self._meter = Meter(f"{job}.{attempt}")
        self._news = asyncio.Event()
        self._log = log.bind(assignment=f"{job}.{attempt}")

    @classmethod
    def delivered(cls, desk: Desk, delivery: Delivery) -> Assignment:
        registered = desk.registered()
        terms = Terms(delivery.spec.on_worker_lost, registered.lease_s, registered.exclusive_lease_s)
        self = cls(desk, delivery.job, delivery.attempt, delivery.token, terms)
        self._delivery = delivery
        self._meter.uuids = _uuids(delivery)
        return self

    @classmethod
    def resumed(cls, desk: Desk, shim: Shim) -> Assignment:
        """What an earlier epoch left: alive, or ended and perhaps not reported."""
        terms = Terms(
            shim.spec.on_worker_lost,
            _seconds(shim.spec.extra, "lease_s"),
            _seconds(shim.spec.extra, "exclusive_lease_s"),
        )
        self = cls(desk, shim.job, shim.attempt, shim.token, terms)
        self._shim = shim
        uuids = shim.spec.extra.get("gpus")
        self._meter.uuids = [str(uuid) for uuid in uuids] if isinstance(uuids, list) else []
        self._meter.load(shim.kept(USAGE) or "")
        self._released = True  # or may be: the shim has yet to be asked
        self.phase = Phase.RUNNING if shim.started() else Phase.PREPARING
        return self

    # What others see and say.

    @property
    def key(self) -> tuple[int, int]:
        return self.job, self.attempt

    @property
    def listed(self) -> bool:
        """Until the broker has accepted its end. A stale one until its tree is gone, which is when it is cleared."""
        return not self.accepted

    def held(self) -> Held:
        stopping = self.stopping.id if self.stopping else None
        tells = self._is_observed and self.final is None  # the end carries its own
        return Held(
            job=self.job,
            attempt=self.attempt,
            token=self.token,
            phase=self.phase,
            stopping=stopping,
            final=self.final,
            kill_failed=self.kill_failed,
            peak=self._meter.told if tells else None,
            checkpoints=self._shim.checkpoints() if tells and self._checkpoints and self._shim is not None else None,
            progress=self._how_far() if self.measurable is not None and self._outcomes is not None else None,
        )

    def _how_far(self) -> Progress | None:
        """Looked at no more than once a heartbeat or so, however often lists are sent: a line is no message."""
        if boot_s() - self._progress_boot_s >= self._desk.exchange.heartbeat_s / 2:
            self._progress_boot_s = boot_s()
            self._progress = self._outbox.how_far()
        return self._progress

    @property
    def _outcomes(self) -> OutcomeLimits | None:
        """How much the broker keeps of what jobs leave; None: it knows nothing of that, and refuses the words."""
        registered = self._desk.exchange.registered
        return registered.outcomes if registered is not None else None

    @property
    def _is_observed(self) -> bool:
        """Whether the broker wants to know what it uses and says: an earlier one refuses the words."""
        registered = self._desk.exchange.registered
        return registered is not None and registered.observes

    @property
    def measurable(self) -> Shim | None:
        """Its shim, while there are processes of it."""
        return self._shim if self.phase is Phase.RUNNING and self.final is None else None

    def measured(self, use: TreeUse | None) -> None:
        """What its tree uses now. At its end nothing more is written: its directory may be about to go."""
        if self.final is not None:
            return
        if use is not None:
            self._meter.saw_tree(use)
        if self._meter.moved() and self._shim is not None:
            with contextlib.suppress(OSError):  # it is gone just now, or the disk is full: the next one tells more
                self._shim.keep(USAGE, self._meter.dump())

    def devices_seen(self, gpus: Sequence[Gpu], longest_gap_s: float) -> None:
        """One look at the machine's devices. A limit on their idleness that is reached stops the job."""
        shim = self.measurable
        if shim is None:
            return
        self._meter.saw_devices(gpus, boot_s(), longest_gap_s)
        limit_s = shim.spec.limits.get(LimitCode.GPU_IDLE_TIMEOUT)
        if limit_s is not None and self._meter.idle_s() >= limit_s:
            shim.limit(LimitCode.GPU_IDLE_TIMEOUT, self._meter.idle_s())

    def tree(self) -> Tree | None:
        """What its processes can be known by, while there are some."""
        return self._shim.tree() if self._shim is not None and self.final is None else None

    def wake(self) -> None:
        """There may be news in the shim's files."""
        self._news.set()

    def stop(self, stop: Stop) -> None:
        """Stop the whole tree. The same request again changes nothing; another one is passed on to the shim."""
        if self.final is not None or (self.stopping is not None and self.stopping.id == stop.id):
            return
        self._log.info("stopping", why=stop.why, grace_s=stop.grace_s)
        failpoint("stop_heard")
        self.stopping = stop
        if self._shim is not None and self._released:
            self._pass_on_stops(self._shim)
        self.wake()
        self._desk.exchange.nudge()  # the broker repeats itself until the list shows it

    def renew(self) -> None:
        """This worker lives: that is what a `requeue` job's shim wants to know. The network may be away."""
        if self._terms.policy is OnWorkerLost.REQUEUE:
            self._until(boot_s() + self._terms.lease_s)

    def leave(self) -> None:
        """This worker ends: a shim that executed nothing yet is closed for good, since nobody will say go to it."""
        if self._shim is not None and not self._released and self.final is None:
            self._shim.close()

    @property
    def never_again(self) -> bool:
        """Its job must not be run a second time, so that nobody stops it lightly."""
        return self._terms.policy is OnWorkerLost.ORPHAN

    @property
    def renew_every_s(self) -> float:
        return self._terms.lease_s / 4

    def heard(self, verdict: Verdict, sent_boot_s: float) -> None:
        """The broker's word on an entry of the list, a start or a finish."""
        match verdict.verdict:
            case VerdictWord.ACCEPTED | VerdictWord.DUPLICATE:
                if self.final is not None and (verdict.ended or verdict.kind == "finish"):
                    self.accepted = True
                elif self._terms.policy is OnWorkerLost.REQUEUE_EXCLUSIVE and not verdict.ended:
                    self._until(sent_boot_s + self._terms.exclusive_lease_s)
            case VerdictWord.LEASE_LOST:
                self._lost = self._lost or not self._released
            case VerdictWord.STALE_ASSIGNMENT:
                self._give_up()
            case _:
                assert_never(verdict.verdict)
        self.wake()

    def _give_up(self) -> None:
        if self.stale:
            return
        self._log.warning("the broker says that this assignment is over: stopping what runs")
        self.stale = True
        if self._shim is not None and self._released and self.final is None:
            self._pass_on_stops(self._shim)

    def _pass_on_stops(self, shim: Shim) -> None:
        """Repeats are harmless: the shim knows them by their ids."""
        if self.stopping is not None:
            shim.stop(self.stopping.id, self.stopping.grace_s, self.stopping.why)
        if self.stale:
            shim.stop("stale", 0.0, "the broker gave this assignment up")

    def _until(self, deadline_boot_s: float) -> None:
        """Move the shim's own deadline forward, never back. What it did not hear, because it listens later, was not said."""
        if self._shim is None or self.final is not None or deadline_boot_s <= self._until_boot_s:
            return
        if self._shim.until(deadline_boot_s):
            self._until_boot_s = deadline_boot_s

    # The life, in order.

    async def run(self) -> None:
        """Live it to the end. A fault of ours on the way is logged, and the rest is lived from the files."""
        backoff = Backoff(first_s=0.5)
        while True:
            try:
                final = await self._lived()
                if final is not None:
                    await self._report(final)
                await self._clear()
                return
            except Exception:
                self._log.exception("a fault in the life of this assignment; going on from its files")
                await anyio.sleep(backoff.next_s())
            finally:
                self._desk.exchange.withdraw(self.job, self.attempt)

    async def _lived(self) -> Final | None:
        """How it ended; None if the broker gave it up and wants to hear no more."""
        if self.final is not None:
            return self.final
        try:
            if self._shim is None and self._delivery is not None and self._delivery.adopt is not None:
                self._shim = await self._adopt(self._delivery, self._delivery.adopt)
            elif self._shim is None:
                self._shim = self._launch(await self._admit())
                failpoint("shim_requested")
                await self._release(self._shim)
            else:
                await self._shim.closed_for_good()  # what was not executed by now never will be; the rest goes on
            final = await self._follow(self._shim)
        except Refusal as refusal:
            self._log.info("refused", code=refusal.code, reason=str(refusal))
            final = refusal.final()
        return None if self.stale else final

    async def _admit(self) -> Admitted:
        assert self._delivery is not None
        admitted = await admit(self._delivery.spec, self._desk.ground)
        if self._delivery.given is not None:
            await look_at_given(self._delivery.given, self._desk.watch, self._desk.ground.host)
        if self._delivery.spec.copied is not None:
            return replace(admitted, cwd=await self._copied(self._delivery.spec.copied))
        return admitted

    async def _copied(self, sha256: str) -> Path:
        """The directory of a job that runs in a copy of its own. Raises Refusal."""
        target = self._desk.home.scratch(f"{self.job}.{self.attempt}") / COPY
        await self._desk.copies.into(sha256, target)
        return target

    def _launch(self, admitted: Admitted) -> Shim:
        """A shim that is being prepared; its records are there. Nothing is executed yet. Raises Refusal."""
        assert self._delivery is not None
        delivery = self._delivery
        try:
            places = self._places(admitted)
            gpus = _uuids(delivery)
            who = Identity(self.job, self.attempt, delivery.restarts, delivery.array_index, gpus)
            return self._desk.shims.begin(
                ShimSpec(
                    job=self.job,
                    attempt=self.attempt,
                    token=self.token,
                    argv=admitted.argv,
                    env=environment(self._desk.ground.login, delivery.spec, who, places, admitted.tools),
                    cwd=str(places.cwd),
                    grace_s=delivery.spec.checkpoint_grace_s,
                    linger_s=self._desk.linger_s,
                    log_cap=self._desk.log_cap,
                    limits=limits_of(delivery.spec),
                    ram_gb=delivery.spec.ram_gb,
                    on_worker_lost=self._terms.policy,
                    extra={
                        "lease_s": self._terms.lease_s,
                        "exclusive_lease_s": self._terms.exclusive_lease_s,
                        "gpus": [*gpus],
                    },
                )
            )
        except (LaunchError, OSError) as error:
            raise self._not_prepared(error) from error

    async def _adopt(self, delivery: Delivery, adoptee: Adoptee) -> Shim:
        """A shim that looks whether it is the process that was named, and sees to it. Raises Refusal."""
        try:
            shim = self._desk.shims.begin(
                ShimSpec(
                    job=self.job,
                    attempt=self.attempt,
                    token=self.token,
                    argv=[],
                    env={},
                    grace_s=delivery.spec.checkpoint_grace_s,
                    linger_s=self._desk.linger_s,
                    log_cap=self._desk.log_cap,
                    limits=limits_of(delivery.spec),
                    on_worker_lost=self._terms.policy,
                    adopt=AdopteeRecord(pid=adoptee.pid, starttime=adoptee.start, follow=adoptee.follow),
                    extra={"lease_s": self._terms.lease_s, "gpus": [*_uuids(delivery)]},
                )
            )
            self._released = True  # there is nothing to wait for: what is to be stopped runs
            await self._desk.shims.listens(shim)
        except (LaunchError, OSError) as error:
            raise self._not_prepared(error) from error
        return shim

    def _not_prepared(self, error: LaunchError | OSError) -> Refusal:
        return Refusal("launcher_failed", f"no process could be prepared on {self._desk.ground.host}: {error}")

    def _places(self, admitted: Admitted) -> Places:
        scratch = self._desk.home.scratch(f"{self.job}.{self.attempt}")
        # A root may be shared by machines, and by brokers whose job ids would meet in it.
        checkpoints = self._desk.checkpoints / self._desk.registered().installation[:12] / str(self.job)
        scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._outbox.make()
        return Places(scratch, checkpoints, admitted.cwd or scratch, self._outbox)

    async def _release(self, shim: Shim) -> None:
        """Let it execute, by an accepted ack for this very shim and only while that lease holds; else close it.

        Until the ack is accepted the assignment is `pending`, and must be acked within its own short lease.
        """
        assert self._delivery is not None
        give_up_boot_s: float | None = boot_s() + self._delivery.lease_s
        while not self._unwanted:
            answer = await self._acked(shim, give_up_boot_s)
            if answer is None or not answer.permits or self._unwanted:
                break
            give_up_boot_s = None  # acked: from here on only the broker's word ends it
            if self._terms.policy is OnWorkerLost.REQUEUE_EXCLUSIVE:
                self._until(answer.sent_boot_s + self._terms.exclusive_lease_s)
            deadline_boot_s = answer.sent_boot_s + self._terms.lease_s
            if boot_s() >= deadline_boot_s:
                continue
            failpoint("ack_accepted")
            self._released = True
            shim.go(deadline_boot_s)
            failpoint("told_to_go")
            if await self._seen_to_start(shim, deadline_boot_s + LATE_GO_S):
                return
            self._log.warning("not started within its lease; asking again")
        await shim.closed_for_good()

    @property
    def _unwanted(self) -> bool:
        return self.stopping is not None or self.stale or self._lost

    async def _acked(self, shim: Shim, give_up_boot_s: float | None) -> _Answer | None:
        """The verdict on an ack; None if there was none in time, or if it is no longer wanted."""
        answers: list[_Answer] = []

        def heard(verdict: Verdict, sent_boot_s: float) -> None:
            answers.append(_Answer(verdict, sent_boot_s))
            if verdict.verdict is VerdictWord.STALE_ASSIGNMENT:
                self._give_up()
            self.wake()

        asked_boot_s = boot_s()
        ack = Ack(kind="ack", job=self.job, attempt=self.attempt, token=self.token, shim=shim.id)
        self._desk.exchange.post(ack, heard)
        try:
            await self._prepared(shim, asked_boot_s)  # while the ack is on its way
            await self._wait(lambda: bool(answers) or self._unwanted, give_up_boot_s)
        finally:
            self._desk.exchange.withdraw(self.job, self.attempt)
        return answers[0] if answers else None

    async def _prepared(self, shim: Shim, asked_boot_s: float) -> None:
        """Once: a shim that has listened is not made anew, whatever becomes of it. Raises Refusal.

        If this worker dies now, the shim must not wait for ever: nor longer than its ack gives it, which counts from
        when it is sent, and so not before `asked_boot_s`.
        """
        if self._listened:
            return
        try:
            await self._desk.shims.listens(shim)
            if self._terms.policy is OnWorkerLost.REQUEUE:
                self._until(asked_boot_s + self._terms.lease_s)
            elif self._terms.policy is OnWorkerLost.REQUEUE_EXCLUSIVE:
                self._until(asked_boot_s + min(self._terms.lease_s, self._terms.exclusive_lease_s))
        except (LaunchError, OSError) as error:
            raise self._not_prepared(error) from error
        self._listened = True

    async def _seen_to_start(self, shim: Shim, limit_boot_s: float) -> bool:
        return await self._wait(lambda: shim.started() is not None or shim.final() is not None, limit_boot_s)

    async def _follow(self, shim: Shim) -> Final:
        """Bring its output and its start to the broker, until the whole tree is gone."""
        resumed = self._delivery is None
        self._desk.spool.follow(
            Output(self.job, self.attempt, self.token, log=shim.out, index=shim.idx, resumed=resumed)
        )
        self._pass_on_stops(shim)
        told = False
        while (final := await self._final(shim)) is None:
            if not told and (started := shim.started()) is not None:
                told, self.phase = True, Phase.RUNNING
                failpoint("start_seen")
                start = Start(kind="start", job=self.job, attempt=self.attempt, token=self.token, pid=started.pid)
                self._desk.exchange.post(start, self.heard, within_s=START_TOLD_S)
            await self._look_for_shim(shim)
            self._look_for_survivors(shim)
            self._look_for_checkpoints(shim)
            await self._pause()
        return final

    async def _final(self, shim: Shim) -> Final | None:
        """Of a shim that was killed what is left is looked for first, among all processes of the machine."""
        return shim.final() if shim.alive() else await asyncio.to_thread(shim.final)

    async def _look_for_shim(self, shim: Shim) -> None:
        """An adopted process does not end with its shim, so it is given another one."""
        if not shim.unattended():
            return
        self._log.warning("its shim was killed, and the adopted process lives: another one looks after it")
        try:
            await self._desk.shims.look_after_again(shim)
        except (LaunchError, OSError) as error:
            self._log.warning("not looked after; trying again", why=str(error))
        self._pass_on_stops(shim)

    def _look_for_survivors(self, shim: Shim) -> None:
        """Processes that KILL does not end are told; they are listed, and keep their room, until they are gone."""
        left = (shim.stuck() or "")[:_LONGEST_LEFT] or None
        if left != self.kill_failed:
            self.kill_failed = left
            self._log.warning("the kill failed", processes=left)
            self._desk.exchange.nudge()

    def _look_for_checkpoints(self, shim: Shim) -> None:
        """A checkpoint that is safe is told at once: somebody may wait for it."""
        found = shim.checkpoints()
        if found is not None and found.count != self._checkpoints:
            self._checkpoints = found.count
            self._desk.exchange.nudge()

    def _with_usage(self, final: Final) -> Final:
        """What it used and said, all told, if anything ran, and for a broker that wants to know."""
        if self._shim is None or not self._is_observed:
            return final
        return final.model_copy(update={"peak": self._meter.at_the_end(final), "checkpoints": self._shim.checkpoints()})

    async def _collected(self) -> Collected:
        """What it left, if anything ran, for a broker that keeps it."""
        if self._shim is None or self._outcomes is None or self._outbox.is_empty():
            return Collected()
        return await anyio.to_thread.run_sync(self._outbox.collect, self._outcomes)

    def _with_left(self, final: Final, left: Collected) -> Final:
        """What is to come of it, and how far it got."""
        if self._shim is None or self._outcomes is None:
            return final
        return final.model_copy(update={"left": left.left, "progress": self._outbox.how_far(at_the_end=True)})

    async def _report(self, final: Final) -> None:
        """Say how it ended until the broker has taken it, and the output to its last byte."""
        failpoint("end_read")
        await self._desk.exchange.introduced()
        left = await self._collected()
        final = self._with_left(self._with_usage(final), left)
        sender = Sender(self.job, self.attempt, self.token)
        has_result = left.result is None or await self._desk.parcels.result(sender, left.result)
        self.final, self.phase = final, Phase.ENDED
        finish = Finish(kind="finish", job=self.job, attempt=self.attempt, token=self.token, final=final)
        while not (self.accepted or self.stale):
            self._desk.exchange.post(finish, self.heard)
            # Again after a heartbeat if the verdict was lease_lost: the list goes on to carry the end as well.
            await self._wait(lambda: self.accepted or self.stale, boot_s() + self._desk.exchange.heartbeat_s)
        failpoint("end_accepted")
        if self._shim is not None and not self.stale:
            fate = await self._desk.spool.settled(self.key, final.final_size, final.final_index_size)
            self._log.info("ended", outcome=final.outcome.value, exit_code=final.exit_code, log=fate.value)
            await self._desk.parcels.rest(sender, self._outbox, left, with_result=not has_result)

    async def _clear(self) -> None:
        """Remove what was kept for the report. The tree is gone; the checkpoints stay."""
        failpoint("log_settled")
        self._desk.spool.forget(self.key)
        await anyio.to_thread.run_sync(self._remove)

    def _remove(self) -> None:
        if self._shim is not None:
            self._shim.remove()
        self._desk.home.remove_rooms(f"{self.job}.{self.attempt}")

    # Waiting.

    async def _pause(self, limit_s: float = LOOK_S) -> None:
        with anyio.move_on_after(limit_s):
            await self._news.wait()
        self._news.clear()

    async def _wait(self, come_true: Callable[[], bool], limit_boot_s: float | None) -> bool:
        """Wait until it is true, or the boot clock passes the limit. Whether it came true."""
        while not come_true():
            remaining_s = LOOK_S if limit_boot_s is None else limit_boot_s - boot_s()
            if remaining_s <= 0:
                return False
            await self._pause(min(LOOK_S, remaining_s))
        return True


@dataclass(frozen=True)
class _Answer:
    """What was said to an ack, and when that ack was sent: the lease counts from there."""

    verdict: Verdict
    sent_boot_s: float

    @property
    def permits(self) -> bool:
        """`duplicate` is permission too, but not for what has ended."""
        return self.verdict.verdict in (VerdictWord.ACCEPTED, VerdictWord.DUPLICATE) and not self.verdict.ended


def _uuids(delivery: Delivery) -> tuple[str, ...]:
    """The devices that it was given."""
    return tuple(share.uuid for share in (delivery.given and delivery.given.gpus) or ())


def limits_of(spec: JobSpec) -> dict[LimitCode, float]:
    """What the job's supervisor enforces; what is off, or was never set, is not there."""
    values = {code: getattr(spec, f"{code.value}_s") for code in LimitCode}
    return {code: value for code, value in values.items() if isinstance(value, int | float)}


def _seconds(extra: Mapping[str, object], name: str) -> float:
    value = extra.get(name)
    return float(value) if isinstance(value, int | float) else DEFAULT_LEASE_S
