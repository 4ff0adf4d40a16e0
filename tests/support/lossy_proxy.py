"""A relay between one worker and its broker that loses what it is told to lose: requests, answers, or everything."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class LossyProxy:
    """`async with LossyProxy(listen, broker, chance):` between two unix sockets. It is honest until a rate is set.

    Rates are of pieces: of a hundred that a request or an answer comes in. What is lost takes its connection along, as
    TCP would have it.
    """

    listen: Path
    broker: Path
    chance: random.Random
    requests_lost: float = 0.0
    answers_lost: float = 0.0
    answers_late_s: float = 0.0
    """Each answer waits for up to this long."""
    cut: bool = False
    hole: bytes | None = None
    """Requests that hold this are taken, and neither passed on nor answered."""
    lost: int = 0
    _open: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    def be_honest(self) -> None:
        self.requests_lost = self.answers_lost = self.answers_late_s = 0.0
        self.cut = False
        self.hole = None

    def cut_off(self) -> None:
        """Nothing passes, and what is open breaks."""
        self.cut = True
        for task in self._open:
            task.cancel()

    async def __aenter__(self) -> LossyProxy:
        self._server = await asyncio.start_unix_server(self._accepted, str(self.listen))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self.cut:
                await self._relayed(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _relayed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_unix_connection(str(self.broker))
        ways = [
            asyncio.create_task(self._pieces(reader, behind_writer, answers=False)),
            asyncio.create_task(self._pieces(behind_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            behind_writer.close()

    async def _pieces(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        """Until an end closes, or something is lost."""
        with suppress(OSError):
            while piece := await reader.read(1 << 16):
                if not answers and self.hole is not None and self.hole in piece:
                    self.lost += 1
                    await asyncio.Event().wait()
                if answers and self.answers_late_s:
                    await asyncio.sleep(self.chance.uniform(0, self.answers_late_s))
                if self.chance.random() < (self.answers_lost if answers else self.requests_lost):
                    self.lost += 1
                    return
                writer.write(piece)
                await writer.drain()
