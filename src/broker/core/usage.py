"""What a delivery has used, put together from what is told now and then. Pure."""

from __future__ import annotations

from typing import TypeVar

from broker.wire.jobs import Peak


def largest(before: Peak | None, said: Peak | None) -> Peak | None:
    """The larger of each number: what is told later may be less, as after a restart of the worker. A mean is no peak:
    of it the newest counts. What is not told changes nothing."""
    if before is None or said is None:
        return said or before
    return Peak(
        rss_mb=_larger(before.rss_mb, said.rss_mb),
        vram_mb=_larger(before.vram_mb, said.vram_mb),
        cpu_s=_larger(before.cpu_s, said.cpu_s),
        gpu=before.gpu if said.gpu is None else said.gpu,
    )


N = TypeVar("N", int, float)


def _larger(one: N | None, other: N | None) -> N | None:
    return max((number for number in (one, other) if number is not None), default=None)
