"""`#SBATCH` lines: Slurm's common options as fields of a job. What has no equivalent is named, and never dropped in silence.

Forms and meanings are those of sbatch(1). An option that Slurm does not know either is refused, as sbatch does.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from jobd_mcp.cli.failure import Failure
from jobd_mcp.schemas import Json, Schema

INDEX = "SLURM_ARRAY_TASK_ID"
MOST_MEMBERS = 10_000
_GIB = {"K": 1 / (1 << 20), "M": 1 / (1 << 10), "G": 1.0, "T": 1024.0}
_POLICIES = {"afterok": "success", "afterany": "any_exit", "afternotok": "failure"}

_SHORT = {
    "A": "account", "a": "array", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency",
    "e": "error", "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "L": "licenses", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit", "o": "output", "p": "partition", "Q": "quiet",
    "q": "qos", "S": "core-spec", "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist",
    "x": "exclude",
}  # fmt: skip
_FLAGS = frozenset({
    "contiguous", "exclusive", "get-user-env", "hold", "no-kill", "no-requeue", "nice", "overcommit", "oversubscribe",
    "parsable", "propagate", "quiet", "reboot", "requeue", "spread-job", "use-min-nodes", "verbose", "wait",
})  # fmt: skip
"""Options whose value, if there is one, stands behind `=`."""
_WITHOUT_EQUIVALENT = {
    "account": "give project", "begin": "", "clusters": "", "constraint": "a worker's tags are needs", "contiguous": "",
    "core-spec": "", "cpu-freq": "", "deadline": "", "distribution": "", "exclude": "", "exclusive": "", "get-user-env": "",
    "gpu-bind": "", "gpu-freq": "", "hint": "", "hold": "", "input": "stdin is empty", "kill-on-invalid-dep": "",
    "mail-type": "", "mail-user": "", "mem-bind": "", "nice": "priority is for that", "no-kill": "",
    "nodelist": "give worker", "ntasks-per-core": "", "ntasks-per-gpu": "", "ntasks-per-socket": "",
    "open-mode": "", "overcommit": "", "oversubscribe": "", "parsable": "--json is for that",
    "partition": "a project, needs or worker may be meant", "profile": "", "propagate": "", "qos": "priority is for that",
    "quiet": "", "reboot": "", "reservation": "", "signal": "checkpoint_grace_s is the time from TERM to KILL",
    "sockets-per-node": "", "spread-job": "", "switches": "", "threads-per-core": "", "time-min": "", "tmp": "",
    "uid": "", "use-min-nodes": "", "verbose": "", "wait": "job submit --wait", "wckey": "",
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option of one line."""

    line: int
    name: str
    value: str

    @property
    def said(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


@dataclass
class Understood:
    """Fields, and what is said of how they came about: `notes` of what is meant, `ignored` of what is lost."""

    fields: Schema = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def options(line: int, words: Sequence[str]) -> list[Option]:
    """The options of one `#SBATCH` line. Raises Failure for what sbatch would refuse."""
    found = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _whole(line, name)
        elif len(word) > 1 and word[0] == "-" and word[1] in _SHORT:
            name, value = _SHORT[word[1]], word[2:].removeprefix("=")
            equals = value
        else:
            raise _wrong(line, f"{word!r} is no option of sbatch")
        if not equals and name not in _FLAGS:
            if not rest:
                raise _wrong(line, f"--{name} needs a value")
            value = rest.pop(0)
        found.append(Option(line, name, value))
    return found


def understood(said: Collection[Option], fields: Collection[str], environ: Mapping[str, str]) -> Understood:
    """What a submit makes of the options of all lines. `fields`: those that a job can have here."""
    last = {option.name: option for option in said}  # as in Slurm, the last word of each counts
    made = Understood()
    for option in last.values():
        if option.name not in _ALONE:
            hint = _WITHOUT_EQUIVALENT.get(option.name)
            if hint is not None:
                made.ignored.append(
                    f"line {option.line}: {option.said} has no equivalent" + (f": {hint}" if hint else "")
                )
    for name, read in _ALONE.items():
        if name in last:
            read(made, last[name])
    _size(made, last)
    _exported(made, last.get("export"), environ)
    foreign = made.fields.keys() - set(fields)
    assert not foreign, foreign
    return made


def _whole(line: int, name: str) -> str:
    """As getopt takes them, also cut off where that is unmistakable."""
    known = _known()
    near = [one for one in known if one.startswith(name)]
    if name in known or len(near) == 1:
        return name if name in known else near[0]
    meant = difflib.get_close_matches(name, known, n=1)
    raise _wrong(line, f"sbatch has no option --{name}", f"did you mean --{meant[0]}?" if meant else None)


def _known() -> list[str]:
    return sorted({*_ALONE, *_SIZES, *_WITHOUT_EQUIVALENT, "export"})


def _wrong(line: int, what: str, hint: str | None = None) -> Failure:
    return Failure(f"line {line}: #SBATCH: {what}", hint=hint or "nothing was submitted")


def seconds(text: str) -> float | str | None:
    """A time in each of Slurm's forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes,
    days-hours:minutes:seconds. `none`: no limit; None: it is no time."""
    if text.upper() in ("UNLIMITED", "INFINITE"):
        return "none"
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text, re.ASCII)
    if found is None:
        return None
    days, *parts = found.groups()
    given = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, rest = [*given, 0, 0][:3]
        total = int(days) * 86_400 + hours * 3600 + minutes * 60 + rest
    elif len(given) == 3:
        total = given[0] * 3600 + given[1] * 60 + given[2]
    else:
        total = given[0] * 60 + (given[1] if len(given) == 2 else 0)
    return float(total) if total else "none"


