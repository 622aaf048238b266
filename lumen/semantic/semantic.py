"""The semantic cache: a question that means the same as an earlier one is answered from memory.

Three gates, each explained by `look`:

    1  nearness      the stored questions nearest to this one, at a cosine of `threshold` or more
    2  second check  rules that read both questions and refuse what the encoder cannot see: a "not", another
                     name or number, exchanged roles, a question that needs the conversation before it
    3  scope         only answers given to the same tenant by the same model with the same parameters are seen

Gate 1 alone is what most semantic caches are, and it is not enough: opposite questions are often nearer to
each other than two ways of asking the same thing.

>>> cache = SemanticCache(threshold=0.6)
>>> cache.put("How do I delete a file?", "Use rm.")
True
>>> cache.get("What is the way to delete a file?").answer
'Use rm.'
>>> cache.look("How do I not delete a file?").reason
'negation: ...'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import numpy as np

from .encoder import Encoder, MiniLM, unit
from .entries import Clock, Entries, Entry
from .exact import check_answer
from .hits import Hit, Stats
from .index import IndexSpec, VectorIndex
from .keys import key_of, scope_of
from .verify import Verdict, check

SecondCheck = Callable[[str, str], Verdict]


@dataclass(frozen=True)
class Candidate:
    """A stored question that was near enough, and what the second check said of it."""

    prompt: str
    score: float
    verdict: Verdict


@dataclass(frozen=True)
class Look:
    """How a look-up went. `rule` is "" for a hit, else the gate that made it a miss; `reason` is a sentence."""

    hit: Hit | None
    rule: str
    reason: str
    candidates: tuple[Candidate, ...] = ()


class SemanticCache:
    """`capacity` answers over all scopes, least recently used first to go; `ttl` seconds each (None: for ever).

    index         "flat", "ivf", "hnsw", "pq" or an IndexSpec; one index per scope, so that nothing of another
                  tenant is ever compared with
    second_check  (asked, stored) -> Verdict; None trusts the threshold alone
    candidates    how many of the nearest go through the second check
    path          a file that outlives the process; an entry is on the disk when `put` returns

    All methods may be called from many threads.
    """

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        threshold: float = 0.8,
        index: IndexSpec | str = "flat",
        second_check: SecondCheck | None = check,
        candidates: int = 8,
        capacity: int = 10_000,
        ttl: float | None = None,
        path: str | os.PathLike[str] | None = None,
        clock: Clock = time.time,
        on_damage: str = "refuse",
    ):
        if not -1 <= threshold <= 1:
            raise ValueError(f"The threshold is a cosine, between -1 and 1; got {threshold}.")
        if candidates < 1:
            raise ValueError(f"At least one candidate has to be looked at, got {candidates}.")
        self.encoder: Encoder = MiniLM() if encoder is None else encoder
        self.threshold, self.second_check, self.candidates = threshold, second_check, candidates
        self.spec = IndexSpec(index) if isinstance(index, str) else index
        self._lock = RLock()
        self._stats = Stats()
        about = {
            "kind": "semantic",
            "format": 1,
            "encoder": self.encoder.fingerprint,
            "embedding width": self.encoder.width,
        }
        self._entries = Entries(about, capacity, ttl, path, clock, on_damage)
        self._indexes: dict[str, VectorIndex] = {}
        try:
            for entry in self._entries:
                self._index(entry)
        except BaseException:
            self._entries.close()
            raise

    def get(self, prompt: str, *, model: str = "", params: Any = None, tenant: str = "") -> Hit | None:
        """The answer to a stored question that means the same, or None."""
        return self.look(prompt, model=model, params=params, tenant=tenant).hit

    def look(self, prompt: str, *, model: str = "", params: Any = None, tenant: str = "") -> Look:
        """`get` with reasons: what was near, and which gate let it through or stopped it."""
        scope = scope_of(model, params, tenant)
        vector = self._embed(prompt)
        whole = self.encoder.reads_whole(prompt)
        with self._lock:
            look = self._look(prompt, vector, whole, scope)
            self._stats.count(look.hit is not None, look.rule)
        return look

    def put(
        self,
        prompt: str,
        answer: str,
        *,
        model: str = "",
        params: Any = None,
        tenant: str = "",
        ttl: float | None = None,
    ) -> bool:
        """Keep `answer`. False, and nothing kept, if the question makes no sense on its own ("And in winter?")
        or is longer than the encoder reads: such a question can only be matched by mistake."""
        check_answer(answer)
        key, scope = key_of(prompt, model, params, tenant), scope_of(model, params, tenant)
        vector = self._embed(prompt)
        if not self.encoder.reads_whole(prompt):
            return False
        if self.second_check is not None and not self.second_check(prompt, prompt).same:
            return False
        with self._lock:
            created, expires = self._entries.expiry(ttl)
            entry = Entry(key, scope, tenant, prompt, answer, created, expires, vector)
            gone = self._entries.put(entry)
            self._stats.removed += len(gone)
            self._forget(gone)
            self._index(entry)
        return True

    def delete(self, prompt: str, *, model: str = "", params: Any = None, tenant: str = "") -> bool:
        """Forget this very question, on the disk too. False if it was not there."""
        key = key_of(prompt, model, params, tenant)
        with self._lock:
            self._forget(self._entries.sweep())
            gone = self._entries.remove(lambda entry: entry.key == key)
            self._forget(gone)
        return bool(gone)

    def clear(self, tenant: str | None = None) -> int:
        """Forget all answers of one tenant, or of everyone; returns how many."""
        with self._lock:
            self._forget(self._entries.sweep())
            gone = self._entries.remove(lambda entry: tenant is None or entry.tenant == tenant)
            self._forget(gone)
        return len(gone)

    @property
    def stats(self) -> Stats:
        """Counts so far: hits, misses, entries that left, and misses by rule."""
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

    def __enter__(self) -> SemanticCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _look(self, prompt: str, vector: np.ndarray, whole: bool, scope: str) -> Look:
        self._forget(self._entries.sweep())
        if not whole:
            return Look(None, "length", "length: the question is longer than the encoder reads.")
        index = self._indexes.get(scope)
        near = [] if index is None else index.search(vector, self.candidates)
        tried: list[Candidate] = []
        for key, score in near:
            if score < self.threshold:
                break
            entry = self._entries.peek(key)
            verdict = Verdict(True) if self.second_check is None else self.second_check(prompt, entry.prompt)
            tried.append(Candidate(entry.prompt, score, verdict))
            if verdict.same:
                self._entries.get(key)  # counts as a use
                hit = Hit(entry.answer, score, entry.prompt, entry.created)
                return Look(hit, "", f"hit: {score:.2f} to {entry.prompt!r}.", tuple(tried))
        if tried:
            first = tried[0].verdict
            return Look(None, first.rule, f"{first.rule}: {first.reason}", tuple(tried))
        nearest = f"the nearest is at {near[0][1]:.2f}" if near else "nothing is stored"
        return Look(None, "threshold", f"threshold: {nearest}, {self.threshold:.2f} is wanted.")

    def _embed(self, prompt: str) -> np.ndarray:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"A semantic cache compares texts, and this is none: {prompt!r}.")
        return unit(self.encoder.encode([prompt]), self.encoder.width)[0]

    def _index(self, entry: Entry) -> None:
        if entry.vector is None:
            raise ValueError(f"The entry for {entry.prompt!r} has no embedding.")
        index = self._indexes.get(entry.scope)
        if index is None:
            index = self._indexes[entry.scope] = VectorIndex(self.encoder.width, self.spec)
        index.add(entry.key, entry.vector)

    def _forget(self, gone: list[Entry]) -> None:
        for entry in gone:
            index = self._indexes[entry.scope]
            index.remove(entry.key)
            if not len(index):
                del self._indexes[entry.scope]
