"""Rows of figures: the median of several runs, and how far they spread."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from private import machine


class Table:
    """Collects values by row and column over all runs; `show` prints each as `median (least to most)`."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def add(self, row: str, **columns: float) -> None:
        """Names of columns are units, with `_per_` for a slash."""
        for name, value in columns.items():
            self._values[row][name].append(value)

    def show(self) -> None:
        print(f"{self._title}\n  {machine()}")
        width = max(map(len, self._values))
        for row, columns in self._values.items():
            shown = [f"{name.replace('_per_', '/').replace('_', ' ')}: {_spread(v)}" for name, v in columns.items()]
            print(f"  {row:<{width}}  " + ";  ".join(shown))


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that `share` of all do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _spread(values: Sequence[float]) -> str:
    middle = _short(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({_short(min(values))} to {_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