def gibibytes(text: str) -> float | None:
    """Slurm counts in MiB where no unit is given."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", text.upper(), re.ASCII)
    return None if found is None else float(f"{float(found[1]) * _GIB[found[2] or 'M']:.4g}")


def indexes(text: str) -> list[int] | None:
    """`0-15`, `1,3,5-7`, `1-7:2`: each once and in order; None: none, or more than an array can have."""
    found: set[int] = set()
    for part in text.split(","):
        block = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part, re.ASCII)
        if block is None or block[3] == "0":
            return None
        members = range(int(block[1]), int(block[2] or block[1]) + 1, int(block[3] or 1))
        if not 0 < len(members) <= MOST_MEMBERS:
            return None
        found |= set(members)
    return sorted(found) if len(found) <= MOST_MEMBERS else None


def _name(made: Understood, said: Option) -> None:
    made.fields["name"] = said.value
    _add_env(made, "SLURM_JOB_NAME", said.value)


def _time(made: Understood, said: Option) -> None:
    limit = seconds(said.value)
    if limit is None:
        raise _wrong(said.line, f"{said.said}: no time", "minutes, hours:minutes:seconds or days-hours:minutes:seconds")
    made.fields["max_wall_s"] = limit
    made.notes.append(f"line {said.line}: {said.said}: max_wall_s {limit if isinstance(limit, str) else f'{limit:g}'}")


def _array(made: Understood, said: Option) -> None:
    which, percent, most = said.value.partition("%")
    members = indexes(which)
    if members is None or (percent and not re.fullmatch(r"[1-9]\d*", most, re.ASCII)):
        raise _wrong(
            said.line, f"{said.said}: no array", f"as 0-15, 1,3,5-7 or 1-9:2%4, at most {MOST_MEMBERS:,} members"
        )
    made.fields["sweep"] = {INDEX: list[Json](members)}
    if percent:
        made.fields["max_parallel"] = int(most)
    for name, value in (
        (INDEX, f"{{{INDEX}}}"),
        ("SLURM_ARRAY_TASK_COUNT", str(len(members))),
        ("SLURM_ARRAY_TASK_MIN", str(members[0])),
        ("SLURM_ARRAY_TASK_MAX", str(members[-1])),
    ):
        _add_env(made, name, value)
    throttle = f", {most} at once" if percent else ""
    made.notes.append(f"line {said.line}: {said.said}: an array of {len(members)}{throttle}, with {INDEX} as in Slurm")


def _dependency(made: Understood, said: Option) -> None:
    after: list[Json] = []
    each: list[Json] = []
    policies = set()
    for part in said.value.split(","):
        kind, *ids = part.split(":")
        if kind in ("singleton", "after", "afterburstbuffer") and "?" not in part:
            made.ignored.append(f"line {said.line}: dependency {part} has no equivalent")
            continue
        if kind not in (*_POLICIES, "aftercorr") or not ids or not all(one.isascii() and one.isdigit() for one in ids):
            raise _wrong(said.line, f"{said.said}: {part} is not understood", "as afterok:41:42, afterany:43")
        (each if kind == "aftercorr" else after).extend(int(one) for one in ids)
        policies.add(_POLICIES.get(kind, "success"))
    if len(policies) > 1:
        raise _wrong(
            said.line, f"{said.said}: one job has one policy for all that it waits for", "split it into two jobs"
        )
    if after:
        made.fields["depends_on"] = after
    if each:
        made.fields["depends_on_each"] = each
    for policy in policies:
        made.fields["dependency_policy"] = policy
        made.notes.append(f"line {said.line}: {said.said}: of jobs of this broker, by its own ids")


def _nodes(made: Understood, said: Option) -> None:
    if said.value.partition("-")[0] != "1":
        raise _wrong(said.line, f"{said.said}: a job runs on one machine", "run one job for each, or an array")


def _licenses(made: Understood, said: Option) -> None:
    counted: Schema = {}
    for part in said.value.split(","):
        name, _, count = part.replace("=", ":").partition(":")
        if not name or not re.fullmatch(r"[1-9]\d*|", count, re.ASCII):
            raise _wrong(said.line, f"{said.said}: no licenses", "as matlab:2")
        counted[name] = int(count or 1)
    made.fields["resources"] = counted
    made.notes.append(f"line {said.line}: {said.said}: resources that a worker was given a number of")


def _kept_apart(made: Understood, said: Option) -> None:
    made.notes.append(f"line {said.line}: {said.said}: no file is written there; job logs ID shows the output")


def _on_loss(policy: str) -> Callable[[Understood, Option], None]:
    def read(made: Understood, said: Option) -> None:
        made.fields["on_worker_lost"] = policy
        made.notes.append(f"line {said.line}: {said.said}: on_worker_lost {policy}")

    return read


def _directory(made: Understood, said: Option) -> None:
    made.fields["cwd"] = said.value


def _comment(made: Understood, said: Option) -> None:
    made.fields["labels"] = {"comment": said.value}


_ALONE: Mapping[str, Callable[[Understood, Option], None]] = {
    "job-name": _name,
    "time": _time,
    "array": _array,
    "dependency": _dependency,
    "nodes": _nodes,
    "licenses": _licenses,
    "output": _kept_apart,
    "error": _kept_apart,
    "requeue": _on_loss("requeue"),
    "no-requeue": _on_loss("orphan"),
    "chdir": _directory,
    "comment": _comment,
}
"""Options that mean something by themselves."""
_SIZES = (
    "ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "gpus", "gpus-per-node", "gpus-per-task", "gres",
    "mem", "mem-per-cpu", "mem-per-gpu",
)  # fmt: skip
"""Options that count together."""


def _size(made: Understood, last: Mapping[str, Option]) -> None:
    """Processors, GPUs and memory: on the one machine."""
    tasks = _number(last, "ntasks") or _number(last, "ntasks-per-node") or 1
    gpus = _gpus(made, last, tasks)
    each = _number(last, "cpus-per-task")
    of_gpus = _number(last, "cpus-per-gpu")
    cpus = of_gpus * gpus if of_gpus and gpus else tasks * (each or 1)
    if of_gpus or each or tasks > 1:
        made.fields["cpus"] = cpus
    if each:
        _add_env(made, "SLURM_CPUS_PER_TASK", str(each))
    if tasks > 1:
        _add_env(made, "SLURM_NTASKS", str(tasks))
        made.ignored.append(
            f"{tasks} tasks: there is room for them, and the script starts them itself: srun is Slurm's"
        )
    if gpus is not None:
        made.fields["gpus"] = gpus
    _memory(made, last, {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": gpus or 1})


def _number(last: Mapping[str, Option], name: str) -> int | None:
    said = last.get(name)
    if said is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,6}", said.value, re.ASCII):
        raise _wrong(said.line, f"{said.said}: no whole number above 0")
    return int(said.value)


def _gpus(made: Understood, last: Mapping[str, Option], tasks: int) -> int | None:
    found = None
    for name, times in (("gres", 1), ("gpus-per-node", 1), ("gpus-per-task", tasks), ("gpus", 1)):
        said = last.get(name)
        if said is None:
            continue
        for part in said.value.split(","):
            text = part.removeprefix("gpu:") if name == "gres" and part != "gpu" else "1" if part == "gpu" else part
            if name == "gres" and not part.startswith("gpu"):
                made.ignored.append(f"line {said.line}: gres {part} has no equivalent: resources are for that")
                continue
            kind, _, count = text.rpartition(":")
            if not kind and not count.isdigit():
                kind, count = count, "1"
            if not re.fullmatch(r"\d{1,6}", count, re.ASCII):
                raise _wrong(said.line, f"{said.said}: no number of GPUs", "as gpu:2, or gpu:a100:2")
            if kind:
                made.ignored.append(
                    f"line {said.line}: {said.said}: the kind {kind} is not chosen by: needs may be meant"
                )
            found = (found or 0 if name == "gres" and said.value.count("gpu") > 1 else 0) + int(count) * times
    return found


def _memory(made: Understood, last: Mapping[str, Option], times: Mapping[str, int]) -> None:
    for name, by in times.items():
        said = last.get(name)
        if said is None:
            continue
        each = gibibytes(said.value)
        if each is None:
            raise _wrong(said.line, f"{said.said}: no size", "as 16G; without a unit it is MiB")
        if each == 0:
            made.ignored.append(f"line {said.line}: {said.said}: all of a machine's memory can't be asked for")
            continue
        made.fields["ram_gb"] = math.ceil(each * by * 1000) / 1000
        made.notes.append(f"line {said.line}: {said.said}: ram_gb {made.fields['ram_gb']:g}")


def _exported(made: Understood, said: Option | None, environ: Mapping[str, str]) -> None:
    """Slurm hands on the whole environment by default; here a job has its worker's, and what is named."""
    if said is None:
        return
    for part in said.value.split(","):
        name, equals, value = part.partition("=")
        if part == "ALL":
            made.ignored.append(
                f"line {said.line}: {said.said}: only variables that are named are passed on: --env NAME=VALUE"
            )
        elif equals or (name in environ and part not in ("NONE", "NIL")):
            _add_env(made, name, value if equals else environ[name])


def _add_env(made: Understood, name: str, value: str) -> None:
    env = made.fields.get("env")
    made.fields["env"] = {**(env if isinstance(env, dict) else {}), name: value}
