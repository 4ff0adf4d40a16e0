"""HTTP/1.1 over a unix socket, or TCP, on one kept connection: the least that a load generator can cost.

httpx takes longer for a request than the broker does, and would be measured instead of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Connection:
    """One request at a time. Refusals end the measurement."""

    def __init__(self, address: Path | tuple[str, int]) -> None:
        self._address = address

    async def __aenter__(self) -> Self:
        if isinstance(self._address, Path):
            opened = asyncio.open_unix_connection(str(self._address), limit=4 << 20)
        else:
            opened = asyncio.open_connection(*self._address, limit=4 << 20)
        self._reader, self._writer = await opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()

    async def call(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> dict[str, Any]:
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: jobd\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        answered = await self._reader.readuntil(b"\r\n\r\n")
        lines = answered.lower().split(b"\r\n")
        length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
        content = await self._reader.readexactly(length)
        if not 200 <= int(lines[0].split()[1]) < 300:
            raise SystemExit(f"{method} {path}: {content.decode()}")
        answer: dict[str, Any] = json.loads(content)
        return answer
