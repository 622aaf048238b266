"""Packed copies of a weight follow whoever writes it: few rows, many rows and one row multiply by the same numbers."""

import copy
import gc
import pickle
import weakref
from itertools import pairwise

import pytest
import torch

from lumen.cache import DynamicCache
from lumen.models import kernels
from lumen.models.linear import Linear
from lumen.models.tiles import POINTS, RUN, Tiles, lattice
from tests.tiny import relative_error, tiny_llama

pytestmark = pytest.mark.skipif(not kernels.can_pack(), reason="this torch has no oneDNN")


def doubled(weight):
    return {"weight": weight.detach().clone() * 2}


def one_step(weight):
    weight.requires_grad_(True).grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.5).step()
    weight.requires_grad_(False).grad = None


def fused_step(weight):
    weight.requires_grad_(True).grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], lr=0.5, fused=True).step()
    weight.requires_grad_(False).grad = None


WRITES = {
    "data.mul_": lambda layer: layer.weight.data.mul_(2),
    "numpy": lambda layer: layer.weight.numpy().__imul__(2),
    "detach, numpy": lambda layer: layer.weight.detach().numpy().__imul__(2),
    "state_dict, numpy": lambda layer: layer.state_dict()["weight"].numpy().__imul__(2),
    "copy_": lambda layer: layer.weight.copy_(2 * layer.weight),
    "one value": lambda layer: layer.weight[7, 3].fill_(50.0),
    "load_state_dict": lambda layer: layer.load_state_dict(doubled(layer.weight)),
    "load_state_dict, assigned": lambda layer: layer.load_state_dict(doubled(layer.weight), assign=True),
    "optimizer.step": lambda layer: one_step(layer.weight),
    "fused optimizer.step": lambda layer: fused_step(layer.weight),
    "data is another": lambda layer: setattr(layer.weight, "data", 2 * layer.weight.data),
    "another parameter": lambda layer: setattr(layer, "weight", torch.nn.Parameter(2 * layer.weight, False)),
    "to and back": lambda layer: layer.to(torch.bfloat16).to(torch.float32),
    "a tenth of the columns": lambda layer: layer.weight.data[:, 20:28].zero_(),
    "a tenth of the rows": lambda layer: layer.weight.data[40:50].zero_(),
    "said so": lambda layer: (
        layer.weight.data[7, 3].fill_(50.0), torch.autograd.graph.increment_version(layer.weight)
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WRITES)
def test_a_write_by_any_way_reaches_every_kernel(way):
    torch.manual_seed(0)
    layer = Linear(72, 100, bias=False).requires_grad_(False)
    x = torch.randn(9, 72)
    before = layer(x)
    WRITES[way](layer)
    wanted = x @ layer.weight.T
    assert not torch.allclose(before, wanted), "the write must matter"
    assert relative_error(layer(x), wanted) < 1e-5
    assert relative_error(layer(x[:1]), wanted[:1]) < 1e-5
    assert relative_error(layer(x[:2]), wanted[:2]) < 1e-5


def test_a_view_that_is_older_than_the_tiles_is_noticed():
    layer = Linear(72, 100, bias=False).requires_grad_(False)
    x, view = torch.randn(9, 72), layer.weight.numpy()
    for _ in range(3):
        layer(x)
        view *= 0.9
        assert relative_error(layer(x), x @ layer.weight.T) < 1e-5


def test_zeros_do_not_hide_a_multiplication():
    """Nine values of ten pruned: 16 single points would all be zeros once in five times."""
    torch.manual_seed(0)
    layer, x = Linear(72, 100, bias=False).requires_grad_(False), torch.randn(9, 72)
    for _ in range(20):
        layer.weight.copy_(torch.randn(100, 72) * (torch.rand(100, 72) < 0.1))
        layer(x)
        layer.weight.data.mul_(2)
        assert relative_error(layer(x), x @ layer.weight.T) < 1e-5


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_a_copy_has_tiles_of_its_own(again):
    layer = Linear(24, 40).requires_grad_(False)
    x = torch.randn(5, 24)
    before = layer(x)
    other = again(layer)
    other.weight.data.mul_(2)
    assert torch.equal(layer(x), before)
    assert relative_error(other(x), x @ other.weight.T + other.bias) < 1e-5


@pytest.mark.parametrize("write", ["data", "numpy"])
def test_prefill_and_decode_agree_after_a_write_past_the_counter(write):
    """The fault that was seen: 0.4 to 1.8 relative, because one row reads the weight and many rows read the tiles."""
    model, tokens = tiny_llama(), torch.tensor([[5, 0, 90, 17, 33, 2, 8]])
    with torch.inference_mode():
        model(tokens)
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.data.mul_(0.7) if write == "data" else weight.numpy().__imul__(0.7)
        at_once = model(tokens)
        cache = DynamicCache.for_model(model, 1)
        one_by_one = torch.cat([model(tokens[:, i : i + 1], cache=cache) for i in range(7)], 1)
    assert relative_error(one_by_one, at_once) < 1e-5


SHAPES = [
    (960, 576), (576, 576), (3072, 576), (49152, 576), (576, 1536), (4096, 4096), (4096, 64), (41, 576), (64, 64),
    (65, 64), (100, 72), (128, 100),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_no_band_of_a_ninth_is_without_a_point(rows, columns):
    points = range(0, rows * columns - RUN + 1, lattice(rows, columns))
    for found, size in (({p // columns for p in points}, rows), ({p % columns for p in points}, columns)):
        edges = [-1, *sorted(found), size]
        assert max(b - a - 1 for a, b in pairwise(edges)) < size / 9
    assert len(points) <= 2 * POINTS


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (7, 1), (7, 24), (3, 5)])
def test_the_smallest_weights_are_watched_whole_or_nearly(shape):
    weight = torch.randn(shape)
    tiles = Tiles(weight)
    weight.data.mul_(2)
    assert not tiles.fresh(weight)


def test_another_format_frees_the_old_weight_and_its_tiles():
    layer = Linear(24, 40).requires_grad_(False)
    layer(torch.randn(5, 24))
    tiles = weakref.ref(layer._tiles)
    layer.half()
    gc.collect()
    assert tiles() is None
