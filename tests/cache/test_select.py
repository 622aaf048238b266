"""Quest: the bound is a bound, the pages are those that a loop chooses, and the bytes are those that are read."""

from __future__ import annotations

import math

import pytest
import torch

from lumen.attention import attention
from lumen.attention.sparse.blocks import upper_bound
from lumen.cache import QuestCache
from lumen.config import CONFIGS
from lumen.decode import pad
from lumen.parts import Latent

from ..tiny import relative_error, tiny_llama

KV, GROUP, WIDTH = 3, 3, 8
PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9]]


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(rows, lengths, capacity=24, pages=2, size=4, seed=0, large=0, **changes):
    """A cache of one layer, prefilled to `lengths`, and all keys and values that went in; one key may be large."""
    config = tiny_llama(num_layers=1, **changes).config
    cache = QuestCache(config, rows, capacity, pages, size, dense_layers=0, dtype=torch.float64)
    _, pos = pad([[1] * n for n in lengths], "left")
    k, v = draw(seed, rows, KV, pos.shape[1], WIDTH), draw(seed + 1, rows, KV, pos.shape[1], WIDTH)
    k[:, :, large] *= 4 if large else 1
    out = step(cache, draw(seed + 2, rows, KV * GROUP, pos.shape[1], WIDTH), k, v, pos)
    assert out.shape[2] == pos.shape[1]
    return cache, k, v, pos


def step(cache, q, k, v, pos, window=None):
    cache.begin(pos)
    out = cache.attend(0, q, k, v, pos, window)
    cache.advance(pos)
    return out


@pytest.mark.parametrize("size", [1, 3, 16])
def test_the_bound_is_never_below_a_key_of_its_page_and_a_corner_reaches_it(size):
    q, keys = draw(0, 2, KV, GROUP, WIDTH), draw(1, 2, KV, 5, size, WIDTH)
    low, high = keys.amin(3), keys.amax(3)
    bound = upper_bound(q.flatten(1, 2)[:, :, None], low, high).view(2, KV, GROUP, 5)
    scores = torch.einsum("bhgd,bhpsd->bhgps", q, keys)
    assert (scores <= bound[..., None] + 1e-12).all()
    corner = torch.where(q[:, :, :, None] > 0, high[:, :, None], low[:, :, None])
    assert relative_error(torch.einsum("bhgd,bhgpd->bhgp", q, corner), bound) < 1e-12
    if size == 1:
        assert relative_error(scores[..., 0], bound) < 1e-12  # a page of one key is scored as the key is


