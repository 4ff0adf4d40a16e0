"""What the library in place of the driver says: a file, replaced whole, so that no call sees half of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Hardware:
    directory: Path
    file: Path

    def is_now(self, text: str) -> None:
        draft = self.file.with_suffix(".new")
        draft.write_text("".join(f"{line.strip()}\n" for line in text.strip().splitlines()))
        draft.rename(self.file)

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.directory), "NVML_STUB": str(self.file)}

    @property
    def words(self) -> list[str]:
        """To be put before a command that is to have it."""
        return ["env", *(f"{name}={value}" for name, value in self.environ.items())]
