"""Why a queued job does not run: each worker with all that is short there, and the cheapest change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker.core.matching import Machine, Shape, reasons
from broker.wire.jobs import Reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one worker has against a job. No reasons: it would take it."""

    worker: str
    reasons: tuple[Reason, ...]


# What it costs to be rid of a reason, from waiting a while to another kind of machine; what is not here is a refusal.
_COST = {
    "busy": 1,
    "ram_busy": 1,
    "resources_busy": 1,
    "gpus_busy": 2,
    "reservation": 2,
    "closed": 3,
    "offline": 5,
    "gpus_unusable": 6,
    "vram": 7,
    "ram": 7,
    "cpus": 7,
    "resources": 8,
    "gpus": 8,
    "tags": 8,
    "worker": 9,
    "os": 20,
    "arch": 20,
}
_REFUSED_COST = 6


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
    return sum(_COST.get(reason.code, _REFUSED_COST) for reason in verdict.reasons)


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
    return "; ".join(dict.fromkeys(_change(reason, shape, nearest.worker) for reason in nearest.reasons))


def _is_pinned_elsewhere(verdict: Verdict) -> bool:
    return any(reason.code == "worker" for reason in verdict.reasons)


def _change(reason: Reason, shape: Shape, worker: str) -> str:
    less = f"{reason.have:g}" if reason.have else None
    match reason.code:
        case "busy":
            return f"wait: {worker} takes it when a job there ends" + (f", or ask for cpus={less}" if less else "")
        case "ram_busy":
            return f"wait: {worker} takes it when a job there ends" + (f", or ask for ram_gb={less}" if less else "")
        case "resources_busy":
            return f"wait: {worker} takes it when a job that has one of them ends"
        case "gpus_busy":
            field = "vram_gb" if shape.demand.vram_mb is not None and shape.demand.gpus == 1 else "gpus"
            fewer = f", or ask for {field}={less}" if less else ""
            return f"wait until the devices of {worker} are free, or free them{fewer}"
        case "reservation":
            return "wait: that job comes first; a max_wall_s that ends before it starts lets this one pass"
        case "gpus_unusable":
            return f"mend the devices of {worker}: job workers says what is wrong"
        case "closed":
            return (
                f"job workers resume {worker}" if "paused" not in reason.message else f"wait for {worker}: it is paused"
            )
        case "offline":
            return f"bring {worker} back: start its worker again"
        case "vram":
            return f"ask for vram_gb={less}" if less else "leave vram_gb out"
        case "ram":
            return f"ask for ram_gb={less}" if less else f"leave ram_gb out: {worker} does not say what it has"
        case "cpus":
            return f"ask for cpus={less}"
        case "gpus":
            return f"ask for gpus={less}" if less else "start a worker on a machine with GPUs"
        case "resources":
            return f"set JOBD_WORKER_RESOURCES on {worker}" + (f", or ask for {less}" if less else "")
        case "tags":
            return f"leave the tags out, or give them: job workers update {worker} --tags …"
        case "worker":
            return f"leave worker={shape.worker} out"
        case "os" | "arch":
            return f"leave {reason.code} out, or start a worker on such a machine"
        case code if code.startswith(("cwd_", "venv_", "conda_")):
            return f"mend that on {worker}, or name another {code.partition('_')[0]}"
        case _:
            return f"{worker} said no for now, and is asked again: {reason.message}"
