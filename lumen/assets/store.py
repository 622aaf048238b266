"""The folder everything is kept in, and the three habits that keep it whole.

One writer at a time (`lock`), nothing half-made in sight (`building`), and a list of what must be there with its
checksums (`write_manifest`, `damage`): a folder is either absent, or complete as its manifest says, or noticed and
made again.

The checksums are compared with every byte at every use, for disks lose bits without touching a date. CRC-32 finds what
happens by accident; with the reading it takes 65 ms for SmolLM2's 98 MB, a twenty-fifth of its load. sha256, which also
withstands intent, takes twice as long to compute and is taken once, of the download. Who may write to this folder may
change what runs here.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

MANIFEST = "lumen-manifest.json"
NO_CHECKSUMS = "its manifest lacks checksums, as those of earlier versions do"


class AssetError(RuntimeError):
    """A file the course needs cannot be had; the message says what to do."""


def cache_dir() -> Path:
    """`$LUMEN_CACHE`, by default `~/.cache/lumen`. Made when something is first written to it."""
    folder = os.environ.get("LUMEN_CACHE") or "~/.cache/lumen"
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:  # pathlib's, for a user without a home
        raise AssetError(
            f"There is no home directory to find {folder} in; set LUMEN_CACHE to a folder that can be written."
        ) from error


def note(sentence: str) -> None:
    """Tell the reader, on stderr, about something that takes a while or was mended."""
    print(f"lumen: {sentence}", file=sys.stderr, flush=True)


@contextmanager
def lock(cache: Path, name: str) -> Iterator[None]:
    """Hold `name` alone among the processes that share this cache. A process that dies lets go of it."""
    (cache / "locks").mkdir(parents=True, exist_ok=True)
    guard = FileLock(cache / "locks" / f"{name}.lock")
    try:
        guard.acquire(timeout=0.5)
    except Timeout:
        note(f"another process is preparing {name}; waiting for it.")
        guard.acquire()
    try:
        yield
    finally:
        guard.release()


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` if the block succeeds and vanishes if not. Call under `lock`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}-"
    for left_over in target.parent.glob(prefix + "*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        yield scratch
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)
        os.chmod(scratch, 0o755)
        os.replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def disk_errors(what: str, where: Path) -> Iterator[None]:
    """Turn a full disk, a forbidden folder or a file in a folder's place into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "the disk is full; free some space or set LUMEN_CACHE to a folder on another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cure = "that folder cannot be written; set LUMEN_CACHE to a folder of yours"
        else:
            cure = f"{error.strerror or error} ({error.filename}); set LUMEN_CACHE to another folder"
        raise AssetError(f"Could not write {what} under {where}: {cure}.") from error


def need_space(needed: int, what: str, where: Path) -> None:
    """Refuse before the work starts if `needed` bytes do not fit on the disk that holds `where`."""
    free = shutil.disk_usage(where).free
    if free < needed:
        raise AssetError(
            f"{what} needs {needed / 2**20:.0f} MiB under {where}, where {free / 2**20:.0f} MiB are free; "
            "free some space or set LUMEN_CACHE to a folder on another disk."
        )


def write_manifest(folder: Path, origin: str) -> None:
    """List every file of `folder` with its size and checksum, and what it was made from. Written last of all."""
    found = {
        file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()
    }
    found.pop(MANIFEST, None)
    content = {
        "origin": origin,
        "files": {name: file.stat().st_size for name, file in found.items()},
        "crc32": {name: crc32(file) for name, file in found.items()},
    }
    (folder / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")


def crc32(file: Path) -> int:
    """The CRC-32 of a file's bytes, as zip archives hold it. OSError if it cannot be read."""
    buffer, total = bytearray(1 << 20), 0
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            total = zlib.crc32(memoryview(buffer)[:count], total)
    return total


def damage(folder: Path, origin: str) -> str | None:
    """None if `folder` is whole and made from `origin`, `""` if it is not there, otherwise what is wrong."""
    if not folder.exists():
        return ""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
        made_from = manifest["origin"]
        sums = dict(manifest.get("crc32", {}))
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest cannot be read"
    if made_from != origin:
        return "it was made by another version"
    for name, size in files.items():
        try:
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found:,} bytes instead of {size:,}"
            if name in sums and crc32(folder / name) != sums[name]:
                return f"the content of {name} has changed"
        except OSError:
            return f"{name} is missing or cannot be read"
    return None if sums.keys() == files.keys() else NO_CHECKSUMS
