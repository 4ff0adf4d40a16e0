"""Answers as people read them. Programs take --json instead, which is never touched."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from jobd_mcp.cli import cells
from jobd_mcp.cli.colours import OF_STATE, has_blocks
from jobd_mcp.cli.columns import Column, laid_out
from jobd_mcp.schemas import Json, Schema, as_list, as_object

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


_LONGEST_USUAL_EVENT = 18
_BAR = 10


def text(value: Json) -> str:
    """A value on one line. What a job named itself can't move the cursor or change colours."""
    if value is None:
        return ""
    shown = value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
    return _CONTROL.sub(" ", shown)


def how_far(job: Schema, *, plain: bool) -> str:
    """How far a job is, in its own words: a bar, the percentage, and its message. Empty if it has said nothing."""
    known = as_object(job.get("progress"))
    fraction = known.get("fraction")
    if not isinstance(fraction, int | float):
        return ""
    drawn = bar(fraction, 1.0, _BAR, plain=plain)
    return f"{drawn} {int(fraction * 100 + 1e-9)} % {text(known.get('message'))}".rstrip()


def bar(used: float, total: float, length: int, *, plain: bool) -> str:
    """`length` cells, as many of them full as `used` is of `total`; something and all are told from nearly so."""
    share = min(1.0, max(0.0, used / total)) if total > 0 else 0.0
    full = round(share * length)
    full = max(full, 1) if share > 0 else full
    full = min(full, length - 1) if share < 1 else full
    on, off = ("#", ".") if plain else ("█", "░")
    return on * full + off * (length - full)


def duration(seconds: Json) -> str:
    if not isinstance(seconds, int | float):
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def ago(instant: Json, now: datetime | None = None) -> str:
    """How long ago an RFC 3339 time was."""
    if not isinstance(instant, str):
        return ""
    passed = ((now or datetime.now(UTC)) - datetime.fromisoformat(instant)).total_seconds()
    return f"{duration(max(0.0, passed))} ago"


def size(bytes_: Json) -> str:
    if not isinstance(bytes_, int | float):
        return ""
    value = float(bytes_)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def megabytes(value: Json) -> str:
    return size(value * (1 << 20)) if isinstance(value, int | float) else ""


