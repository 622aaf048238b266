"""KIVI in blocks: grouping against loops over single numbers, and what opens, closes, travels and is taken back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from lumen.cache import (
    QUANT_FORMATS,
    CacheFull,
    DecodeBatch,
    DynamicCache,
    HashPrefix,
    KiviStore,
    PackedCache,
    Segment,
)
from lumen.cache.quant_tails import Tails
from lumen.decode import pad

from ..tiny import relative_error, tiny_llama
from .kinds import kivi

PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9]]
FINE = QUANT_FORMATS["kivi"].with_(bits=8)  # near enough for greedy tokens


def feed(cache, k, v, chunk=1):
    """Write k, v (layers, tokens, heads, width) into the only row, behind what it holds."""
    start, end = int(cache.lengths[0]), k.shape[1]
    for at in range(start, end, chunk):
        pos = torch.arange(at, min(at + chunk, end))[None]
        cache.begin(pos)
        for layer in range(len(k)):
            new = [x[layer, pos[0]].transpose(0, 1)[None] for x in (k, v)]
            cache.update(layer, *new, pos)
        cache.advance(pos)


def drawn(tokens, seed=0):
    torch.manual_seed(seed)
    k, v = torch.randn(2, 3, tokens, 3, 8, dtype=torch.float64)
    k[..., 5] += 20  # a channel that is large for every token
    return k, v


def naive(x, bits, size, channels):
    """One layer's keys or values (tokens, heads, width): groups of `size` tokens of a channel, or tokens by themselves;
    what does not fill a group stays as it is."""
    out, full = x.clone(), len(x) // size * size
    for h in range(x.shape[1]):
        for at in range(0, full, size):
            part = x[at : at + size, h].numpy()
            groups = part.T if channels else part
            back = []
            for group in groups:
                low, top = np.float64(np.float16(group.min())), 2**bits - 1
                step = max(2.0**-24, np.float64(np.float16((group.max() - group.min()) / top)))
                back.append([np.clip(np.rint((y - low) / step), 0, top) * step + low for y in group])
            back = np.array(back).T if channels else np.array(back)
            out[at : at + size, h] = torch.from_numpy(back)
    return out


@pytest.mark.parametrize("name", ["kivi", "kivi-2"])
@pytest.mark.parametrize(("tokens", "size"), [(1, 4), (4, 4), (13, 4), (20, 8), (6, 1)])
def test_t51_keys_by_channel_values_by_token_the_newest_whole_however_they_come(name, tokens, size):
    """Against loops over single numbers; a token at a time, in chunks and all at once give the same bits; at most a
    block is whole."""
    k, v = drawn(tokens)
    form = QUANT_FORMATS[name]
    kept = []
    for chunk in (1, 3, tokens):
        store = kivi(name)(tiny_llama(torch.float64), 30, size)
        cache = store.rows(1)
        feed(cache, k, v, chunk)
        kept.append(store.export(cache.tables[0], tokens))
    for got in kept[1:]:
        assert all(torch.equal(a, b) for a, b in zip(got, kept[0], strict=True))
    for layer in range(3):
        for got, x, channels in ((kept[0][0], k, True), (kept[0][1], v, False)):
            want = naive(x[layer], form.bits, size, channels)
            assert relative_error(got[layer], want) < 1e-12
    rest = tokens % size
    assert torch.equal(kept[0][0][:, tokens - rest :], k[:, tokens - rest :])


def test_a_large_channel_costs_the_others_nothing_by_channel_and_all_by_token():
    """Why KIVI scales keys by channel: section 3.2's finding, planted."""
    k, v = drawn(32)
    others = [0, 1, 2, 3, 4, 6, 7]
    for name in ("kivi", "kivi-2"):
        store = kivi(name)(tiny_llama(torch.float64), 30, 8)
        cache = store.rows(1)
        feed(cache, k, v)
        by_channel = store.export(cache.tables[0], 32)[0][..., others]
        by_token = naive(k[0], QUANT_FORMATS[name].bits, 1, False)[..., others]
        worse = relative_error(by_token, k[0][..., others])
        assert worse > 4 * relative_error(by_channel, k[..., others])


