"""A file that only grows, one record per change, so that a crash can hurt nothing but the record being written.

`append` returns once the bytes are on the disk. `rewrite` replaces the whole file at once: whoever opens it
finds the old one or the new one. Record 0 says what the file is.

On opening, what is broken at the end is cut off (a write was under way). What is broken in the middle is
refused: a record that cannot be read may have replaced an older one, which would come back from the dead.
With `on_damage="skip"` only what stands behind the damage is kept. A cache may forget; it may not be wrong.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from lumen.io.errors import BadFile

from .records import START, Scan, pack, scan

CURE = "Choose another file, or delete it: a cache fills itself again."


class StoreError(RuntimeError):
    """The file cannot be written or is in use; the message says what to do, and nothing has changed."""


class DamageWarning(UserWarning):
    """Part of a file was given up on; the message says which part and why."""


class Log:
    """The file at `path`, made if it is not there. `about` describes it; `stored` holds what was read from it.

    One cache at a time: a lock file stands beside it while it is open. Not thread-safe by itself.
    """

    def __init__(self, path: str | os.PathLike[str], about: dict[str, Any], on_damage: str = "refuse"):
        if on_damage not in ("refuse", "skip"):
            raise ValueError(f"on_damage is 'refuse' or 'skip', got {on_damage!r}.")
        self.path = Path(path)
        self.about = about
        self.stored: list[bytes] = []
        self._file: BinaryIO | None = None
        self._closed = False
        self._lock = FileLock(self.path.with_name(self.path.name + ".lock"), thread_local=False)
        with _disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise StoreError(
                    f"{self.path.name} is in use by another cache; close that one or choose another file."
                ) from None
        try:
            self._open(on_damage)
        except BaseException:
            self.close()
            raise

    def append(self, payload: bytes) -> None:
        """Add one record and wait until it is on the disk. On failure the file is as it was before."""
        record = pack(self._number, payload)
        with _disk_errors(self.path):
            file = self._handle()
            try:
                if file.seek(0, os.SEEK_END) != self._end:  # what an earlier failure left and could not undo
                    file.truncate(self._end)
                    file.seek(self._end)
                _write_all(file, record)
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):
                    file.truncate(self._end)
                raise
        self._number += 1
        self._end += len(record)

    def rewrite(self, payloads: Iterable[bytes]) -> None:
        """Replace everything by these records, all or nothing."""
        self._check_open()
        with _disk_errors(self.path):
            self._replace(payloads)

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return self._end

    def close(self) -> None:
        """Let go of the file. Nothing is pending: every record is on the disk already."""
        self._closed = True
        self._drop_handle()
        self._lock.release()

    def _open(self, on_damage: str) -> None:
        with _disk_errors(self.path):
            for left_over in self.path.parent.glob(
                f".{self.path.name}-*.part"
            ):  # of a process that was killed
                left_over.unlink(missing_ok=True)
            if not self.path.exists():
                self._replace(())
                return
            data = self.path.read_bytes()
        found = scan(data)
        if not data.startswith(START) or not found.records or found.records[0].number != 0:
            raise BadFile(
                f"{self.path.name} is not a cache of this course, or its beginning is damaged. {CURE}"
            )
        self._check_about(found.records[0].payload)
        if found.damage and on_damage == "refuse":
            raise BadFile(
                f"{self.path.name} is damaged at byte {found.damage[0][0]:,} of {len(data):,}, with whole entries "
                f'behind it. Open it with on_damage="skip" to keep those alone. {CURE}'
            )
        self._keep(found, len(data))

    def _keep(self, found: Scan, size: int) -> None:
        """Take over what the file holds, and say what was given up."""
        name, behind = self.path.name, found.damage[-1][1] if found.damage else 0
        self.stored = [record.payload for record in found.records[1:] if record.end > behind]
        if found.damage:
            lost = len(found.records) - 1 - len(self.stored)
            _warn(
                f"{name} is damaged at byte {found.damage[0][0]:,}; the {len(self.stored)} entries behind the "
                f"damage were kept and the {lost} before it were let go."
            )
        if found.end < size:
            _warn(
                f"{name} ends in {size - found.end:,} bytes that are not a whole entry (a write was cut short); "
                "they were removed."
            )
        with _disk_errors(self.path):
            if found.damage:
                self._replace(self.stored)
                return
            self._end, self._number = found.end, len(found.records)
            self._handle().truncate(self._end)
            os.fsync(self._handle().fileno())

    def _check_about(self, payload: bytes) -> None:
        stored = json.loads(payload)
        for key in {**self.about, **stored}:
            if stored.get(key) != self.about.get(key):
                raise BadFile(
                    f"{self.path.name} was made with {key} {stored.get(key)!r}, this cache has "
                    f"{self.about.get(key)!r}. {CURE}"
                )

    def _replace(self, payloads: Iterable[bytes]) -> None:
        """Write a whole new file beside the old one, then swap."""
        handle, name = tempfile.mkstemp(prefix=f".{self.path.name}-", suffix=".part", dir=self.path.parent)
        scratch = Path(name)
        size, number = len(START), 0
        try:
            with open(handle, "wb", buffering=0) as file:
                _write_all(file, START)
                about = json.dumps(self.about, sort_keys=True).encode()
                for payload in (p for part in ((about,), payloads) for p in part):
                    record = pack(number, payload)
                    _write_all(file, record)
                    size, number = size + len(record), number + 1
                os.fsync(file.fileno())
            self._drop_handle()  # Windows renames no open file
            os.replace(scratch, self.path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        self._end, self._number = size, number
        _sync_folder(self.path.parent)

    def _handle(self) -> BinaryIO:
        self._check_open()
        if self._file is None:
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 - it stays open
        return self._file

    def _drop_handle(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"{self.path.name} is closed; open the cache again to use it.")


def _warn(sentence: str) -> None:
    warnings.warn(sentence, DamageWarning, stacklevel=2)


def _write_all(file: BinaryIO, data: bytes) -> None:
    """An unbuffered write may take only part of the bytes; go on until it has taken them all."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut. Some systems cannot open a folder; there it is not needed."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn what the disk may say into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "the disk is full; free some space or keep the cache on another disk"
        elif error.errno == errno.EFBIG:
            cure = "a file may not grow that far here; lower the capacity or raise the limit"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cure = "that folder or file cannot be written; choose one of your own"
        else:
            cure = f"{error.strerror or error}; choose another file"
        raise StoreError(f"Could not write {path.name}: {cure}. The cache is as it was before.") from error
