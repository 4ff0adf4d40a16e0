"""Why a queued job does not run: each worker with all that is short there, and the cheapest change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from broker.core.matching import Machine, Shape, reasons
from broker.wire.jobs import Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one worker has against a job. No reasons: it would take it."""

    worker: str
    reasons: tuple[Reason, ...]


def verdicts(
    shape: Shape, machines: Sequence[Machine], refused: Mapping[str, Reason], kept: Mapping[str, Reason] | None = None
) -> list[Verdict]:
    """All workers, the one that is nearest to taking the job first. `refused`: worker → why it said no to this place;
    `kept`: worker → for whom its room is kept."""
    found = []
    for machine in machines:
        why = reasons(shape, machine)
        why += [refused[machine.name]] if machine.name in refused else []
        why += [kept[machine.name]] if not why and kept and machine.name in kept else []
        found.append(Verdict(machine.name, tuple(why)))
    return sorted(found, key=lambda verdict: (_cost(verdict), verdict.worker))


def _cost(verdict: Verdict) -> int:
    return sum(KNOWN.get(reason.code, _A_REFUSAL).cost for reason in verdict.reasons)


def suggestion(shape: Shape, found: Sequence[Verdict]) -> str:
    """The cheapest change after which a worker would take the job. `found`: sorted, as `verdicts` gives them."""
    if not found:
        return "start a worker: job up on this machine, or job worker --join URL on another"
    nearest = found[0]
    if not nearest.reasons:
        return f"nothing: {nearest.worker} takes it in its turn"
    if shape.worker is not None and all(_is_pinned_elsewhere(verdict) for verdict in found):
        return (
            f"no worker is called {shape.worker}: leave worker out, or start one with JOBD_WORKER_NAME={shape.worker}"
        )
    return "; ".join(dict.fromkeys(change(reason, shape, nearest.worker) for reason in nearest.reasons))


def _is_pinned_elsewhere(verdict: Verdict) -> bool:
    return any(reason.code == "worker" for reason in verdict.reasons)


def change(reason: Reason, shape: Shape, worker: str) -> str:
    """What would be rid of one reason, in words. A code that `KNOWN` has not is a worker's refusal."""
    return KNOWN.get(reason.code, _A_REFUSAL).change(reason, shape, worker)


Change = Callable[[Reason, Shape, str], str]


@dataclass(frozen=True, slots=True)
class _Known:
    """`cost`: of being rid of it, from waiting a while to another kind of machine."""

    cost: int
    change: Change


def _less(reason: Reason) -> str | None:
    return f"{reason.have:g}" if reason.have else None


def _wait_or_ask(field: str) -> Change:
    def said(reason: Reason, _: Shape, worker: str) -> str:
        less = f", or ask for {field}={_less(reason)}" if reason.have else ""
        return f"wait: {worker} takes it when a job there ends{less}"

    return said


def _ask(field: str, otherwise: str) -> Change:
    """Ask for what there is; `otherwise`: there is nothing, or nobody says how much."""
    return lambda reason, _, worker: f"ask for {field}={_less(reason)}" if reason.have else otherwise.format(worker)


def _always(text: str) -> Change:
    return lambda _, shape, worker: text.format(worker=worker, shape=shape)


def _devices_busy(reason: Reason, shape: Shape, worker: str) -> str:
    field = "vram_gb" if shape.demand.vram_mb is not None and shape.demand.gpus == 1 else "gpus"
    fewer = f", or ask for {field}={_less(reason)}" if reason.have else ""
    return f"wait until the devices of {worker} are free, or free them{fewer}"


def _closed(reason: Reason, _: Shape, worker: str) -> str:
    if reason.message == f"{worker} is outdated":
        return f"install this broker's version on {worker}, and start its worker again"
    if reason.message == f"{worker} is not polling":
        return f"start the worker of {worker} again, or see what lies between: it is heard, and asks for no work"
    return (
        f"wait for {worker}: it is paused"
        if reason.message == f"{worker} is paused"
        else f"job workers resume {worker}"
    )


def _too_few_resources(reason: Reason, _: Shape, worker: str) -> str:
    return f"set JOBD_WORKER_RESOURCES on {worker}" + (f", or ask for {_less(reason)}" if reason.have else "")


def _refused(reason: Reason, _: Shape, worker: str) -> str:
    what = reason.code.partition("_")[0]
    if what in ("cwd", "venv", "conda"):
        return f"mend that on {worker}, or name another {what}"
    return f"{worker} said no for now, and is asked again: {reason.message}"


# Every code that `matching` and `placement` give, and what would help. A new code gets its line here.
KNOWN: Mapping[str, _Known] = {
    "busy": _Known(1, _wait_or_ask("cpus")),
    "ram_busy": _Known(1, _wait_or_ask("ram_gb")),
    "resources_busy": _Known(1, _always("wait: {worker} takes it when a job that has one of them ends")),
    "gpus_busy": _Known(2, _devices_busy),
    "reservation": _Known(
        2, _always("wait: that job comes first; a max_wall_s that ends before it starts lets this one pass")
    ),
    "preferred_worker": _Known(2, _always("wait: {worker} takes it when that worker has not for a while")),
    "closed": _Known(3, _closed),
    "offline": _Known(5, _always("bring {worker} back: start its worker again")),
    "gpus_unusable": _Known(6, _always("mend the devices of {worker}: job workers says what is wrong")),
    "vram": _Known(7, _ask("vram_gb", "leave vram_gb out")),
    "ram": _Known(7, _ask("ram_gb", "leave ram_gb out: {} does not say what it has")),
    "cpus": _Known(7, _ask("cpus", "start a worker with more slots")),
    "resources": _Known(8, _too_few_resources),
    "gpus": _Known(8, _ask("gpus", "start a worker on a machine with GPUs")),
    "tags": _Known(8, _always("leave the tags out, or give them: job workers update {worker} --tags …")),
    "worker": _Known(9, _always("leave worker={shape.worker} out")),
    "os": _Known(20, _always("leave os out, or start a worker on such a machine")),
    "arch": _Known(20, _always("leave arch out, or start a worker on such a machine")),
}
_A_REFUSAL = _Known(6, _refused)