def test_the_forward_that_fills_a_block_reads_it_whole_and_the_next_reads_codes():
    """So rejected drafts that fill a block change nothing for the token before them."""
    store = kivi("kivi-2")(tiny_llama(torch.float64), 9, 4)
    cache, (k, v) = store.rows(1), drawn(6)
    feed(cache, k[:, :2], v[:, :2])
    pos = torch.tensor([[2, 3, 4]])
    cache.begin(pos)
    for layer in range(3):
        new = [x[layer, 2:5].transpose(0, 1)[None] for x in (k, v)]
        keys, _, _ = cache.update(layer, *new, pos)
        assert torch.equal(keys[0].transpose(0, 1), k[layer, :5])
    cache.advance(pos)
    cache.begin(torch.full((1, 1), -1))
    keys, _, _ = cache.read(2)
    assert not torch.equal(keys[0, :, :4].transpose(0, 1), k[2, :4])
    assert torch.equal(keys[0, :, 4:5].transpose(0, 1), k[2, 4:5])


def test_a_forward_that_dies_closes_nothing():
    """Layer 0 has filled a block, layer 2 has not: what stood there is read whole."""
    store = kivi("kivi-2")(tiny_llama(torch.float64), 9, 4)
    cache, (k, v) = store.rows(1), drawn(4)
    feed(cache, k[:, :3], v[:, :3])
    pos = torch.tensor([[3]])
    cache.begin(pos)
    cache.update(0, *(x[0, 3:].transpose(0, 1)[None] for x in (k, v)), pos)
    cache.begin(torch.full((1, 1), -1))
    assert torch.equal(cache.read(2)[0][0].transpose(0, 1), k[2, :3])


@pytest.mark.parametrize("to", [8, 7, 5, 4, 3, 0])
def test_t9_rewound_over_an_edge_it_is_as_if_never_written(to):
    """Drafts close a block and are rejected: its tokens come back whole, bit for bit, while their place is kept."""
    store = kivi("kivi-2")(tiny_llama(torch.float64), 9, 4)
    (k, v), (other, _) = drawn(12), drawn(12, seed=1)
    cache, straight = store.rows(1), store.rows(1)
    feed(cache, torch.cat([k[:, :to], other[:, to:9]], 1), v[:, :9])
    cache.rewind([to])
    feed(cache, k, v)
    feed(straight, k, v)
    for got, want in zip(
        store.export(cache.tables[0], 12), store.export(straight.tables[0], 12), strict=True
    ):
        assert torch.equal(got, want)


def test_a_place_that_was_given_away_costs_a_second_rounding_and_no_more():
    store = kivi("kivi", sequences=1)(tiny_llama(torch.float64), 30, 4)
    cache, (k, v) = store.rows(1), drawn(20)
    feed(cache, k[:, :20], v[:, :20])
    cache.rewind([6])  # into the second of five blocks; two places
    feed(cache, k, v)
    for got, x in zip(store.export(cache.tables[0], 20), (k, v), strict=True):
        assert relative_error(got, x) < QUANT_FORMATS["kivi"].tolerance / 2


def test_more_half_full_blocks_than_places_is_refused_before_anything_changes():
    model = tiny_llama(torch.float64)
    store = kivi(sequences=1)(model, 30, 4)
    cache = store.rows(3)
    tokens, pos = torch.ones(3, 2, dtype=torch.int64), torch.tensor([[0, 1], [0, 1], [-1, -1]])
    model(tokens, pos, cache)
    held, before = [list(t) for t in cache.tables], [x.clone() for x in store.whole]
    with pytest.raises(CacheFull, match="more sequences"):
        model(tokens[:, :1], torch.tensor([[-1], [-1], [0]]), cache)
    assert cache.tables == held and cache.lengths.tolist() == [2, 2, 0]
    assert all(torch.equal(a, b) for a, b in zip(store.whole, before, strict=True))
    store.audit()
    model(tokens, torch.tensor([[2, 3], [-1, -1], [-1, -1]]), cache)  # row 0's block is full
    model(tokens[:, :1], torch.tensor([[-1], [-1], [0]]), cache)


