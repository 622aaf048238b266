"""The exact cache: the same request again is answered from memory, any other request is not.

The key covers all that can change the answer: prompt, model, sampling parameters, tenant. It is the one cache
for answers that can never be wrong. It freezes chance, though: with a temperature above 0 the first sample
comes back each time.

>>> cache = ExactCache(capacity=100, ttl=3600)
>>> cache.put("Who wrote Hamlet?", "Shakespeare.", model="smollm2-135m", tenant="ann")
>>> cache.get("Who wrote Hamlet?", model="smollm2-135m", tenant="ann").answer
'Shakespeare.'
>>> cache.get("who wrote hamlet", model="smollm2-135m", tenant="ann") is None
True
"""

from __future__ import annotations

import os
import time
from threading import RLock
from typing import Any

from .entries import Clock, Entries, Entry
from .hits import Hit, Stats
from .keys import key_of, scope_of

ABOUT = {"kind": "exact", "format": 1}


class ExactCache:
    """`capacity` answers, the least recently used go first; `ttl` seconds each (None: for ever).

    With `path` the answers outlive the process: each is on the disk when `put` returns. All methods may be
    called from many threads. Prompts themselves are not kept, only their sha256.
    """

    def __init__(
        self,
        *,
        capacity: int = 10_000,
        ttl: float | None = None,
        path: str | os.PathLike[str] | None = None,
        clock: Clock = time.time,
        on_damage: str = "refuse",
    ):
        self._lock = RLock()
        self._stats = Stats()
        self._entries = Entries(ABOUT, capacity, ttl, path, clock, on_damage)

    def get(self, prompt: Any, *, model: str = "", params: Any = None, tenant: str = "") -> Hit | None:
        """The stored answer to this very request, or None."""
        key = key_of(prompt, model, params, tenant)
        with self._lock:
            entry = self._entries.get(key)
            self._stats.count(hit=entry is not None)
            return None if entry is None else Hit(entry.answer, 1.0, prompt, entry.created)

    def put(
        self,
        prompt: Any,
        answer: str,
        *,
        model: str = "",
        params: Any = None,
        tenant: str = "",
        ttl: float | None = None,
    ) -> None:
        """Keep `answer` for this request, for `ttl` seconds instead of the cache's own if given."""
        check_answer(answer)
        key, scope = key_of(prompt, model, params, tenant), scope_of(model, params, tenant)
        with self._lock:
            created, expires = self._entries.expiry(ttl)
            gone = self._entries.put(Entry(key, scope, tenant, "", answer, created, expires))
            self._stats.removed += len(gone)

    def delete(self, prompt: Any, *, model: str = "", params: Any = None, tenant: str = "") -> bool:
        """Forget one request, on the disk too. False if it was not there."""
        key = key_of(prompt, model, params, tenant)
        with self._lock:
            self._entries.sweep()
            return bool(self._entries.remove(lambda entry: entry.key == key))

    def clear(self, tenant: str | None = None) -> int:
        """Forget all answers of one tenant, or of everyone; returns how many."""
        with self._lock:
            self._entries.sweep()
            return len(self._entries.remove(lambda entry: tenant is None or entry.tenant == tenant))

    @property
    def stats(self) -> Stats:
        """Counts so far: hits, misses, entries that were evicted or grew too old."""
        with self._lock:
            return self._stats.copy()

    @property
    def disk_bytes(self) -> int:
        with self._lock:
            return self._entries.disk_bytes

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def close(self) -> None:
        with self._lock:
            self._entries.close()

    def __enter__(self) -> ExactCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_answer(answer: object) -> None:
    if not isinstance(answer, str):
        raise ValueError(f"An answer is a text, got a {type(answer).__name__}; decode it first.")
