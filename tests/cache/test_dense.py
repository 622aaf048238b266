"""What only the dense caches promise: exact sizes, memory given back, one compiled graph."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import DynamicCache, StaticCache

from ..tiny import tiny_llama


def test_dynamic_cache_holds_exactly_what_was_written_and_gives_back_on_rewind():
    model = tiny_llama()
    cache = DynamicCache.for_model(model, 2)
    model(torch.ones(2, 11, dtype=torch.int64), None, cache)
    per_token = 2 * 3 * 3 * 8 * 4  # K and V, layers, KV heads, head_dim, fp32
    assert cache.nbytes == 2 * 11 * per_token
    cache.rewind([4, 2])
    assert cache.nbytes == 2 * 4 * per_token
    cache.select([0])
    assert cache.nbytes == 4 * per_token


def test_static_cache_is_reserved_in_full_plus_the_slot_for_padding():
    model = tiny_llama()
    cache = StaticCache.for_model(model, 2, 16)
    before = cache.nbytes
    assert before == 2 * (16 + 1) * 2 * 3 * 3 * 8 * 4
    model(torch.ones(2, 11, dtype=torch.int64), None, cache)
    assert cache.nbytes == before


def test_static_cache_of_no_size_gets_a_sentence():
    with pytest.raises(ValueError, match="capacity must be"):
        StaticCache.for_model(tiny_llama(), 1, 0)


def test_static_state_stays_where_it_is():
    """A captured step (CUDA graphs) reads fixed addresses: forwards, rewind and reset write in place."""
    model = tiny_llama()
    cache = StaticCache.for_model(model, 2, 16)

    def addresses():
        return [t.data_ptr() for t in (cache.k, cache.v, cache.positions, cache.lengths)]

    before = addresses()
    model(torch.ones(2, 5, dtype=torch.int64), None, cache)
    model(torch.ones(2, 1, dtype=torch.int64), None, cache)
    to = torch.tensor([4, 2])
    cache.rewind(to)
    assert cache.positions[0].tolist() == [0, 1, 2, 3] + [-1] * 13
    model(torch.ones(2, 1, dtype=torch.int64), None, cache)
    assert to.tolist() == [4, 2], "the caller's tensor is not the cache's"
    cache.reset()
    assert addresses() == before and not cache.lengths.any() and (cache.positions == -1).all()


def test_static_decode_compiles_to_one_graph_over_twelve_steps():
    """`fullgraph` fails on any break; the counter shows that no step was compiled again. Dynamo only: no C++ here."""
    import torch._dynamo as dynamo

    model = tiny_llama()
    eager, compiled_cache = StaticCache.for_model(model, 2, 20), StaticCache.for_model(model, 2, 20)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    model(prompt, None, eager)
    model(prompt, None, compiled_cache)
    dynamo.reset()
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    step = torch.compile(
        lambda tokens, pos: model(tokens, pos, compiled_cache), fullgraph=True, backend=count, dynamic=False
    )
    for i in range(12):
        tokens, pos = torch.tensor([[i], [i + 1]]), torch.tensor([[3 + i], [3 + i]])
        assert torch.allclose(step(tokens, pos), model(tokens, pos, eager), atol=1e-4)
    assert len(graphs) == 1
    dynamo.reset()