def test_a_block_whose_beginning_nobody_knows_is_refused():
    store = kivi()(tiny_llama(), 4, 4)
    with pytest.raises(ValueError, match="Place 2 of block 1"):
        store.prepare([6])
    cache = PackedCache(store, [Segment([2], 1, 1)])
    with pytest.raises(ValueError, match="fill blocks from their beginning"):
        cache.begin(cache.pos)


@pytest.mark.parametrize("kind", ["packed", "decode batch"])
def test_packed_steps_say_what_rows_say(kind):
    """Mixed chunks and answers over an edge; the model's logits against a paged cache that takes the same chunks."""
    model = tiny_llama(torch.float64)
    store = kivi("kivi-2")(model, 30, 4)
    rows = kivi("kivi-2")(model, 30, 4).rows(3)
    tables = [store.allocate(5) for _ in PROMPTS]
    tokens, pos = pad(PROMPTS)
    want = model(tokens, pos, rows)
    cache = PackedCache(store, [Segment(t, 0, len(p)) for t, p in zip(tables, PROMPTS, strict=True)])
    got = model(torch.tensor([[t for p in PROMPTS for t in p]]), cache.pos, cache)[0]
    assert relative_error(got, torch.cat([want[i, : len(p)] for i, p in enumerate(PROMPTS)])) < 1e-12
    ends = [len(p) for p in PROMPTS]
    for step in range(7):
        want = model(torch.tensor([[step], [step + 1], [step + 2]]), None, rows)[:, 0]
        segments = [Segment(t, n + step, 1) for t, n in zip(tables, ends, strict=True)]
        ids = torch.tensor([[step, step + 1, step + 2]])
        if kind == "packed":
            cache = PackedCache(store, segments)
        else:
            cache = DecodeBatch(store, 4, 6)
            cache.load(segments)
            ids = torch.cat([ids, torch.zeros(1, 1, dtype=torch.int64)], 1)
        got = model(ids, cache.pos, cache)[0, :3]
        assert relative_error(got, want) < 1e-12


