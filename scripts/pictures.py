"""The README's picture and its transcript, made from real runs: `make pictures`.

`docs/pictures/top.svg` is what `job top --once` shows in a terminal beside a private broker with two workers and a
few jobs. The transcript stands in README.md between `<!-- recorded: demo -->` and `<!-- end of recorded -->`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.sax.saxutils import escape

from jobd_mcp.cli import cells

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "pictures" / "top.svg"
README = ROOT / "README.md"
JOB = Path(sys.executable).with_name("job")
COLUMNS, LINES = 92, 24
LIMIT_S = 60.0
WORKERS = {"anna": ("4", "gpu"), "boris": ("2", "")}
# What each is called, and what it really does.
JOBS = (
    ("unpack images", ("--", "true")),
    ("train resnet50, seed 1", ("--cpus", "2", "--needs", "gpu", "--", "sleep", "60")),
    ("tokenize corpus", ("--worker", "boris", "--", "sleep", "60")),
    ("evaluate checkpoint 12", ("exit 3",)),
    ("train resnet50, seed 2", ("--cpus", "4", "--needs", "gpu", "--", "sleep", "60")),
    ("render video", ("--needs", "blender", "--", "true")),
)
RECORDED = re.compile(r"(<!-- recorded: demo -->\n).*?(<!-- end of recorded -->)", re.DOTALL)

CELL_WIDTH, LINE_HEIGHT, MARGIN = 8.4, 18.0, 14.0
COLOURS = {"31": "#f7768e", "32": "#9ece6a", "33": "#e0af68", "36": "#7dcfff"}
_SGR = re.compile(r"\x1b\[([0-9;]*)m")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jobd-pictures-") as directory, fleet(Path(directory)) as environ:
        submit_all(environ)
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(svg(in_terminal([str(JOB), "top", "--once"], environ), "job top"))
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    README.write_text(recorded(README.read_text(), demonstration()))
    print(f"wrote {README.relative_to(ROOT)}")


@contextmanager
def fleet(directory: Path) -> Iterator[dict[str, str]]:
    """A broker and two workers of their own; the environment of their clients."""
    base = {"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8"}
    environ = {**base, "JOBD_STATE_DIR": str(directory / "broker")}
    started = [subprocess.Popen([JOB, "broker"], env=environ, stderr=subprocess.DEVNULL)]
    try:
        until(lambda: subprocess.run([JOB, "list"], env=environ, capture_output=True, check=False).returncode == 0)
        for name, (slots, tags) in WORKERS.items():
            own = {
                "JOBD_STATE_DIR": str(directory / name),
                "JOBD_URL": f"unix://{directory}/broker/broker.sock",
                "JOBD_WORKER_NAME": name,
                "JOBD_WORKER_SLOTS": slots,
                "JOBD_WORKER_TAGS": tags,
            }
            started.append(subprocess.Popen([JOB, "worker"], env={**base, **own}, stderr=subprocess.DEVNULL))
        until(lambda: len(answer(environ, "workers")["workers"]) == len(WORKERS))
        yield environ
        cancel = [str(JOB), "cancel", "--project", "default", "--force"]
        subprocess.run(cancel, env=environ, stdout=subprocess.DEVNULL, check=True)
        until(lambda: not answer(environ, "top")["counts"].get("running"))
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(30)


def submit_all(environ: dict[str, str]) -> None:
    """Returns when what can run does, and what ends has ended."""
    for name, words in JOBS:
        subprocess.run(
            [JOB, "submit", "--name", name, *words], env=environ, check=True, stdout=subprocess.DEVNULL, cwd="/"
        )
        time.sleep(0.5)  # a picture of events that are apart
    until(lambda: answer(environ, "top")["counts"].get("running") == 2)
    until(lambda: answer(environ, "top")["counts"].get("failed") == 1)


def answer(environ: dict[str, str], command: str) -> dict[str, dict[str, int]]:
    done = subprocess.run([JOB, command, "--json"], env=environ, capture_output=True, check=True)
    said: dict[str, dict[str, int]] = json.loads(done.stdout)
    return said


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > deadline:
            sys.exit(f"not within {LIMIT_S:g} s")
        time.sleep(0.05)


def in_terminal(words: list[str], environ: dict[str, str]) -> str:
    """What the program writes to a terminal, with its colours."""
    own, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(words, env={**environ, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        try:
            data = os.read(own, 65_536)
        except OSError:  # how Linux says that the other end is closed
            break
        written += data
    os.close(own)
    if process.wait() != 0:
        sys.exit(written.decode())
    return written.decode().replace("\r\n", "\n")


def svg(shown: str, title: str) -> str:
    """Text as a picture: each run of one style is placed by its cell, so that any monospaced font will do."""
    lines = shown.rstrip("\n").split("\n")
    width, height = MARGIN * 2 + COLUMNS * CELL_WIDTH, MARGIN * 2 + len(lines) * LINE_HEIGHT
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
    font = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#1a1b26"/>',
    ]
    for number, line in enumerate(lines):
        y = MARGIN + (number + 0.75) * LINE_HEIGHT
        parts += [
            f'<text x="{MARGIN + at * CELL_WIDTH:.1f}" y="{y:g}" textLength="{cells.width(text) * CELL_WIDTH:.1f}" '
            f'lengthAdjust="spacingAndGlyphs" {style}>{escape(text)}</text>'
            for at, text, style in runs(line)
        ]
    return "\n".join([*parts, "</svg>", ""])


def runs(line: str) -> Iterator[tuple[int, str, str]]:
    """Cell, text and attributes of each run of one style."""
    at, style = 0, attributes("0")
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if sgr := _SGR.fullmatch(part):
            style = attributes(sgr[1])
        elif part:
            # Blanks are not drawn: what stands behind two of them has a place of its own.
            for match in re.finditer(r"\S+(?: \S+)*", part):
                yield at + cells.width(part[: match.start()]), match[0], style
            at += cells.width(part)


def attributes(sgr: str) -> str:
    if sgr == "1":
        return 'fill="#ffffff" font-weight="bold"'
    return f'fill="{COLOURS[sgr]}"' if sgr in COLOURS else f'fill="{"#565f89" if sgr == "2" else "#c0caf5"}"'


def demonstration() -> list[str]:
    """The second part of `job demo`, and what it says had happened."""
    directory = Path(tempfile.mkdtemp(prefix="jobd-pictures-")) / "demo"
    done = subprocess.run([JOB, "demo", "--directory", directory], capture_output=True, text=True, check=True)
    shutil.rmtree(directory.parent)
    lines = done.stdout.splitlines()
    titles = [number for number, line in enumerate(lines) if line.startswith("== ")]
    death, story = lines[titles[1] : titles[2]], lines[titles[2] :]
    death = death[: 1 + next(number for number, line in enumerate(death) if line.startswith("job_wait"))]
    return [*death, "…", *story[: story.index("")]]


def recorded(page: str, transcript: list[str]) -> str:
    text = "\n".join(["```text", *transcript, "```"])
    return RECORDED.sub(lambda match: f"{match[1]}\n{text}\n\n{match[2]}", page)


if __name__ == "__main__":
    main()
