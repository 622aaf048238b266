"""Files cut short or changed: each ends in BadFile or in a whole model, soon, and without a huge allocation."""

from __future__ import annotations

import json
import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
import torch

from lumen.io import safetensors
from lumen.io.errors import BadFile
from lumen.io.gguf import config_of, read_state
from lumen.io.gguf_header import read_header
from lumen.io.tokenizer_files import from_gguf
from lumen.models.weights import hf_shapes

SECONDS, MEMORY = 30.0, 64 * 2**20  # of processor time, and at the peak, per file; the whole file has 50 KB


def load_gguf(path: Path) -> bool:
    """True if the file loads to a model of the shape it describes, False if it is refused; anything else is a fault."""
    tracemalloc.start()
    start = time.process_time()
    try:
        header = read_header(path)
        config = config_of(header, "tiny")
        from_gguf(header, "tiny")
        shapes = {name: value.shape for name, value in read_state(path, header, config)}
        assert shapes == hf_shapes(config)
        return True
    except BadFile as error:
        assert str(error).endswith((".", ").", "id.")) and len(str(error)) < 500, error
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY, f"{peak:,} bytes for a file of {path.stat().st_size:,}"
        assert time.process_time() - start < SECONDS


@pytest.fixture(scope="module")
def whole(tiny_gguf: Path) -> bytes:
    return tiny_gguf.read_bytes()


@pytest.fixture(scope="module")
def header_end(tiny_gguf: Path) -> int:
    return min(tensor.start for tensor in read_header(tiny_gguf).tensors.values())


def test_gguf_cut_anywhere_is_refused(whole: bytes, header_end: int, tmp_path: Path) -> None:
    rng = random.Random(0)
    file = tmp_path / "cut.gguf"
    cuts = {rng.randrange(header_end) for _ in range(150)} | {rng.randrange(len(whole)) for _ in range(50)}
    for cut in cuts | {len(whole) - 1}:
        file.write_bytes(whole[:cut])
        assert not load_gguf(file), cut
    file.write_bytes(whole)
    assert load_gguf(file)


@pytest.mark.parametrize("seed", range(4))
def test_gguf_with_changed_bits_is_refused_or_loads(
    whole: bytes, header_end: int, tmp_path: Path, seed: int
) -> None:
    """Also whole words of 0xff, where counts and lengths stand. Some changes only touch a token's spelling and load."""
    rng = random.Random(seed)
    file = tmp_path / "changed.gguf"
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(header_end)
            if rng.random() < 0.3:
                data[at : at + 8] = rng.choice(
                    [b"\xff" * 8, bytes(8), struct.pack("<Q", 1 << rng.randrange(64))]
                )
            else:
                data[at] ^= 1 << rng.randrange(8)
        file.write_bytes(data[: len(whole)])
        refused += not load_gguf(file)
    assert refused > 20, "the changes must matter, or this test proves nothing"


def field(whole: bytes, key: str) -> int:
    """Where the value of a metadata key begins: after its name and its type."""
    return whole.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4


def test_gguf_with_lying_numbers(whole: bytes, tmp_path: Path) -> None:
    """One lie at each kind of count, and what is said about it."""
    tokens = field(whole, "tokenizer.ggml.tokens")
    types = field(whole, "tokenizer.ggml.token_type")
    tensor = field(whole, "blk.0.attn_q.weight") - 4  # its dimensions follow the name at once
    huge = struct.pack("<Q", 1 << 62)
    lies = [
        (0, b"GGML", "starts with"),
        (4, struct.pack("<I", 1), "version 1"),
        (8, huge, "claims 4,611,686,018,427,387,904 tensors"),
        (16, huge, "claims 4,611,686,018,427,387,904 keys"),
        (24, huge, "a key claims"),
        (tokens - 4, struct.pack("<I", 99), "unknown type 99"),
        (tokens, struct.pack("<I", 9), "list of the unknown type 9"),
        (tokens + 4, huge, "texts in 'tokenizer.ggml.tokens'"),
        (tokens + 12, huge, "an entry of"),
        (types + 4, huge, "claims 4,611,686,018,427,387,904 numbers"),
        (tensor, struct.pack("<I", 77), "77 dimensions"),
        (tensor + 4, struct.pack("<Q", 33), "blocks of 32"),
        (tensor + 4, bytes(8), "cannot be cut"),
        (tensor + 12, huge, "bytes more than there are"),
        (tensor + 20, struct.pack("<I", 200), "unknown type 200"),
        (tensor + 24, struct.pack("<Q", 7), "multiple of 32"),
        (tensor + 24, struct.pack("<Q", 0), "overlap"),
        (tensor - 1, b"\xff", "not UTF-8"),
    ]
    file = tmp_path / "lie.gguf"
    for at, value, words in lies:
        file.write_bytes(whole[:at] + value + whole[at + len(value) :])
        with pytest.raises(BadFile, match=words):
            read_header(file)
        assert not load_gguf(file)
    name = b"blk.0.attn_k.weight"
    file.write_bytes(whole.replace(b"blk.0.attn_q.weight", name))
    with pytest.raises(BadFile, match="twice"):
        read_header(file)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    state = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.ones(4, dtype=torch.float16)}
    safetensors.write(path, state, {"note": "x"})
    return path


def test_safetensors_cut_or_changed_is_refused_or_loads(small: Path, tmp_path: Path) -> None:
    whole, rng, file = small.read_bytes(), random.Random(0), tmp_path / "changed.safetensors"
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        with pytest.raises(BadFile):
            safetensors.read(file)
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        data[rng.randrange(end)] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        try:
            tensors, _ = safetensors.read(file)
            assert sum(t.numel() * t.element_size() for t in tensors.values()) == len(whole) - end
        except BadFile:
            refused += 1
    assert refused > 200


def test_safetensors_with_lying_numbers(tmp_path: Path) -> None:
    def file_with(table: object, data: bytes = bytes(16), length: int | None = None) -> Path:
        text = table if isinstance(table, bytes) else json.dumps(table).encode()
        path = tmp_path / "lie.safetensors"
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
        return path

    def row(**changes: object) -> dict[str, object]:
        return {"dtype": "F32", "shape": [4], "data_offsets": [0, 16], **changes}

    assert safetensors.read(file_with({"a": row()}))[0]["a"].shape == (4,)
    for table in (
        {"a": row(shape=[5])}, {"a": row(shape=[1 << 62, 1 << 62])}, {"a": row(shape=[-4])},
        {"a": row(data_offsets=[0, 1 << 60])}, {"a": row(data_offsets=[16, 0])}, {"a": row(dtype="F99")},
        {"a": row(), "b": row()}, b"[1, 2]", b"not json", b"{" * 100_000, b"",
    ):  # fmt: skip
        with pytest.raises(BadFile, match="no whole safetensors file"):
            safetensors.read(file_with(table))
    for more in ({"data": bytes(32)}, {"length": 1 << 62}, {"length": 3}):
        with pytest.raises(BadFile, match="no whole safetensors file"):
            safetensors.read(file_with({"a": row()}, **more))  # type: ignore[arg-type]
