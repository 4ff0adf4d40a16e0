"""How many `true` a second one worker starts, sees end, and clears away: through shims, and as bare subprocesses.

    python benchmarks/process_start.py [--jobs 400] [--parallel 4]

A job through a shim is on the disk before it runs and after it ended, survives its worker, and is killed with its
whole tree. A bare subprocess has none of that: the difference is the price.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from worker.shims import Shims, ShimSpec, boot_s

_LOOK_EVERY_S = 0.25  # as the worker does: the bell wakes, a slow look is the truth


async def through_shims(jobs: int, parallel: int) -> list[float]:
    state = Path(tempfile.mkdtemp(prefix="jobd-bench-"))
    shims = Shims(state)
    shims.start()
    news: dict[str, asyncio.Event] = {}
    listener = asyncio.create_task(_listen(shims, news))

    async def one(number: int) -> None:
        spec = ShimSpec(number, 1, "token", ["/bin/true"], {"PATH": "/usr/bin:/bin"}, cwd="/")
        rung = news[spec.name] = asyncio.Event()
        shim = await shims.launch(spec)
        shim.go(boot_s() + 30)
        while (final := shim.final()) is None:
            rung.clear()
            try:
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await rung.wait()
            except TimeoutError:
                continue
        assert final.exit_code == 0
        shim.remove()
        del news[spec.name]

    try:
        return await _measured(one, jobs, parallel)
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await shims.aclose()
        shutil.rmtree(state)


async def bare(jobs: int, parallel: int) -> list[float]:
    async def one(_: int) -> None:
        process = await asyncio.create_subprocess_exec(
            "/bin/true",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            stdin=asyncio.subprocess.DEVNULL,
        )
        await process.communicate()

    return await _measured(one, jobs, parallel)


async def _listen(shims: Shims, news: dict[str, asyncio.Event]) -> None:
    async for name in shims.bell:
        if name in news:
            news[name].set()


async def _measured(one: Callable[[int], Awaitable[None]], jobs: int, parallel: int) -> list[float]:
    """Seconds that each took."""
    took_s: list[float] = []

    async def slot(numbers: Iterator[int]) -> None:
        for number in numbers:
            begun = time.perf_counter()
            await one(number)
            took_s.append(time.perf_counter() - begun)

    numbers = iter(itertools.islice(itertools.count(1), jobs))
    await asyncio.gather(*(slot(numbers) for _ in range(parallel)))
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--parallel", type=int, default=4)
    arguments = parser.parse_args()
    for name, way in (("shims", through_shims), ("bare subprocesses", bare)):
        begun = time.perf_counter()
        took_s = asyncio.run(way(arguments.jobs, arguments.parallel))
        rate = arguments.jobs / (time.perf_counter() - begun)
        p50, p99 = statistics.median(took_s), sorted(took_s)[int(len(took_s) * 0.99)]
        print(f"{name:18} {rate:7.0f} jobs/s   p50 {p50 * 1000:6.1f} ms   p99 {p99 * 1000:6.1f} ms")


if __name__ == "__main__":
    main()
