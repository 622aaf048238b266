"""Weights that are no numbers, and matrices of zeros: noticed when they are read, and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lumen.io import safetensors
from lumen.io.convert import hf_folder
from lumen.io.errors import BadFile
from lumen.io.gguf_header import read_header
from lumen.io.load import load
from lumen.io.numbers import check_numbers

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [(0, 0), (2, 3), (4, 6)])
def test_one_value_that_is_none_is_enough(dtype: torch.dtype, value: float, place: tuple[int, int]) -> None:
    weight = torch.randn(5, 7).to(dtype)
    check_numbers([("w", weight)], "x")
    weight[place] = value
    with pytest.raises(BadFile, match="x: w holds NaN or infinity"):
        check_numbers([("v", torch.ones(3)), ("w", weight)], "x")


def test_the_greatest_numbers_are_numbers() -> None:
    """Their difference overflows; they are finite nevertheless."""
    most = torch.finfo(torch.float32).max
    check_numbers(
        [("w", torch.tensor([[most, -most]])), ("ids", torch.arange(3)), ("none", torch.empty(0, 3))], "x"
    )


def test_matrices_of_zeros_are_refused_unless_meant_and_vectors_are_not() -> None:
    check_numbers([("bias", torch.zeros(9)), ("w", torch.full((2, 2), 3.0))], "x")
    with pytest.raises(BadFile, match=r"every value of w is 0.*zeros=True"):
        check_numbers([("w", torch.zeros(5, 7))], "x")
    check_numbers([("w", torch.zeros(5, 7))], "x", zeros=True)


def scales(path: Path, name: str, value: float) -> None:
    """The first block's scale (fp16) of a Q4_1 tensor becomes `value`."""
    data = bytearray(path.read_bytes())
    start = read_header(path).tensors[name].start
    data[start : start + 2] = np.float16(value).tobytes()
    path.write_bytes(data)


@pytest.mark.parametrize("value", [NAN, INF])
@pytest.mark.parametrize(
    ("stored", "named"),
    [("blk.1.ffn_up.weight", "layers.1.mlp.up_proj"), ("token_embd.weight", "embed_tokens"),
     ("blk.0.attn_k.weight", "layers.0.self_attn.k_proj")],
)  # fmt: skip
def test_a_gguf_with_a_scale_that_is_none(make_gguf, tmp_path, stored, named, value) -> None:  # type: ignore[no-untyped-def]
    path = make_gguf(tmp_path / "odd.gguf")
    scales(path, stored, value)
    for read in (lambda: load(path, "cpu"), lambda: hf_folder(path, "odd", tmp_path / "cache")):
        with pytest.raises(BadFile, match=named):
            read()


def test_a_gguf_with_a_second_half_of_zeros(make_gguf, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = make_gguf(tmp_path / "half.gguf")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))
    with pytest.raises(BadFile, match=r"every value of model\.layers\.\d.*is 0"):
        load(path, "cpu")
    assert load(path, "cpu", zeros=True).model.config.num_layers == 2


@pytest.mark.parametrize("value", [NAN, INF])
def test_safetensors_with_a_value_that_is_none(tiny_gguf: Path, tmp_path: Path, value: float) -> None:
    folder = hf_folder(tiny_gguf, "tiny", tmp_path)
    state = {name: tensor.clone() for name, tensor in safetensors.read_folder(folder).items()}
    state["model.norm.weight"][3] = value
    safetensors.write(folder / "model.safetensors", state)
    with pytest.raises(BadFile, match=r"model\.norm\.weight holds NaN or infinity"):
        load(folder, "cpu")


def test_a_weight_that_fp16_cannot_hold(tiny_gguf: Path, tmp_path: Path) -> None:
    folder = hf_folder(tiny_gguf, "tiny", tmp_path)
    state = {name: tensor.clone() for name, tensor in safetensors.read_folder(folder).items()}
    state["model.norm.weight"][3] = 1e5
    safetensors.write(folder / "model.safetensors", state)
    load(folder, "cpu")
    with pytest.raises(BadFile, match=r"model\.norm\.weight holds NaN or infinity in fp16"):
        load(folder, "cpu", torch.float16)
