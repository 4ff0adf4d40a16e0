"""Milliseconds from the start of `jobd-mcp` to its answer to tools/list, with a broker that runs already.

    python benchmarks/stdio.py [--starts 20] [--runs 3]

This is what an agent's client waits for when it starts. For comparison: a bare interpreter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figures import Table, percentile
from private import Private

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "benchmark", "version": "0"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


def to_tools_list_s(environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    program = str(Path(sys.executable).with_name("jobd-mcp"))
    with subprocess.Popen([program], env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def said(message: Mapping[str, Any], answered: bool = True) -> dict[str, Any]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline()) if answered else {}
            return answer

        said(INITIALIZE)
        said(INITIALIZED, answered=False)
        tools = said(LIST)["result"]["tools"]
        passed_s = time.perf_counter() - began
        assert len(tools) > 5, tools
        process.stdin.close()
        process.wait(10)
    return passed_s


def bare_interpreter_s(environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=dict(environ), check=True)
    return time.perf_counter() - began


async def measure(starts: int, table: Table) -> None:
    async with Private() as own:
        for row, start in (("jobd-mcp to tools/list", to_tools_list_s), ("bare interpreter", bare_interpreter_s)):
            start(own.environ)
            took_ms = [start(own.environ) * 1e3 for _ in range(starts)]
            table.add(row, p50_ms=percentile(took_ms, 0.5), p99_ms=percentile(took_ms, 0.99))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("stdio: from the start of the program")
    for _ in range(arguments.runs):
        await measure(arguments.starts, table)
    table.show()


if __name__ == "__main__":
    asyncio.run(main())
