"""Counters count what the arithmetic says, and stand in for the object they count."""

import pytest
import torch

from lumen.cache.dense import DynamicCache, StaticCache
from lumen.config import ModelConfig
from lumen.grading import CountedAllocator, CountedCache, CountedCalls, CountedModel, LimitReached, Wrong, run
from lumen.models.llama import Llama

LAYERS, KV_HEADS, HEAD = 2, 3, 8
CONFIG = ModelConfig("tiny", 32, LAYERS, 72, 9, KV_HEADS, HEAD, 16, 64)


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return Llama(CONFIG)


def test_passes_rows_and_slots(tiny):
    model = CountedModel(tiny)
    tokens, pos = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[0, 1, 2], [0, 1, -1]])
    with torch.no_grad():
        assert torch.equal(model(tokens, pos), tiny(tokens, pos))
        state = model.hidden(tokens)
        model.head(state[:, -1])
    assert (model.passes, model.slots, model.rows, model.head_rows) == (2, 12, 11, 6 + 2)
    assert model.shapes == [(2, 3), (2, 3)]
    assert model.config is CONFIG


def test_a_loop_that_never_stops_becomes_a_verdict(tiny):
    model = CountedModel(tiny, limit=3)

    def endless():
        while True:
            try:
                model(torch.tensor([[1]]))
            except Exception:
                continue

    with pytest.raises(Wrong, match="More than 3 forward passes"):
        run.call(endless)


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_counted_cache_gives_the_same_logits_and_counts_rows_and_bytes(tiny, kind):
    def fresh():
        return DynamicCache(CONFIG, 2) if kind == "dynamic" else StaticCache(CONFIG, 2, 16)

    cache, plain = CountedCache(fresh()), fresh()
    prompt, pos = torch.tensor([[1, 2, 3], [4, 5, 0]]), torch.tensor([[0, 1, 2], [0, 1, -1]])
    step = torch.tensor([[7], [8]])
    with torch.no_grad():
        for tokens, where in ((prompt, pos), (step, None)):
            got, want = tiny(tokens, where, cache), tiny(tokens, where, plain)
            real = torch.ones_like(tokens) if where is None else where >= 0
            torch.testing.assert_close(got[real.bool()], want[real.bool()], rtol=1e-5, atol=1e-5)
    written, read = LAYERS * (5 + 2), LAYERS * (5 + 7)
    row = 2 * KV_HEADS * HEAD * 4
    assert (cache.rows_written, cache.rows_read) == (written, read)
    assert (cache.bytes_written, cache.bytes_read) == (written * row, read * row)
    assert cache.lengths.tolist() == [4, 3] and cache.nbytes == plain.nbytes


def test_calls_are_counted_and_limited():
    double = CountedCalls(lambda x: 2 * x, limit=2)
    assert double(2) == 4 and double(3) == 6 and double.calls == 2
    with pytest.raises(LimitReached, match="More than 2 calls"):
        double(1)


class Pool:
    def __init__(self, blocks):
        self.free_blocks = list(range(blocks))

    def allocate(self, count):
        return [self.free_blocks.pop() for _ in range(count)]

    def one(self):
        return self.free_blocks.pop()

    def free(self, blocks):
        self.free_blocks += blocks
        blocks.clear()


def test_blocks_taken_freed_in_use_and_peak():
    pool = CountedAllocator(Pool(8))
    first, second = pool.allocate(3), pool.allocate(2)
    pool.free(first)
    pool.allocate(1)
    assert (pool.taken, pool.freed, pool.in_use, pool.peak) == (6, 3, 3, 5)
    assert len(pool.free_blocks) == 5 and len(second) == 2


def test_a_pool_with_other_method_names():
    pool = CountedAllocator(Pool(8), allocate="one")
    pool.one()
    assert pool.taken == 1
