"""Walk the header of a GGUF file without believing it.

    "GGUF" | version | tensor count | pair count      4 + 4 + 8 + 8 bytes, little-endian
    pairs    key, type, value                          strings and arrays carry their own lengths
    tensors  name, dims, type, offset                  offsets count from the start of the data
    padding  to `general.alignment` (32)
    data     one block per tensor

Every count, length, dimension and offset in that picture is a number somebody else wrote. Each is compared
with the bytes that are really left before it is used, so a file that is cut short or lies about its sizes
ends in `BadFile`: never in a crash, an endless loop or an allocation larger than the file warrants.

Layout: ggml, docs/gguf.md, versions 2 and 3. Block sizes come from the `gguf` package.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from .errors import BadFile

MAX_ITEMS = 1 << 22  # texts in one list, pairs or tensors in one file; real files stay below 2**20
MAX_DIMS = 4
STRING, ARRAY = 8, 9
BOOL = 7
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
SCALARS[BOOL] = "<?"


@dataclass(frozen=True)
class TensorInfo:
    """One tensor: `shape` in torch order (rows first); `start` in the file and `size`, both in bytes."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    size: int


@dataclass(frozen=True)
class Header:
    """What a GGUF file says about itself, checked against its length."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: str | os.PathLike[str]) -> Header:
    """The header of the file at `path`; lists of numbers come as numpy arrays. BadFile says why not."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < 24:
                raise BadFile(f"{path.name} is too short to be a GGUF file; fetch it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Walk(data, path.name).header()
    except (IsADirectoryError, FileNotFoundError) as error:
        raise BadFile(f"There is no file {path}.") from error


class _Walk:
    """A cursor over the mapped file that refuses to step past its end."""

    def __init__(self, data: mmap.mmap, name: str):
        self.data, self.name, self.at, self.end = data, name, 0, len(data)

    def bad(self, why: str) -> BadFile:
        place = f"at byte {self.at:,} of {self.end:,}"
        return BadFile(f"{self.name} is not a whole GGUF file: {why} ({place}). Fetch it again.")

    def take(self, layout: str) -> Any:
        """The next number, as `struct` describes it."""
        size = struct.calcsize(layout)
        if size > self.end - self.at:
            raise self.bad("it ends inside its header")
        (value,) = struct.unpack_from(layout, self.data, self.at)
        self.at += size
        return value

    def count(self, what: str, least: int) -> int:
        """A count of things that take `least` bytes each at the least."""
        number = self.take("<Q")
        if number > MAX_ITEMS or number * least > self.end - self.at:
            raise self.bad(f"it claims {number:,} {what}")
        return number

    def text(self, what: str) -> str:
        length = self.take("<Q")
        if length > self.end - self.at:
            raise self.bad(f"{what} claims {length:,} bytes")
        raw = self.data[self.at : self.at + length]
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8 text") from error
        self.at += length
        return value

    def value(self, key: str) -> Any:
        kind = self.take("<I")
        if kind == STRING:
            return self.text(f"the value of {key!r}")
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.bad(f"{key!r} has the unknown type {kind}")
        if kind == BOOL and self.at < self.end and self.data[self.at] > 1:
            raise self.bad(f"{key!r} is neither true nor false")
        return self.take(SCALARS[kind])

    def array(self, key: str) -> Any:
        kind = self.take("<I")
        if kind == STRING:
            number = self.count(f"texts in {key!r}", least=8)
            return [self.text(f"an entry of {key!r}") for _ in range(number)]
        if kind not in SCALARS:  # lists of lists exist in the format and in no model we know
            raise self.bad(f"{key!r} is a list of the unknown type {kind}")
        dtype = np.dtype(SCALARS[kind] if kind != BOOL else "u1")
        number = self.take("<Q")
        if number * dtype.itemsize > self.end - self.at:
            raise self.bad(f"{key!r} claims {number:,} numbers")
        values = np.frombuffer(self.data[self.at : self.at + number * dtype.itemsize], dtype)
        self.at += values.nbytes
        return values

    def header(self) -> Header:
        if self.data[:4] != b"GGUF":
            raise self.bad(f"it starts with {self.data[:4]!r}")
        self.at = 4
        version = self.take("<I")
        if version not in (2, 3):
            raise self.bad(f"version {version} is not one of those we read, 2 and 3")
        num_tensors = self.count("tensors", least=24)
        num_pairs = self.count("keys", least=13)
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self.text("a key")
            if key in metadata:
                raise self.bad(f"the key {key!r} stands there twice")
            metadata[key] = self.value(key)
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self.bad(f"the alignment {alignment!r} is not a power of two")
        rows = [self.tensor_row() for _ in range(num_tensors)]
        start = -(-self.at // alignment) * alignment
        return Header(version, metadata, self.place(rows, start, alignment))

    def tensor_row(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self.text("a tensor's name")
        dims = self.take("<I")
        if not 1 <= dims <= MAX_DIMS:
            raise self.bad(f"tensor {name!r} has {dims} dimensions")
        shape = tuple(reversed([self.take("<Q") for _ in range(dims)]))  # the file lists the fastest first
        kind = self.take("<I")
        if kind not in set(GGMLQuantizationType):
            raise self.bad(f"tensor {name!r} has the unknown type {kind}")
        return name, shape, GGMLQuantizationType(kind), self.take("<Q")

    def place(self, rows: list[Any], data_start: int, alignment: int) -> dict[str, TensorInfo]:
        """Where each tensor's bytes lie: inside the file, aligned, and no two on top of each other."""
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in rows:
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if name in tensors:
                raise self.bad(f"the tensor {name!r} stands there twice")
            if 0 in shape or shape[-1] % block:
                raise self.bad(
                    f"tensor {name!r} of shape {shape} cannot be cut into {kind.name} blocks of {block}"
                )
            size = prod(shape) // block * block_bytes
            start = data_start + offset
            if offset % alignment:
                raise self.bad(f"tensor {name!r} does not start at a multiple of {alignment}")
            if start + size > self.end:
                raise self.bad(
                    f"tensor {name!r} would need {start + size - self.end:,} bytes more than there are"
                )
            tensors[name] = TensorInfo(name, shape, kind, start, size)
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.start)
        for first, second in pairwise(ordered):
            if first.start + first.size > second.start:
                raise self.bad(f"tensors {first.name!r} and {second.name!r} overlap")
        return tensors
