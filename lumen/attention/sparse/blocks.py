"""Blocks of keys, and attention over some of them: what the sparse methods share.

A block is `size` positions in a row, wherever their keys lie: padding on either side and slots in any order make the
same blocks. Which blocks a query reads is said in one of two ways:

    chosen (B, C, T, n)    block numbers, -1 where there are fewer than n: `gathered`, keys are fetched for each query
    reads  (B, H, T, N)    bool, block by block: `routed`, the queries of a block are brought to its keys

`gathered` is the order of NSA's kernel (Yuan et al. 2025, section 3.4): few queries, blocks shared by the heads of a
group. `routed` is that of MoBA's (Lu et al. 2025, algorithm 1): many queries, each block is read once. What they
compute is `masked`, attention under a mask of T x S, which the naive twins call.
"""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from ..core import visible
from ..split import merge


def slots_of(k_pos: Tensor, size: int) -> Tensor:
    """Where the keys of each block lie: k_pos (B, S) -> slots (B, N, size), -1 at a position without a key.

    ValueError for blocks of less than one position, and for two keys of a row at one position.
    """
    if size < 1:
        raise ValueError(f"A block has one position at least, got {size}.")
    batch, num_k = k_pos.shape
    num_blocks = (int(k_pos.max()) + size) // size if k_pos.numel() else 0
    spare = num_blocks * size  # padding is written there
    table = k_pos.new_full((batch, spare + 1), -1)
    slots = torch.arange(num_k, device=k_pos.device).expand(batch, -1)
    table = table.scatter(1, torch.where(k_pos >= 0, k_pos, spare), slots)[:, :spare]
    if int((table >= 0).sum()) != int((k_pos >= 0).sum()):
        raise ValueError("Two keys of a row stand at one position, and a block has room for one of them.")
    return table.view(batch, num_blocks, size)


def reachable(q_pos: Tensor, slots: Tensor, causal: bool = True) -> Tensor:
    """Blocks that hold a key which a query may read. q_pos (B, T), slots (B, N, size) -> bool (B, 1, T, N)."""
    numbers = torch.arange(slots.shape[1] * slots.shape[2], device=slots.device).view(slots.shape[1:])
    first = torch.where(slots >= 0, numbers, numbers.numel()).amin(-1)  # earliest position with a key, (B, N)
    held = (slots >= 0).any(-1)[:, None]
    q = q_pos[:, :, None]
    return (held & (first[:, None] <= q if causal else q >= 0))[:, None]


def top_blocks(scores: Tensor, allowed: Tensor, count: int, always: Tensor | None = None) -> Tensor:
    """The `count` best of the allowed blocks, best first: (..., N) -> (..., min(count, N)), -1 where fewer are allowed.

    Those of `always` (..., N) come first if they are allowed. Of equal scores the earlier block wins: `torch.topk`
    leaves that open, and many scores are equal where a ReLU made them.
    """
    ranked = scores.masked_fill(~allowed, float("-inf"))
    if always is not None:
        ranked = ranked.masked_fill(always & allowed, float("inf"))
    best, chosen = ranked.sort(dim=-1, descending=True, stable=True)
    count = min(count, scores.shape[-1])
    return chosen[..., :count].masked_fill(best[..., :count] == float("-inf"), -1)


def as_reads(chosen: Tensor, num_blocks: int) -> Tensor:
    """Block numbers (..., n), -1 for none -> bool (..., num_blocks)."""
    spare = chosen.new_zeros((*chosen.shape[:-1], num_blocks + 1), dtype=torch.bool)
    return spare.scatter(-1, torch.where(chosen >= 0, chosen, num_blocks), True)[..., :num_blocks]


def products(q: Tensor, keys: Tensor) -> Tensor:
    """Each query head with one key a block: q (B, H, T, D), keys (B, Hkv, N, D) -> (B, H, T, N), as exact as keys."""
    grouped = q.unflatten(1, (keys.shape[1], -1)).to(keys.dtype)  # heads of a group are rows of one product
    return (grouped.flatten(2, 3) @ keys.mT).unflatten(2, grouped.shape[2:4]).flatten(1, 2)


