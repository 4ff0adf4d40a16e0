"""What a job says of itself in files: how far it is, what came out of it, and what it leaves behind.

A job may write anything there. Each rule stands here once, for the worker that reads the files and the broker that keeps
what it is sent.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from broker.wire.jobs import Artifact, Frozen, Progress, clean

MOST_RESULT_BYTES = 256 * 1024
MOST_DEPTH = 64
LONGEST_NAME = 400
LONGEST_PART_BYTES = 255
MOST_WARNINGS = 10


class BadResult(ValueError):
    """What a job wrote as its result can't be kept. The message says why."""


def result_text(data: bytes) -> str:
    """The JSON that a job wrote, as short as it gets. Raises BadResult."""
    if len(data) > MOST_RESULT_BYTES:
        raise BadResult(f"larger than {MOST_RESULT_BYTES // 1024} KiB")
    try:
        value = json.loads(data, parse_constant=_no_number)
        if _is_too_deep(value):
            raise BadResult(f"nested deeper than {MOST_DEPTH} levels")
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except BadResult:
        raise
    except RecursionError:
        raise BadResult(f"nested deeper than {MOST_DEPTH} levels") from None
    except UnicodeError:
        raise BadResult("not valid UTF-8") from None
    except ValueError as error:
        raise BadResult(f"not valid JSON: {error}") from None
    if len(text.encode()) > MOST_RESULT_BYTES:
        raise BadResult(f"larger than {MOST_RESULT_BYTES // 1024} KiB")
    return text


def progress_of(line: str) -> Progress | None:
    """What one line of a progress file says: `0.42 message`. None if it does not begin with a number."""
    first, _, message = line.strip().partition(" ")
    try:
        fraction = float(first)
    except ValueError:
        return None
    if not math.isfinite(fraction):
        return None
    return Progress(fraction=min(1.0, max(0.0, fraction)), message=message.strip() or None)


def artifact_name(value: str) -> str:
    """A path below the directory of artifacts, with `/`. Raises ValueError."""
    parts = value.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ValueError("a name is a path below JOBD_ARTIFACTS_DIR, without .. and empty parts")
    if len(value) > LONGEST_NAME or any(len(part.encode("utf-8", "replace")) > LONGEST_PART_BYTES for part in parts):
        raise ValueError(f"a name has at most {LONGEST_NAME} characters, a part of it {LONGEST_PART_BYTES} bytes")
    if not value.isprintable() or "\\" in value:
        raise ValueError("a name has no control characters and no backslash")
    return value


ArtifactName = Annotated[str, AfterValidator(artifact_name)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Warning_ = Annotated[str, BeforeValidator(lambda value: clean(str(value), 200))]


class OutcomeLimits(Frozen):
    """What the broker keeps of one delivery. More is left out, and said."""

    artifact_bytes: int = Field(description="One file.")
    artifacts_bytes: int = Field(description="All of them.")
    artifacts: int = Field(description="How many.")


class Left(Frozen):
    """What a delivery left behind, told with its end: artifacts follow, as many and as large; `warnings`: what does not."""

    artifacts: int = Field(default=0, ge=0)
    artifacts_bytes: int = Field(default=0, ge=0)
    warnings: list[Warning_] = Field(default=[], max_length=MOST_WARNINGS)


class ResultKept(Frozen):
    duplicate: bool = False


class ArtifactSize(Frozen):
    """Where the broker's copy stands. Send from `size` on, until it is `kept`: whole, and its checksum verified."""

    size: int
    kept: bool = False


class ArtifactList(Frozen):
    """What a delivery left behind. `expected`: how many files its worker has announced."""

    job: int
    attempt: int
    artifacts: list[Artifact]
    expected: int
    complete: bool


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number in JSON")


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [part for one in level for part in _parts(one)]
        if not level:
            return False
    return True


def _parts(value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []
