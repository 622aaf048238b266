"""The crash-safe log: cut anywhere, flipped anywhere, on a full disk, opened twice. It forgets, it is never wrong."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import warnings

import pytest

from lumen.semantic import log as log_module
from lumen.semantic.log import DamageWarning, Log, StoreError
from lumen.semantic.records import START, pack, scan, unpack
from lumen.io.errors import BadFile

ABOUT = {"kind": "test"}
PAYLOADS = [b"first", b"", b"third, with a mark \xf1rec inside it", b"\0" * 40, b"last"]


@pytest.fixture
def file(tmp_path):
    log = Log(tmp_path / "a.log", ABOUT)
    for payload in PAYLOADS:
        log.append(payload)
    log.close()
    return log.path


def reopened(path, on_damage="refuse"):
    log = Log(path, ABOUT, on_damage)
    log.close()
    return log.stored


def ends(path):
    """Offsets behind every record, the first one (what the file is) included."""
    return [record.end for record in scan(path.read_bytes()).records]


def test_what_was_appended_is_read_back(file):
    assert reopened(file) == PAYLOADS
    assert ends(file)[-1] == file.stat().st_size


def test_cut_at_every_byte_all_whole_records_are_read_and_the_rest_is_cut_off_with_a_sentence(file, tmp_path):
    data, limits = file.read_bytes(), ends(file)
    copy = tmp_path / "cut.log"
    for size in range(limits[0], len(data)):
        copy.write_bytes(data[:size])
        whole = sum(end <= size for end in limits) - 1
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            log = Log(copy, ABOUT)
        assert log.stored == PAYLOADS[:whole], size
        assert [w.category for w in seen] == ([] if size in limits else [DamageWarning]), size
        log.append(b"goes on")
        log.close()
        assert reopened(copy) == [*PAYLOADS[:whole], b"goes on"]


def test_cut_inside_the_first_record_is_refused_with_a_sentence(file):
    first = ends(file)[0]
    data = file.read_bytes()
    for size in (0, 3, len(START), first - 1):
        file.write_bytes(data[:size])
        with pytest.raises(BadFile, match=r"not a cache of this course.*delete it"):
            Log(file, ABOUT)
        assert file.read_bytes() == data[:size]  # left for inspection


@pytest.mark.parametrize("on_damage", ["refuse", "skip"])
def test_a_flipped_byte_anywhere_never_gives_a_wrong_record(file, tmp_path, on_damage):
    data, limits = file.read_bytes(), ends(file)
    copy = tmp_path / "flip.log"
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x40
        copy.write_bytes(damaged)
        hurt = sum(end <= at for end in limits)  # the number of the record that was hit
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            if hurt == 0 or (hurt < len(PAYLOADS) and on_damage == "refuse"):
                with pytest.raises(BadFile, match=r"damaged|not a cache"):
                    Log(copy, ABOUT, on_damage)
                assert copy.read_bytes() == damaged
                continue
            stored = reopened(copy, on_damage)
        assert any(issubclass(w.category, DamageWarning) for w in seen)
        # at the end: cut off; in the middle: only what stands behind the damage
        assert stored == (PAYLOADS[:-1] if hurt == len(PAYLOADS) else PAYLOADS[hurt:]), at
        assert reopened(copy) == stored  # mended for good


def test_a_record_taken_out_repeated_or_moved_is_noticed(file):
    data, limits = file.read_bytes(), ends(file)
    one, two = data[limits[0] : limits[1]], data[limits[1] : limits[2]]
    for middle in (two, one + one + two, two + one):
        file.write_bytes(data[: limits[0]] + middle + data[limits[2] :])
        with pytest.raises(BadFile, match="is damaged at byte"):
            Log(file, ABOUT)


def test_a_length_that_lies_is_not_believed():
    record = bytearray(pack(0, b"abc"))
    record[12:16] = (2**32 - 1).to_bytes(4, "little")
    assert unpack(bytes(record), 0) is None


def full(error_number, written):
    """A stand-in for `_write_all`: takes some of the bytes, then the disk says no."""

    def write(file, data):
        file.write(data[:written])
        raise OSError(error_number, os.strerror(error_number))

    return write


@pytest.mark.parametrize(
    ("number", "sentence"),
    [(errno.ENOSPC, "the disk is full; free some space"), (errno.EIO, "choose another file")],
)
@pytest.mark.parametrize("written", [0, 1, 40])
def test_a_failed_append_leaves_everything_as_it_was(file, monkeypatch, written, number, sentence):
    before = file.read_bytes()
    log = Log(file, ABOUT)
    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_write_all", full(number, written))
        with pytest.raises(StoreError, match=f"Could not write a.log: .*{sentence}.*as it was before"):
            log.append(b"does not fit" * 10)
    assert file.read_bytes() == before
    log.append(b"fits")
    log.close()
    assert reopened(file) == [*PAYLOADS, b"fits"]


def test_bytes_that_could_not_be_taken_back_are_overwritten_by_the_next_append(file, monkeypatch):
    log = Log(file, ABOUT)
    handle = log._handle()

    class Stubborn:
        """A file that cannot be shortened while the disk is full."""

        def __getattr__(self, name):
            return getattr(handle, name)

        def truncate(self, size):
            raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_write_all", full(errno.ENOSPC, 9))
        patch.setattr(log, "_file", Stubborn())
        with pytest.raises(StoreError, match="full"):
            log.append(b"does not fit")
    assert file.stat().st_size == ends(file)[-1] + 9
    log.append(b"fits")
    log.close()
    assert reopened(file) == [*PAYLOADS, b"fits"]


def test_a_failed_sync_takes_the_record_back(file, monkeypatch):
    log = Log(file, ABOUT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StoreError, match="full"):
            log.append(b"not safe")
    log.close()
    assert reopened(file) == PAYLOADS


@pytest.mark.parametrize("fails", ["write", "fsync", "replace"])
def test_a_failed_rewrite_leaves_the_old_file_and_no_scraps(file, monkeypatch, fails):
    before = file.read_bytes()
    log = Log(file, ABOUT)

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        if fails == "write":
            patch.setattr(log_module, "_write_all", full(errno.ENOSPC, 5))
        else:
            patch.setattr(os, fails, refuse)
        with pytest.raises(StoreError, match="full"):
            log.rewrite([b"new"])
    assert file.read_bytes() == before
    assert sorted(p.name for p in file.parent.iterdir()) == ["a.log", "a.log.lock"]
    log.append(b"goes on")
    log.close()
    assert reopened(file) == [*PAYLOADS, b"goes on"]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on file sizes there")
def test_a_real_limit_on_the_file_size_is_a_sentence_and_the_log_stays_whole(tmp_path):
    script = """
import resource, sys
from lumen.semantic.log import Log, StoreError
log = Log(sys.argv[1], {"kind": "test"})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
count = 0
try:
    while True:
        log.append(b"x" * 300)
        count += 1
except StoreError as error:
    print(count, error)
"""
    path = tmp_path / "small.log"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=120
    )
    count, _, sentence = done.stdout.partition(" ")
    assert "a file may not grow that far here; lower the capacity" in sentence, done.stderr
    assert reopened(path) == [b"x" * 300] * int(count)
    assert int(count) > 5


def test_rewrite_replaces_all_and_appending_goes_on(file):
    log = Log(file, ABOUT)
    log.rewrite([b"one", b"two"])
    log.append(b"three")
    assert log.nbytes == file.stat().st_size
    log.close()
    assert reopened(file) == [b"one", b"two", b"three"]


def test_what_a_killed_rewrite_left_is_swept_away(file):
    scrap = file.parent / ".a.log-abc123.part"
    scrap.write_bytes(b"half a file")
    assert reopened(file) == PAYLOADS
    assert not scrap.exists()


def test_two_at_once_are_refused_until_the_first_is_closed(file):
    first = Log(file, ABOUT)
    with pytest.raises(StoreError, match=r"a\.log is in use by another cache; close that one"):
        Log(file, ABOUT)
    first.close()
    assert reopened(file) == PAYLOADS
    with pytest.raises(ValueError, match="is closed"):
        first.append(b"too late")


def test_a_file_made_for_something_else_is_refused(file):
    with pytest.raises(BadFile, match=r"made with kind 'test', this cache has 'other'"):
        Log(file, {"kind": "other"})
    with pytest.raises(BadFile, match=r"made with encoder None, this cache has 'x'"):
        Log(file, {"kind": "test", "encoder": "x"})
    assert reopened(file) == PAYLOADS  # and the lock was let go


def test_a_folder_in_place_of_a_file_and_an_unknown_mode_are_sentences(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"folder: .*choose another file"):
        Log(tmp_path / "folder", ABOUT)
    with pytest.raises(ValueError, match="'refuse' or 'skip'"):
        Log(tmp_path / "x.log", ABOUT, "ignore")
