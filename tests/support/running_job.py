"""A job that runs while the program under it is exchanged."""

from __future__ import annotations

from support.installation import Installation
from support.waiting import eventually_sync

LINES = 3000


def begin_job(installation: Installation) -> int:
    """A job that notes its start, writes numbered lines, and goes on until `go` is there; exit code 3. It runs."""
    script = (
        f"echo started >> {installation.directory}/starts; "
        f"for i in $(seq {LINES}); do echo line $i; test $((i % 100)) = 0 && echo error $i >&2; done; "
        f"until test -e {installation.directory}/go; do sleep 0.05; done; echo last; exit 3"
    )
    job = installation.submit("--", "bash", "-c", script)
    eventually_sync((installation.directory / "starts").exists, within_s=60)
    return job


def end_well(installation: Installation, job: int) -> None:
    """Let the job end, and see that it has: run once, with its own exit code and all it wrote."""
    (installation.directory / "go").touch()
    assert installation.job("wait", str(job)).code == 3
    assert (installation.directory / "starts").read_text() == "started\n"
    written = installation.ask(f"/v1/jobs/{job}/log", raw=True, cursor=0).text.splitlines()
    for word, step in (("line", 1), ("error", 100)):
        mine = [line for line in written if line.startswith(word)]
        assert mine == [f"{word} {number}" for number in range(step, LINES + 1, step)]
    assert written[-1] == "last"
    assert len(written) == LINES + LINES // 100 + 1
    told = installation.ask(f"/v1/jobs/{job}").json()
    assert (told["state"], told["exit_code"], told["attempt"]) == ("failed", 3, 1)
