"""Records that notice when they are torn, damaged, moved or repeated, and a scan that finds every whole one.

    file    = start | record | record | ...
    record  = mark (4) | number (8) | length (4) | digest (16) | payload (length)

`number` counts from 0 and `digest` is a BLAKE2b of number, length and payload: 128 bits, so that no damage
and no chance passes for a record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b

START = b"lumen log 1\n"
MAX_PAYLOAD = 2**32 - 1
_MARK = b"\xf1rec"
_HEAD = struct.Struct("<4sQI16s")


@dataclass(frozen=True)
class Record:
    number: int
    payload: bytes
    end: int  # offset behind it


def pack(number: int, payload: bytes) -> bytes:
    """One record as it stands in the file."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"A record holds at most 4 GiB, got {len(payload):,} bytes; cache something smaller."
        )
    return _HEAD.pack(_MARK, number, len(payload), _digest(number, payload)) + payload


def unpack(data: bytes, at: int) -> Record | None:
    """The record that starts at offset `at`, None if there is no whole and undamaged one."""
    if at + _HEAD.size > len(data):
        return None
    mark, number, length, digest = _HEAD.unpack_from(data, at)
    begin, end = at + _HEAD.size, at + _HEAD.size + length
    if mark != _MARK or end > len(data):
        return None
    payload = data[begin:end]
    return Record(number, payload, end) if _digest(number, payload) == digest else None


def _digest(number: int, payload: bytes) -> bytes:
    return blake2b(struct.pack("<QI", number, len(payload)) + payload, digest_size=16).digest()


@dataclass
class Scan:
    """What a file holds: whole records, where the last one ends, and the broken stretches before that."""

    records: list[Record]
    end: int
    damage: list[tuple[int, int]]


def scan(data: bytes) -> Scan:
    """Read every whole record. After a broken one, the next place where a whole record starts is looked for."""
    found = Scan([], len(START), [])
    at = len(START)
    while at < len(data):
        record = unpack(data, at)
        expected = found.records[-1].number + 1 if found.records else 0
        if record is None:
            begin, at = at, _next_whole(data, at + 1)
            if at < 0:
                break
            found.damage.append((begin, at))
            continue
        if record.number != expected and (not found.damage or found.damage[-1][1] != at):
            found.damage.append((at, at))  # nothing broken, yet records are missing
        found.records.append(record)
        found.end = at = record.end
    return found


def _next_whole(data: bytes, at: int) -> int:
    while (at := data.find(_MARK, at)) >= 0:
        if unpack(data, at) is not None:
            return at
        at += 1
    return -1
