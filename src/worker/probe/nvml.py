"""Reads the devices of one machine through nvidia-ml-py. Each device and each call fails by itself.

Runs in the probe's child only: a call into the driver may never come back.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from worker.probe.snapshot import Device, Snapshot, Use, blank, clean, nothing

T = TypeVar("T")

LIBRARY = "libnvidia-ml.so.1"
MOST_DEVICES = 256
_UNSUPPORTED, _NO_PERMISSION, _NOT_FOUND, _NOT_LOADED, _TOO_SMALL, _NO_FUNCTION, _LOST, _RESET, _MISMATCH = (
    3,
    4,
    6,
    9,
    7,
    13,
    15,
    16,
    18,
)


class Gone(Exception):
    """The driver as a whole does not answer; its words."""


class Nvml:
    """An open NVML. `snapshot()` again and again; after it raised `Gone` the process is of no more use."""

    def __init__(self, library: Any) -> None:
        self._nvml = library
        self._stale = False

    def snapshot(self) -> Snapshot:
        """All devices. Raises Gone."""
        if self._stale:  # a device was lost: only a fresh start says what is there now
            self._stale = False
            self._must(self._nvml.nvmlShutdown)
            self._must(self._nvml.nvmlInit)
        count = self._must(self._nvml.nvmlDeviceGetCount)
        if count > MOST_DEVICES:
            raise Gone(f"it says that it has {count} devices")
        devices = [device for index in range(count) for device in self._devices_at(index)]
        self._stale = any(device["lost"] for device in devices)
        if count == 0:
            return nothing("absent", "the NVIDIA driver is loaded, and has no device")
        return {
            "state": "ok",
            "why": None,
            "driver": self._optional(self._nvml.nvmlSystemGetDriverVersion),
            "cuda": self._cuda(),
            "devices": devices,
            "processes": {},
        }

    def _must(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise Gone(said(error)) from None

    def _optional(self, call: Callable[[], str]) -> str | None:
        try:
            return clean(call())
        except Exception:
            return None

    def _cuda(self) -> str | None:
        try:
            number = int(self._nvml.nvmlSystemGetCudaDriverVersion_v2())
        except Exception:
            return None
        return f"{number // 1000}.{number % 1000 // 10}"

    def _devices_at(self, index: int) -> list[Device]:
        """The card, or its MIG instances where it has some."""
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        except Exception as error:
            return [_unreadable(index, error)]
        card = _Reader(self._nvml, index, handle).read()
        if not card["partitioned"]:
            return [card]
        try:
            most = self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except Exception as error:
            card["faults"]["instances"] = said(error)
            return [card]
        instances = []
        for number in range(most):
            try:
                instance = self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except Exception as error:
                if code_of(error) != _NOT_FOUND:
                    card["faults"]["instances"] = said(error)
                continue
            device = _Reader(self._nvml, index, instance).read(instance=True)
            device["parent"] = card["uuid"]
            device["lost"] = device["lost"] or card["lost"]
            device["unhealthy"] = device["unhealthy"] or card["unhealthy"]
            instances.append(device)
        return instances or [card]


class _Reader:
    """One device, call by call: what fails is noted, and the next is asked."""

    def __init__(self, library: Any, index: int, handle: Any) -> None:
        self._nvml, self._handle = library, handle
        self._device = blank(index)

    def read(self, *, instance: bool = False) -> Device:
        nvml, device = self._nvml, self._device
        device["uuid"] = self._text("uuid", nvml.nvmlDeviceGetUUID)
        device["model"] = self._text("model", nvml.nvmlDeviceGetName)
        if not instance:
            mode = self._ask("mig", nvml.nvmlDeviceGetMigMode, silent=(_UNSUPPORTED, _NO_FUNCTION))
            device["partitioned"] = bool(mode and mode[0])
            self._look_at_rows()
        if not device["partitioned"]:
            self._read_memory()
            device["uses"] = self._uses()
        rates = self._ask("utilisation", nvml.nvmlDeviceGetUtilizationRates, silent=(_UNSUPPORTED, _NO_PERMISSION))
        device["utilisation"] = int(rates.gpu) if rates is not None and 0 <= rates.gpu <= 100 else None
        return device

    def _read_memory(self) -> None:
        nvml, device = self._nvml, self._device
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(self._handle, version=nvml.nvmlMemory_v2)
            device["driver"] = int(memory.reserved)
        except Exception:
            memory = self._ask("memory", nvml.nvmlDeviceGetMemoryInfo, silent=(_UNSUPPORTED,))
            device["unified"] = memory is None and "memory" not in device["faults"]
        if memory is not None:
            device["total"], device["free"] = int(memory.total), int(memory.free)

    def _uses(self) -> list[Use] | None:
        """Processes that compute and those that draw. One that does both is in both lists, with the same memory."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            processes = self._processes(kind)
            if processes is None and kind == "Compute":
                return None
            for process in processes or ():
                memory = process.usedGpuMemory
                known = found.get(process.pid)
                found[process.pid] = memory if known is None else max(known, memory or 0)
        return [{"pid": pid, "bytes": memory} for pid, memory in sorted(found.items())]

    def _processes(self, kind: str) -> list[Any] | None:
        """By the newest call that this driver has."""
        what = "processes" if kind == "Compute" else "graphics"
        for version in ("v3", "v2"):
            call = getattr(self._nvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}")
            failure = None
            for _ in range(2):  # more of them than a moment ago: once again
                try:
                    return list(call(self._handle))
                except Exception as error:
                    failure = error
                if code_of(failure) != _TOO_SMALL:
                    break
            if failure is not None and (version == "v2" or code_of(failure) != _NO_FUNCTION):
                self._note(what, failure)
                break
        return None

    def _look_at_rows(self) -> None:
        """Memory that wore out, and could not be replaced by spare rows."""
        rows = self._ask("rows", self._nvml.nvmlDeviceGetRemappedRows, silent=None)
        if rows is not None and rows[3]:
            self._device["unhealthy"] = "its memory has rows that failed and could not be remapped"

    def _text(self, what: str, call: Callable[[Any], str]) -> str | None:
        answer = self._ask(what, call)
        return clean(answer) if answer else None

    def _ask(self, what: str, call: Callable[[Any], T], silent: tuple[int, ...] | None = ()) -> T | None:
        """The answer; None with a note of the fault, or without one for `silent` codes (None: all but those of health)."""
        try:
            return call(self._handle)
        except Exception as error:
            self._note(what, error, silent)
            return None

    def _note(self, what: str, error: Exception, silent: tuple[int, ...] | None = ()) -> None:
        code = code_of(error)
        self._device["lost"] |= code == _LOST
        if code == _RESET:
            self._device["unhealthy"] = said(error)
        if silent is not None and code not in silent:
            self._device["faults"][what] = said(error)


