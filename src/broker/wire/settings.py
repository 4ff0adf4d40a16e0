"""Every setting, as data. `docs/configuration.md` is generated from these models.

A setting is a field: `lease_s` is `JOBD_LEASE_S` in the environment and `lease_s` in `jobd.toml`.
The environment wins over the file. Unknown keys are refused with the nearest known one. Tables of the file
(`[projects.NAME]`) are for the file alone.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from broker.wire.jobs import FLOOR_TABLE, Name, name_of
from broker.wire.machines import ResourceSetting, TagSetting
from broker.wire.projects import Preemption, Profile, ProfileName, Project, Quota, Rule, TokenTable
from broker.wire.snapshots import LARGEST_MB

FILE_ONLY: dict[str, JsonValue] = {"file_only": True}
ProjectTable = Annotated[str, AfterValidator(lambda name: name if name == FLOOR_TABLE else name_of(name))]

_LONGEST_KEPT_S = 100 * 366 * 86_400


class ConfigurationError(Exception):
    """A setting is wrong. The message names the setting, its source, and what to do."""


class Settings(BaseModel):
    """What every program here reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    state_dir: Path | None = Field(
        default=None,
        description="Where broker and worker keep their state. Default: the XDG state directory, jobd/<machine id>.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much the log files say.")


class ClientSettings(Settings):
    """`job`, `jobd-mcp` and the Python client."""

    url: str | None = Field(
        default=None,
        description="The broker: unix:///path/broker.sock or http(s)://host:port. Default: this user's own.",
    )
    token: str | None = Field(default=None, description="Bearer token, for http(s) URLs.", repr=False)


