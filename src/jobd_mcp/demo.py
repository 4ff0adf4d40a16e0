"""`job demo`: the main job, shown on this machine. A broker, two workers and an agent's client, all for real.

First what an agent does all day: submit, wait with progress, read the log. Then the machine of one worker dies in
the middle of a job, and the job is finished by the other one. Everything is kept in one directory, and is gone in
the end; nothing of the user's own broker is touched.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from broker import places
from broker.wire.settings import BrokerSettings, load
from jobd_mcp.daemon import configure_logging
from jobd_mcp.demo_machine import Machine, clear
from jobd_mcp.schemas import Json, Schema, as_list, as_object
from jobd_mcp.serve import serving

LEASE_S = 2.0
LIMIT_S = 60.0
STEPS = 8
WORKERS = ("anna", "boris")

_MARK = "demo.lock"
_TAIL_LINES = 15
_FIRST_JOB = 'for i in 1 2 3; do echo "epoch $i of 3: loss 0.$((90 - 20 * i))"; sleep 0.8; done; echo done'
# Goes on where an earlier delivery stopped: the checkpoint directory is kept over attempts.
_LONG_JOB = f"""
step=$(cat "$JOBD_CHECKPOINT_DIR/step" 2>/dev/null || echo 0)
[ "$step" = 0 ] || echo "resumed after step $step"
while [ "$step" -lt {STEPS} ]; do
  step=$((step + 1)); sleep 0.4; echo "step $step of {STEPS}"; echo "$step" > "$JOBD_CHECKPOINT_DIR/step"
done
"""
_MEANING = {
    "job_submitted": "job queued",
    "job_assigned": "job assigned",
    "assignment_acked": "the worker has it, and may start it",
    "job_started": "job running",
    "assignment_expired": "no word from the worker for a whole lease",
    "job_requeued": "job queued again",
    "job_completed": "job completed",
}


class DemoFailed(Exception):
    """What should have been shown did not happen."""


def main(directory: Path, *, workers: Sequence[str] = WORKERS, limit_s: float = LIMIT_S) -> None:
    """Show everything in `directory`, which must not exist, and remove it. Raises DemoFailed.

    What an earlier demonstration left there, because it was killed, is removed first. A failure prints the ends of
    the logs, and takes no longer than `limit_s` and the time that a shutdown needs.
    """
    directory = directory.absolute()
    began = time.monotonic()
    with _kept_for_us(directory):
        try:
            asyncio.run(_within(limit_s, _show(directory, workers)))
        except Exception as error:
            _print_logs(directory)
            raise DemoFailed(_said(error)) from error
        finally:
            left = clear(directory)
    if left:
        raise DemoFailed(f"processes were left, and had to be killed: {left}")
    print(f"\nThat was all, in {time.monotonic() - began:.0f} s. No process is left, and {directory.name} is removed.")


@contextmanager
def _kept_for_us(directory: Path) -> Iterator[None]:
    """Make the directory and hold its lock; one that holds anything but a dead demonstration is refused."""
    if directory.exists():
        _remove_dead(directory)
    directory.mkdir(parents=True, mode=0o700)
    with (directory / _MARK).open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        yield


def _remove_dead(directory: Path) -> None:
    refusal = DemoFailed(f"{directory} exists; remove it, or choose another with --directory")
    if not (directory / _MARK).is_file():
        raise refusal
    with (directory / _MARK).open("r") as mark:
        try:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailed(f"another demonstration is running in {directory}") from None
        clear(directory)


async def _within(limit_s: float, shown: Coroutine[None, None, None]) -> None:
    try:
        async with asyncio.timeout(limit_s):
            await shown
    except TimeoutError as error:
        raise DemoFailed(f"it was not over within {limit_s:g} s") from error


def _said(error: BaseException) -> str:
    """The one error in a group of groups, as its own words."""
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, DemoFailed)), error.exceptions[0])
    return str(error) if isinstance(error, DemoFailed) else f"{type(error).__name__}: {error}"


def _print_logs(directory: Path) -> None:
    for log in sorted(directory.glob("*/*.log")):
        lines = log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        print(f"-- the end of {log.relative_to(directory)}", *lines, sep="\n", file=sys.stderr)


async def _show(directory: Path, names: Sequence[str]) -> None:
    state = directory / "broker"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JOBD_")}
    paces = {"JOBD_LEASE_S": f"{LEASE_S}", "JOBD_SWEEP_S": f"{LEASE_S / 10}", "JOBD_HEARTBEAT_S": f"{LEASE_S / 4}"}
    settings = load(BrokerSettings, paces)
    configure_logging("error")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(serving(settings, state, environ))
        socket, _ = places.sockets(state, environ)
        local = {**environ, "JOBD_URL": f"unix://{socket}"}
        machines = {name: Machine(name, directory, local) for name in names}
        stack.push_async_callback(_shut_down, list(machines.values()))
        agent = Agent(await stack.enter_async_context(Client(_agent_side(local))))
        await _two_workers(agent)
        await _day_to_day(agent)
        await _a_machine_dies(agent, machines)


def _agent_side(environ: Mapping[str, str]) -> StdioServerParameters:
    """The line that stands in an agent's configuration: `jobd-mcp`, over stdio."""
    arguments = ["-I", "-c", "import sys; from jobd_mcp.pipe import main; sys.exit(main())"]
    return StdioServerParameters(command=sys.executable, args=arguments, env=dict(environ))


