"""The store under both caches: damage is noticed, a full disk is a sentence, nothing half-done stays."""

from __future__ import annotations

import sqlite3
import sys

import pytest

from lumen.io.errors import BadFile
from lumen.semantic import DamageWarning, ExactCache, StoreError
from lumen.semantic.store import Store

ABOUT = {"kind": "exact", "format": 2}
ANSWERS = {str(number): f"answer {number} " + "x" * (number * 37 % 300) for number in range(40)}


@pytest.fixture
def file(tmp_path):
    with ExactCache(path=tmp_path / "c") as cache:
        for prompt, answer in ANSWERS.items():
            cache.put(prompt, answer)
    return tmp_path / "c"


def read(path):
    """What a cache over this file gives; every answer that comes must be the one that was stored."""
    with ExactCache(path=path) as cache:
        found = {prompt: hit.answer for prompt in ANSWERS if (hit := cache.get(prompt)) is not None}
    assert all(ANSWERS[prompt] == answer for prompt, answer in found.items())
    return found


def test_what_was_put_is_read_back(file):
    assert read(file) == ANSWERS


@pytest.mark.filterwarnings("ignore::lumen.semantic.DamageWarning")
def test_a_flipped_byte_anywhere_never_gives_a_wrong_answer(file, tmp_path):
    data, refused, lost, whole = file.read_bytes(), 0, 0, 0
    for at in range(0, len(data), 211):
        broken = tmp_path / "broken"
        broken.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            found = read(broken)
        except (BadFile, StoreError):
            refused += 1
        else:
            lost, whole = lost + (len(found) < len(ANSWERS)), whole + (len(found) == len(ANSWERS))
    assert (
        lost > 0 and whole > 0
    )  # answers were changed and noticed; free space was changed and did not matter


@pytest.mark.filterwarnings("ignore::lumen.semantic.DamageWarning")
def test_cut_anywhere_it_is_refused_or_right(file, tmp_path):
    data = file.read_bytes()
    for size in range(1, len(data), 997):
        (tmp_path / "cut").write_bytes(data[:size])
        try:
            read(tmp_path / "cut")
        except (BadFile, StoreError) as error:
            assert "cut" in str(error)


def test_a_changed_answer_is_let_go_with_a_warning(file):
    data = file.read_bytes()
    file.write_bytes(data.replace(b"answer 7 ", b"answer 8 "))
    with pytest.warns(DamageWarning, match="1 damaged entries"):
        assert set(ANSWERS) - set(read(file)) == {"7"}
    assert set(ANSWERS) - set(read(file)) == {"7"}  # and it is gone for good, without another warning


def full(store, pages):
    """No room for more than `pages` pages, as if the disk were full."""
    store._sql.execute(f"PRAGMA max_page_count = {pages}")


@pytest.mark.parametrize("size", [5_000, 50_000])
def test_a_full_disk_is_a_sentence_and_changes_nothing(file, size):
    cache = ExactCache(path=file)
    full(cache._store, cache._store._sql.execute("PRAGMA page_count").fetchone()[0])
    with pytest.raises(StoreError, match="the disk is full; free some space"):
        cache.put("new", "y" * size)
    with pytest.raises(StoreError, match="the disk is full"):
        cache.put("7", "z" * size)  # the old answer stays when its successor does not fit
    assert cache.get("new") is None and cache.get("7").answer == ANSWERS["7"] and len(cache) == len(ANSWERS)
    cache.close()
    assert read(file) == ANSWERS


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_real_limit_on_the_file_size_is_a_sentence(file):
    import resource
    import signal

    cache, old = ExactCache(path=file), resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, old[1]))
        with pytest.raises(StoreError):
            cache.put("new", "y" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert cache.get("7").answer == ANSWERS["7"] and cache.get("new") is None
    cache.put("new", "y")
    cache.close()
    assert read(file) == ANSWERS


def test_two_at_once_are_refused_until_the_first_is_closed(file):
    first = ExactCache(path=file)
    with pytest.raises(StoreError, match=r"c: it is in use by another cache; close that one"):
        ExactCache(path=file)
    first.close()
    assert read(file) == ANSWERS
    with pytest.raises(ValueError, match="is closed"):
        first.put("a", "too late")


def test_what_is_no_cache_is_refused_with_a_sentence(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be looked at " * 30)
    with pytest.raises(BadFile, match="text is not a cache of this course, or it is damaged"):
        ExactCache(path=tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE bookmarks (address TEXT)")
    other.commit()
    other.close()
    with pytest.raises(BadFile, match="a database of something else"):
        ExactCache(path=tmp_path / "other")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"folder: that folder or file cannot be written"):
        ExactCache(path=tmp_path / "folder")


def test_a_store_for_something_else_is_refused(file):
    with pytest.raises(BadFile, match=r"made with .*exact.*this cache has .*other"):
        Store({"kind": "other"}, path=file)
    assert read(file) == ANSWERS  # and the lock was let go
