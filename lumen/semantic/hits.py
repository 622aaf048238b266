"""What a look-up gives back."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Hit:
    """A stored answer. `score` is the cosine of the two questions (1.0 in the exact cache), `prompt` the stored
    question, `created` when it was stored. [s since 1970]"""

    answer: str
    score: float
    prompt: Any
    created: float


@dataclass
class Stats:
    """Counts since the cache was opened. `refused` counts misses by the rule of the second check that made them."""

    hits: int = 0
    misses: int = 0
    removed: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def count(self, hit: bool, rule: str = "") -> None:
        self.hits, self.misses = self.hits + hit, self.misses + (not hit)
        if rule:
            self.refused[rule] += 1

    @property
    def hit_rate(self) -> float:
        """Hits among all look-ups; 0 before the first."""
        return self.hits / max(1, self.hits + self.misses)

    def copy(self) -> Stats:
        return replace(self, refused=Counter(self.refused))
