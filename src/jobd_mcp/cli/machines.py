"""Workers and what their machines have, as people read it: a line for each worker, and one for each of its devices."""

from __future__ import annotations

from jobd_mcp.cli.columns import Column
from jobd_mcp.cli.rendering import ago, duration, reason, table, text
from jobd_mcp.schemas import Json, Schema, as_list, as_object


def workers(answer: Json) -> list[str]:
    known = [as_object(entry) for entry in as_list(as_object(answer).get("workers"))]
    if not known:
        return ["No workers. Start one here with job up, or elsewhere with job worker --join URL."]
    rows = [
        [
            text(worker.get("name")),
            text(worker.get("state")),
            text(worker.get("host")),
            "{}/{}".format(*(text(as_object(worker.get("slots")).get(part)) for part in ("used", "total"))),
            ram(worker),
            gpus(worker),
            f"{duration(worker.get('last_seen_s'))} ago",
            text(worker.get("version")),
            " ".join(text(tag) for tag in as_list(worker.get("tags"))),
            " ".join(text(entry) for entry in as_list(worker.get("running"))),
        ]
        for worker in known
    ]
    tags, running = Column("TAGS", is_open=True), Column("RUNNING", is_open=True)
    lines = table(["NAME", "STATE", "HOST", "SLOTS", "RAM", "GPUS", "SEEN", "VERSION", tags, running], rows)
    return lines + [line for worker in known for line in details(worker)]


def ram(worker: Schema) -> str:
    """Available and total, in GiB: `41/64`."""
    known = as_object(worker.get("ram_gb"))
    return f"{number(known.get('available')):.0f}/{number(known.get('total')):.0f}" if known else ""


def gpus(worker: Schema) -> str:
    """How many, and free and total memory of all that can be used: `2: 21/104`. Those in trouble are counted apart."""
    devices = [as_object(entry) for entry in as_list(worker.get("gpus"))]
    if not devices:
        return "?" if worker.get("gpus_why") == "not looked at yet" else "-" if "gpus_why" in worker else ""
    good = [device for device in devices if device.get("health") == "ok" and not device.get("ignored")]
    memory = [as_object(device.get("vram_gb")) for device in good]
    free = sum(number(entry.get("free")) for entry in memory)
    total = sum(number(entry.get("total")) for entry in memory)
    shown = f"{len(good)}: {free:.0f}/{total:.0f}" if total else str(len(good))
    return shown + (f" (+{len(devices) - len(good)} not usable)" if len(good) < len(devices) else "")


def details(worker: Schema) -> list[str]:
    """A line for each device, one where there is none but could be, and one where the broker takes it for unfit."""
    devices = [as_object(entry) for entry in as_list(worker.get("gpus"))]
    name = text(worker.get("name"))
    lines = [f"{name} GPU {_device(device)}" for device in devices]
    if worker.get("cordon_reason"):
        lines.insert(0, f"{name} was cordoned by the broker: {reason(worker.get('cordon_reason'))}")
    why = text(worker.get("gpus_why"))
    return lines or ([f"{text(worker.get('name'))}: {why}"] if why and not why.startswith("no NVIDIA driver") else [])


def _device(device: Schema) -> str:
    memory = as_object(device.get("vram_gb"))
    parts = [
        f"{text(device.get('index'))}: {text(device.get('model')) or 'unknown model'}",
        f"{number(memory.get('free')):g}/{number(memory.get('total')):g} GiB free" if "free" in memory else "",
        f"{number(memory.get('reserved')):g} reserved" if "reserved" in memory else "",
        "unified memory" if device.get("unified") else "",
        f"{text(device.get('utilisation'))} % busy" if device.get("utilisation") is not None else "",
        "" if device.get("health") == "ok" else text(device.get("health")),
        text(device.get("why")),
        f"noticed {ago(as_object(device.get('held')).get('since'))}" if device.get("held") else "",
        f"it is {text(device.get('ignored'))}'s" if device.get("ignored") else "",
        f"jobs {' '.join(map(text, as_list(device.get('jobs'))))}" if device.get("jobs") else "",
        "for itself" if device.get("exclusive") else "",
        _foreign([as_object(entry) for entry in as_list(device.get("foreign"))]),
        text(device.get("uuid")),
    ]
    return ", ".join(part for part in parts if part)


def _foreign(processes: list[Schema]) -> str:
    told = [
        f"{text(process.get('name')) or 'unseen'} ({text(process.get('user')) or '?'}, pid {text(process.get('pid'))}"
        f"{_gib(process.get('gb'))})"
        for process in processes
    ]
    return f"foreign: {' '.join(told)}" if told else ""


def number(value: Json) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _gib(size: Json) -> str:
    return f", {number(size):g} GiB" if size is not None else ""
