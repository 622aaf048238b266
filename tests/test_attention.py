"""The one mask rule, against an explicit loop and against torch's own attention."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lumen.attention import attention, mask_for, visible, weigh_with

from .tiny import relative_error


def by_the_loop(q, k, v, q_pos, k_pos, window=None):
    """One query, one head, one key at a time: nothing to get wrong."""
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                at = int(q_pos[b, t])
                seen = [s for s in range(k.shape[2]) if 0 <= int(k_pos[b, s]) <= at]
                if window is not None:
                    seen = [s for s in seen if int(k_pos[b, s]) > at - window]
                if seen:
                    scores = torch.stack([q[b, h, t] @ k[b, h // group, s] for s in seen]) / math.sqrt(
                        q.shape[3]
                    )
                    out[b, h, t] = scores.softmax(0) @ v[b, h // group, seen]
    return out


def random_qkv(batch, heads, kv_heads, num_q, num_k, dim=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    return (
        make(batch, heads, num_q, dim),
        make(batch, kv_heads, num_k, dim),
        make(batch, kv_heads, num_k, dim),
    )


@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (4, 4), (4, 1)])
@pytest.mark.parametrize("window", [None, 3])
def test_equals_the_loop_over_scrambled_positions(heads, kv_heads, window):
    """Slots in any order, holes, padding on both sides: only positions decide (T11: 9 query heads over 3 KV heads)."""
    q, k, v = random_qkv(2, heads, kv_heads, 5, 7)
    q_pos = torch.tensor([[3, 4, 5, -1, -1], [-1, 0, 1, 2, 3]])
    k_pos = torch.tensor([[5, 0, -1, 2, 1, 4, 3], [2, -1, 0, 3, 1, -1, -1]])
    ours = attention(q, k, v, q_pos, k_pos, window)
    assert relative_error(ours, by_the_loop(q, k, v, q_pos, k_pos, window)) < 1e-12


@pytest.mark.parametrize("num_q", [1, 2, 5])
def test_shortcuts_equal_the_mask_tensor(num_q):
    """ "all" and "causal" are only recognised where they state the same rule as the tensor."""
    q, k, v = random_qkv(1, 6, 2, num_q, num_q)
    pos = torch.arange(num_q)[None] + 11
    expected = by_the_loop(q, k, v, pos, pos)
    assert mask_for(pos, pos).kind == ("all" if num_q == 1 else "causal")
    assert mask_for(pos, pos, inspect=False).kind == "tensor"
    assert relative_error(attention(q, k, v, pos, pos), expected) < 1e-12


def test_causal_on_top_of_a_cache_is_not_aligned_to_the_top_left():
    """T1, pytorch #108108: two queries over five keys see 4 and 5 keys, not 1 and 2."""
    q, k, v = random_qkv(1, 2, 2, 2, 5)
    q_pos, k_pos = torch.tensor([[3, 4]]), torch.arange(5)[None]
    ours = attention(q, k, v, q_pos, k_pos)
    aligned_wrong = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert relative_error(ours, by_the_loop(q, k, v, q_pos, k_pos)) < 1e-12
    assert relative_error(ours, aligned_wrong) > 0.1


def test_rows_that_see_nothing_are_zero_and_finite():
    """T3: an all-padding row gives zeros, never NaN."""
    q, k, v = random_qkv(2, 3, 3, 2, 4)
    q_pos = torch.tensor([[-1, -1], [0, 1]])
    k_pos = torch.tensor([[0, 1, 2, 3], [0, 1, -1, -1]])
    out = attention(q, k, v, q_pos, k_pos)
    assert torch.isfinite(out).all() and (out[0] == 0).all() and (out[1] != 0).any()


def test_padding_and_future_are_invisible():
    seen = visible(torch.tensor([[-1, 2]]), torch.tensor([[0, 2, 3, -1]]))
    assert seen.tolist() == [[[[False] * 4, [True, True, False, False]]]]
    assert visible(torch.tensor([[5]]), torch.tensor([[2, 3, 4, 5]]), window=2).tolist() == [
        [[[False, False, True, True]]]
    ]


