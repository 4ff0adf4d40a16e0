"""What broker and worker cost when nothing happens: memory, and processor time, with the default leases.

python benchmarks/idle.py [--seconds 20] [--runs 3]
"""

from __future__ import annotations

import argparse
import asyncio

from figures import Table
from private import Private, cpu_s, pss_mb, tree


async def measure(seconds: float, table: Table) -> None:
    async with Private() as own:
        worker = await own.start_worker()
        await asyncio.sleep(3)  # what the start leaves to do
        parts = {"broker": [own.broker_pid], "worker, zygote, prepared shims": tree(worker)}
        used_s = {name: cpu_s(*pids) for name, pids in parts.items()}
        await asyncio.sleep(seconds)
        for name, pids in parts.items():
            percent = (cpu_s(*pids) - used_s[name]) * 100 / seconds
            table.add(name, PSS_MB=pss_mb(*pids), CPU_percent_of_a_core=percent, processes=len(pids))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(f"idle: {arguments.seconds:g} s at rest")
    for _ in range(arguments.runs):
        await measure(arguments.seconds, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
