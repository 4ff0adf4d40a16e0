"""The directories that jobs run in which brought their own: fetched once per content, checked, unpacked for each."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio.to_thread

from broker.client import Unreachable
from broker.places import private_directory
from broker.snapshots.unpacking import NotACopy, unpack
from broker.wire.problems import Refused
from worker.admission import Refusal

Fetch = Callable[[str], Awaitable[bytes]]
"""The broker's bytes of this sha256."""


class Copies:
    """Archives by their sha256 in a directory of this worker, at most `most_bytes` of them between two jobs."""

    def __init__(self, directory: Path, fetch: Fetch, most_bytes: int, host: str) -> None:
        self._directory, self._fetch, self._most_bytes, self._host = directory, fetch, most_bytes, host
        self._one = asyncio.Lock()  # members of an array ask for the same all at once

    async def into(self, sha256: str, target: Path) -> None:
        """Fill `target`, which must not exist. Raises Refusal: nothing was executed, and another worker may have it."""
        async with self._one:
            archive = await self._archive(sha256)
            try:
                await anyio.to_thread.run_sync(unpack, archive, target)
            except NotACopy as error:
                raise Refusal("snapshot_unsafe", f"snapshot {sha256} can't be unpacked: {error}") from None
            except OSError as error:
                raise self._no_room(sha256, error) from None
            finally:
                await anyio.to_thread.run_sync(self._evict)

    async def _archive(self, sha256: str) -> Path:
        path = self._directory / sha256
        if await anyio.to_thread.run_sync(_is_whole, path, sha256):
            return path
        try:
            data = await self._fetch(sha256)
        except Refused as refused:
            raise Refusal("snapshot_missing", f"snapshot {sha256} can't be had: {refused.detail}") from None
        except Unreachable as error:
            raise Refusal("snapshot_unreachable", f"snapshot {sha256} could not be fetched: {error}") from None
        if await anyio.to_thread.run_sync(_sha256, data) != sha256:
            raise Refusal("snapshot_damaged", f"what came to {self._host} is not snapshot {sha256}")
        try:
            await anyio.to_thread.run_sync(self._write, path, data)
        except OSError as error:
            raise self._no_room(sha256, error) from None
        return path

    def _write(self, path: Path, data: bytes) -> None:
        private_directory(self._directory)
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)

    def _no_room(self, sha256: str, error: OSError) -> Refusal:
        return Refusal("snapshot_not_written", f"snapshot {sha256} on {self._host}: {error.strerror or error}")

    def _evict(self) -> None:
        """The longest unused first, until what is left is small enough."""
        with contextlib.suppress(FileNotFoundError):
            found = [(entry.stat().st_mtime, entry.stat().st_size, entry.path) for entry in os.scandir(self._directory)]
            left = sum(size for _, size, _ in found)
            for _, size, path in sorted(found):
                if left <= self._most_bytes:
                    return
                Path(path).unlink(missing_ok=True)
                left -= size


def _is_whole(path: Path, sha256: str) -> bool:
    """Whether it is there, and is what its name says; then it is the one last used."""
    try:
        if _sha256(path.read_bytes()) != sha256:
            return False
        os.utime(path)
    except OSError:
        return False
    return True


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