class BrokerSettings(Settings):
    """`job broker`, `job up`."""

    listen: list[str] | None = Field(
        None,
        description="Addresses besides the private sockets, comma-separated: 127.0.0.1:8765 adds TCP, which needs tokens.",
    )
    allow_remote: bool = Field(
        default=False,
        description="Listen beyond loopback without TLS: only behind a TLS proxy or on a private network.",
    )
    allowed_hosts: list[str] = Field(default=[], description="Host headers accepted on TCP besides loopback names.")
    allowed_origins: list[str] = Field(default=[], description="Origin headers accepted on TCP. Default: none.")
    lease_s: float = Field(
        default=60, gt=0, le=86_400, description="How long an assignment lives without a word from its worker."
    )
    sweep_s: float = Field(default=5, gt=0, le=3600, description="How often leases are looked at.")
    heartbeat_s: float | None = Field(
        default=None, gt=0, description="How often workers speak. Default: a quarter of the lease."
    )
    exclusive_lease_s: float = Field(
        default=600,
        gt=0,
        le=86_400,
        description="requeue_exclusive: the worker stops the job after this long without the broker.",
    )
    exclusive_margin_s: float = Field(
        default=30,
        ge=0,
        le=3600,
        description="requeue_exclusive: the broker waits the exclusive lease, the grace and this long.",
    )
    start_limit_s: float = Field(
        default=60, gt=0, le=3600, description="An accepted assignment that did not start by then is stopped."
    )
    max_losses: int = Field(
        default=3, ge=1, le=1000, description="A job that lost its worker this often is not queued again."
    )
    prefer_s: float = Field(
        default=30,
        ge=0,
        le=86_400,
        description="A job that is queued again is left to the worker where it ran for so long, while that is there. 0: never.",
    )
    max_launch_failures: int = Field(
        default=5,
        ge=0,
        le=64,
        description="A worker that fails to start this many different jobs in a row is cordoned. 0: never.",
    )
    lease_idle_s: float = Field(
        default=600, gt=0, le=86_400, description="A lease whose devices nothing of it uses for so long says so, once."
    )
    wall_margin_s: float = Field(
        default=30,
        ge=0,
        le=3600,
        description="max_wall_s: the broker asks for the stop itself when the limit, the grace and this long are over.",
    )
    projects: dict[ProjectTable, Project] = Field(
        default={},
        description="A project's priority, share and quota, and defaults for its jobs; those of `_default` are for all.",
        json_schema_extra=FILE_ONLY,
    )
    profiles: dict[ProfileName, Profile] = Field(
        default={},
        description="What jobs that name it ask for: resources and conditions.",
        json_schema_extra=FILE_ONLY,
    )
    rules: list[Rule] = Field(
        default=[],
        max_length=256,
        description="Profiles that commands look like, suggested or given.",
        json_schema_extra=FILE_ONLY,
    )
    tokens: dict[Name, TokenTable] = Field(
        default={}, description="Quotas of the jobs that are submitted with this token.", json_schema_extra=FILE_ONLY
    )
    preemption: Preemption = Field(
        default=Preemption(), description="Jobs that make room for others by themselves.", json_schema_extra=FILE_ONLY
    )
    usage_half_life_s: float = Field(
        default=86_400,
        gt=0,
        le=_LONGEST_KEPT_S,
        description="Fair share between projects: after so long what was used counts half.",
    )
    usage_gpu_weight: float = Field(
        default=16,
        ge=0,
        le=10_000,
        description="Fair share between projects: a second of a GPU counts as so many of a processor.",
    )
    poll_s: float = Field(default=25, gt=0, le=60, description="How long a worker's poll is parked.")
    keep_logs_s: float = Field(
        default=30 * 86_400,
        ge=0,
        le=_LONGEST_KEPT_S,
        description="How long output is kept after a job's end. 0: as long as the job.",
    )
    keep_jobs_s: float = Field(
        default=90 * 86_400,
        ge=0,
        le=_LONGEST_KEPT_S,
        description="How long a job is kept after its end, with its events; and a lost worker. 0: for ever.",
    )
    keep_env_s: float = Field(
        default=86_400,
        ge=0,
        le=_LONGEST_KEPT_S,
        description="How long values of env are kept after the end of a job that can't run again. 0: as long as the job.",
    )
    keep_keys_s: float = Field(
        default=7 * 86_400,
        gt=0,
        le=_LONGEST_KEPT_S,
        description="How long an idempotency_key is known: a repeat after that is a new request.",
    )
    max_artifact_mb: float = Field(
        default=1024, gt=0, le=1_048_576, description="The largest file that is kept of what a job leaves behind."
    )
    max_artifacts_mb: float = Field(
        default=4096, gt=0, le=1_048_576, description="All that is kept of what one run of a job leaves behind."
    )
    max_artifacts: int = Field(
        default=1000, ge=0, le=100_000, description="How many files one run of a job may leave behind. 0: none."
    )
    max_body_mb: float = Field(
        default=2, gt=0, le=64, description="Largest request body; log chunks are at most 1 MiB."
    )
    snapshot_mb: float = Field(
        default=LARGEST_MB, gt=0, le=1024, description="snapshot=copy: the largest copy of a directory, in MiB."
    )
    keep_snapshots_s: float = Field(
        default=7 * 86_400,
        ge=0,
        le=_LONGEST_KEPT_S,
        description="How long the copy that a job ran in is kept after its end, a day at least. 0: as long as the job.",
    )

    @property
    def snapshot_bytes(self) -> int:
        return int(self.snapshot_mb * (1 << 20))

    @model_validator(mode="after")
    def _names_what_there_is(self) -> BrokerSettings:
        named = [(f"projects.{name}.profile", table.profile) for name, table in self.projects.items()]
        named += [(f"rules.{at}.profile", rule.profile) for at, rule in enumerate(self.rules)]
        for place, profile in named:
            if profile is not None and profile not in self.profiles:
                near = difflib.get_close_matches(profile, self.profiles, n=1)
                suggestion = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{place}: there is no profile {profile}{suggestion}")
        roots: dict[str, str] = {}
        for name, table in self.projects.items():
            if name == FLOOR_TABLE and table.roots is not None:
                raise ValueError(f"projects.{name}.roots: roots are of one project")
            for root in table.roots or ():
                if roots.setdefault(root, name) != name:
                    raise ValueError(f"projects.{name}.roots: {root} is one of {roots[root]} already")
        return self


