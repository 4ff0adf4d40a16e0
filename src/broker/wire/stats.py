"""What commands used in their past runs, for whoever sizes the next one."""

from __future__ import annotations

from pydantic import Field

from broker.wire.jobs import Frozen


class Asked(Frozen):
    """What the last job of a command asked for."""

    cpus: float
    ram_gb: float | None = None
    gpus: int | None = None
    vram_gb: float | None = None


class CommandStats(Frozen):
    """The last ends of one command. What no worker could tell is left out, and never 0."""

    fingerprint: str = Field(description="Of what differs only in values; or of exactly this command, as first.second.")
    command: str | None = Field(default=None, description="Of the last job, cut to 200 characters; while it is kept.")
    job: int | None = Field(default=None, description="The last one that is counted.")
    runs: int = Field(description="That were completed: of the last 32.")
    failed: int = Field(description="Likewise; they count for the most that was used, and not for times.")
    values_differ: bool = Field(description="Whether commands with other values are among them.")
    median_run_s: float | None = None
    worst_run_s: float | None = None
    rss_gb: float | None = Field(default=None, description="Memory of its whole tree, at most.")
    vram_gb: float | None = Field(default=None, description="Of all devices together, at most.")
    cpus: float | None = Field(default=None, description="Processors on average, in the run that used most.")
    gpu: float | None = Field(default=None, description="How busy its devices were on average, in percent, at most.")
    asked: Asked | None = None
    suggestions: list[str] | None = Field(default=None, description="Where what is asked is far from what was used.")
    note: str | None = Field(default=None, description="Why nothing is suggested, where too little is known.")


class Stats(Frozen):
    commands: list[CommandStats] = Field(description="The newest ends first.")