def test_full_blocks_travel_as_codes_and_the_rest_whole():
    """Swapped out and in: the same bits. Handed over plain: packed as if computed here."""
    model = tiny_llama(torch.float64)
    store = kivi("kivi-2")(model, 9, 4)
    cache, (k, v) = store.rows(1), drawn(10)
    feed(cache, k, v)
    before = store.export(cache.tables[0], 10)
    content = cache.swap_out(0)
    held = 2 * store.block_bytes + 2 * sum(x[0, 0, 0].nbytes for x in store.whole) * 3
    assert content.length == 10 and content.nbytes == held
    blocker = store.rows(1)
    feed(blocker, *drawn(9, seed=4))
    cache.swap_in(0, content)
    for got, want in zip(store.export(cache.tables[0], 10), before, strict=True):
        assert torch.equal(got, want)
    for length in (10, 8, 3, 0):
        table = store.allocate(3)
        store.put(table, store.content(k[:, :length], v[:, :length]))
        for got, want in zip(store.export(table, length), before, strict=True):
            full = length // 4 * 4
            assert torch.equal(got[:, :full], want[:, :full])
        assert torch.equal(
            store.export(table, length)[0][:, length // 4 * 4 :], k[:, length // 4 * 4 : length]
        )
        store.pool.release(table)
    for wrong in ((k[:2], v), (k[..., :7], v), (k[:, :4], v)):
        with pytest.raises(ValueError, match="Keys and values of this model"):
            store.content(*wrong)
    with pytest.raises(ValueError, match="one dtype"):
        store.content(k.float(), v.float())


def test_codes_that_arrive_where_a_block_was_open_are_read_and_may_be_taken_back():
    """The whole place of the block's last owner is none of theirs."""
    store = kivi("kivi-2")(tiny_llama(torch.float64), 3, 4)
    cache, (k, v) = store.rows(1), drawn(8)
    feed(cache, k, v)
    before = store.export(cache.tables[0], 8)
    content = cache.swap_out(0)
    other = store.rows(1)
    feed(other, *drawn(2, seed=5))
    (block,) = other.tables[0]
    other.close()
    cache.swap_in(0, content)
    assert block in cache.tables[0]
    cache.begin(torch.full((1, 1), -1))
    for layer in range(3):
        for got, want in zip(cache.read(layer)[:2], before, strict=True):
            assert torch.equal(got[0].transpose(0, 1), want[layer])
    for to in (6, 2):
        cache.rewind([to])
        feed(cache, k, v)


def test_a_swap_that_finds_no_place_leaves_the_blocks_free():
    store = kivi(sequences=1)(tiny_llama(torch.float64), 30, 4)
    cache, (k, v) = store.rows(1), drawn(2)
    feed(cache, k, v)
    content = cache.swap_out(0)
    others = [store.rows(1) for _ in range(2)]
    for other in others:
        feed(other, k, v)
    free = store.pool.num_free
    with pytest.raises(CacheFull, match="more sequences"):
        cache.swap_in(0, content)
    assert store.pool.num_free == free and cache.tables == [[]]


def test_copies_on_write_are_whole_where_they_must_be():
    store = kivi("kivi-2")(tiny_llama(torch.float64), 30, 4)
    cache, (k, v), (other, _) = store.rows(1), drawn(9), drawn(9, seed=2)
    feed(cache, k[:, :6], v[:, :6])
    cache.select([0, 0])
    pos = torch.tensor([[6], [6]])
    cache.begin(pos)
    for layer in range(3):
        new = torch.stack([k[layer, 6], other[layer, 6]])[:, :, None]
        keys, _, _ = cache.update(layer, new, new, pos)
        assert torch.equal(keys[0, :, 4:7].transpose(0, 1), k[layer, 4:7])
        assert torch.equal(keys[1, :, 6], other[layer, 6]) and torch.equal(keys[1, :, 4:6], keys[0, :, 4:6])
    cache.advance(pos)
    assert cache.tables[0][0] == cache.tables[1][0], "the full block is shared"
    store.audit()


def test_nan_of_a_failed_request_is_wiped_out_of_places_too():
    store = kivi()(tiny_llama(), 4, 4)
    cache = store.rows(1)
    feed(cache, *(x.float() * float("nan") for x in drawn(6)))
    table = list(cache.tables[0])
    cache.close()
    store.wipe(table)
    held = (*store.planes, store.key_scales, *store.whole)
    assert all(torch.isfinite(x.float()).all() for x in held)


def test_shared_beginnings_are_full_blocks():
    model = tiny_llama(torch.float64)
    store = kivi("kivi")(model, 20, 4)
    store.prefix = HashPrefix(store.pool)
    first = store.rows(1)
    model(torch.tensor([PROMPTS[0]]), None, first)
    first.keep([PROMPTS[0]])
    first.close()
    again = store.rows(1)
    assert again.adopt([PROMPTS[0]]) == [8]
    logits = model(torch.tensor([PROMPTS[0][8:]]), None, again)[0]
    want = model(torch.tensor([PROMPTS[0]]))[0, 8:]
    assert relative_error(logits, want) < store.traits.tolerance
    store.audit()


def test_a_thousand_random_steps_read_what_was_written():
    """Append, fork, rewind, close, swap, keep and adopt with few places: every value is read back to the nearest
    whole number. 32 numbers over 255 steps: seven roundings of one block would be needed to miss one."""
    model = tiny_llama()
    store = kivi(bits=8, sequences=3)(model, 24, 3)
    store.prefix = HashPrefix(store.pool)
    draw, rows, swapped, full = random.Random(0), [], [], 0

    def value(tokens, p):
        return float(hash(tuple(tokens[: p + 1])) % 32)

    def write(cache, tokens, count):
        start = int(cache.lengths[0])
        kv = torch.zeros(3, start + count, 3, 8)
        for p in range(start, start + count):
            kv[:, p] = value(tokens, p)
        pos = torch.arange(start, start + count)[None]
        cache.begin(pos)
        for layer in range(3):
            new = (kv[layer, start:] + layer).transpose(0, 1)[None]
            cache.update(layer, new, new, pos)
        cache.advance(pos)

    def check(cache, tokens):
        cache.begin(torch.full((1, 1), -1))
        for layer in (0, 2):
            k, v, _ = cache.read(layer)
            want = torch.tensor([value(tokens, p) + layer for p in range(len(tokens))])
            for x in (k, v):
                assert torch.equal(x[0, 1, : len(tokens), 3].round(), want)

    for _ in range(1500):
        action = draw.random()
        try:
            if action < 0.2 or not rows:
                cache = store.rows(1)
                tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 12))]
                held = cache.adopt([tokens])[0]
                rows.append((cache, tokens[:held]))
                write(cache, tokens, len(tokens) - held)
                rows[-1] = (cache, tokens)
            elif action < 0.6:
                i = draw.randrange(len(rows))
                tokens = rows[i][1] + [draw.randrange(2) for _ in range(draw.randrange(1, 5))]
                write(rows[i][0], tokens, len(tokens) - len(rows[i][1]))
                rows[i] = (rows[i][0], tokens)
            elif action < 0.66:
                cache, tokens = rows[draw.randrange(len(rows))]
                copy = store.rows(1)
                store.pool.share(cache.tables[0])
                copy.tables, copy.lengths = [list(cache.tables[0])], cache.lengths.clone()
                rows.append((copy, list(tokens)))
            elif action < 0.78:
                i = draw.randrange(len(rows))
                keep = max(0, len(rows[i][1]) - draw.randrange(4))
                rows[i][0].rewind([keep])
                rows[i] = (rows[i][0], rows[i][1][:keep])
            elif action < 0.83:
                cache, tokens = rows.pop(draw.randrange(len(rows)))
                swapped.append((cache, cache.swap_out(0), tokens))
            elif action < 0.88 and swapped:
                cache, data, tokens = swapped[-1]
                cache.swap_in(0, data)
                rows.append(swapped.pop()[::2])
            else:
                cache, tokens = rows.pop(draw.randrange(len(rows)))
                cache.keep([tokens])
                cache.close()
        except CacheFull:
            full += 1
            if rows and len(rows[-1][1]) != int(rows[-1][0].lengths[0]):
                rows.pop()[0].close()
        store.audit()
        if rows:
            check(*draw.choice(rows))
    assert full > 50, "places and blocks were never short, so the test proved little"


