"""The part that both caches share: answers by key with an age limit, least recently used first to go, kept by SQLite.

SQLite brings what a file that survives a crash needs: a write is on the disk whole or not at all, and what was deleted
is overwritten (`secure_delete`). It does not notice a flipped bit, so each row carries a digest of itself; a row that
does not fit its digest is forgotten. A cache may forget; it may not be wrong.

    answers   key | scope | tenant | prompt | answer | created | expires | used | vector | digest

Reading marks an entry as used, and that mark reaches the disk with the next write.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from lumen.io.errors import BadFile

Clock = Callable[[], float]
CURE = "Choose another file, or delete it: a cache fills itself again."
COLUMNS = "key, scope, tenant, prompt, answer, created, expires, vector, digest"
TABLE = """
CREATE TABLE IF NOT EXISTS about (text TEXT);
CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, scope TEXT, tenant TEXT, prompt TEXT, answer TEXT,
                                    created REAL, expires REAL, vector BLOB, digest BLOB, used INTEGER);
CREATE INDEX IF NOT EXISTS by_age ON answers (expires);
CREATE INDEX IF NOT EXISTS by_use ON answers (used);
"""


class StoreError(RuntimeError):
    """The file cannot be written or is in use; the message says what to do, and nothing has changed."""


class DamageWarning(UserWarning):
    """An entry was given up because its bytes had changed on the disk."""


@dataclass(frozen=True)
class Entry:
    """One kept answer. `created` and `expires` are seconds since 1970; `vector` is float32 bytes, b"" if none."""

    key: str
    scope: str
    tenant: str
    prompt: str
    answer: str
    created: float
    expires: float
    vector: bytes = b""

    @property
    def digest(self) -> bytes:
        texts = [self.key, self.scope, self.tenant, self.prompt, self.answer]
        times = [float(self.created), float(self.expires)]
        return blake2b(json.dumps([texts, times]).encode() + self.vector, digest_size=16).digest()


class Store:
    """At most `capacity` entries, in memory (`path=None`) or in a file. Not thread-safe by itself.

    `about` says what the file is for and is compared when it is opened again. One store at a time has a file open.
    Every call that drops entries returns them, so that an index beside the store can drop them, too.
    """

    def __init__(
        self,
        about: dict[str, Any],
        capacity: int = 10_000,
        ttl: float | None = None,
        path: str | os.PathLike[str] | None = None,
        clock: Clock = time.time,
    ):
        if capacity < 1:
            raise ValueError(f"A cache needs room for one answer at least, got capacity {capacity}.")
        self.capacity, self.ttl, self._clock = capacity, ttl, clock
        self.expiry(None)
        self.path = None if path is None else Path(path)
        self._name = "the cache" if self.path is None else self.path.name
        self._uses = 0
        with self._explained():
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sql = sqlite3.connect(
                self.path or ":memory:", timeout=0, check_same_thread=False, isolation_level=None
            )
        try:
            with self._explained():
                self._open(json.dumps(about, sort_keys=True))
        except BaseException:
            self._sql.close()
            raise

    def expiry(self, ttl: float | None) -> tuple[float, float]:
        """Now, and when an answer stored now is too old. [s since 1970]"""
        life = self.ttl if ttl is None else ttl
        if life is not None and not life > 0:
            raise ValueError(
                f"A time to live is a positive number of seconds, or None for ever; got {life!r}."
            )
        now = self._clock()
        return now, math.inf if life is None else now + life

    def peek(self, key: str) -> Entry | None:
        """The living entry; None if there is none."""
        return next(iter(self._rows("WHERE key = ? AND expires > ?", (key, self._clock()))), None)

    def mark(self, key: str) -> None:
        """Count an entry as used now."""
        with self._explained():
            if not self._sql.in_transaction:
                self._sql.execute("BEGIN")
            self._sql.execute("UPDATE answers SET used = ? WHERE key = ?", (self._tick(), key))

    def get(self, key: str) -> Entry | None:
        """The living entry, counted as used now; None if there is none."""
        entry = self.peek(key)
        if entry is not None:
            self.mark(key)
        return entry

    def put(self, entry: Entry) -> list[Entry]:
        """Store it, in place of an older one with the same key. Returns the entries that had to go."""
        with self._write():
            gone = self._take("WHERE expires <= ?", (self._clock(),))
            self._sql.execute("DELETE FROM answers WHERE key = ?", (entry.key,))
            excess = self._count() + 1 - self.capacity
            gone += self._take("ORDER BY used LIMIT ?", (max(0, excess),))
            row = [getattr(entry, name) for name in COLUMNS.split(", ")]
            self._sql.execute(
                f"INSERT INTO answers ({COLUMNS}, used) VALUES ({', '.join('?' * 10)})", [*row, self._tick()]
            )
        return gone

    def remove(self, where: str = "WHERE 1", values: Sequence[Any] = ()) -> list[Entry]:
        """Take out the chosen entries; when this returns the file holds no byte of them."""
        with self._write():
            return self._take(where, values)

    def sweep(self) -> list[Entry]:
        """Take out what is too old."""
        old = self._rows("WHERE expires <= ? LIMIT 1", (self._clock(),))
        return self.remove("WHERE expires <= ?", (self._clock(),)) if old else []

    def close(self) -> None:
        """Let go of the file. Answers are on the disk already; only marks of use are pending."""
        try:
            if self._sql.in_transaction:
                self._sql.commit()
        except sqlite3.Error:
            pass
        finally:
            self._sql.close()

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return self.path.stat().st_size if self.path is not None else 0

    def __len__(self) -> int:
        with self._explained():
            return self._sql.execute(
                "SELECT count(*) FROM answers WHERE expires > ?", (self._clock(),)
            ).fetchone()[0]

    def __iter__(self) -> Iterator[Entry]:
        """The living entries, least recently used first."""
        return iter(self._rows("WHERE expires > ? ORDER BY used", (self._clock(),)))

    def _open(self, about: str) -> None:
        self._sql.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._sql.execute("PRAGMA synchronous = FULL")
        self._sql.execute("PRAGMA secure_delete = ON")
        self._sql.execute("PRAGMA journal_size_limit = 0")  # the journal that stays open keeps no old bytes
        self._sql.execute("BEGIN EXCLUSIVE")
        if self._sql.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise BadFile(f"{self._name} is damaged. {CURE}")
        tables = {
            name for (name,) in self._sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if tables - {"about", "answers"}:
            raise BadFile(f"{self._name} is a database of something else. {CURE}")
        for statement in TABLE.strip().split(";\n"):
            self._sql.execute(statement)
        known = self._sql.execute("SELECT text FROM about").fetchone()
        if known is None:
            self._sql.execute("INSERT INTO about VALUES (?)", (about,))
        elif known[0] != about:
            raise BadFile(f"{self._name} was made with {known[0]}, this cache has {about}. {CURE}")
        self._uses = self._sql.execute("SELECT coalesce(max(used), 0) FROM answers").fetchone()[0]
        self._sql.execute("COMMIT")
        excess = self._count() - self.capacity
        if excess > 0:
            self.remove("ORDER BY used LIMIT ?", (excess,))

    def _rows(self, where: str, values: Sequence[Any] = ()) -> list[Entry]:
        """The entries that fit their digest; the others are taken out, with a warning."""
        with self._explained():
            found = self._sql.execute(f"SELECT {COLUMNS}, rowid FROM answers {where}", values).fetchall()
        entries: list[Entry] = []
        damaged: list[int] = []
        for *fields, digest, row in found:
            entry = Entry(*fields)
            try:
                whole = entry.digest == digest
            except (TypeError, ValueError):
                whole = False
            if whole:
                entries.append(entry)
            else:
                damaged.append(row)
        if damaged:
            warnings.warn(f"{self._name}: {len(damaged)} damaged entries were let go.", DamageWarning, 3)
            with self._write():
                self._sql.executemany("DELETE FROM answers WHERE rowid = ?", [(row,) for row in damaged])
        return entries

    def _take(self, where: str, values: Sequence[Any]) -> list[Entry]:
        """Select and delete, inside the transaction that is open."""
        fields = "key, scope, tenant, prompt, answer, created, expires"
        gone = [Entry(*row) for row in self._sql.execute(f"SELECT {fields} FROM answers {where}", values)]
        self._sql.executemany("DELETE FROM answers WHERE key = ?", [(entry.key,) for entry in gone])
        return gone

    def _count(self) -> int:
        return self._sql.execute("SELECT count(*) FROM answers").fetchone()[0]

    def _tick(self) -> int:
        self._uses += 1
        return self._uses

    @contextmanager
    def _write(self) -> Iterator[None]:
        """One change, whole and on the disk when the block ends; on failure nothing has changed."""
        with self._explained():
            if not self._sql.in_transaction:
                self._sql.execute("BEGIN")
            try:
                yield
                self._sql.execute("COMMIT")
            except BaseException:
                if self._sql.in_transaction:
                    self._sql.execute("ROLLBACK")
                raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn what SQLite and the disk may say into a sentence."""
        try:
            yield
        except (sqlite3.OperationalError, OSError) as error:
            what = str(error)
            if "locked" in what:
                cure = "it is in use by another cache; close that one or choose another file"
            elif "full" in what:
                cure = "the disk is full; free some space or keep the cache on another disk"
            elif "readonly" in what or "unable to open" in what or isinstance(error, OSError):
                cure = "that folder or file cannot be written; choose one of your own"
            else:
                cure = f"{what}; choose another file"
            raise StoreError(f"Could not use {self._name}: {cure}. The cache is as it was before.") from error
        except sqlite3.ProgrammingError as error:
            raise ValueError(f"{self._name} is closed; open the cache again to use it.") from error
        except sqlite3.DatabaseError as error:
            raise BadFile(f"{self._name} is not a cache of this course, or it is damaged. {CURE}") from error
