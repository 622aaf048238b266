"""A packed forward over many sequences equals each sequence's own forward, whatever shares the row."""

from __future__ import annotations

import random

import pytest
import torch

from lumen.cache import BlockStore, PackedCache, Segment

from ..tiny import relative_error, tiny_gpt, tiny_llama


def feed(model, store, parts):
    """parts: (tokens, table, start, count) -> logits of the packed row."""
    cache = PackedCache(store, [Segment(table, start, count) for _, table, start, count in parts])
    tokens = torch.tensor([[t for ids, _, start, count in parts for t in ids[start : start + count]]])
    return model(tokens, cache.pos, cache)[0]


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt, lambda dtype: tiny_llama(dtype, window=5)])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_any_mix_of_chunks_and_answers_equals_the_forward_without_a_cache(make, size):
    """C2 and C4 for sequences that are cut and mixed at random, over blocks in random order that hold old content."""
    model, rng = make(torch.float64), random.Random(size)
    for _ in range(6):
        lengths = [rng.choice([1, 2, 7, 16, 33, 40]) for _ in range(rng.randint(1, 6))]
        sequences = [[rng.randrange(61) for _ in range(n)] for n in lengths]
        store = BlockStore.for_model(model, 300, size)
        for plane in store.planes:
            plane.normal_()  # what others left behind, in the spare block too
        free = rng.sample(range(300), 300)
        tables = [[free.pop() for _ in range(-(-n // size))] for n in lengths]
        done, got = [0] * len(lengths), [[] for _ in lengths]
        while any(d < n for d, n in zip(done, lengths, strict=True)):
            rows = [i for i, n in enumerate(lengths) if done[i] < n and rng.random() < 0.8]
            if not rows:
                continue
            rng.shuffle(rows)
            counts = [min(lengths[i] - done[i], rng.choice([1, 1, 2, 5, 40])) for i in rows]
            parts = [(sequences[i], tables[i], done[i], c) for i, c in zip(rows, counts, strict=True)]
            for i, part in zip(rows, feed(model, store, parts).split(counts), strict=True):
                got[i].append(part)
                done[i] += len(part)
        for ids, parts in zip(sequences, got, strict=True):
            want = model(torch.tensor([ids]))[0]
            assert relative_error(torch.cat(parts), want) < 1e-12


def test_two_segments_that_write_one_slot_are_refused():
    store = BlockStore.for_model(tiny_llama(), 4, 4)
    for other in (Segment([1], 2, 2), Segment([1], 0, 3)):
        with pytest.raises(ValueError, match="Two new tokens at position 2 of one block"):
            PackedCache(store, [Segment([1], 2, 1), other])
    PackedCache(store, [Segment([1], 2, 1), Segment([1], 3, 1), Segment([2], 2, 1)])


def test_blocks_that_are_missing_or_a_wrong_pos_get_a_sentence():
    model = tiny_llama()
    store = BlockStore.for_model(model, 4, 4)
    for table, start, count in [([0], 0, 5), ([], 0, 1), ([0], -1, 1), ([0], 2, 0)]:
        with pytest.raises(ValueError, match="blocks of 4"):
            PackedCache(store, [Segment(table, start, count)])
    with pytest.raises(ValueError, match="one segment"):
        PackedCache(store, [])
    cache = PackedCache(store, [Segment([1], 0, 3)])
    with pytest.raises(ValueError, match="the cache's own pos"):
        model(torch.tensor([[1, 2]]), torch.tensor([[0, 1]]), cache)
    assert not any(plane.any() for plane in store.planes) and cache.nbytes == store.nbytes
    for call in (lambda: cache.rewind([0]), lambda: cache.select([0])):
        with pytest.raises(NotImplementedError):
            call()
