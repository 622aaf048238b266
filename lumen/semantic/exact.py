"""The exact cache: the same request again is answered from memory, any other request is not.

The key covers prompt, model, sampling parameters and tenant. Two things it cannot know: that the world has moved on
("What time is it?", hence the age limit), and that chance was wanted (at a temperature above 0 the first sample comes
back each time).

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
from typing import Any

from .cache import AnswerCache, Hit, check_answer
from .keys import key_of, scope_of
from .store import Clock, Entry, Store

ABOUT = {"kind": "exact", "format": 2}


class ExactCache(AnswerCache):
    """`capacity` answers, the least recently used go first; `ttl` seconds each (None: for ever).

    With `path` the answers outlive the process: each is on the disk when `put` returns. Prompts themselves are not
    kept, only their sha256.
    """

    def __init__(
        self,
        *,
        capacity: int = 10_000,
        ttl: float | None = None,
        path: str | os.PathLike[str] | None = None,
        clock: Clock = time.time,
    ):
        super().__init__(Store(ABOUT, capacity, ttl, path, clock))

    def get(
        self, prompt: Any, *, model: str = "", params: Any = None, tenant: str = "", context: Any = None
    ) -> Hit | None:
        """The stored answer to this very request, or None."""
        key = key_of(prompt, model, params, tenant, context)
        with self._lock:
            entry = self._store.get(key)
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
        context: Any = None,
        ttl: float | None = None,
    ) -> None:
        """Keep `answer` for this request, for `ttl` seconds instead of the cache's own if given."""
        check_answer(answer)
        key = key_of(prompt, model, params, tenant, context)
        scope = scope_of(model, params, tenant, context)
        with self._lock:
            created, expires = self._store.expiry(ttl)
            gone = self._store.put(Entry(key, scope, tenant, "", answer, created, expires))
            self._stats.removed += len(gone)