def test_books_give_the_place_away_that_closed_longest_ago():
    held = {0, 1, 2, 3}
    tails = Tails(3, 4, 9, held.__contains__)

    def forward(slots):
        filling = tails.fill(slots)
        tails.commit(filling)
        return filling

    forward([0, 4, 8])  # blocks 0, 1, 2 begin
    forward([5, 6, 7])
    forward([1, 2, 3])
    assert tails.closed == {0, 1} and set(tails.place) == {0, 1, 2}
    forward([12])
    assert set(tails.place) == {0, 2, 3}, "block 1 closed first"
    held.remove(2)
    forward([16])
    assert set(tails.place) == {0, 3, 4}, "nobody holds block 2 any more"
    with pytest.raises(CacheFull, match="2 more blocks would be half full, and 1 of 3"):
        held |= {4}
        tails.fill([20, 24])
    assert tails.fill([36, 37]).slots == (), "padding has no place"
    whole = tails.fill([20, 21, 22, 23, 13])
    assert whole.whole == ((5, (0, 1, 2, 3)),) and whole.tokens == (4,)


def test_logits_stay_within_what_is_promised_over_long_answers():
    model = tiny_llama(torch.float64)
    plain = DynamicCache.for_model(model, 3)
    caches = {name: kivi(name)(model, 80, 4).rows(3) for name in ("kivi", "kivi-2")}
    tokens, pos = pad(PROMPTS)
    model(tokens, pos, plain)
    for cache in caches.values():
        model(tokens, pos, cache)
    for step in range(20):
        ids = torch.tensor([[step], [2 * step], [3 * step]])
        want = model(ids, None, plain)
        for cache in caches.values():
            assert relative_error(model(ids, None, cache), want) < cache.traits.tolerance
    assert isinstance(caches["kivi"].store, KiviStore)
