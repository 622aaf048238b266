"""Models stored as differences: as near as fp16 would be, on their own base and on no other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from lumen.io import deltas, safetensors
from lumen.io.errors import BadFile
from lumen.io.load import _gptlite
from tests.tiny import relative_error, tiny_gpt

CPU = torch.device("cpu")
ABC = "".join(chr(97 + i) for i in range(26)) + "".join(chr(0x4E00 + i) for i in range(35))


def tensors(model):
    return {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}


@pytest.fixture
def pair():
    """A model of numbers that fp16 holds, and what a little training might have made of it."""
    base = tiny_gpt().half().float()
    moved = tiny_gpt().half().float()
    dice = torch.Generator().manual_seed(3)
    for parameter in moved.parameters():
        parameter += 0.02 * torch.randn(parameter.shape, generator=dice)
    return base, moved


def test_every_difference_is_off_by_half_a_step_at_most(pair):
    base, moved = (tensors(model) for model in pair)
    packed = deltas.pack(moved, base)
    back = deltas.unpack(packed, base)
    assert back.keys() == moved.keys()
    for name, value in moved.items():
        if value.dim() < 2:
            assert packed[name].dtype == torch.float16 and torch.equal(back[name], value.half().float())
            continue
        assert packed[name].dtype == torch.int8 and packed[name].abs().amax() == 127
        off = (back[name] - value).abs().amax(1)
        assert bool((off <= packed[name + ".scale"] * 0.5001 + 1e-7).all())
    size = sum(value.nbytes for value in packed.values())
    assert size < 0.56 * sum(value.half().nbytes for value in moved.values())
    again = deltas.unpack(deltas.pack(back, base), base)  # what was read is stored the same
    assert all(torch.allclose(again[name], back[name], atol=1e-7) for name in back)


def test_rows_that_did_not_move_and_tensors_of_another_shape(pair):
    base, moved = (tensors(model) for model in pair)
    moved["embed.weight"] = base["embed.weight"].clone()
    moved["embed.weight"][5] += 1.0
    moved["blocks.0.attn.qkv.weight"] = moved["blocks.0.attn.qkv.weight"][:72]
    moved["extra"] = torch.ones(3, 4)
    packed = deltas.pack(moved, base)
    back = deltas.unpack(packed, base)
    assert torch.allclose(back["embed.weight"], moved["embed.weight"], atol=1e-6)
    assert packed["blocks.0.attn.qkv.weight"].dtype == packed["extra"].dtype == torch.float16
    assert all(bool(value.isfinite().all()) for value in back.values())


def written(folder: Path, under, moved, **changes: str) -> Path:
    config = json.dumps(asdict(under.config))
    described = {"config": config, "characters": json.dumps(ABC)}
    state = {name: value.half() for name, value in tensors(under).items()}
    safetensors.write(folder / "base.safetensors", state, described)
    own = {"base": "base", "base_sha256": deltas.digest(folder / "base.safetensors"), **changes}
    safetensors.write(folder / "made.safetensors", deltas.pack(tensors(moved), state), described | own)
    return folder / "made.safetensors"


def test_a_model_is_read_over_the_base_beside_it(pair, tmp_path):
    base, moved = pair
    model, _ = _gptlite(written(tmp_path, base, moved), CPU, torch.float32)
    tokens = torch.tensor([[5, 0, 60, 17, 17]])
    assert (
        relative_error(model(tokens), moved(tokens))
        < 2e-3
        < 0.1
        < relative_error(base(tokens), moved(tokens))
    )
    rounded = relative_error(tiny_like(moved)(tokens), moved(tokens))
    assert relative_error(model(tokens), moved(tokens)) < 4 * rounded, "about what fp16 rounds off"
    assert model.lm_head.weight is model.embed.weight


def tiny_like(model):
    copy = tiny_gpt()
    copy.load_state_dict(model.state_dict())
    return copy.half().float()


def test_another_base_or_none_is_refused(pair, tmp_path):
    base, moved = pair
    path = written(tmp_path, base, moved)
    with pytest.raises(
        BadFile, match=r"another base\.safetensors than the one beside it; run `make checkpoints`"
    ):
        _gptlite(written(tmp_path, base, moved, base_sha256="0" * 64), CPU, torch.float32)
    path = written(tmp_path, base, moved)
    safetensors.write(tmp_path / "base.safetensors", {"x": torch.ones(2)})
    with pytest.raises(BadFile, match="than the one beside it"):
        _gptlite(path, CPU, torch.float32)
    (tmp_path / "base.safetensors").unlink()
    with pytest.raises(BadFile, match="than the one beside it"):
        _gptlite(path, CPU, torch.float32)


def test_a_base_is_looked_for_beside_the_file_and_nowhere_else(pair, tmp_path):
    (tmp_path / "in").mkdir()
    base, moved = pair
    path = written(tmp_path / "in", base, moved, base="../base")
    written(tmp_path, base, moved)
    model, _ = _gptlite(path, CPU, torch.float32)  # the name alone counts: in/base.safetensors
    assert model.config == base.config


@pytest.mark.parametrize("damage", ["scale", "base", "shape"])
def test_a_difference_that_lacks_something_is_refused(pair, tmp_path, damage):
    base, moved = pair
    path = written(tmp_path, base, moved)
    packed, metadata = safetensors.read(path)
    packed = {name: value.clone() for name, value in packed.items()}
    if damage == "scale":
        del packed["embed.weight.scale"]
    elif damage == "shape":
        packed["embed.weight.scale"] = packed["embed.weight.scale"][:3]
    else:
        packed["other"] = packed["embed.weight"]
        packed["other.scale"] = packed["embed.weight.scale"]
    safetensors.write(path, packed, {k: v for k, v in metadata.items() if k != "format"})
    with pytest.raises(BadFile, match="is a difference without a base or a scale"):
        _gptlite(path, CPU, torch.float32)
