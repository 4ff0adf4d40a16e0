"""A first job, from Python: submit it, wait for it, read what it said.

    python examples/first_job.py

Uses the broker that JOBD_URL names, else this user's own, which is started if none runs.
"""

from __future__ import annotations

import asyncio
import os

from broker.client import BrokerClient
from broker.wire.jobs import JobSpec
from jobd_mcp import local

COMMAND = 'for i in 1 2 3; do echo "step $i of 3"; sleep 0.3; done'


def broker_url() -> str:
    """The broker to talk to."""
    url = os.environ.get("JOBD_URL")
    if url is not None:
        return url
    local.up(os.environ)  # a broker and one worker in the background; a repeat changes nothing
    return f"unix://{local.here(os.environ).broker_socket}"


async def main() -> None:
    async with BrokerClient(broker_url(), os.environ.get("JOBD_TOKEN")) as broker:
        submitted = await broker.job_submit(JobSpec(command=COMMAND, name="first"))
        assert submitted.id is not None  # only an array (count) has none
        print(f"job {submitted.id} is {submitted.state}")  # it is on disk by now: a crash of anything can't lose it

        # A wait returns after 40 s at the latest. Asking again costs nothing, and stopping never stops the job.
        while not (waited := await broker.job_wait([submitted.id])).done:
            print("still running")

        [ended] = waited.jobs
        print(f"job {ended.id} is {ended.state}, exit code {ended.exit_code}, after {ended.duration_s:.1f} s")
        print(await broker.job_logs(submitted.id))


if __name__ == "__main__":
    asyncio.run(main())