def table(head: Sequence[str | Column], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they need; into a terminal's line the open ones are cut. States are coloured."""
    columns = [Column(name) if isinstance(name, str) else name for name in head]
    room = cells.line_width(sys.stdout, os.environ)
    lines = [line if room is None else cells.cut(line, room) for line in laid_out(columns, rows, room)]
    colours = [next((OF_STATE[cell] for cell in row if cell in OF_STATE), None) for row in rows]
    return [click.style(lines[0], bold=True)] + [
        click.style(line, fg=colour) if colour else line for line, colour in zip(lines[1:], colours, strict=True)
    ]


def _open(head: str) -> Column:
    return Column(head, is_open=True)


def reason(entry: Json) -> str:
    return text(as_object(entry).get("message")) or text(as_object(entry).get("code"))


def what(job: Schema) -> str:
    """What a job is, by its name or its command; a lease says that it is one."""
    shown = text(job.get("name")) or text(job.get("command"))
    return f"lease: {shown}" if job.get("kind") == "lease" else shown


def job_line(job: Schema) -> str:
    """One job in one line: `job 42 failed: exit code 3 (1.2 s)`."""
    why = reason(job.get("reason")) or reason(job.get("waiting"))
    took = duration(job.get("duration_s"))
    stopping = as_object(job.get("stopping"))
    line = f"{text(job.get('kind')) or 'job'} {text(job.get('id'))} {text(job.get('state'))}"
    if stopping:
        line += f", being stopped by {text(stopping.get('by'))} ({text(stopping.get('why'))})"
    return line + (f": {why}" if why else "") + (f" ({took})" if took else "")


def explained(answer: Json) -> list[str]:
    """Why a job waits: the short of it, then a line for each thing that a worker lacks, then when, and what to do."""
    known = as_object(answer)
    return [click.style(job_line(known), bold=True), *_placed(known), *_when(known), *_to_do(known)]


def previewed(answer: Json) -> list[str]:
    """What a submit would say: what is wrong; else its values, how workers stand to it, and when it starts."""
    known = as_object(answer)
    errors = [as_object(entry) for entry in as_list(known.get("errors"))]
    lines = [click.style("would be refused" if errors else "would be accepted", bold=True)]
    for error in errors:
        where = f"{text(error.get('field'))}: " if error.get("field") else ""
        lines.append(
            f"{where}{text(error.get('message'))}" + (f" ({text(error['hint'])})" if error.get("hint") else "")
        )
    lines += [text(warning) for warning in as_list(known.get("warnings"))]
    if known.get("waiting"):
        lines.append(f"it would wait: {reason(known.get('waiting'))}")
    lines += [*_placed(known), *_preempted(known), *_when(known), *_to_do(known)]
    sources = as_object(known.get("sources"))
    values = as_object(known.get("spec")).items()
    return lines + [_spec_line(name, value, text(sources.get(name))) for name, value in values]


def stats(answer: Json) -> list[str]:
    """What commands used, and asked for; and what would do."""
    commands = [as_object(entry) for entry in as_list(as_object(answer).get("commands"))]
    if not commands:
        return ["nothing has ended yet"]
    return [line for known in commands for line in _stats_of(known)]


def _stats_of(known: Schema) -> list[str]:
    whose = "with other values too, " if known.get("values_differ") else ""
    asked = as_object(known.get("asked"))
    used = [
        f"{name} {text(value)}"
        for name in ("rss_gb", "vram_gb", "cpus", "gpu")
        if (value := known.get(name)) is not None
    ]
    lines = [
        click.style(text(known.get("fingerprint")), bold=True) + f"  {text(known.get('command'))}",
        f"  {whose}{text(known.get('runs'))} completed, {text(known.get('failed'))} failed",
    ]
    if known.get("median_run_s") is not None:
        median, worst = duration(known.get("median_run_s")), duration(known.get("worst_run_s"))
        lines.append(f"  runs for {median} (median), {worst} at most")
    if used:
        lines.append(f"  used at most: {', '.join(used)}")
    if asked:
        lines.append(f"  asks: {', '.join(f'{name} {text(value)}' for name, value in asked.items())}")
    lines += [f"  {text(said)}" for said in as_list(known.get("suggestions"))]
    return [*lines, f"  {text(known.get('note'))}"] if known.get("note") else lines


def _placed(known: Schema) -> list[str]:
    lines = []
    for entry in (as_object(entry) for entry in as_list(known.get("placement"))):
        whys = [reason(why) for why in as_list(entry.get("reasons"))]
        lines += [f"{text(entry.get('worker'))}: {why}" for why in whys or ["fits"]]
    if known.get("more_workers"):
        lines.append(f"{text(known.get('more_workers'))} more workers don't fit")
    return lines + _ahead(as_object(known.get("ahead")))


def _ahead(known: Schema) -> list[str]:
    least = "at least " if known.get("at_least") else ""
    return [f"ahead: {least}{text(known.get('jobs'))} jobs: {text(known.get('because'))}"] if known else []


def _preempted(known: Schema) -> list[str]:
    stopped = [as_object(entry) for entry in as_list(known.get("would_preempt"))]
    return [
        f"job {text(one.get('id'))} on {text(one.get('worker'))}, of priority {text(one.get('priority'))}, would be stopped for it"
        for one in stopped
    ]


def _when(known: Schema) -> list[str]:
    """The estimates, and what they rest on."""
    names = (("starts in", "start_estimate_s"), ("runs for", "run_estimate_s"))
    said = [f"{what} about {duration(known[name])}" for what, name in names if known.get(name) is not None]
    basis = text(known.get("basis"))
    if not said and not basis:
        return []
    return [f"{', '.join(said) or 'no estimate'}" + (f" ({basis})" if basis else "")]


def _to_do(known: Schema) -> list[str]:
    return [f"to start it: {text(known.get('suggestion'))}"] if known.get("suggestion") else []


def job_list(answer: Json) -> list[str]:
    listing = as_object(answer)
    jobs = [as_object(entry) for entry in as_list(listing.get("jobs"))]
    if not jobs:
        return ["No jobs."]
    rows = [
        [
            text(job.get("ids") or job.get("id")),
            text(job.get("state")) + (" (stopping)" if job.get("stopping") else ""),
            text(job.get("worker")),
            duration(job.get("duration_s")),
            ago(job.get("created_at")),
            what(job),
            reason(job.get("reason") or job.get("waiting")) or per_state(job.get("counts")) or _how_far(job),
        ]
        for job in jobs
    ]
    lines = table([Column("ID", right=True), "STATE", "WORKER", "TOOK", "SUBMITTED", _open("WHAT"), _open("WHY")], rows)
    counts = per_state(listing.get("counts"))
    shown = f"{len(jobs)} of {text(listing.get('total'))}" if listing.get("total") != len(jobs) else str(len(jobs))
    lines.append(f"{shown} shown" + (f"; {counts}" if counts else ""))
    if listing.get("next_cursor"):
        lines.append(f"more: --cursor {text(listing.get('next_cursor'))}")
    return lines


def _how_far(job: Schema) -> str:
    return how_far(job, plain=not has_blocks(sys.stdout)) if job.get("state") == "running" else ""


def per_state(counts: Json) -> str:
    """How many are in each state: `3 running, 7 completed`."""
    return ", ".join(f"{text(count)} {state}" for state, count in as_object(counts).items() if count)


def job(answer: Json) -> list[str]:
    """How one job stands and why in one line; then all that is known of it, a line each, and its deliveries."""
    known = as_object(answer)
    lines = [click.style(job_line(known), bold=True)]
    for name, value in known.items():
        if name in ("assignments", "spec", "sources", "id"):
            continue
        lines.append(f"{name:<12} {_shown(name, value)}")
    spec = as_object(known.get("spec"))
    if spec:
        lines.append("spec")
        sources = as_object(known.get("sources"))
        lines += [_spec_line(name, value, text(sources.get(name))) for name, value in spec.items()]
    deliveries = [as_object(entry) for entry in as_list(known.get("assignments"))]
    if deliveries:
        rows = [
            [
                text(entry.get("assignment")),
                text(entry.get("state")),
                text(entry.get("worker")),
                text(entry.get("exit_code")) or text(entry.get("signal")),
                reason(entry.get("reason")),
            ]
            for entry in deliveries
        ]
        lines += table(["ASSIGNMENT", "STATE", "WORKER", "EXIT", _open("WHY")], rows)
    return lines + [line for delivery in deliveries for line in _used(delivery)]


def _used(delivery: Schema) -> list[str]:
    """What a delivery has used, and how old its last safe checkpoint is."""
    peak = as_object(delivery.get("peak"))
    parts = [
        f"memory {megabytes(peak.get('rss_mb'))}" if "rss_mb" in peak else "",
        f"GPU memory {megabytes(peak.get('vram_mb'))}" if "vram_mb" in peak else "",
        f"processor {duration(peak.get('cpu_s'))}" if "cpu_s" in peak else "",
        f"GPUs {text(peak.get('gpu'))} % busy" if "gpu" in peak else "",
        f"checkpoint {ago(delivery.get('checkpoint_at'))}" if delivery.get("checkpoint_at") else "",
    ]
    told = ", ".join(part for part in parts if part)
    return [f"{text(delivery.get('assignment'))} used: {told}"] if told else []


def _spec_line(name: str, value: Json, source: str) -> str:
    """Whose word a value is, where it is not the job's own."""
    line = f"  {name:<22} {text(value)}"
    return f"{line}  ({source})" if source not in ("", "job") else line


def _when_of(eta: Schema) -> list[str]:
    names = (("starts in", "start_s"), ("runs for", "run_s"), ("left", "left_s"))
    said = [f"{what} {duration(eta[name])}" for what, name in names if eta.get(name) is not None]
    return [*said, text(eta.get("basis"))]


def artifacts(answer: Json) -> list[str]:
    """The files that a job left, and whether more are to come."""
    known = as_object(answer)
    files = [as_object(entry) for entry in as_list(known.get("artifacts"))]
    rows = [[size(file.get("size")), text(file.get("sha256"))[:12], text(file.get("name"))] for file in files]
    lines = table([Column("SIZE", right=True), "SHA256", Column("NAME")], rows) if rows else []
    expected = known.get("expected")
    if isinstance(expected, int) and len(files) < expected:
        return [*lines, f"{len(files)} of {expected} are here; the others are on their way"]
    if known.get("complete") is not True:
        return [*lines, "They come after the end of the job."]
    return lines or ["It left no files."]


def _shown(name: str, value: Json) -> str:
    if name == "progress":
        return how_far({name: value}, plain=not has_blocks(sys.stdout))
    if name == "result":
        return text(json.dumps(value, ensure_ascii=False))
    if name == "eta":
        return "; ".join(_when_of(as_object(value)))
    if name in ("reason", "waiting"):
        return f"{reason(value)} ({text(as_object(value).get('code'))})"
    if name.endswith("_s"):
        return duration(value)
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_at"):
        return f"{text(value)} ({ago(value)})"
    if isinstance(value, dict):
        return ", ".join(f"{key} {text(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(text(part) for part in value)
    return text(value)


def submitted(answer: Json) -> list[str]:
    made = as_object(answer)
    waiting = reason(made.get("waiting"))
    which = f"jobs {text(made.get('ids'))}" if made.get("ids") else f"job {text(made.get('id'))}"
    state = text(made.get("state"))
    again = f", again for {text(made.get('retry_of'))}" if made.get("retry_of") else ""
    before = " (submitted before under this key)" if made.get("repeated") is True else ""
    line = f"{which} {state}{again}{before}" + (f": {waiting}" if waiting else "")
    return [line, *map(text, as_list(made.get("warnings")))]


def cancelled(answer: Json) -> list[str]:
    known = as_object(answer)
    entries = [as_object(entry) for entry in as_list(known.get("jobs"))]
    lines = [f"job {text(entry.get('id'))} {text(entry.get('state'))}: {text(entry.get('note'))}" for entry in entries]
    total = sum(count for count in as_object(known.get("counts")).values() if isinstance(count, int))
    lines += [f"{total - len(lines)} more"] if total > len(lines) else []
    return [*(lines or ["No job matches."]), *_only_told(known)]


def _only_told(answer: Schema) -> list[str]:
    """Of a cancel that was a preview: what it would come to."""
    if answer.get("dry_run") is not True:
        return []
    counts = ", ".join(f"{name.replace('_', ' ')}: {text(n)}" for name, n in as_object(answer.get("counts")).items())
    confirm = f"; needs --force: {text(answer.get('confirm'))}" if answer.get("confirm") else ""
    return [f"nothing was changed; it would be: {counts or 'no job'}{confirm}"]


def stopped(answer: Json) -> list[str]:
    entry = as_object(answer)
    return [f"job {text(entry.get('id'))} {text(entry.get('state'))}: {text(entry.get('note'))}"]


def updated(answer: Json) -> list[str]:
    entry = as_object(answer)
    id_, changed, started = entry.get("id"), entry.get("changed"), entry.get("started")
    if entry.get("state") is None:
        kept = f"; {text(started)} had started and keep their limits" if started else ""
        return [f"array {text(id_)}: {text(changed)} changed{kept}"]
    waiting = as_object(entry.get("waiting")).get("message")
    line = f"job {text(id_)} {text(entry.get('state'))}: {'changed' if changed else 'it was so already'}"
    return [f"{line}; {text(waiting)}" if waiting else line]


def events(answer: Json) -> list[str]:
    known = as_object(answer)
    lines = [event_line(as_object(entry)) for entry in as_list(known.get("events"))]
    if known.get("pruned_to") is not None:
        lines.insert(0, pruned_to(known.get("pruned_to")))
    return lines or [f"No events after {text(known.get('next_cursor'))}."]


def pruned_to(seq: Json) -> str:
    return f"(some events up to {text(seq)} were removed, with their jobs)"


def event_line(event: Schema) -> str:
    """One event, at this machine's time: what, about which job and worker, by whom."""
    at, worker = event.get("at"), event.get("worker")
    when = f"{datetime.fromisoformat(at).astimezone():%Y-%m-%d %H:%M:%S}" if isinstance(at, str) else ""
    about = ".".join(text(event.get(name)) for name in ("job", "attempt") if event.get(name) is not None)
    by = f"by {text(event.get('actor'))}" if event.get("actor") is not None else ""
    told = as_object(event.get("data"))
    shown = [(key, value) for key, value in told.items() if (key, value) != ("worker", worker) and key != "id"]
    data = ", ".join(f"{text(key)}={text(value)}" for key, value in shown)
    kind = text(event.get("type")).ljust(_LONGEST_USUAL_EVENT)
    parts = [text(event.get("seq")), when, kind, about, text(worker), by, data]
    return "  ".join(part for part in parts if part).rstrip()


def worker(answer: Json) -> list[str]:
    """One worker, after a change."""
    known = as_object(answer)
    running = as_list(known.get("running"))
    lines = [f"worker {text(known.get('name'))} is {text(known.get('state'))}"]
    if known.get("cordoned") is True and known.get("state") == "lost":
        lines.append("it takes no new work when it is back")
    if known.get("cordon_reason"):
        lines.append(f"cordoned by the broker: {reason(known.get('cordon_reason'))}")
    if known.get("tags"):
        lines.append(f"tags: {' '.join(text(tag) for tag in as_list(known.get('tags')))}")
    return [*lines, f"runs: {' '.join(text(entry) for entry in running)}"] if running else lines


def tokens(answer: Json) -> list[str]:
    known = [as_object(entry) for entry in as_list(as_object(answer).get("tokens"))]
    if not known:
        return ["No tokens."]
    rows = [
        [
            text(token.get("name")),
            " ".join(text(scope) for scope in as_list(token.get("scopes"))),
            text(token.get("worker")),
            ago(token.get("created_at")),
            ago(token.get("last_used_at")),
            ago(token.get("revoked_at")),
        ]
        for token in known
    ]
    return table(["NAME", "SCOPES", "WORKER", "MADE", "USED", "REVOKED"], rows)


def schedules(answer: Json) -> list[str]:
    known = [as_object(entry) for entry in as_list(as_object(answer).get("schedules"))]
    if not known:
        return ["No schedules."]
    rows = [
        [
            text(one.get("name")),
            text(one.get("cron")),
            text(one.get("tz")),
            "paused" if one.get("paused") is True else text(one.get("next_at")),
            ago(one.get("last_at")),
            text(one.get("last_job")),
        ]
        for one in known
    ]
    return table(["NAME", "CRON", "ZONE", "NEXT", "LAST", "JOB"], rows)


def schedule(answer: Json) -> list[str]:
    return schedules({"schedules": [answer]})


def token_made(answer: Json) -> list[str]:
    made = as_object(answer)
    scopes = " ".join(text(scope) for scope in as_list(made.get("scopes")))
    return [f"token {text(made.get('name'))} ({scopes}); it is shown this once:", text(made.get("token"))]
