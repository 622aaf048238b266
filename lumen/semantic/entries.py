"""The part that both caches share: answers by key, least recently used first, with an age limit, kept on disk.

Every change is written first and made second, so a failed write leaves memory and disk as they were. Reads are
not written: after a restart the order of use is the order of writing.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .log import DamageWarning, Log, StoreError

Clock = Callable[[], float]
SLACK = 2  # the file is rewritten when it holds this many times the entries it needs
FEWEST = 64  # ... and this many at least


@dataclass(frozen=True)
class Entry:
    """One kept answer. `created` and `expires` are seconds since 1970; `vector` is None in the exact cache."""

    key: str
    scope: str
    tenant: str
    prompt: str
    answer: str
    created: float
    expires: float
    vector: np.ndarray | None = field(default=None, compare=False)

    def payload(self, drop: list[str]) -> bytes:
        """JSON, a zero byte, then the vector. `drop` names the entries that make room, in the same record."""
        fields = {
            "key": self.key,
            "scope": self.scope,
            "tenant": self.tenant,
            "prompt": self.prompt,
            "answer": self.answer,
            "created": self.created,
            "expires": None if math.isinf(self.expires) else self.expires,
            "drop": drop,
        }
        vector = b"" if self.vector is None else self.vector.astype("<f4").tobytes()
        return json.dumps(fields).encode("ascii") + b"\0" + vector

    @classmethod
    def parse(cls, payload: bytes) -> tuple[Entry, list[str]]:
        text, _, vector = payload.partition(b"\0")
        fields = json.loads(text)
        drop = fields.pop("drop")
        fields["expires"] = math.inf if fields["expires"] is None else fields["expires"]
        return cls(**fields, vector=np.frombuffer(vector, "<f4") if vector else None), drop


class Entries:
    """At most `capacity` entries. Not thread-safe by itself: the cache that owns it holds a lock.

    `path=None` keeps them in memory only. `clock` gives seconds since 1970; it is the wall clock because an
    age limit has to survive a restart.
    """

    def __init__(
        self,
        about: dict[str, Any],
        capacity: int,
        ttl: float | None,
        path: str | os.PathLike[str] | None,
        clock: Clock = time.time,
        on_damage: str = "refuse",
    ):
        if capacity < 1:
            raise ValueError(f"A cache needs room for one answer at least, got capacity {capacity}.")
        check_ttl(ttl)
        self.capacity, self.ttl, self._clock = capacity, ttl, clock
        self._held: OrderedDict[str, Entry] = OrderedDict()
        self._deadlines: list[tuple[float, str]] = []  # a heap; stale pairs are passed over
        self._log = None if path is None else Log(path, about, on_damage)
        self._written = 0
        if self._log is not None:
            self._replay(self._log)

    def expiry(self, ttl: float | None) -> tuple[float, float]:
        """Now, and when an answer stored now is too old. [s]"""
        check_ttl(ttl)
        now, life = self._clock(), self.ttl if ttl is None else ttl
        return now, math.inf if life is None else now + life

    def get(self, key: str) -> Entry | None:
        """The living entry, marked as used now; None if there is none."""
        entry = self._held.get(key)
        if entry is None or self.expired(entry):
            return None
        self._held.move_to_end(key)
        return entry

    def peek(self, key: str) -> Entry:
        """The entry without counting it as used."""
        return self._held[key]

    def expired(self, entry: Entry) -> bool:
        return self._clock() >= entry.expires

    def put(self, entry: Entry) -> list[Entry]:
        """Store it, in place of an older one with the same key. Returns the entries that had to go."""
        too_old = self.sweep()
        excess = len(self._held) + (entry.key not in self._held) - self.capacity
        evicted = list(itertools.islice(self._held.values(), max(0, excess)))
        if self._log is not None:
            self._log.append(entry.payload([old.key for old in evicted]))
            self._written += 1
        for old in evicted:
            del self._held[old.key]
        self._insert(entry)
        self._compact_if_worth_it()
        return too_old + evicted

    def sweep(self) -> list[Entry]:
        """Forget the entries that are too old. The file need not know: it holds their expiry."""
        gone, now = [], self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, key = heapq.heappop(self._deadlines)
            entry = self._held.get(key)
            if entry is not None and entry.expires == deadline:
                gone.append(self._held.pop(key))
        return gone

    def remove(self, chosen: Callable[[Entry], bool]) -> list[Entry]:
        """Take out the living entries that are `chosen`. When this returns, the file holds no byte of them, nor
        of any that were replaced, evicted or too old. The owner sweeps first."""
        leaving = [entry for entry in self._held.values() if chosen(entry)]
        gone = {entry.key for entry in leaving}
        if leaving or self._written > len(self._held):
            self._rewrite([entry for entry in self._held.values() if entry.key not in gone])
        for key in gone:
            del self._held[key]
        return leaving

    def compact(self) -> None:
        """Write the file anew with the living entries alone, least recently used first."""
        self._rewrite([entry for entry in self._held.values() if not self.expired(entry)])

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    @property
    def disk_bytes(self) -> int:
        return 0 if self._log is None else self._log.nbytes

    def __len__(self) -> int:
        return sum(not self.expired(entry) for entry in self._held.values())

    def __iter__(self) -> Iterator[Entry]:
        """The living entries, least recently used first."""
        return (entry for entry in list(self._held.values()) if not self.expired(entry))

    def _insert(self, entry: Entry) -> None:
        self._held[entry.key] = entry
        self._held.move_to_end(entry.key)
        if not math.isinf(entry.expires):
            heapq.heappush(self._deadlines, (entry.expires, entry.key))

    def _replay(self, log: Log) -> None:
        try:
            for payload in log.stored:
                entry, drop = Entry.parse(payload)
                for key in drop:
                    self._held.pop(key, None)
                self._insert(entry)
        except BaseException:
            log.close()
            raise
        self._written, log.stored = len(log.stored), []
        self.sweep()
        while len(self._held) > self.capacity:
            self._held.popitem(last=False)
        self._compact_if_worth_it()

    def _compact_if_worth_it(self) -> None:
        if self._log is None or self._written < max(FEWEST, SLACK * len(self._held)):
            return
        try:
            self.compact()
        except StoreError as error:  # the entry itself is safe; try again when as much has been added again
            self._written = 0
            warnings.warn(f"The cache works on, but its file could not be tidied. {error}", DamageWarning, 3)

    def _rewrite(self, entries: list[Entry]) -> None:
        if self._log is not None:
            self._log.rewrite(entry.payload([]) for entry in entries)
            self._written = len(entries)


def check_ttl(ttl: float | None) -> None:
    if ttl is not None and not ttl > 0:
        raise ValueError(f"A time to live is a positive number of seconds, or None for ever; got {ttl!r}.")