def test_keys_chosen_per_head_have_positions_per_head():
    q, k, v = random_qkv(1, 4, 2, 1, 3)
    q_pos, k_pos = torch.tensor([[2]]), torch.tensor([[[0, 1, 2], [2, -1, 7]]])
    out = attention(q, k, v, q_pos, k_pos)
    for h in range(4):
        one = by_the_loop(
            q[:, h : h + 1], k[:, h // 2 : h // 2 + 1], v[:, h // 2 : h // 2 + 1], q_pos, k_pos[:, h // 2]
        )
        assert relative_error(out[:, h : h + 1], one) < 1e-12


def test_wrong_shapes_get_a_sentence():
    q, k, v = random_qkv(1, 4, 2, 2, 3)
    pos2, pos3 = torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="must be"):
        attention(q, k[:, :, :2], v, pos2, pos3)
    with pytest.raises(ValueError, match="multiple"):
        attention(q[:, :3], k, v, pos2, pos3)
    with pytest.raises(ValueError, match="k_pos"):
        attention(q, k, v, pos2, pos2)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("num_q, num_k", [(1, 7), (5, 5), (3, 7)])
def test_values_of_another_width_and_a_scale_equal_torch(num_q, num_k, scale):
    """Against SDPA with a mask spelled out and K and V repeated; weights handed out are those that were used."""
    q, k, _ = random_qkv(2, 6, 2, num_q, num_k)
    v = random_qkv(2, 2, 2, 1, num_k, dim=11, seed=1)[2]
    q_pos = torch.arange(num_k - num_q, num_k).expand(2, -1)
    k_pos = torch.arange(num_k).expand(2, -1)
    seen = torch.ones(num_q, num_k, dtype=torch.bool).tril(num_k - num_q)
    want = F.scaled_dot_product_attention(
        q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), attn_mask=seen, scale=scale
    )
    assert relative_error(attention(q, k, v, q_pos, k_pos, scale=scale), want) < 1e-12
    for inspect in (True, False):
        mask = mask_for(q_pos, k_pos, inspect=inspect, dtype=q.dtype)
        out, weights = weigh_with(q, k, v, mask, scale)
        assert relative_error(out, want) < 1e-12 and weights.shape == (2, 6, num_q, num_k)
        assert torch.allclose(weights.sum(-1), torch.ones(2, 6, num_q, dtype=torch.float64))
        assert not weights[:, :, ~seen].any()


def test_both_directions_read_all_but_padding_and_a_window_holds_on_both_sides():
    q, k, v = random_qkv(2, 4, 2, 5, 5)
    pos = torch.tensor([[0, 1, 2, 3, 4], [-1, -1, 0, 1, 2]])
    real = pos >= 0
    for window in (None, 2):
        near = (pos[:, :, None] - pos[:, None, :]).abs() < (window or 99)
        seen = (near & real[:, None, :] & real[:, :, None])[:, None]
        want = F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=seen
        )
        got = attention(q, k, v, pos, pos, window, causal=False)
        assert relative_error(got, want) < 1e-12
    assert mask_for(pos[:1], pos[:1], causal=False).kind == "all"


def test_weights_of_a_query_that_sees_nothing_are_zero():
    q, k, v = random_qkv(1, 2, 2, 2, 3)
    mask = mask_for(torch.tensor([[-1, 1]]), torch.tensor([[0, 1, 2]]), dtype=q.dtype)
    out, weights = weigh_with(q, k, v, mask)
    assert not out[:, :, 0].any() and not weights[:, :, 0].any() and weights[:, :, 1].any()


def test_ancestors_restrict_the_new_tokens_and_nothing_else():
    """Two held keys, then a root and two children: the children do not see each other."""
    related = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]], dtype=torch.bool)
    q_pos, k_pos = torch.tensor([[2, 3, 3]]), torch.tensor([[0, 1, 2, 3, 3]])
    assert visible(q_pos, k_pos, ancestors=related)[0, 0].int().tolist() == [
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 1, 0, 1],
    ]
    assert visible(q_pos, k_pos, 2, ancestors=related)[0, 0, 2].int().tolist() == [0, 0, 1, 0, 1]
    q, k, v = random_qkv(1, 2, 2, 3, 5)
    with pytest.raises(ValueError, match="ancestors must be"):
        attention(q, k, v, q_pos, k_pos, ancestors=related[:, :2])
