"""Output: how fast chunks are kept, and how long a tail, a page and a search of a large log take.

python benchmarks/logs.py [megabytes]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from broker.logs import reading, rendering, searching
from broker.logs.files import LogFiles
from broker.logs.reading import View

MB = 1 << 20


def append(files: LogFiles, job: int, total: int, chunk: int) -> float:
    """MB/s in chunks of this size; each append opens its file, as the broker does, and none waits for the disk."""
    line = b"step 001234 loss 0.123456 lr 3.0e-04 " + b"x" * 42 + b"\n"
    data = line * (chunk // len(line) + 1)
    offset = 0
    started = time.perf_counter()
    while offset < total:
        at = offset % len(line)
        offset = files.append(job, 1, "log", offset, data[at : at + chunk]).size
    return total / MB / (time.perf_counter() - started)


def timed(look: Callable[[], View]) -> str:
    started = time.perf_counter()
    answer = rendering.render(look(), label="1.1", call="job_logs job=1")
    return f"{(time.perf_counter() - started) * 1e3:8.1f} ms, {len(answer.text)} characters"


def main(megabytes: int) -> None:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        files = LogFiles(Path(place) / "logs")
        for job, chunk in enumerate((MB, 64 << 10, 4 << 10), 1):
            total = megabytes * MB if job == 1 else 20 * MB
            print(f"append in chunks of {chunk >> 10:5} KiB: {append(files, job, total, chunk):8.0f} MB/s")
        started = time.perf_counter()
        files.sync(1, 1)
        os.sync()
        print(f"sync of {megabytes} MB: {time.perf_counter() - started:.2f} s")
        with files.opened(1, 1) as log:
            middle = log.size // 2
            print(f"tail of 100 lines: {timed(lambda: reading.tail(log, 100))}")
            print(f"page at the middle: {timed(lambda: reading.page(log, middle, 200))}")
            started = time.perf_counter()
            searched = searching.grep(log, searching.Request("nothing")).end / MB
            rate = searched / (time.perf_counter() - started)
            print(f"search: {rate:8.0f} MB/s, and it ends after {searching.LIMIT_S:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
