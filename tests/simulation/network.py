"""Between the clients of the broker, its workers among them, and its routes: loss, delay, doubles, one-way cuts.

A request passes the real client, as bytes, and the real application: doorman, routes, problem documents.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from broker.http.auth import ENTRY
from broker.line import CONNECT_S, Answer, Broken
from simulation.loop import Process, VirtualLoop


class Served(Protocol):
    """The broker's host. `process`: None while it is down; `door`: None while it starts."""

    process: Process | None
    powered: bool

    @property
    def door(self) -> Callable[..., Any] | None: ...


@dataclass
class Weather:
    """What may befall a message. Probabilities; `delay_s` is the mean."""

    lost: float = 0.0
    answer_lost: float = 0.0
    doubled: float = 0.0
    delay_s: float = 0.005
    late: float = 0.0
    late_s: float = 5.0


@dataclass(eq=False)
class Link:
    """The way of one client: there, and back. Either may be cut alone."""

    name: str
    there: bool = True
    back: bool = True
    calls: dict[int, _Call] = field(default_factory=dict)


@dataclass(eq=False)
class _Call:
    link: Link
    number: int
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    answer: asyncio.Future[Answer]
    left: asyncio.Event
    listened_to: bool = True


class Network:
    def __init__(self, loop: VirtualLoop, chance: random.Random, tell: Callable[[str], None]) -> None:
        self._loop, self._chance, self._tell = loop, chance, tell
        self.weather = Weather()
        self.served: Served | None = None
        self._calls = 0
        self._being_served: dict[int, _Call] = {}

    def line(self, link: Link) -> Line:
        return Line(self, link)

    def drop_calls_of(self, link: Link, *, silently: bool) -> None:
        """The client is dead. `silently`: its machine too, and nobody says so."""
        for call in list(link.calls.values()):
            call.listened_to = False
            if not silently:
                self._left(call)
        link.calls.clear()

    def broker_died(self, *, silently: bool) -> None:
        for call in list(self._being_served.values()):
            if not silently:
                self._break(call, "connection reset")
        self._being_served.clear()

    # ---- one request

    def send(self, link: Link, method: str, target: str, headers: Mapping[str, str], body: bytes) -> _Call:
        self._calls += 1
        call = _Call(link, self._calls, method, target, headers, body, self._loop.create_future(), asyncio.Event())
        link.calls[call.number] = call
        chance = self._chance
        if not link.there:
            if chance.random() < 0.5:
                self._later(CONNECT_S, self._break, call, "no connection")
            return call
        if chance.random() < self.weather.lost:
            self._tell(f"{link.name} lost {_what(call)}")
            if chance.random() < 0.7:
                self._later(self._delay_s(), self._break, call, "connection reset")
            return call
        self._later(self._delay_s(), self._arrive, call)
        if chance.random() < self.weather.doubled:
            double = _Call(
                link, call.number, method, target, headers, body, self._loop.create_future(), asyncio.Event(), False
            )
            self._tell(f"{link.name} doubled {_what(call)}")
            self._later(self._delay_s() + chance.random() * 20, self._arrive, double)
        return call

    def given_up(self, call: _Call) -> None:
        call.link.calls.pop(call.number, None)
        call.listened_to = False
        self._left(call)

    def _arrive(self, call: _Call) -> None:
        served = self.served
        if not call.link.there or served is None or not served.powered:
            return
        if served.process is None or served.door is None:
            self._later(self._delay_s(), self._break, call, "connection refused")
            return
        if call.listened_to:
            self._being_served[call.number] = call
        served.process.spawn(self._serve(call, served.door))

    async def _serve(self, call: _Call, door: Callable[..., Any]) -> None:
        status, body = await asked(door, call.method, call.target, call.headers, call.body, call.left)
        if self._being_served.get(call.number) is call:
            del self._being_served[call.number]
        if not call.listened_to:
            return
        if self._chance.random() < self.weather.answer_lost:
            self._tell(f"{call.link.name} lost the answer to {_what(call)}")
            if self._chance.random() < 0.7:
                self._later(self._delay_s(), self._break, call, "connection reset")
            return
        self._later(self._delay_s(), self._answer, call, Answer(status, body))

    def _answer(self, call: _Call, answer: Answer) -> None:
        if call.listened_to and call.link.back and not call.answer.done():
            call.answer.set_result(answer)

    def _break(self, call: _Call, why: str) -> None:
        if call.listened_to and call.link.back and not call.answer.done():
            call.answer.set_exception(Broken(why))

    def _left(self, call: _Call) -> None:
        """The broker hears that the client closed its connection, if anything comes through."""
        if call.link.there:
            self._later(self._delay_s(), call.left.set)

    def _delay_s(self) -> float:
        delay_s = self._chance.expovariate(1 / self.weather.delay_s)
        if self.weather.late and self._chance.random() < self.weather.late:
            delay_s += self._chance.random() * self.weather.late_s
        return delay_s

    def _later(self, delay_s: float, call: Callable[..., object], *args: object) -> None:
        """In nobody's process: what is on its way does not stop when its sender does."""
        self._loop.call_at(self._loop.time() + delay_s, call, *args, context=Context())


class Line:
    """`broker.line.Asks` over the simulated network."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network, self._link = network, link

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, answer_s: float
    ) -> Answer:
        call = self._network.send(self._link, method, target, headers, body or b"")
        try:
            async with asyncio.timeout(answer_s):
                return await call.answer
        except TimeoutError:
            raise Broken(f"no answer within {answer_s:g} s") from None
        finally:
            self._network.given_up(call)

    async def aclose(self) -> None:
        pass


async def asked(
    door: Callable[..., Any], method: str, target: str, said: Mapping[str, str], content: bytes, left: asyncio.Event
) -> tuple[int, bytes]:
    """Status and body of the application's answer, as a server calls it. `left`: the client closed its connection."""
    parts = urlsplit(target)
    headers = {"Host": "jobd", **said, "Content-Length": str(len(content))}
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": None,
        ENTRY: "unix",
    }
    given = False
    status = 500
    body: list[bytes] = []

    async def receive() -> MutableMapping[str, Any]:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": content, "more_body": False}
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        elif message["type"] == "http.response.body":
            body.append(message.get("body", b""))

    await door(scope, receive, send)
    return status, b"".join(body)


def _what(call: _Call) -> str:
    return f"{call.method} {call.target.split('?')[0].rsplit('/', 1)[-1]}"
