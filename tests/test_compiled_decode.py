"""`Compiled` in the place of a model: one graph over many calls, the answers of the plain model.

Dynamo with a backend that counts graphs and compiles nothing; its graphs run as recorded.
"""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lumen.cache import CacheFull, DynamicCache, StaticCache
from lumen.decode import Compiled, generate
from lumen.sampling import SamplingParams

from .drafters import Scripted
from .tiny import relative_error, tiny_gpt, tiny_llama

CALLS = [  # prompt lengths of the rows, new tokens
    ([3, 1], 5),
    ([9, 14], 2),
    ([2, 2], 20),
    ([1, 1], 1),
    ([20, 7], 12),
]


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def prompts_of(lengths):
    return [[(7 * i + 5 * row) % 60 for i in range(length)] for row, length in enumerate(lengths)]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt, lambda dtype: tiny_llama(dtype, window=5)])
def test_calls_within_one_bucket_share_one_graph(make, counter):
    model = make(torch.float64)
    fast = Compiled(model, positions=32, backend=counter)
    for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=3)):
        for lengths, count in CALLS:
            asked = prompts_of(lengths), count, params
            found, plain = (generate(m, *asked, eos_ids=()) for m in (fast, model))
            assert [c.tokens for c in found] == [c.tokens for c in plain]
    assert counter.frame_count == 1


def test_rows_that_end_early_and_prompts_in_chunks_make_no_other_graph(counter):
    model = tiny_llama(torch.float64)
    fast, prompts = Compiled(model, positions=32, backend=counter), prompts_of([3, 11, 6])
    ends = {generate(model, prompts, 8, eos_ids=())[0].tokens[2]}
    for chunk in (None, 2):
        found, plain = (generate(m, prompts, 8, eos_ids=ends, prefill_chunk=chunk) for m in (fast, model))
        assert [c.tokens for c in found] == [c.tokens for c in plain]
        assert len(found[0].tokens) < len(found[1].tokens)
    assert counter.frame_count == 1


def test_each_bucket_is_a_graph_and_torchs_own_limit_is_not_ours(counter):
    """By itself torch gives up at eight graphs; here at one, so that two show it."""
    model = tiny_llama(torch.float64, num_layers=1)
    fast = Compiled(model, positions=8, backend=counter)
    with torch._dynamo.config.patch(recompile_limit=1):
        for lengths, graphs in (([2], 1), ([2, 3], 2), ([10], 3), ([1], 3)):
            generate(fast, prompts_of(lengths), 3)
            assert counter.frame_count == graphs
    assert [fast.capacity(n) for n in (1, 8, 9, 33, 64)] == [8, 8, 16, 64, 64]


def test_what_has_no_fixed_shape_runs_as_it_is(counter):
    model = tiny_llama(torch.float64)
    fast, prompts = Compiled(model, positions=32, backend=counter), prompts_of([4, 4])
    plain = [c.tokens for c in generate(model, prompts, 9, eos_ids=())]
    grown = generate(fast, prompts, 9, eos_ids=(), cache=DynamicCache.for_model(model, 2))
    assert [c.tokens for c in grown] == plain and counter.frame_count == 0
    drafter = Scripted(dict(zip(map(tuple, prompts), plain, strict=True)), 3)
    assert [c.tokens for c in generate(fast, prompts, 9, eos_ids=(), drafter=drafter)] == plain
    assert counter.frame_count <= 1
    assert relative_error(fast.hidden(torch.tensor(prompts)), model.hidden(torch.tensor(prompts))) == 0.0


def test_a_graph_cannot_raise_so_it_is_asked_before(counter):
    model = tiny_llama()
    fast, cache = Compiled(model, backend=counter), StaticCache.for_model(model, 1, 2)
    with torch.inference_mode():
        fast.hidden(torch.tensor([[1, 2]]), None, cache)
        for tokens, pos, error, why in (
            ([[1]], None, CacheFull, "reserves 2 positions"),
            ([[97]], [[0]], ValueError, "vocabulary"),
            ([[1]], [[64]], ValueError, "past the last one"),
            ([[1]], [[0], [1]], ValueError, "shape of tokens"),
            ([[1], [2]], [[0], [1]], ValueError, "holds 1 rows"),
        ):
            with pytest.raises(error, match=why):
                fast.hidden(torch.tensor(tokens), None if pos is None else torch.tensor(pos), cache)
    assert cache.lengths.tolist() == [2]
    with pytest.raises(ValueError, match="rows=0"):
        Compiled(model, rows=0)
    with pytest.raises(ValueError, match=r"use lumen\.decode\.Compiled"):
        generate(torch.compile(model, backend=counter), [[1]], 2)