AT_RUN_TIME = frozenset(
    {
        "projects",
        "profiles",
        "rules",
        "tokens",
        "preemption",
        "lease_idle_s",
        "max_losses",
        "max_launch_failures",
        "prefer_s",
        "keep_logs_s",
        "keep_jobs_s",
        "keep_env_s",
    }
)
"""Settings of a broker that follow a reload; the others count from the next start on."""


class WorkerSettings(ClientSettings):
    """`job worker`."""

    worker_name: Name | None = Field(default=None, description="Default: the host's name.")
    worker_slots: float | None = Field(default=None, gt=0, le=4096, description="Default: the cores it may use.")
    worker_tags: list[TagSetting] = Field(
        default=[],
        description="Tags that jobs can ask for with needs, comma-separated, besides those that are found; `-docker` takes a found one away.",
    )
    worker_resources: list[ResourceSetting] = Field(
        default=[],
        description="What this worker has a number of, and jobs can ask for with resources, comma-separated: license=2.",
    )
    probe_s: float = Field(
        default=5, gt=0, le=3600, description="How often the worker looks at its GPUs, memory and disk."
    )
    checkpoint_root: Path | None = Field(
        default=None,
        description="Where checkpoint directories are kept; a shared file system keeps them over machines.",
    )
    on_term: Literal["leave", "finish", "checkpoint"] = Field(
        default="leave",
        description="On SIGTERM: leave ends at once, jobs go on in their shims; finish takes nothing new and ends after "
        "the last job; checkpoint has the jobs stopped, with their grace, and queued again. A second signal ends at once.",
    )
    linger_s: float = Field(
        default=2,
        ge=0,
        le=600,
        description="How long output is awaited from processes that outlive the main one; then they are stopped.",
    )
    log_cap_mb: float = Field(
        default=1024,
        ge=1,
        le=1_048_576,
        description="How large a log may become. Of a larger output it has the beginning and the end, and says what is missing.",
    )
    snapshot_cache_mb: float = Field(
        default=1024,
        ge=0,
        le=1_048_576,
        description="How much of what jobs are copies of is kept here for the next ones; the longest unused goes first.",
    )


ALL: tuple[type[Settings], ...] = (ClientSettings, BrokerSettings, WorkerSettings)
OTHER_KEYS = {"config": "Path of jobd.toml. Default: jobd/jobd.toml in the XDG config directory."}
# Known to every program here, though no model has them: of tests and .ci/run, of what runs under a lease, of examples.
FOREIGN_KEYS = {"test_require", "lease", "lessee", "hook"}

S = TypeVar("S", bound=Settings)


def known_keys() -> dict[str, str]:
    """Key → description, over all models, without doubles."""
    keys = {name: field.description or "" for model in ALL for name, field in model.model_fields.items()}
    return keys | OTHER_KEYS


def load(
    model: type[S], environ: Mapping[str, str], config_text: str | None = None, config_name: str = "jobd.toml"
) -> S:
    """`model` from the environment over the file. Raises ConfigurationError."""
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    known = known_keys()
    if config_text is not None:
        try:
            parsed = tomllib.loads(config_text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"{config_name}: {error}") from None
        for key, value in parsed.items():
            _check_known(key, known, f"{config_name}{_at_line(config_text, (key,))}", key)
            if key in model.model_fields:
                line = _at_line(config_text, (key,))
                values[key], sources[key] = value, f"{key} in {config_name}{line}"
    for variable, text in environ.items():
        if not variable.startswith("JOBD_"):
            continue
        key = variable.removeprefix("JOBD_").lower()
        if key in FOREIGN_KEYS or key.startswith(_JOB_VARIABLES):
            continue
        _check_known(key, known, "the environment", variable)
        if key in model.model_fields and is_file_only(model, key):
            raise ConfigurationError(
                f"{variable}: {key} can only be set in jobd.toml, as tables. See docs/configuration.md."
            )
        if key in model.model_fields and text != "":
            values[key], sources[key] = _parsed(model, key, text), variable
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0]) if first["loc"] else ""
        if not first["loc"]:
            said = first["msg"].removeprefix("Value error, ")
            place = tuple(said.partition(":")[0].split("."))
            raise ConfigurationError(f"{said} (in {config_name}{_at_line(config_text, place)})") from None
        if key in model.model_fields and is_file_only(model, key):
            said = _in_a_table(first["loc"], first["type"], first["msg"], config_name)
            where = _at_line(config_text, first["loc"]).removeprefix(", ")
            raise ConfigurationError(f"{said} ({where})" if where else said) from None
        raise ConfigurationError(f"{sources.get(key, key)}: {first['msg']} (got {values.get(key)!r})") from None


