"""A whole jobd of its own: the real `job` command against a real broker and worker in a private state directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

JOB = Path(sys.executable).parent / "job"


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    def json(self) -> dict[str, object]:
        answer = json.loads(self.out)
        assert isinstance(answer, dict)
        return answer


@dataclass
class Installation:
    """`job` runs with a small environment of its own: no setting or venv of whoever runs the tests reaches it."""

    directory: Path
    settings: dict[str, str] = field(default_factory=dict)
    program: str = str(JOB)

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def environ(self) -> dict[str, str]:
        home = self.directory / "home"
        home.mkdir(exist_ok=True, mode=0o700)
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "JOBD_STATE_DIR": str(self.state),
            **self.settings,
        }

    def job(
        self, *words: str, cwd: Path | None = None, extra: dict[str, str] | None = None, within_s: float = 60
    ) -> Ended:
        """Run `job WORDS` to its end."""
        done = subprocess.run(
            [self.program, *words],
            cwd=cwd or self.directory,
            env={**self.environ, **(extra or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr.decode())

    def good(self, *words: str, cwd: Path | None = None, extra: dict[str, str] | None = None) -> Ended:
        """Run `job WORDS`, which must succeed."""
        done = self.job(*words, cwd=cwd, extra=extra)
        assert done.code == 0, f"job {' '.join(words)}: exit code {done.code}\n{done.text}\n{done.err}"
        return done

    def start(self, *words: str, extra: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Begin `job WORDS`, in a process group of its own as in an interactive shell."""
        return subprocess.Popen(
            [self.program, *words],
            cwd=self.directory,
            env={**self.environ, **(extra or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            bufsize=0,
        )

    def submit(self, *words: str) -> int:
        """The id of a submitted job."""
        answer = self.good("submit", "--json", *words).json()
        assert isinstance(answer["id"], int)
        return answer["id"]

    def state_of(self, job: int) -> str:
        return str(self.good("status", str(job), "--json").json()["state"])

    def ask(self, path: str, **parameters: str | int | bool) -> httpx.Response:
        """The broker's own answer, for tests that ask so often that a command for each would take its time."""
        transport = httpx.HTTPTransport(uds=str(self.state / "broker.sock"))
        with httpx.Client(transport=transport, base_url="http://localhost", timeout=30) as client:
            answer = client.get(path, params=parameters)
        assert answer.status_code == 200, answer.text
        return answer

    def ids(self, key: str, words: Sequence[str]) -> list[object]:
        answer = self.good(*words, "--json").json()[key]
        assert isinstance(answer, list)
        return answer


def broker_pid(installation: Installation) -> int:
    answer = installation.good("up", "--json").json()["pid"]
    assert isinstance(answer, int)
    os.kill(answer, 0)
    return answer
