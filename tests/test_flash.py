"""Tiles, splits and bytes: the same attention as torch's, without the T x S scores; and the bytes that are counted."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lumen.attention import (
    Traffic,
    attention,
    flash_attention,
    lowbit_attention,
    merge,
    naive_traffic,
    split_attention,
    visible,
)
from lumen.attention.lowbit import LEVELS, smooth, to_int8

from .tiny import relative_error


def drawn(batch=2, heads=9, kv_heads=3, num_q=5, num_k=7, dim=8, value_dim=8, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    shapes = (batch, heads, num_q, dim), (batch, kv_heads, num_k, dim), (batch, kv_heads, num_k, value_dim)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def positions(batch, num_q, num_k, seed=0):
    """Rows of unlike length behind unlike prefixes, padded on the left or the right."""
    draw = random.Random(seed)
    q_pos, k_pos = torch.full((batch, num_q), -1), torch.full((batch, num_k), -1)
    for row in range(batch):
        held = draw.randint(0, num_k)
        new = draw.randint(0, min(num_q, held))
        left = draw.random() < 0.5
        k_pos[row, num_k - held :] = torch.arange(held)
        if not left:
            k_pos[row] = k_pos[row].flip(0)  # slots in no order at all
        at = slice(num_q - new, num_q) if left else slice(0, new)
        q_pos[row, at] = torch.arange(held - new, held)
    return q_pos, k_pos


SIZES = [(1, 1), (1, 300), (7, 7), (127, 129), (128, 128), (129, 257), (64, 200)]


@pytest.mark.parametrize("window", [None, 1, 50])
@pytest.mark.parametrize(("num_q", "num_k"), SIZES)
def test_tiles_equal_torch_over_awkward_sizes(num_q, num_k, window):
    q, k, v = drawn(num_q=num_q, num_k=num_k, value_dim=5)
    for seed, (block_q, block_k), causal in itertools.product(
        range(2), [(16, 32), (128, 128), (1, 7)] if num_q < 100 else [(64, 48), (128, 128)], (True, False)
    ):
        q_pos, k_pos = positions(2, num_q, num_k, seed)
        out, lse = flash_attention(
            q, k, v, q_pos, k_pos, window, causal=causal, block_q=block_q, block_k=block_k
        )
        seen = visible(q_pos, k_pos, window, causal)
        many_k, many_v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        scores = (q @ many_k.transpose(2, 3) / 8**0.5).masked_fill(~seen, float("-inf"))
        wanted = F.scaled_dot_product_attention(q, many_k, many_v, attn_mask=seen).nan_to_num(0.0)
        assert relative_error(out, wanted) < 1e-12 or not seen.any()
        assert torch.equal(out[~seen.any(-1).expand(2, 9, -1)].abs().sum(), torch.tensor(0.0).double())
        assert torch.allclose(lse, scores.logsumexp(-1), rtol=1e-12, equal_nan=False)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_the_running_sums_are_in_fp32_at_least(dtype, limit):
    q, k, v = drawn(num_q=3, num_k=600, dim=64, value_dim=64, dtype=dtype)
    q_pos, k_pos = torch.arange(597, 600).expand(2, -1), torch.arange(600).expand(2, -1)
    out, lse = flash_attention(q, k, v, q_pos, k_pos, block_k=32)
    wanted = attention(*(x.double() for x in (q, k, v)), q_pos, k_pos)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    assert relative_error(out.double(), wanted) < limit


def test_large_scores_do_not_overflow():
    q, k, v = drawn(num_q=4, num_k=40, dtype=torch.float32)
    pos = torch.arange(36, 40).expand(2, -1), torch.arange(40).expand(2, -1)
    out, lse = flash_attention(1e4 * q, 1e4 * k, v, *pos, block_k=8)
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    assert relative_error(out, attention(1e4 * q, 1e4 * k, v, *pos)) < 1e-5


class Largest(TorchDispatchMode):
    """The largest tensor that any operator made, views of what was `given` left out."""

    def __init__(self, *given):
        super().__init__()
        self.given, self.numel = {x.untyped_storage().data_ptr() for x in given}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in self.given:
            self.numel = max(self.numel, made.untyped_storage().nbytes() // made.element_size())
        return made


def test_memory_beyond_the_result_does_not_grow_with_the_keys():
    """To 32k tokens: a row of scores of 32 x 32,768 would be a million numbers; a tile is 32 x 128 of them."""
    found = []
    for num_k in (1024, 32768):
        q, k, v = drawn(
            batch=1, heads=2, kv_heads=2, num_q=16, num_k=num_k, dim=4, value_dim=4, dtype=torch.float32
        )
        q_pos, k_pos = torch.arange(num_k - 16, num_k)[None], torch.arange(num_k)[None]
        with Largest(q, k, v, q_pos, k_pos) as largest:
            flash_attention(q, k, v, q_pos, k_pos, block_q=16, block_k=128)
        found.append(largest.numel)
    assert found == [2 * 16 * 128] * 2


def test_tiles_above_the_diagonal_are_skipped_and_full_ones_not_masked():
    q, k, v = drawn(batch=1, num_q=256, num_k=256)
    pos, count = torch.arange(256)[None], Traffic()
    flash_attention(q, k, v, pos, pos, block_q=64, block_k=64, traffic=count)
    assert (count.tiles, count.skipped) == (4 + 3 + 2 + 1, 6)
    windowed = Traffic()
    flash_attention(q, k, v, pos, pos, 64, block_q=64, block_k=64, traffic=windowed)
    assert windowed.tiles == 4 + 3, "the diagonal and the tile below it"


@pytest.mark.parametrize("block_q", [16, 50, 200])
def test_the_counted_bytes_are_those_of_the_formula(block_q):
    """Queries once, results once, keys and values once for each tile of queries (Dao 2023, section 3.1)."""
    q, k, v = drawn(num_q=100, num_k=130, dtype=torch.float32)
    q_pos, k_pos = torch.arange(30, 130).expand(2, -1), torch.arange(130).expand(2, -1)
    count = Traffic()
    flash_attention(q, k, v, q_pos, k_pos, causal=False, block_q=block_q, block_k=33, traffic=count)
    passes = -(-100 // block_q)
    assert count.read == 4 * (q.numel() + passes * (k.numel() + v.numel()))
    assert count.written == 4 * (q.numel() + 2 * 9 * 100)
    naive = naive_traffic(q, k, v)
    assert naive.read == 4 * (q.numel() + k.numel() + v.numel() + 2 * 2 * 9 * 100 * 130)
    assert naive.written == 4 * (2 * 2 * 9 * 100 * 130 + q.numel())


# splits ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("splits", [1, 2, 5, 40, 64])
def test_splits_equal_the_whole(splits):
    """More splits than keys: some are empty (T56)."""
    for seed in range(4):
        q, k, v = drawn(num_q=2, num_k=41, seed=seed)
        q_pos, k_pos = positions(2, 2, 41, seed)
        out, lse = split_attention(q, k, v, q_pos, k_pos, 17, splits=splits)
        wanted, whole = flash_attention(q, k, v, q_pos, k_pos, 17)
        assert torch.allclose(out, wanted, atol=1e-13) and torch.allclose(lse, whole, rtol=1e-12)


def test_a_merge_knows_no_order_and_can_be_merged_again():
    q, k, v = drawn(num_q=3, num_k=60)
    q_pos, k_pos = torch.arange(57, 60).expand(2, -1), torch.arange(60).expand(2, -1)
    at = [0, 1, 20, 20, 45, 60]
    parts = [
        flash_attention(q, k[:, :, a:b], v[:, :, a:b], q_pos, k_pos[:, a:b])
        for a, b in itertools.pairwise(at)
    ]
    wanted = attention(q, k, v, q_pos, k_pos)
    for seed in range(20):
        mixed = random.Random(seed).sample(parts, len(parts))
        pair = merge(*zip(*mixed[:2], strict=True))
        out, _ = merge(*zip(pair, *mixed[2:], strict=True))
        assert relative_error(out, wanted) < 1e-13


def test_parts_that_saw_nothing_are_no_nan():
    nothing = torch.zeros(1, 2, 3), torch.full((1, 2), float("-inf"))
    out, lse = merge(*zip(nothing, nothing, strict=True))
    assert out.abs().sum() == 0 and (lse == float("-inf")).all()
    some = torch.ones(1, 2, 3), torch.full((1, 2), 5.0)
    assert torch.equal(merge(*zip(nothing, some, strict=True))[0], some[0])


# eight bits --------------------------------------------------------------------------------------
def test_eight_bits_round_by_half_a_step_at_most():
    x = torch.randn(50, 64, generator=torch.Generator().manual_seed(0))
    codes, scale = to_int8(x)
    assert codes.dtype == torch.int8 and codes.abs().amax() == LEVELS
    assert ((codes * scale - x).abs() <= scale / 2 * (1 + 1e-5)).all()
    zeros, scale = to_int8(torch.zeros(2, 4))
    assert not zeros.any() and torch.isfinite(scale).all()


def test_smoothing_changes_no_weight_and_saves_the_bits():
    q, k, v = drawn(num_q=6, num_k=90, dim=64, value_dim=64, dtype=torch.float32)
    q_pos, k_pos = positions(2, 6, 90, 1)
    k = k + 40 * torch.randn(
        1, 3, 1, 64, generator=torch.Generator().manual_seed(1)
    )  # what all keys have in common
    wanted = attention(q, k, v, q_pos, k_pos)
    assert relative_error(attention(q, smooth(k, k_pos), v, q_pos, k_pos), wanted) < 1e-4
    with_it, without = (
        relative_error(lowbit_attention(q, k, v, q_pos, k_pos, smoothed=s), wanted) for s in (True, False)
    )
    assert with_it < 0.02 < 0.2 < without


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda q, k, v, p: flash_attention(q, k, v, *p, block_q=0), "one row and one column"),
        (lambda q, k, v, p: flash_attention(q, k[:, :2], v[:, :2], *p), "not a multiple"),
        (lambda q, k, v, p: flash_attention(q, k, v[:, :, 1:], *p), "must be"),
        (lambda q, k, v, p: flash_attention(q, k, v, p[0], p[0]), "q_pos must be"),
        (lambda q, k, v, p: flash_attention(q[0], k, v, *p), "four dimensions"),
        (lambda q, k, v, p: split_attention(q, k, v, *p, splits=0), "one split at least"),
        (lambda q, k, v, p: merge([], []), "needs outputs"),
        (lambda q, k, v, p: merge([q], [q]), "of one shape"),
    ],
)
def test_what_does_not_belong_together_is_refused(call, why):
    q, k, v = drawn()
    with pytest.raises(ValueError, match=why):
        call(q, k, v, (torch.arange(5).expand(2, -1), torch.arange(7).expand(2, -1)))
