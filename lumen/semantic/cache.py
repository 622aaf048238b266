"""What the exact and the semantic cache have in common: a lock, counts, deleting, closing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, TypeVar

from .keys import key_of
from .store import Entry, Store

C = TypeVar("C", bound="AnswerCache")


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
    """Counts since the cache was opened. `refused` counts misses of the semantic cache by what made them."""

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


class AnswerCache:
    """Answers in a `Store`, behind a lock. All methods may be called from many threads."""

    def __init__(self, store: Store):
        self._store = store
        self._lock = RLock()
        self._stats = Stats()

    def delete(
        self, prompt: Any, *, model: str = "", params: Any = None, tenant: str = "", context: Any = None
    ) -> bool:
        """Forget one request, on the disk too. False if it was not there."""
        key = key_of(prompt, model, params, tenant, context)
        with self._lock:
            self._forget(self._store.sweep())
            return self._forget(self._store.remove("WHERE key = ?", (key,))) > 0

    def clear(self, tenant: str | None = None) -> int:
        """Forget all answers of one tenant, or of everyone; returns how many."""
        with self._lock:
            self._forget(self._store.sweep())
            chosen = ("WHERE 1", ()) if tenant is None else ("WHERE tenant = ?", (tenant,))
            return self._forget(self._store.remove(*chosen))

    @property
    def stats(self) -> Stats:
        with self._lock:
            return replace(self._stats, refused=Counter(self._stats.refused))

    @property
    def disk_bytes(self) -> int:
        with self._lock:
            return self._store.nbytes

    def __len__(self) -> int:
        with self._lock:
            return len(self._store)

    def close(self) -> None:
        with self._lock:
            self._store.close()

    def __enter__(self: C) -> C:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self, gone: list[Entry]) -> int:
        """Told of entries that left the store. Returns how many."""
        return len(gone)


def check_answer(answer: object) -> None:
    if not isinstance(answer, str):
        raise ValueError(f"An answer is a text, got a {type(answer).__name__}; decode it first.")