def is_file_only(model: type[Settings], key: str) -> bool:
    """True for what is set in tables of jobd.toml, and in no other way."""
    return model.model_fields[key].json_schema_extra == FILE_ONLY


def _in_a_table(loc: tuple[int | str, ...], kind: str, message: str, config_name: str) -> str:
    """What is wrong in a table; a name that is not known there with the nearest that is."""
    path = ".".join(str(part) for part in loc if part != "[key]")
    if kind != "extra_forbidden":
        return f"{path} in {config_name}: {message.removeprefix('Value error, ')}"
    if "quota" in loc[2:-1]:
        fields, what = Quota.model_fields, "a quota limits nothing of that name"
    elif loc[0] == "preemption":
        fields, what = Preemption.model_fields, "there is no such word"
    elif loc[0] == "profiles":
        fields, what = Profile.model_fields, "a profile has no such condition"
    elif loc[0] == "rules":
        fields, what = Rule.model_fields, "a rule has no such word"
    elif loc[0] == "tokens":
        fields, what = TokenTable.model_fields, "a token has only a quota"
    else:
        fields, what = Project.model_fields, "a project has no default for that"
    near = difflib.get_close_matches(str(loc[-1]), fields, n=1)
    suggestion = f"did you mean {near[0]}?" if near else f"it takes {', '.join(fields)}."
    return f"{path} in {config_name}: {what}; {suggestion} See docs/configuration.md."


_HEAD = re.compile(r"""\s*\[\[?\s*([^\[\]]+?)\s*\]""")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_.-]+?)["']?\s*=""")


def _at_line(text: str | None, loc: tuple[int | str, ...]) -> str:
    """`, line 7`: where this key, or at least its table, stands in the file; empty where that can't be told."""
    wanted = [str(part) for part in loc if part != "[key]"]
    table: list[str] = []
    lists: Counter[str] = Counter()
    best, found = 0, 0
    for number, line in enumerate((text or "").splitlines(), 1):
        here = None
        if head := _HEAD.match(line):
            table = [part.strip().strip("\"'") for part in head[1].split(".")]
            if line.lstrip().startswith("[["):
                lists[head[1]] += 1
                table.append(str(lists[head[1]] - 1))
            here = table
        elif key := _KEY.match(line):
            here = [*table, *key[1].split(".")]
        here = (here or [])[: len(wanted)]
        if here == wanted[: len(here)] and len(here) > best:
            best, found = len(here), number
    return f", line {found}" if found else ""


# A job that itself uses `job` has these in its environment; they are no settings.
_JOB_VARIABLES = (
    "job_",
    "attempt",
    "restarts",
    "checkpoint_dir",
    "checkpoint_grace",
    "array_",
    "result_file",
    "progress_file",
    "artifacts_dir",
)


def _check_known(key: str, known: Mapping[str, str], where: str, shown: str) -> None:
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1)
    prefix = "JOBD_" if shown.startswith("JOBD_") else ""
    suggestion = f"; did you mean {prefix}{near[0].upper() if prefix else near[0]}?" if near else ""
    raise ConfigurationError(f"{shown} in {where} is no setting of jobd{suggestion} See docs/configuration.md.")


def _parsed(model: type[Settings], key: str, text: str) -> object:
    """Lists are comma-separated in the environment; pydantic reads the rest from text."""
    if "list" in str(model.model_fields[key].annotation):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text