def open_nvml() -> Nvml | Snapshot:
    """An open NVML, or why there is none. nvidia-ml-py is imported only where there is a library to talk to."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError as error:
        if "cannot open shared object file" in str(error):
            return nothing("absent", f"no NVIDIA driver: {LIBRARY} is not on this machine")
        return nothing("failed", f"{LIBRARY} can't be loaded: {clean(str(error))}")
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return nothing(
            "failed", "there is an NVIDIA driver library, but nvidia-ml-py is not installed: install jobd-mcp[gpu]"
        )
    try:
        library.nvmlInit()
    except Exception as error:
        if code_of(error) == _NOT_LOADED:
            return nothing("absent", f"{LIBRARY} is here, but the NVIDIA driver is not loaded")
        hint = "; restart the machine, or reload the driver" if code_of(error) == _MISMATCH else ""
        return nothing("failed", f"the NVIDIA driver does not start: {said(error)}{hint}")
    return Nvml(library)


def said(error: Exception) -> str:
    """The driver's own words for it, with its number."""
    code = code_of(error)
    text = clean(str(error)) or type(error).__name__
    return text if code is None else f"{text} (NVML {code})"


def code_of(error: Exception) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _unreadable(index: int, error: Exception) -> Device:
    device = blank(index)
    device["lost"] = code_of(error) == _LOST
    device["faults"]["device"] = said(error)
    return device
