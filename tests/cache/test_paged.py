"""The pool's books, copy-on-write, swapping, and ten thousand random steps with an audit after each."""

from __future__ import annotations

import random

import pytest
import torch

from lumen.cache import BlockPool, BlockStore, CacheFull, HashPrefix, PoolCorrupt, RadixPrefix
from lumen.decode import generate
from lumen.sampling import SamplingParams

from ..tiny import relative_error, tiny_llama

CLOSE = 1e-12


def filled(store, model, prompts):
    cache = store.rows(len(prompts))
    for row, prompt in enumerate(prompts):
        tokens = torch.zeros(len(prompts), len(prompt), dtype=torch.int64)
        pos = torch.full_like(tokens, -1)
        tokens[row], pos[row] = torch.tensor(prompt), torch.arange(len(prompt))
        model(tokens, pos, cache)
    return cache


# the pool


def test_allocation_is_all_or_nothing():
    pool = BlockPool(4, 16)
    pool.allocate(3)
    with pytest.raises(CacheFull, match="2 more blocks of 16 positions are needed and 1 of 4 are free"):
        pool.allocate(2)
    assert pool.num_free == 1


@pytest.mark.parametrize("blocks, size", [(0, 16), (4, 0), (-1, 1)])
def test_a_pool_of_nothing_gets_a_sentence(blocks, size):
    with pytest.raises(ValueError, match="must be a whole number"):
        BlockPool(blocks, size)


def test_misuse_of_the_books_is_caught_before_they_change():
    pool = BlockPool(4, 16)
    a, b = pool.allocate(2)
    with pytest.raises(PoolCorrupt, match="cannot be shared"):
        pool.share([3])
    with pytest.raises(PoolCorrupt, match="more often"):
        pool.release([a, a])
    pool.audit([[a], [b]])


def test_the_audit_sees_owners_and_not_only_counts():
    """mini-sglang: a freed block that still stands in a table. The number of references alone would balance."""
    pool = BlockPool(4, 16)
    a, b = pool.allocate(2)
    pool.audit([[a], [b]])
    for wrong in ([[a]], [[a], [a]], [[a, b], [b]], [[a, b, 3]]):
        with pytest.raises(PoolCorrupt):
            pool.audit(wrong)
    pool.release([b])
    with pytest.raises(PoolCorrupt, match="free and held"):
        pool.audit([[a], [b]])


def test_the_audit_sees_a_count_of_evictable_blocks_that_is_off():
    pool = BlockPool(4, 16)
    (block,) = pool.allocate(1)
    pool.remember([block])
    pool.audit([[block], [block]])
    pool.num_evictable += 1
    with pytest.raises(PoolCorrupt, match="can be evicted"):
        pool.audit([[block], [block]])


# the cache


def test_memory_is_taken_when_a_position_is_written():
    model = tiny_llama()
    store = BlockStore.for_model(model, 10, 4)
    cache = store.rows(2)
    taken = []
    for _ in range(9):
        model(torch.ones(2, 1, dtype=torch.int64), None, cache)
        taken.append(store.pool.num_blocks - store.pool.num_free)
    assert taken == [2, 2, 2, 2, 4, 4, 4, 4, 6]
    cache.close()
    assert store.pool.num_free == 10 and store.caches == []


def test_copies_share_blocks_until_one_of_them_writes():
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 12, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1, 3]])  # one full block, one half full
    cache.select([0, 0, 0])
    assert store.pool.num_free == 10, "three rows, no copy yet"
    logits = model(torch.tensor([[8], [30], [12]]), None, cache)
    assert store.pool.num_free == 8, "the half-full block was copied for two of the three; the full one never"
    assert len({table[0] for table in cache.tables}) == 1 and len({table[1] for table in cache.tables}) == 3
    for row, token in enumerate([8, 30, 12]):
        alone = model(torch.tensor([[5, 9, 2, 7, 1, 3, token]]))[0, -1]
        assert relative_error(logits[row, 0], alone) < CLOSE
    store.audit()


