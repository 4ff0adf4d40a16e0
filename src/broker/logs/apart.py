"""Code of this program for an interpreter of its own, held in memory.

Such a process is started long after this one, and by then an upgrade or a cleaned cache may have taken away the
directory that this one was loaded from, with the interpreter in it.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys
from collections.abc import Sequence

# Reads `held_code` from stdin, then calls the function that is named; what follows on stdin is the function's own.
_BEGINNING = """
import marshal, sys
from importlib.machinery import ModuleSpec
held = marshal.load(sys.stdin.buffer)
class Held:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, Held, is_package=held[name][0]) if name in held else None
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        exec(held[module.__name__][1], module.__dict__)
sys.meta_path.insert(0, Held)
from {module} import {function}
{function}()
"""


def held_code(modules: Sequence[str]) -> bytes:
    """The compiled code of these modules, and of the packages that they are in: what `command` reads first."""
    packages = {".".join(name.split(".")[:depth]) for name in modules for depth in range(1, name.count(".") + 1)}
    return marshal.dumps({name: _found(name) for name in sorted(packages | set(modules))})


def command(module: str, function: str) -> list[str]:
    """The command line of an interpreter that calls `function`. It has the standard library, and what is held."""
    # Not the virtual environment's link; and of the same version, as compiled code must have it.
    interpreter = getattr(sys, "_base_executable", None) or sys.executable
    return [interpreter, "-I", "-S", "-c", _BEGINNING.format(module=module, function=function)]


def _found(name: str) -> tuple[bool, object]:
    """Whether the module is a package, and its code."""
    spec = importlib.util.find_spec(name)
    get_code = getattr(spec.loader, "get_code", None) if spec is not None else None
    if spec is None or get_code is None:
        raise ImportError(f"the code of {name} is not to be had")
    return spec.submodule_search_locations is not None, get_code(name)
