"""Transactions per second of the store: in groups, as many callers get them, against one commit for each.

    python benchmarks/store.py [functions]

Both are measured in one run on one disk; the ratio says what grouping gives here.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from broker.store.contract import Tx
from broker.store.sqlite import SqliteStore, open_sqlite


async def measure(store: SqliteStore, functions: int, callers: int) -> tuple[float, list[float]]:
    """Functions per second, and the seconds that each took, with so many callers that each wait for their answer."""
    waits_s: list[float] = []

    async def caller(number: int) -> None:
        for step in range(functions // callers):
            started = time.perf_counter()
            await store.run(partial(set_meta, number=number, step=step))
            waits_s.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return len(waits_s) / (time.perf_counter() - started), waits_s


def set_meta(tx: Tx, number: int, step: int) -> None:
    tx.run("set_meta", key=f"caller {number}", value=f"{step}")
    tx.run("set_meta", key=f"step {number} {step % 100}", value="x" * 100)


async def main(functions: int) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        store = await open_sqlite(Path(place) / "jobd.db", clock_ms=lambda: int(time.time() * 1000))
        try:
            alone = 0.0
            for callers in (1, 8, 64, 256):
                rate, waits_s = await measure(store, functions if callers > 1 else functions // 10, callers)
                alone = alone or rate
                p99_s = statistics.quantiles(waits_s, n=100)[98]
                print(
                    f"{callers:4} callers: {rate:8.0f} transactions/s, p50 {statistics.median(waits_s) * 1e3:6.2f} ms, "
                    f"p99 {p99_s * 1e3:6.2f} ms, {rate / alone:5.1f} times one by one"
                )
        finally:
            await store.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000))
