"""How long to wait before the next try: doubling, capped, spread, so that a fleet does not return in one instant."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LONGEST_S = 5.0


@dataclass
class Backoff:
    """`next_s()` after each failure, `reset()` after a success."""

    first_s: float = 0.1
    longest_s: float = LONGEST_S
    chance: random.Random = field(default_factory=random.Random)
    failures: int = 0

    def next_s(self) -> float:
        ceiling: float = min(self.longest_s, self.first_s * 2 ** min(self.failures, 30))
        self.failures += 1
        return ceiling * self.chance.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0
