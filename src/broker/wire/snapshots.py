"""What is kept of a job's code: what git says of it, or a copy of its directory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

LARGEST_MB = 64.0
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GitState(Frozen):
    """A working tree, as it was at the submit."""

    commit: str | None = Field(default=None, description="Nothing where there is none yet.")
    branch: str | None = Field(default=None, description="Nothing where none is checked out.")
    remote: str | None = Field(default=None, description="Of origin, without user and password.")
    dirty: bool = Field(description="Whether anything differs from the commit.")
    diff: str | None = Field(default=None, description="To the commit; at most 256 KiB.")
    diff_cut: bool | None = Field(default=None, description="The diff is longer than what is kept.")
    untracked: list[str] | None = Field(default=None, description="Names of the first 200 files git knows nothing of.")
    untracked_more: int | None = None


class Snapshot(Frozen):
    """What is kept of one job's code."""

    kind: Literal["git", "copy"]
    sha256: str
    size: int | None = Field(default=None, description="Bytes; nothing where it is kept no more.")
    git: GitState | None = None

    def without_diff(self) -> Snapshot:
        return self.model_copy(update={"git": self.git and self.git.model_copy(update={"diff": None})})


class SnapshotKept(Frozen):
    """A snapshot lies there, whole and checked."""

    sha256: str
    size: int