def test_rewinding_into_a_shared_block_and_writing_leaves_the_other_alone():
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 12, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1, 3, 8, 30]])
    cache.select([0, 0])
    cache.rewind([8, 2])
    logits = model(torch.tensor([[40], [41]]), None, cache)
    assert relative_error(logits[0, 0], model(torch.tensor([[5, 9, 2, 7, 1, 3, 8, 30, 40]]))[0, -1]) < CLOSE
    assert relative_error(logits[1, 0], model(torch.tensor([[5, 9, 41]]))[0, -1]) < CLOSE
    store.audit()


def test_copy_on_write_that_does_not_fit_changes_nothing():
    model = tiny_llama()
    store = BlockStore.for_model(model, 2, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1]])
    cache.select([0, 0])
    before = [list(t) for t in cache.tables]
    with pytest.raises(CacheFull):
        model(torch.tensor([[1], [2]]), None, cache)
    assert cache.tables == before and cache.lengths.tolist() == [5, 5]
    store.audit()


def test_a_swapped_row_comes_back_bit_for_bit():
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 5, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1, 3], [11, 4]])
    swapped = cache.swap_out(0)
    assert store.pool.num_free == 4 and cache.lengths.tolist() == [0, 2]
    assert swapped.nbytes == 2 * 3 * 6 * 3 * 8 * 8  # K and V, layers, positions, KV heads, head_dim, fp64
    other = filled(store, model, [[50, 51, 52, 53, 54]])  # somebody else uses the blocks meanwhile
    other.close()
    cache.swap_in(0, swapped)
    logits = model(torch.tensor([[8], [0]]), torch.tensor([[6], [-1]]), cache)
    assert relative_error(logits[0, 0], model(torch.tensor([[5, 9, 2, 7, 1, 3, 8]]))[0, -1]) < CLOSE
    store.audit()
    with pytest.raises(ValueError, match="empty row"):
        cache.swap_in(0, swapped)


def test_swapping_in_without_room_changes_nothing():
    model = tiny_llama()
    store = BlockStore.for_model(model, 2, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1, 3]])
    swapped = cache.swap_out(0)
    blocker = filled(store, model, [[1, 2, 3]])
    with pytest.raises(CacheFull):
        cache.swap_in(0, swapped)
    assert cache.tables == [[]] and cache.lengths.tolist() == [0]
    blocker.close()
    cache.swap_in(0, swapped)
    assert cache.lengths.tolist() == [6]


def test_parallel_samples_of_one_prompt_share_it_and_equal_rows_of_their_own():
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 40, 4)
    cache = filled(store, model, [[5, 9, 2, 7, 1, 3, 8, 30, 12]])
    cache.select([0] * 4)
    shared = 40 - store.pool.num_free
    assert shared == 3
    done = generate(
        model, [[5, 9, 2, 7, 1, 3, 8, 30, 12]] * 4, 6, [SamplingParams(seed=s) for s in range(4)], eos_ids=()
    )
    last = model(torch.zeros(4, 1, dtype=torch.int64), torch.full((4, 1), -1), cache)
    assert torch.isfinite(last).all()
    for step in range(5):
        logits = model(torch.tensor([[r.tokens[step]] for r in done]), None, cache)
        for row, result in enumerate(done):
            text = [5, 9, 2, 7, 1, 3, 8, 30, 12, *result.tokens[: step + 1]]
            alone = model(torch.tensor([text]))[0, -1]
            assert relative_error(logits[row, 0], alone) < CLOSE
    store.audit()


