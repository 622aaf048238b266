"""Blocks unpacked here equal the gguf package's, bit for bit, for every code and for awkward scales."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from lumen.io import blocks


@pytest.mark.parametrize("kind", list(blocks.UNPACK))
@pytest.mark.parametrize("count", [1, 3, 4096])
def test_like_the_gguf_package(kind: str, count: int) -> None:
    width, _ = blocks.UNPACK[kind]
    rng = np.random.default_rng(count)
    raw = rng.integers(0, 256, (count, width), np.uint8)
    scales = rng.standard_normal((count, 2)).astype(np.float16)
    scales[0] = (6e-8, -0.0)  # the smallest fp16, and a zero with a sign
    raw[:, : 4 if kind == "Q4_1" else 2] = scales.view(np.uint8)[:, : 4 if kind == "Q4_1" else 2]
    wanted = dequantize(raw, GGMLQuantizationType[kind]).reshape(-1)
    found = blocks.unpack(raw.reshape(-1), kind)
    assert found is not None and found.dtype == np.float32
    assert np.array_equal(found.view(np.uint32), wanted.astype(np.float32).view(np.uint32))


def test_the_file_is_not_touched_and_other_kinds_are_left() -> None:
    raw = np.zeros(20, np.uint8)
    raw.setflags(write=False)
    found = blocks.unpack(raw, "Q4_1")
    assert found is not None and found.flags.writeable
    assert blocks.unpack(raw, "Q6_K") is None