def upper_bound(q: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What a query can score at most with a key between low and high: q (B, H, T, D), low and high (B, Hkv, N, D), the
    least and the greatest number of each channel in a block -> (B, H, T, N), unscaled.

    Where a query's channel is positive, the greatest key number counts, where it is negative the least. Tang et al.
    2024, Quest, section 3.3.
    """
    return products(q.clamp(min=0), high) + products(q.clamp(max=0), low)


def weigh_seen(q: Tensor, k: Tensor, seen: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """One softmax over given keys: q (..., T, D), k (..., S, D), seen bool (..., T, S).

    Returns the weights (..., T, S) and the log-sum-exp (..., T), fp32 or more; zeros and -inf for a query that sees
    nothing, and no NaN in its gradient.
    """
    exact = torch.promote_types(q.dtype, torch.float32)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = ((q.to(exact) * scale) @ k.to(exact).transpose(-1, -2)).masked_fill(~seen, float("-inf"))
    if not scores.shape[-1]:
        return scores, scores.new_full(scores.shape[:-1], float("-inf"))
    best = scores.detach().amax(-1, keepdim=True)
    best = best.masked_fill(best == float("-inf"), 0.0)  # -inf - -inf is no number
    weights = (scores - best).exp()
    total = weights.sum(-1, keepdim=True)
    blind = total == 0
    total = total.masked_fill(blind, 1.0)
    return weights / total, (best + total.log()).masked_fill(blind, float("-inf")).squeeze(-1)


def attend_seen(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention over given keys, as `weigh_seen`, with v (..., S, Dv): (..., T, Dv) and the log-sum-exp (..., T)."""
    weights, lse = weigh_seen(q, k, seen, scale)
    return (weights @ v.to(weights.dtype)).to(q.dtype), lse


def masked(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention under any mask, all T x S scores at once: seen bool (B, 1 or Hkv or H, T, S). As `flash_attention`."""
    heads = q.shape[1]
    k, v, seen = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v, seen))
    return attend_seen(q, k, v, seen, scale)


def gathered(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    slots: Tensor,
    chosen: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
    tile: int = 16,
) -> tuple[Tensor, Tensor]:
    """Attention over the chosen blocks, fetched for each query: (B, H, T, Dv) and the log-sum-exp (B, H, T).

    chosen (B, C, T, n) with C = Hkv where the heads of a group share their blocks, or C = H where each has its own.
    Inside a block the one rule holds. `tile` queries at a time: their blocks exist twice while they are read.
    """
    batch, heads, num_q, _ = q.shape
    choosers, size = chosen.shape[1], slots.shape[2]
    row = torch.arange(batch, device=q.device)[:, None, None, None]
    head = (torch.arange(choosers, device=q.device) * k.shape[1] // choosers)[None, :, None, None]
    grouped = q.unflatten(1, (choosers, heads // choosers)).transpose(
        2, 3
    )  # (B, C, T, heads of a chooser, D)
    parts = []
    for at in range(0, max(num_q, 1), tile):
        picked = chosen[:, :, at : at + tile]
        numbers = picked.clamp_min(0)
        place = slots[row, numbers].masked_fill((picked < 0)[..., None], -1).flatten(3)  # (B, C, t, n * size)
        pos = (numbers[..., None] * size + torch.arange(size, device=q.device)).flatten(3)
        here = q_pos[:, None, at : at + tile, None]
        seen = (place >= 0) & (pos <= here if causal else here >= 0)
        keys, values = (x[row, head, place.clamp_min(0)] for x in (k, v))
        parts.append(attend_seen(grouped[:, :, at : at + tile], keys, values, seen[..., None, :], scale))
    out, lse = (torch.cat(some, 2).transpose(2, 3).flatten(1, 2) for some in zip(*parts, strict=True))
    return out, lse


def routed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    slots: Tensor,
    reads: Tensor,
    *,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention over the blocks that each query reads, block by block, merged by log-sum-exp. As `gathered`.

    reads bool (B, H, T, N). A block nobody reads is not touched; a query computes with the blocks it reads alone.
    """
    batch, heads, num_q, _ = q.shape
    kv_heads, (num_blocks, size) = k.shape[1], slots.shape[1:]
    group = heads // kv_heads
    reads = reads & reachable(q_pos, slots, causal)
    out = q.new_zeros(batch, heads, num_q, v.shape[3], dtype=torch.promote_types(q.dtype, torch.float32))
    lse = out.new_full((batch, heads, num_q), float("-inf"))
    offsets = torch.arange(size, device=q.device)
    for row, block, kv in product(range(batch), range(num_blocks), range(kv_heads)):
        head, at = reads[row, kv * group : (kv + 1) * group, :, block].nonzero(as_tuple=True)
        if not head.numel():
            continue
        place = slots[row, block]
        pos = torch.where(place >= 0, block * size + offsets, -1)[None]
        seen = visible(q_pos[row, at][None], pos, causal=causal)[0, 0]
        place, head = place.clamp_min(0), head + kv * group
        part = attend_seen(q[row, head, at].to(out.dtype), k[row, kv, place], v[row, kv, place], seen, scale)
        both = merge((out[row, head, at], part[0]), (lse[row, head, at], part[1]))
        out[row, head, at], lse[row, head, at] = both
    return out.to(q.dtype), lse
