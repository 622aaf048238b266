"""One graph, whatever comes: 50 decode steps over the static cache and over a packed batch whose rows join and leave.

Dynamo alone, with a backend that counts graphs and compiles nothing, so this takes seconds.
"""

from __future__ import annotations

import random

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lumen.cache import BlockStore, CacheFull, DecodeBatch, Segment, StaticCache
from lumen.cache.decode_batch import bucket

from ..tiny import relative_error, tiny_gpt, tiny_latent, tiny_llama

MODELS = [tiny_llama, tiny_gpt, lambda dtype: tiny_llama(dtype, window=5), tiny_latent]


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


@pytest.mark.parametrize("make", MODELS)
def test_static_decode_is_one_graph_over_two_answers_of_25_steps(make, counter):
    model = make(torch.float64)
    eager, cache = StaticCache.for_model(model, 2, 32), StaticCache.for_model(model, 2, 32)
    step = torch.compile(model.hidden, fullgraph=True, dynamic=False, backend=counter)
    with torch.inference_mode():
        for prompt in ([[5, 6, 7], [8, 9, 10]], [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]]):
            for one in (eager, cache):
                one.reset()
                model(torch.tensor(prompt), None, one)
            for i in range(25):
                tokens, pos = torch.tensor([[i], [i + 1]]), cache.lengths[:, None].clone()
                got = step(tokens, pos, cache)
                assert relative_error(got, model.hidden(tokens, pos, eager)) < 1e-12
    assert counter.frame_count == 1


@pytest.mark.parametrize("make", MODELS)
def test_packed_decode_is_one_graph_while_rows_join_and_leave(make, counter):
    model, rng = make(torch.float64), random.Random(0)
    store = BlockStore.for_model(model, 200, 4)
    for plane in store.planes:
        plane.normal_()
    batch = DecodeBatch(store, 4, 12)
    step = torch.compile(model.hidden, fullgraph=True, dynamic=False, backend=counter)
    free, live = rng.sample(range(200), 200), []
    counts = set()
    with torch.inference_mode():
        for _ in range(50):
            gone = [one for one in live if len(one[0]) == 40 or rng.random() < 0.08]
            live = [one for one in live if one not in gone]
            free += [block for _, table in gone for block in table]  # with what they hold
            while len(live) < 4 and rng.random() < 0.6:
                live.append(([], [free.pop() for _ in range(10)]))
            rng.shuffle(live)
            if not live:
                continue
            counts.add(len(live))
            for said, _ in live:
                said.append(rng.randrange(60))
            batch.load([Segment(table, len(said) - 1, 1) for said, table in live])
            tokens = torch.tensor([[said[-1] for said, _ in live] + [0] * (4 - len(live))])
            got = step(tokens, batch.pos, batch)
            assert torch.isfinite(got).all()
            for row, (said, _) in enumerate(live):
                assert relative_error(got[0, row], model.hidden(torch.tensor([said]))[0, -1]) < 1e-12
    assert counts >= {2, 3, 4} and counter.frame_count == 1


def test_what_does_not_fit_a_batch_gets_a_sentence_and_changes_nothing():
    model = tiny_llama()
    batch = DecodeBatch(BlockStore.for_model(model, 9, 4), 2, 2)
    batch.load([Segment([3, 1], 5, 1)])
    before = batch.tables.clone(), batch.pos.clone()
    for wrong, error, why in [
        ([Segment([0], 0, 1)] * 3, CacheFull, "3 sequences do not fit into 2 rows"),
        ([Segment([0, 1, 2], 8, 1)], CacheFull, "behind the 2 blocks"),
        ([Segment([0], 0, 2)], ValueError, "one token"),
        ([Segment([0], 4, 1)], ValueError, "one token in a reserved block"),
        ([Segment([0], 1, 1), Segment([0], 1, 1)], ValueError, "write one slot"),
    ]:
        with pytest.raises(error, match=why):
            batch.load(wrong)
    assert torch.equal(batch.tables, before[0]) and torch.equal(batch.pos, before[1])
    with pytest.raises(ValueError, match="cache's own pos"):
        model(torch.tensor([[1]]), torch.tensor([[0]]), batch)
    with pytest.raises(ValueError, match="rows must be"):
        DecodeBatch(batch.store, 0, 1)
    assert [bucket(n, 16) for n in (1, 16, 17, 100)] == [16, 16, 32, 128]
