"""Tags that a machine has by itself: which programs its jobs would find. Found by looking, never by running one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

PROGRAMS = {
    "apptainer": ("apptainer", "singularity"),
    "bash": ("bash",),
    "cmake": ("cmake",),
    "conda": ("conda", "mamba", "micromamba"),
    "cuda": ("nvcc",),
    "docker": ("docker",),
    "ffmpeg": ("ffmpeg",),
    "gcc": ("gcc",),
    "git": ("git",),
    "java": ("java",),
    "julia": ("julia",),
    "latex": ("pdflatex",),
    "make": ("make",),
    "matlab": ("matlab",),
    "node": ("node",),
    "podman": ("podman",),
    "python": ("python3", "python"),
    "R": ("Rscript", "R"),
    "rsync": ("rsync",),
    "rust": ("cargo",),
    "slurm": ("sbatch",),
    "uv": ("uv",),
}
"""Tag → programs, of which one must be there."""

_VERSIONED = re.compile(r"python3\.\d+")
_CUDA = re.compile(r"cuda-(\d+)(?:\.\d+)?")


def found(path: str) -> set[str]:
    """Tags by the directories of `path`, a PATH as jobs have it."""
    directories = [Path(part) for part in path.split(os.pathsep) if part.startswith("/")]
    tags = {tag for tag, programs in PROGRAMS.items() if any(_which(name, directories) for name in programs)}
    for directory in directories:
        tags |= {name for name in _names(directory) if _VERSIONED.fullmatch(name) and _is_program(directory / name)}
    compiler = _which("nvcc", directories)
    return tags | (_cuda_versions(compiler) if compiler else set())


def effective(found_tags: Iterable[str], settings: Sequence[str]) -> list[str]:
    """What the worker shows: `settings` win. A tag there is added, one with a minus before it is taken away."""
    away = {tag[1:] for tag in settings if tag.startswith("-")}
    added = {tag for tag in settings if not tag.startswith("-")}
    return sorted((set(found_tags) - away) | added)


def _cuda_versions(compiler: Path) -> set[str]:
    """/usr/local/cuda-13.0/bin/nvcc, whatever links lead there, is cuda-13."""
    try:
        real = os.path.realpath(compiler)
    except OSError:
        return set()
    return {f"cuda-{match[1]}" for part in Path(real).parts if (match := _CUDA.fullmatch(part))}


def _which(name: str, directories: Sequence[Path]) -> Path | None:
    return next((directory / name for directory in directories if _is_program(directory / name)), None)


def _is_program(path: Path) -> bool:
    try:
        return path.is_file() and os.access(path, os.X_OK)
    except OSError:
        return False


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
