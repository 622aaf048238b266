"""The semantic cache: a question that means the same as an earlier one is answered from memory.

Three gates, each explained by `look`:

    1  scope     only answers to the same tenant, by the same model with the same parameters, after the same
                 conversation are seen at all
    2  nearness  the stored questions nearest to this one, at a cosine of `threshold` or more
    3  check     a second look at both texts, which refuses what the encoder cannot see: a "not", another number,
                 exchanged roles, one changed word

Gate 2 alone is what most semantic caches are. Opposite questions are often nearer to each other than two ways of
asking the same thing.

>>> cache = SemanticCache(threshold=0.6)
>>> cache.put("How do I delete a file?", "Use rm.")
True
>>> cache.get("What is the way to delete a file?").answer
'Use rm.'
>>> cache.look("How do I not delete a file?").rule
'negation'
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .cache import AnswerCache, Hit, check_answer
from .check import check
from .encoder import Encoder, MiniLM, unit
from .index import IndexSpec, VectorIndex
from .keys import key_of, scope_of
from .store import Clock, Entry, Store

SecondLook = Callable[[str, str], str]


@dataclass(frozen=True)
class Look:
    """How a look-up went. `rule` is "" for a hit, else what made it a miss: "threshold", "length" or a rule of the
    check. `candidates` are the stored questions that were near enough: (question, cosine, rule)."""

    hit: Hit | None
    rule: str
    reason: str
    candidates: tuple[tuple[str, float, str], ...] = ()


class SemanticCache(AnswerCache):
    """`capacity` answers over all scopes, least recently used first to go; `ttl` seconds each (None: for ever).

    index         "flat", "ivf", "hnsw", "pq" or an IndexSpec; one index per scope, so that nothing of another
                  tenant is ever compared with
    second_look   (asked, stored) -> the rule that refuses, or ""; None trusts the threshold alone
    candidates    how many of the nearest go through the second look
    path          a file that outlives the process; an entry is on the disk when `put` returns
    """

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        threshold: float = 0.8,
        index: IndexSpec | str = "flat",
        second_look: SecondLook | None = check,
        candidates: int = 8,
        capacity: int = 10_000,
        ttl: float | None = None,
        path: str | os.PathLike[str] | None = None,
        clock: Clock = time.time,
    ):
        if not -1 <= threshold <= 1:
            raise ValueError(f"The threshold is a cosine, between -1 and 1; got {threshold}.")
        if candidates < 1:
            raise ValueError(f"At least one candidate has to be looked at, got {candidates}.")
        self.encoder: Encoder = MiniLM() if encoder is None else encoder
        self.threshold, self.second_look, self.candidates = threshold, second_look, candidates
        self.spec = IndexSpec(index) if isinstance(index, str) else index
        about = {
            "kind": "semantic",
            "format": 2,
            "encoder": self.encoder.fingerprint,
            "width": self.encoder.width,
        }
        super().__init__(Store(about, capacity, ttl, path, clock))
        self._indexes: dict[str, VectorIndex] = {}
        try:
            for entry in self._store:
                self._index(entry)
        except BaseException:
            self.close()
            raise

    def get(
        self, prompt: str, *, model: str = "", params: Any = None, tenant: str = "", context: Any = None
    ) -> Hit | None:
        """The answer to a stored question that means the same, or None."""
        return self.look(prompt, model=model, params=params, tenant=tenant, context=context).hit

    def look(
        self, prompt: str, *, model: str = "", params: Any = None, tenant: str = "", context: Any = None
    ) -> Look:
        """`get` with reasons: what was near, and which gate let it through or stopped it."""
        scope = scope_of(model, params, tenant, context)
        vector = self._embed(prompt)
        whole = self.encoder.reads_whole(prompt)
        with self._lock:
            self._forget(self._store.sweep())
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
        context: Any = None,
        ttl: float | None = None,
    ) -> bool:
        """Keep `answer`. False, and nothing kept, if the question is longer than the encoder reads: such a question
        can only be matched by mistake."""
        check_answer(answer)
        key = key_of(prompt, model, params, tenant, context)
        scope = scope_of(model, params, tenant, context)
        vector = self._embed(prompt)
        if not self.encoder.reads_whole(prompt):
            return False
        with self._lock:
            created, expires = self._store.expiry(ttl)
            entry = Entry(key, scope, tenant, prompt, answer, created, expires, vector.tobytes())
            self._stats.removed += self._forget(self._store.put(entry))
            self._index(entry)
        return True

    def _look(self, prompt: str, vector: np.ndarray, whole: bool, scope: str) -> Look:
        if not whole:
            return Look(None, "length", "length: the question is longer than the encoder reads.")
        index = self._indexes.get(scope)
        near = [] if index is None else index.search(vector, self.candidates)
        tried: list[tuple[str, float, str]] = []
        for key, score in near:
            if score < self.threshold:
                break
            entry = self._store.peek(key)
            if entry is None:  # its bytes had changed on the disk
                index.remove(key)  # type: ignore[union-attr]
                continue
            rule = self.second_look(prompt, entry.prompt) if self.second_look else ""
            tried.append((entry.prompt, score, rule))
            if not rule:
                self._store.mark(key)
                hit = Hit(entry.answer, score, entry.prompt, entry.created)
                return Look(hit, "", f"hit: {score:.2f} to {entry.prompt!r}.", tuple(tried))
        if tried:
            question, score, rule = tried[0]
            return Look(None, rule, f"{rule}: {score:.2f} to {question!r}, but refused.", tuple(tried))
        nearest = f"the nearest is at {near[0][1]:.2f}" if near else "nothing is stored"
        return Look(None, "threshold", f"threshold: {nearest}, {self.threshold:.2f} is wanted.")

    def _embed(self, prompt: str) -> np.ndarray:
        """(width,) float32, of length 1"""
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError(f"A semantic cache compares texts, and this is none: {prompt!r}.")
        return unit(self.encoder.encode([prompt]), self.encoder.width)[0]

    def _index(self, entry: Entry) -> None:
        index = self._indexes.get(entry.scope)
        if index is None:
            index = self._indexes[entry.scope] = VectorIndex(self.encoder.width, self.spec)
        index.add(entry.key, np.frombuffer(entry.vector, np.float32))

    def _forget(self, gone: list[Entry]) -> int:
        for entry in gone:
            index = self._indexes[entry.scope]
            index.remove(entry.key)
            if not len(index):
                del self._indexes[entry.scope]
        return len(gone)
