"""A decode step starts few operators, and cannot start more unseen.

What PyTorch is asked for is counted, views among it, as `TorchDispatchMode` sees it under inference mode. Two depths
tell a layer's share from the rest, which gives the count of any depth.
"""

import copy
import pickle
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lumen.cache import BlockStore, PackedCache, Segment, StaticCache
from lumen.models.kernels import blocked, can_pack
from lumen.models.linear import Linear

from .tiny import relative_error, tiny_llama

LAYERS = 30  # SmolLM2-135M: the step that was 2,036 operators for one row and 1,750 for eight packed ones


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def static(rows):
    def step(model):
        cache = StaticCache.for_model(model, rows, 16)
        tokens = torch.ones(rows, 9, dtype=torch.int64)
        model(tokens[:, :8], None, cache)
        return lambda: model(tokens[:, 8:], None, cache)

    return step


def packed(*segments):
    """(start, count) of each sequence; blocks of 4."""

    def step(model):
        store = BlockStore.for_model(model, 100, 4)
        tables = [range(10 * i, 10 * i + 10) for i in range(len(segments))]
        parts = [Segment(table, *segment) for table, segment in zip(tables, segments, strict=True)]
        tokens = torch.ones(1, sum(count for _, count in segments), dtype=torch.int64)

        def run():
            cache = PackedCache(store, parts)
            return model(tokens, cache.pos, cache)

        return run

    return step


def names(layers, step):
    run = step(tiny_llama(num_layers=layers))
    with torch.inference_mode():
        run()  # weights are packed, views are taken
        with Operators() as seen:
            run()
    return seen.names


@pytest.mark.skipif(not can_pack(), reason="without oneDNN several rows are multiplied in blocks")
@pytest.mark.parametrize(
    ("step", "budget"),
    [
        pytest.param(static(1), 1018, id="static, 1 row"),
        pytest.param(static(8), 760, id="static, 8 rows"),
        pytest.param(packed(*[(20, 1)] * 8), 875, id="packed, 8 answers of one length"),
        pytest.param(packed(*[(20 + i, 1) for i in range(8)]), 875, id="packed, 8 lengths"),
        pytest.param(packed(*[(20, 4)] * 8), 1050, id="packed, 8 answers with 3 drafts each"),
    ],
)
def test_a_decode_step_starts_no_more_operators_than_this(step, budget):
    few, more = len(names(2, step)), len(names(5, step))
    layer, rest = divmod(more - few, 3)
    assert rest == 0 and few - 2 * layer + LAYERS * layer <= budget, names(1, step)


@pytest.mark.parametrize("segments", [[(20, 1)] * 8, [(20 + i, 1) for i in range(8)], [(20, 4)] * 8])
def test_rows_of_like_shape_are_read_together(segments):
    """One gather and one attention a layer, whether the sequences bring drafts or not."""
    seen = names(3, packed(*segments))
    assert seen.count("aten::scaled_dot_product_attention") == 3
    assert seen.count("aten::index_select.out") == 3


def test_blocks_of_a_weight_are_the_weight_itself_whatever_becomes_of_it():
    """Written, replaced, moved, copied: the view that is kept is of the weight as it stands."""
    torch.manual_seed(0)
    layer, x = Linear(16, 24).requires_grad_(False), torch.randn(1, 16)

    def agrees(layer):
        rows = x.to(layer.weight.dtype)
        return relative_error(blocked(layer, rows), torch.nn.Linear.forward(layer, rows)) < 1e-6

    fresh = len(pickle.dumps(layer))
    assert agrees(layer) and layer.blocks() is layer.blocks()
    assert len(pickle.dumps(layer)) == fresh
    layer.weight.mul_(2)
    assert agrees(layer)
    layer.weight.data = torch.randn(24, 16)
    assert agrees(layer)
    layer.weight = torch.nn.Parameter(torch.randn(24, 16), requires_grad=False)
    assert agrees(layer)
    held = weakref.ref(layer.blocks())
    layer.to(torch.float64)
    assert held() is None and agrees(layer)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        twin.weight.mul_(3)
        assert agrees(twin) and agrees(layer) and twin.blocks().data_ptr() != layer.blocks().data_ptr()
