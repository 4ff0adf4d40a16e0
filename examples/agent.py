"""What a coding agent does with jobd, without the model: try, read why it failed, mend, try again, and clean up.

    python examples/agent.py

It is an MCP client like any other: it starts `jobd-mcp`, lists the tools, and calls them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters

BROKEN = 'import json\nprint("reading the configuration")\nprint(json.loads("{batch_size: 32}"))\n'
MENDED = BROKEN.replace("{batch_size: 32}", '{\\"batch_size\\": 32}')


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A tool's structured answer. A refusal has isError set, and text that says what to do."""
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        sys.exit(f"{tool} was refused: {' '.join(getattr(part, 'text', '') for part in result.content)}")
    return dict(result.structured_content or {})


async def submit(client: Client, script: Path) -> int:
    answer = await call(client, "job_submit", argv=[sys.executable, script.name], cwd=str(script.parent))
    print(f"submitted job {answer['id']}: python {script.name}")
    return int(answer["id"])


async def wait(client: Client, job: int) -> dict[str, Any]:
    """The job's end. A wait returns after 40 s at the latest; between two an agent can do other work."""

    async def show(progress: float, total: float | None, message: str | None) -> None:
        print(f"  {message} ({progress:.0f} of at most {total or 40:.0f} s)")

    while True:
        result = await client.call_tool("job_wait", {"job": job}, progress_callback=show)
        answer = dict(result.structured_content or {})
        if answer["done"]:
            ended: dict[str, Any] = answer["jobs"][0]
            print(f"job {job} is {ended['state']}, exit code {ended.get('exit_code', 'none')}")
            return ended


async def logs(client: Client, job: int, **how: Any) -> str:
    """Some of a job's output, as text."""
    result = await client.call_tool("job_logs", {"job": job, **how})
    return "\n".join(getattr(part, "text", "") for part in result.content)


def write(script: Path, text: str) -> None:
    script.write_text(text)


async def mend(client: Client, script: Path) -> None:
    """Run a script that fails, find out why, mend it, and run it again."""
    write(script, BROKEN)
    job = await submit(client, script)
    if (await wait(client, job))["state"] == "failed":
        print(await logs(client, job, grep="Error", context=1))
        write(script, MENDED)  # here the model would think
        job = await submit(client, script)
        ended = await wait(client, job)
        print(f"mended: {ended['state']}; it printed:")
        print(await logs(client, job))


async def stop(client: Client) -> None:
    """Cancel something that is no longer wanted: the whole process tree goes, after its grace."""
    answer = await call(client, "job_submit", command="echo training; sleep 3600", checkpoint_grace_s=1)
    while (await call(client, "job_get", job=answer["id"]))["state"] != "running":  # noqa: ASYNC110 - no event here
        await asyncio.sleep(0.1)
    cancelled = await call(client, "job_cancel", job=[answer["id"]], reason="a better idea")
    print(f"job {answer['id']}: {cancelled['jobs'][0]['note']}")
    await wait(client, int(answer["id"]))


async def main() -> None:
    own = Path(sys.executable).with_name("jobd-mcp")
    server = StdioServerParameters(command=str(own) if own.exists() else "jobd-mcp", env=dict(os.environ))
    async with Client(server) as client:
        print("tools:", ", ".join(sorted(tool.name for tool in (await client.list_tools()).tools)))
        with tempfile.TemporaryDirectory() as directory:
            await mend(client, Path(directory) / "read_config.py")
        await stop(client)


if __name__ == "__main__":
    asyncio.run(main())
