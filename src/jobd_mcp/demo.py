"""`job demo`: the main job, shown on this machine. A broker, two workers and an agent's client, all for real.

First what an agent does all day: submit, wait with progress, read the log. Then the machine of one worker dies in
the middle of a job, and the job is finished by the other one. Everything is kept in one directory, and is gone in
the end; nothing of the user's own broker is touched.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from broker import places
from broker.wire.settings import BrokerSettings, load
from jobd_mcp.daemon import configure_logging
from jobd_mcp.schemas import Json, Schema, as_list, as_object
from jobd_mcp.serve import serving

LEASE_S = 2.0
LIMIT_S = 60.0
STEPS = 8
WORKERS = ("anna", "boris")

_FIRST_JOB = 'for i in 1 2 3; do echo "epoch $i of 3: loss 0.$((90 - 20 * i))"; sleep 0.6; done; echo done'
# Goes on where an earlier delivery stopped: the checkpoint directory is kept over attempts.
_LONG_JOB = f"""
step=$(cat "$JOBD_CHECKPOINT_DIR/step" 2>/dev/null || echo 0)
[ "$step" = 0 ] || echo "resumed after step $step"
while [ "$step" -lt {STEPS} ]; do
  step=$((step + 1)); sleep 0.4; echo "step $step of {STEPS}"; echo "$step" > "$JOBD_CHECKPOINT_DIR/step"
done
"""


class DemoFailed(Exception):
    """What should have been shown did not happen."""


def main(directory: Path) -> None:
    """Show everything in `directory`, which must not exist, and remove it. Raises DemoFailed."""
    directory = directory.absolute()
    if directory.exists():
        raise DemoFailed(f"{directory} exists; remove it, or choose another with --directory")
    try:
        asyncio.run(_show(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        _remove_socket_directory(directory / "broker")


async def _show(directory: Path) -> None:
    state = directory / "broker"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JOBD_")}
    paces = {"JOBD_LEASE_S": f"{LEASE_S}", "JOBD_SWEEP_S": f"{LEASE_S / 10}", "JOBD_HEARTBEAT_S": f"{LEASE_S / 4}"}
    settings = load(BrokerSettings, paces)
    configure_logging("error")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(settings, state, environ))
        socket, _ = places.sockets(state, environ)
        local = {**environ, "JOBD_URL": f"unix://{socket}"}
        workers = {name: _start_worker(name, directory, local) for name in WORKERS}
        stack.push_async_callback(_stop, list(workers.values()))
        client = await stack.enter_async_context(Client(_agent_side(local)))
        agent = Agent(client)
        await _day_to_day(agent)
        await _a_machine_dies(agent, workers)
    print("\nThat was all of it: broker, workers and jobs are gone, and so are their files.")


def _agent_side(environ: Mapping[str, str]) -> StdioServerParameters:
    """The line that stands in an agent's configuration: `jobd-mcp`, over stdio."""
    arguments = ["-I", "-c", "import sys; from jobd_mcp.pipe import main; sys.exit(main())"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(environ))


async def _day_to_day(agent: Agent) -> None:
    _title("An agent submits a job, waits with progress, reads the log")
    machines = await agent.until("worker_list", {}, lambda answer: len(as_list(answer.get("workers"))) == len(WORKERS))
    names = [str(as_object(worker).get("name")) for worker in as_list(machines.get("workers"))]
    print(f"workers online: {', '.join(sorted(names))}")
    job = await agent.submit("first", _FIRST_JOB)
    ended = await agent.wait(job)
    print(await agent.text("job_logs", {"job": job}), end="")
    _expect(ended.get("state") == "completed" and ended.get("exit_code") == 0, f"the first job ended as {ended}")


async def _a_machine_dies(agent: Agent, workers: Mapping[str, subprocess.Popen[bytes]]) -> None:
    _title("The machine of one worker dies in the middle of a job")
    job = await agent.submit("long", _LONG_JOB)
    await agent.until("job_get", {"job": job}, lambda answer: answer.get("state") == "running")
    await agent.until_text("job_logs", {"job": job}, "step 3")
    holder = str((await agent.call("job_get", {"job": job})).get("worker"))
    killed = _kill_tree(workers[holder].pid)
    print(f"kill -9 of worker {holder} and all of its processes: {killed} in all")
    ended = await agent.wait(job)
    print(await agent.text("job_logs", {"job": job}), end="")
    known = await agent.call("job_get", {"job": job, "detail": "full"})
    for delivery in map(as_object, as_list(known.get("assignments"))):
        print(f"  assignment {delivery['assignment']}: {delivery['state']} on {delivery['worker']}")
    print("\nThe timeline, from job_events:")
    await _timeline(agent, job)
    states = [as_object(delivery).get("state") for delivery in as_list(known.get("assignments"))]
    others = {str(as_object(delivery).get("worker")) for delivery in as_list(known.get("assignments"))}
    _expect(ended.get("state") == "completed", f"the job ended as {ended}")
    _expect(states == ["expired", "succeeded"] and len(others) == 2, f"its deliveries are {states} on {sorted(others)}")