async def _shut_down(machines: Sequence[Machine]) -> None:
    for machine in machines:
        await asyncio.to_thread(machine.shut_down)


async def _two_workers(agent: Agent) -> None:
    print("A broker and two workers are started here. An agent talks to them through jobd-mcp,")
    print("with the official MCP client. Its tool calls are shown as: tool arguments → answer.")
    answer = await agent.until("worker_list", {}, lambda answer: len(as_list(answer.get("workers"))) == len(WORKERS))
    names = sorted(str(as_object(worker).get("name")) for worker in as_list(answer.get("workers")))
    print(f"\nworker_list → {', '.join(names)} are online")


async def _day_to_day(agent: Agent) -> None:
    _title("1. An agent submits a job, waits with progress, reads the log, gets the result")
    job = await agent.submit("first", _FIRST_JOB)
    ended = await agent.wait(job)
    await agent.show_log(job)
    _expect(ended.get("state") == "completed" and ended.get("exit_code") == 0, f"the first job ended as {ended}")


async def _a_machine_dies(agent: Agent, machines: Mapping[str, Machine]) -> None:
    _title("2. The machine of a worker dies in the middle of a job")
    job = await agent.submit("long", _LONG_JOB)
    await agent.until("job_get", {"job": job}, lambda answer: answer.get("state") == "running")
    await agent.until_text("job_logs", {"job": job}, "step 3")
    holder = str((await agent.call("job_get", {"job": job})).get("worker"))
    died_at = datetime.now(UTC)
    killed = machines[holder].lose_power()
    print(f"!! kill -9 in the middle of the job: the worker {holder} and all of its processes, {killed} in all")
    print(f"   Its lease is {LEASE_S:g} s here; usually it is a minute.")
    ended = await agent.wait(job)
    await agent.show_log(job)
    known = await agent.call("job_get", {"job": job, "detail": "full"})
    deliveries = [as_object(delivery) for delivery in as_list(known.get("assignments"))]
    _title("3. What happened, from job_events")
    await _timeline(agent, job, died_at, holder)
    print("\njob_get: its deliveries; none is overwritten by a later one")
    for delivery in deliveries:
        print(f"  assignment {delivery['assignment']}: {delivery['state']} on {delivery['worker']}")
    states = [delivery.get("state") for delivery in deliveries]
    others = {str(delivery.get("worker")) for delivery in deliveries}
    _expect(ended.get("state") == "completed", f"the job ended as {ended}")
    _expect(states == ["expired", "succeeded"] and len(others) == 2, f"its deliveries are {states} on {sorted(others)}")


async def _timeline(agent: Agent, job: Json, died_at: datetime, holder: str) -> None:
    events = [as_object(event) for event in as_list((await agent.call("job_events", {"job": job})).get("events"))]
    rows = [(died_at, f"{'-- kill -9 --':<20} {'':<5} {holder:<6} its machine is dead")]
    for event in events:
        kind = str(event["type"])
        delivery = f"{job}.{event['attempt']}" if event.get("attempt") else f"{job}"
        line = f"{kind:<20} {delivery:<5} {event.get('worker') or '':<6} {_MEANING.get(kind, '')}"
        rows.append((datetime.fromisoformat(str(event["at"])), line))
    rows.sort(key=lambda row: row[0])
    for at, line in rows:
        print(f"  {(at - rows[0][0]).total_seconds():5.2f} s  {line.rstrip()}")


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
        print(f"job_submit name={name} → {_compact(submitted)}")
        return submitted["id"]

    async def text(self, tool: str, arguments: Schema) -> str:
        result = await self._client.call_tool(tool, dict(arguments))
        return "".join(getattr(part, "text", "") for part in result.content)

    async def show_log(self, job: Json) -> None:
        print(f"job_logs job={job} →")
        for line in (await self.text("job_logs", {"job": job})).splitlines():
            print(f"  | {line}")

    async def wait(self, job: Json) -> Schema:
        """The job's end. Meanwhile its progress is shown, as a client would show it."""

        async def show(progress: float, total: float | None, message: str | None) -> None:
            print(f"  progress: {message} ({progress:.0f} s)")

        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while asyncio.get_running_loop().time() < deadline:
            arguments = {"job": [job], "timeout_s": 20}
            result = await self._client.call_tool("job_wait", arguments, progress_callback=show)
            content: Json = result.structured_content
            answer = as_object(content)
            if answer.get("done") is True:
                ended = as_object(as_list(answer.get("jobs"))[0])
                ended.pop("log_tail", None)
                print(f"job_wait job={job} → {_compact(ended)}")
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


def _compact(answer: Schema) -> str:
    return " ".join(f"{name}={value}" for name, value in answer.items() if not isinstance(value, dict | list))


def _title(text: str) -> None:
    print(f"\n== {text}")


def _expect(true: bool, otherwise: str) -> None:
    if not true:
        raise DemoFailed(otherwise)