@pytest.mark.parametrize("window", [None, 6])
def test_pages_are_those_that_a_loop_chooses_and_attention_is_over_them_alone(window):
    """Rows of 19, 3 and 12 keys, pages of 4, two of them read; the third row rests."""
    lengths, size, pages = [19, 3, 12], 4, 2
    cache, *_ = filled(3, lengths, window=window)
    q, k, v = draw(10, 3, KV * GROUP, 1, WIDTH), draw(11, 3, KV, 1, WIDTH), draw(12, 3, KV, 1, WIDTH)
    pos = torch.tensor([[19], [3], [-1]])
    cache.begin(pos)
    keys, _, k_pos = cache.update(0, k, v, pos, q)
    assert keys.shape == (3, KV, pages * size, WIDTH) and k_pos.shape == (3, KV, pages * size)
    for row, at in ((0, 19), (1, 3)):
        for head in range(KV):
            votes = {}
            for member in range(GROUP):
                query, bounds = q[row, head * GROUP + member, 0], {}
                for page in range(at // size + 1):
                    held = cache.dense.k[0, row, head, page * size : min((page + 1) * size, at + 1)]
                    if window is None or min((page + 1) * size, at + 1) - 1 > at - window:
                        corner = torch.where(query > 0, held.amax(0), held.amin(0))
                        bounds[page] = float(query @ corner) / WIDTH**0.5
                total = sum(math.exp(b) for b in bounds.values())
                for page, bound in bounds.items():
                    votes[page] = votes.get(page, 0.0) + math.exp(bound) / total
            votes[at // size] = math.inf
            best = sorted(sorted(votes, key=lambda page: -votes[page])[:pages])
            expected = [p for page in best for p in range(page * size, min((page + 1) * size, at + 1))]
            seen = sorted(p for p in k_pos[row, head].tolist() if p >= 0)
            if window is None:
                assert seen == expected
            else:  # where the window leaves fewer pages than may be read, what else is read is masked
                assert [p for p in seen if p > at - window] == [p for p in expected if p > at - window]
    cache.advance(pos)
    again, *_ = filled(3, lengths, window=window)
    out = step(again, q, k, v, pos, window)
    full_k, full_v = cache.dense.k[0, :, :, :-1], cache.dense.v[0, :, :, :-1]
    chosen = torch.full(full_k.shape[:3], -1)
    for row in range(2):
        for head in range(KV):
            mine = k_pos[row, head][k_pos[row, head] >= 0]
            chosen[row, head, mine] = mine
    assert relative_error(out, attention(q, full_k, full_v, pos, chosen, window)) < 1e-12


def test_a_page_with_the_key_that_a_query_looks_for_is_read():
    """A key along the query, long ago: its bound is the highest, and the answer is that of full attention."""
    cache, k, v, _ = filled(1, [20], large=5)
    q = 2 * k[:, :, 5:6].repeat_interleave(GROUP, 1)
    at = torch.tensor([[20]])
    out = step(cache, q, draw(8, 1, KV, 1, WIDTH), draw(9, 1, KV, 1, WIDTH), at)
    wanted = v[:, :, 5:6].repeat_interleave(GROUP, 1)
    assert relative_error(out, wanted) < 0.1 and cache.lengths.tolist() == [21]


def test_bounds_depend_on_what_is_held_alone():
    """T9: after a rewind, a forward that died, and other keys in their place, the bounds are those of the keys."""
    cache, *_ = filled(2, [11, 6])
    big = torch.full((2, KV, 3, WIDTH), 99.0, dtype=torch.float64)
    pos = torch.tensor([[11, 12, 13], [6, 7, 8]])
    step(cache, draw(3, 2, KV * GROUP, 3, WIDTH), big, big, pos)
    cache.rewind([10, 5])
    cache.begin(pos - 1)
    cache.update(0, -big, -big, pos - 1, draw(4, 2, KV * GROUP, 3, WIDTH))  # and then nothing: it died
    k = draw(5, 2, KV, 1, WIDTH)
    step(cache, draw(6, 2, KV * GROUP, 1, WIDTH), k, k, torch.tensor([[10], [5]]))
    for row, length in enumerate((11, 6)):
        for page in range(-(-length // 4)):
            held = cache.dense.k[0, row, :, page * 4 : min(page * 4 + 4, length)]
            assert torch.equal(cache.low[0, row, :, page], held.amin(1))
            assert torch.equal(cache.high[0, row, :, page], held.amax(1))


def test_bounds_move_with_their_rows():
    """Rows turned around, one of them twice: each chooses the pages that it chose before."""
    lengths, order = [19, 3, 12], [2, 0, 0]
    q, k = draw(10, 3, KV * GROUP, 1, WIDTH), draw(11, 3, KV, 1, WIDTH)
    pos = torch.tensor([[19], [3], [12]])
    plain, *_ = filled(3, lengths)
    expected = step(plain, q, k, k, pos)[order]
    moved, *_ = filled(3, lengths)
    moved.select(order)
    assert torch.equal(step(moved, q[order], k[order], k[order], pos[order]), expected)


def test_prompts_and_drafts_read_everything():
    model = tiny_llama(torch.float64)
    cache = QuestCache.for_model(model, 3, 20, 1, 2)
    tokens, pos = pad(PROMPTS)
    real = pos >= 0
    parts = [model(t, p, cache) for t, p in zip(tokens.split([7, 4], 1), pos.split([7, 4], 1), strict=True)]
    assert relative_error(torch.cat(parts, 1)[real], model(tokens, pos)[real]) < 1e-12


@pytest.mark.parametrize("length", [1, 8, 9, 31, 40])
def test_the_bytes_that_a_step_reads_are_counted(length):
    model = tiny_llama(torch.float64)
    cache = QuestCache.for_model(model, 1, 40, 2, 4, dense_layers=1)
    if length > 1:
        model(torch.ones(1, length - 1, dtype=torch.int64), None, cache)
    pos, q, k = torch.tensor([[length - 1]]), draw(0, 1, 9, 1, 8), draw(1, 1, 3, 1, 8)
    cache.begin(pos)
    read, used = 0, -(-length // 4)
    for layer in range(3):
        keys, values, k_pos = cache.update(layer, k, k, pos, q)
        read += 8 * (keys.numel() + values.numel())
        read += 8 * 2 * used * 3 * 8 if k_pos.dim() == 3 else 0  # low and high of each page and head
    assert cache.bytes_read(length) == read
    with pytest.raises(ValueError, match="length must be"):
        cache.bytes_read(41)


def test_memory_is_that_of_a_full_cache_and_its_bounds():
    config = CONFIGS["smollm2-135m"]
    cache = QuestCache(config, 2, 50, 2)
    keys = 30 * 2 * 3 * 64 * 4
    assert cache.capacity == 64 and cache.nbytes == keys * (2 * 65 + 2 * 4)


def test_what_cannot_work_is_refused_with_a_sentence():
    config = tiny_llama().config
    for wrong in ({"pages": 0}, {"page_size": 0}, {"dense_layers": -1}, {"capacity": 0}):
        given = {"capacity": 8, "pages": 2, **wrong}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            QuestCache(config, 1, **given)
    latent = config.with_(latent=Latent(16, 4))
    with pytest.raises(ValueError, match="stores latents"):
        QuestCache(latent, 1, 8, 2)