async def _timeline(agent: Agent, job: Json) -> None:
    events = [as_object(event) for event in as_list((await agent.call("job_events", {"job": job})).get("events"))]
    first = datetime.fromisoformat(str(events[0]["at"]))
    for event in events:
        after_s = (datetime.fromisoformat(str(event["at"])) - first).total_seconds()
        delivery = f"{job}.{event['attempt']}" if event.get("attempt") else f"{job}"
        print(f"  {after_s:6.2f} s  {event['type']:<20} {delivery:<5} {event.get('worker') or ''}")


class Agent:
    """What a model's client does: it calls tools."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, arguments: Schema) -> Schema:
        """The structured answer of a tool. Raises DemoFailed for a refusal."""
        result = await self._client.call_tool(tool, dict(arguments))
        if result.is_error:
            raise DemoFailed(f"{tool}: {result.content}")
        answer: Json = result.structured_content
        return as_object(answer)

    async def submit(self, name: str, command: str) -> Json:
        submitted = await self.call("job_submit", {"command": command, "name": name})
        print(f"job_submit name={name}: {_compact(submitted)}")
        return submitted["id"]

    async def text(self, tool: str, arguments: Schema) -> str:
        result = await self._client.call_tool(tool, dict(arguments))
        return "".join(getattr(part, "text", "") for part in result.content)

    async def wait(self, job: Json) -> Schema:
        """The job's end. Meanwhile its progress is shown, as a client would show it."""

        async def show(progress: float, total: float | None, message: str | None) -> None:
            print(f"  … {progress:.1f} of at most {total:g} s: {message}")

        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < deadline:
            arguments = {"job": [job], "timeout_s": 20}
            result = await self._client.call_tool("job_wait", arguments, progress_callback=show)
            content: Json = result.structured_content
            answer = as_object(content)
            if answer.get("done") is True:
                ended = as_object(as_list(answer.get("jobs"))[0])
                print(f"job_wait: {_compact({name: value for name, value in ended.items() if name != 'log_tail'})}")
                return ended
        raise DemoFailed(f"job {job} did not end within {LIMIT_S:g} s")

    async def until(self, tool: str, arguments: Schema, reached: Callable[[Schema], bool]) -> Schema:
        """The first answer that is as wanted."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < deadline:
            answer = await self.call(tool, arguments)
            if reached(answer):
                return answer
            await asyncio.sleep(0.1)
        raise DemoFailed(f"{tool} did not answer as expected within {LIMIT_S:g} s")

    async def until_text(self, tool: str, arguments: Schema, wanted: str) -> None:
        """Returns when the text of the answer contains what is wanted."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while wanted not in await self.text(tool, arguments):
            if asyncio.get_running_loop().time() > deadline:
                raise DemoFailed(f"{tool} never said {wanted!r}")
            await asyncio.sleep(0.1)


def _start_worker(name: str, directory: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A worker with a state directory of its own, as on another machine; checkpoints are shared, as on a cluster."""
    home = directory / name
    home.mkdir(parents=True)
    settings = {
        "JOBD_STATE_DIR": str(home),
        "JOBD_WORKER_NAME": name,
        "JOBD_WORKER_SLOTS": "1",
        "JOBD_CHECKPOINT_ROOT": str(directory / "checkpoints"),
    }
    with (home / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-I", "-m", "worker", "jobd", "worker"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environ, **settings},
            start_new_session=True,
        )


async def _stop(workers: list[subprocess.Popen[bytes]]) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        await asyncio.to_thread(worker.wait, 20)


def _kill_tree(root: int) -> int:
    """SIGKILL for `root` and all that descends from it, until nothing is left, as when a machine loses its power."""
    killed: set[int] = set()
    while found := (_descendants(root) | {root}) - killed:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    return len(killed)


def _descendants(root: int) -> set[int]:
    parents = _parents()
    found = {root}
    while grown := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= grown
    return found - {root}


def _parents() -> dict[int, int]:
    """Process id → id of its parent, of all processes here. Small systems have no ps, others no /proc."""
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
        return {int(pid): int(parent) for pid, parent in (line.split() for line in listing.stdout.splitlines())}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    return parents


def _remove_socket_directory(state: Path) -> None:
    """Where the path was too long for a socket, it stood in a directory elsewhere."""
    socket, _ = places.sockets(state, os.environ)
    if socket.parent != state:
        shutil.rmtree(socket.parent, ignore_errors=True)


def _compact(answer: Schema) -> str:
    return " ".join(f"{name}={value}" for name, value in answer.items() if not isinstance(value, dict | list))


def _title(text: str) -> None:
    print(f"\n== {text}")


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise DemoFailed(otherwise)
