"""The rules of polls and reports, against a broker that says what a test tells it to say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from broker.client import Unreachable
from broker.wire.jobs import JobSpec
from broker.wire.problems import ProblemCode, Refused
from broker.wire.workers import (
    PROTOCOL,
    Ack,
    Delivery,
    Final,
    Finish,
    Held,
    Outcome,
    Phase,
    Poll,
    PollAnswer,
    Registered,
    Registration,
    Report,
    ReportAnswer,
    Start,
    Stop,
    Verdict,
)
from support.scripted_broker import ScriptedBroker, accept_all
from support.waiting import eventually
from worker.exchange import Exchange, MustEnd
from worker.process.clock import boot_s

WORKER = "a" * 32
REGISTRATION = Registration(name="w", epoch=3, machine="m", host="h", version="0", protocol=PROTOCOL, slots=1)
DELIVERY = Delivery(job=1, attempt=1, token="t", spec=JobSpec(command="true"), lease_s=1, restarts=0)
START = Start(kind="start", job=1, attempt=1, token="t")
FINISH = Finish(kind="finish", job=1, attempt=1, token="t", final=Final(outcome=Outcome.EXITED, exit_code=0))


async def nothing_to_say(poll: Poll) -> PollAnswer:
    await asyncio.sleep(poll.wait_s)
    return PollAnswer()


@dataclass
class Hands:
    """Holds what is delivered, and keeps what is heard."""

    holding: dict[tuple[int, int], Held] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)

    def held(self) -> list[Held]:
        return list(self.holding.values())

    def heard(self, verdict: Verdict, sent_boot_s: float) -> None:
        self.verdicts.append(verdict)

    def stop(self, stop: Stop) -> None:
        self.stops.append(stop)

    def deliver(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        key = delivery.job, delivery.attempt
        self.holding[key] = Held(job=key[0], attempt=key[1], token=delivery.token, phase=Phase.PREPARING)

    def ends(self) -> bool:
        return False

    def accepts(self) -> bool:
        return True


@dataclass
class Line:
    peer: ScriptedBroker
    hands: Hands
    exchange: Exchange
    running: list[asyncio.Task[None]] = field(default_factory=list)

    async def open(self, *, polling: bool = True) -> None:
        await self.exchange.register()
        self.running.append(asyncio.create_task(self.exchange.report_forever()))
        if polling:
            self.running.append(asyncio.create_task(self.exchange.poll_forever()))


@pytest.fixture
async def line():
    peer, hands = ScriptedBroker(), Hands()
    line = Line(peer, hands, Exchange(peer, WORKER, REGISTRATION, hands))
    yield line
    for task in line.running:
        task.cancel()
    await asyncio.gather(*line.running, return_exceptions=True)


async def test_a_heartbeat_comes_also_when_there_is_nothing_to_say(line: Line) -> None:
    await line.open(polling=False)
    await eventually(lambda: len(line.peer.reports) >= 3, within_s=5)
    assert all(report.recovered for report in line.peer.reports)


async def test_what_happens_while_a_report_is_under_way_goes_together_into_the_next(line: Line) -> None:
    gate = asyncio.Event()

    async def slow(report: Report) -> ReportAnswer:
        await gate.wait()
        return await accept_all(report)

    line.peer.on_report = slow
    await line.open(polling=False)
    await eventually(lambda: line.peer.reports)
    heard: list[Verdict] = []
    for job in range(20):
        line.exchange.post(START.model_copy(update={"job": job}), lambda verdict, sent: heard.append(verdict))
    gate.set()
    await eventually(lambda: len(heard) == 20)
    assert line.peer.most_reports_at_once == 1
    assert max(len(report.transitions) for report in line.peer.reports) == 20


async def test_a_transition_is_repeated_until_it_is_answered_and_the_numbers_grow(line: Line) -> None:
    failures = 3

    async def lost_answers(report: Report) -> ReportAnswer:
        if report.transitions and len(with_transitions()) <= failures:
            raise Unreachable("the answer was lost")
        return await accept_all(report)

    def with_transitions() -> list[Report]:
        return [report for report in line.peer.reports if report.transitions]

    line.peer.on_report = lost_answers
    await line.open()
    heard: list[Verdict] = []
    line.exchange.post(FINISH, lambda verdict, sent: heard.append(verdict))
    await eventually(lambda: heard)
    assert len(with_transitions()) == failures + 1
    numbers = [message.seq for message in line.peer.reports]
    assert numbers == sorted(set(numbers))
    assert not {message.seq for message in line.peer.polls} & set(numbers)


async def test_start_and_finish_keep_their_order_in_one_report(line: Line) -> None:
    line.exchange.post(START, lambda verdict, sent: None)
    line.exchange.post(FINISH, lambda verdict, sent: None)
    await line.open(polling=False)
    report = await eventually(lambda: line.peer.reports and line.peer.reports[0])
    assert [transition.kind for transition in report.transitions] == ["start", "finish"]


async def test_a_verdict_counts_only_for_the_shim_that_asked(line: Line) -> None:
    gate = asyncio.Event()

    async def slow(report: Report) -> ReportAnswer:
        answer = await accept_all(report)
        if len(line.peer.reports) == 1:
            await gate.wait()
        return answer

    line.peer.on_report = slow
    first, second = (Ack(kind="ack", job=1, attempt=1, token="t", shim=name) for name in ("first", "second"))
    heard: list[str] = []
    line.exchange.post(first, lambda verdict, sent: heard.append("first"))
    await line.open(polling=False)
    await eventually(lambda: line.peer.reports)
    line.exchange.withdraw(1, 1)
    line.exchange.post(second, lambda verdict, sent: heard.append("second"))
    gate.set()
    await eventually(lambda: heard)
    assert heard == ["second"]
    assert [ack.shim for report in line.peer.reports for ack in report.transitions] == ["first", "second"]


async def test_the_time_that_comes_with_a_verdict_is_when_that_report_was_sent(line: Line) -> None:
    async def slow(report: Report) -> ReportAnswer:
        await asyncio.sleep(0.2)
        return await accept_all(report)

    line.peer.on_report = slow
    sent: list[float] = []
    before = boot_s()
    line.exchange.post(START, lambda verdict, sent_boot_s: sent.append(sent_boot_s))
    await line.open(polling=False)
    await eventually(lambda: sent)
    assert before <= sent[0] <= boot_s() - 0.2


async def test_one_poll_is_always_parked_and_never_two(line: Line) -> None:
    await line.open()
    await eventually(lambda: len(line.peer.polls) >= 4)
    assert line.peer.most_polls_at_once == 1


async def test_seen_covers_an_answer_only_once_its_deliveries_are_in_the_list(line: Line) -> None:
    async def deliver_once(poll: Poll) -> PollAnswer:
        return PollAnswer(number=1, deliveries=[DELIVERY]) if poll.seen == 0 else await nothing_to_say(poll)

    line.peer.on_poll = deliver_once
    await line.open()
    await eventually(lambda: any(report.seen == 1 for report in line.peer.reports))
    for message in [*line.peer.polls, *line.peer.reports]:
        assert (message.seen == 1) == bool(message.held)


async def test_an_answer_whose_number_was_seen_is_dropped_whole(line: Line) -> None:
    stop = Stop(job=1, attempt=1, id="s", why="w", grace_s=0)
    late = DELIVERY.model_copy(update={"job": 2})

    async def answers(poll: Poll) -> PollAnswer:
        match len(line.peer.polls):
            case 1:
                return PollAnswer(number=5, deliveries=[DELIVERY])
            case 2:
                return PollAnswer(number=4, deliveries=[late], stops=[stop])
            case _:
                return await nothing_to_say(poll)

    line.peer.on_poll = answers
    await line.open()
    await eventually(lambda: len(line.peer.polls) >= 3)
    assert [delivery.job for delivery in line.hands.deliveries] == [1]
    assert line.hands.stops == []
    assert line.peer.polls[2].seen == 5


async def test_stops_arrive_by_reports_too(line: Line) -> None:
    stop = Stop(job=1, attempt=1, id="s", why="w", grace_s=0)

    async def say_stop(report: Report) -> ReportAnswer:
        return ReportAnswer(stops=[stop])

    line.peer.on_report = say_stop
    await line.open(polling=False)
    await eventually(lambda: stop in line.hands.stops)


async def test_a_poll_goes_on_after_outages_and_reports_do_not_wait_for_it(line: Line) -> None:
    async def fail(poll: Poll) -> PollAnswer:
        raise Unreachable("gone")

    line.peer.on_poll = fail
    await line.open()
    await eventually(lambda: len(line.peer.polls) >= 3)
    assert line.peer.reports
    line.peer.on_poll = nothing_to_say
    count = len(line.peer.polls)
    await eventually(lambda: len(line.peer.polls) > count + 1)


async def test_a_broker_that_answers_polls_with_nothing_at_once_is_not_asked_in_a_hot_loop(line: Line) -> None:
    async def at_once(poll: Poll) -> PollAnswer:
        return PollAnswer()

    line.peer.on_poll = at_once
    await line.open()
    await asyncio.sleep(0.5)
    assert len(line.peer.polls) < 40


async def test_a_broker_that_forgot_the_worker_is_told_again(line: Line) -> None:
    async def forgot(report: Report) -> ReportAnswer:
        if len(line.peer.registrations) < 2:
            raise Refused(ProblemCode.UNKNOWN_WORKER, "who?")
        return await accept_all(report)

    line.peer.on_report = forgot
    await line.open()
    heard: list[Verdict] = []
    line.exchange.post(START, lambda verdict, sent: heard.append(verdict))
    await eventually(lambda: heard)
    assert len(line.peer.registrations) >= 2


@pytest.mark.parametrize("through", ["poll", "report", "log"])
async def test_a_superseded_worker_ends_whichever_request_hears_of_it(line: Line, through: str) -> None:
    refusal = Refused(ProblemCode.SUPERSEDED, "epoch 4 is here")

    async def refuse(message: object) -> PollAnswer:
        raise refusal

    if through == "poll":
        line.peer.on_poll = refuse
    if through == "report":
        line.peer.on_report = refuse
    await line.open()
    if through == "log":
        line.exchange.superseded(refusal)
    done, _ = await asyncio.wait(line.running, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    assert done
    with pytest.raises(MustEnd, match="epoch 4 is here"):
        done.pop().result()


@pytest.mark.parametrize("code", [ProblemCode.WORKER_NAME_TAKEN, ProblemCode.SUPERSEDED, ProblemCode.UNAUTHENTICATED])
async def test_a_worker_that_is_refused_at_the_door_ends_with_the_reason(line: Line, code: ProblemCode) -> None:
    async def refuse(worker_id: str, registration: Registration) -> Registered:
        raise Refused(code, "not you")

    line.peer.register = refuse
    with pytest.raises(MustEnd, match="not you"):
        await line.exchange.register()


async def test_the_last_word_waits_for_what_is_posted_and_not_longer(line: Line) -> None:
    await line.open(polling=False)
    heard: list[Verdict] = []
    line.exchange.post(FINISH, lambda verdict, sent: heard.append(verdict))
    await line.exchange.last_word(5)
    assert heard

    async def dead(report: Report) -> ReportAnswer:
        raise Unreachable("gone")

    line.peer.on_report = dead
    line.exchange.post(START, lambda verdict, sent: heard.append(verdict))
    before = boot_s()
    await line.exchange.last_word(0.3)
    assert boot_s() - before < 3