@pytest.mark.parametrize("prefix", [None, HashPrefix, RadixPrefix])
def test_ten_thousand_random_steps_keep_the_books_and_the_numbers(prefix):
    """T25: append, fork, rewind, free, swap, adopt and keep on a tiny pool; audit after each step.

    Values are checked without a model: a key is written as (sequence's own history, position), so that reading any
    row back shows whose numbers stand in its blocks.
    """
    model = tiny_llama()  # gives the shape only
    store = BlockStore.for_model(model, 24, 3)
    if prefix is not None:
        store.prefix = prefix(store.pool)
    draw = random.Random(0)
    rows: list[tuple] = []  # (cache of one row, its tokens)
    swapped: list[tuple] = []
    full = 0

    def write(cache, tokens, new):
        pos = torch.arange(len(tokens), len(tokens) + len(new))[None]
        cache.begin(pos)
        history = list(tokens)
        kv = torch.zeros(1, 3, len(new), 8)
        for i, token in enumerate(new):
            history.append(token)
            kv[:, :, i] = float(hash(tuple(history)) % 100_003)
        for layer in range(3):
            k, _, k_pos = cache.update(layer, kv + layer, kv, pos)
        cache.advance(pos)
        return k, k_pos

    def check(cache, tokens):
        if not tokens:
            return
        pos = torch.full((1, 1), -1)
        cache.begin(pos)
        k, v, k_pos = cache.update(2, torch.zeros(1, 3, 1, 8), torch.zeros(1, 3, 1, 8), pos)
        for p in range(len(tokens)):
            assert k_pos[0, p] == p
            want = float(hash(tuple(tokens[: p + 1])) % 100_003)
            assert float(v[0, 0, p, 0]) == want and float(k[0, 0, p, 0]) == want + 2

    for _ in range(10_000):
        action = draw.random()
        try:
            if action < 0.2 or not rows:
                fresh = store.rows(1)
                prompt = [draw.randrange(3) for _ in range(draw.randrange(1, 14))]
                held = fresh.adopt([prompt])[0]
                assert held < len(prompt)
                rows.append((fresh, prompt[:held]))
                check(*rows[-1])
                write(fresh, prompt[:held], prompt[held:])
                rows[-1] = (fresh, prompt)
            elif action < 0.6:
                i = draw.randrange(len(rows))
                new = [draw.randrange(3) for _ in range(draw.randrange(1, 5))]
                write(*rows[i], new)
                rows[i] = (rows[i][0], rows[i][1] + new)
            elif action < 0.7:
                cache, tokens = rows[draw.randrange(len(rows))]
                copy = store.rows(1)
                store.pool.share(cache.tables[0])
                copy.tables, copy.lengths = [list(cache.tables[0])], cache.lengths.clone()
                rows.append((copy, list(tokens)))
            elif action < 0.8:
                i = draw.randrange(len(rows))
                keep = draw.randrange(len(rows[i][1]) + 1)
                rows[i][0].rewind([keep])
                rows[i] = (rows[i][0], rows[i][1][:keep])
            elif action < 0.84:
                cache, tokens = rows.pop(draw.randrange(len(rows)))
                swapped.append((cache, cache.swap_out(0), tokens))
            elif action < 0.88 and swapped:
                cache, data, tokens = swapped[-1]
                cache.swap_in(0, data)
                rows.append((cache, tokens))
                swapped.pop()
            else:
                cache, tokens = rows.pop(draw.randrange(len(rows)))
                cache.keep([tokens])
                cache.close()
        except CacheFull:
            full += 1
            if rows and len(rows[-1][1]) < int(rows[-1][0].lengths[0]):
                raise
        store.audit()
        if rows:
            check(*draw.choice(rows))
    assert full > 100, "the pool was never short, so the test proved little"
    for cache, tokens in rows:
        check(cache, tokens)
        cache.close()
    for cache, _, _ in swapped:
        cache.close()
    store.prefix.evict(24)
    assert store.pool.num_free == 24


@pytest.mark.parametrize("new", [[4], [2, 4], [3, 4]])
def test_a_position_left_out_is_refused_and_changes_nothing(new):
    """A slot is a position here: what an earlier owner left in the one that is skipped would have been read."""
    model = tiny_llama()
    store = BlockStore.for_model(model, 4, 4)
    cache = filled(store, model, [[5, 6]])
    free, held = store.pool.num_free, cache.lengths.clone()
    with pytest.raises(ValueError, match=r"Row 0 holds 2 positions, .* reach position 4 but leave [12] out"):
        model(torch.ones(1, len(new), dtype=torch.int64), torch.tensor([new]), cache)
    assert store.pool.num_free == free and torch.equal(cache.lengths, held)
    model(torch.ones(1, 3, dtype=torch.int64), torch.tensor([[4, 2, 3]]), cache)  # in any order, all of them
    assert cache.lengths.tolist() == [5]
