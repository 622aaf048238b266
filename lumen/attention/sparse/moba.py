"""MoBA: each query head attends to the few blocks whose mean key it likes best, and always to its own.

    ....|....|....|..        blocks of positions; x is the query
      .9   .1   .7  x        its product with each block's mean key
    ^^^^      ^^^^ ^^        top_k = 3: its own block up to itself, and the two best of those before

No parameters: a trained model can be run with it, and can be switched back. Lu et al. 2025, section 2.2: the block of
the query counts as one of the top k, and is the only one with a causal mask inside; blocks that lie ahead are not
scored at all. (Its mean would tell of keys that the query must not know.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import check_shapes, visible
from .blocks import as_reads, gathered, masked, products, reachable, routed, slots_of, top_blocks


def block_means(k: Tensor, slots: Tensor) -> Tensor:
    """Mean key of every block, over the positions that have one: k (B, Hkv, S, D) -> (B, Hkv, N, D), fp32 or more."""
    exact = torch.promote_types(k.dtype, torch.float32)
    real = (slots >= 0)[:, :, :, None, None]
    row = torch.arange(k.shape[0], device=k.device)[:, None, None]
    keys = k.transpose(1, 2)[row, slots.clamp_min(0)].to(exact)  # (B, N, size, Hkv, D)
    mean = (keys * real).sum(2) / real.sum(2).clamp_min(1)
    return mean.transpose(1, 2)


def moba_blocks(q: Tensor, means: Tensor, q_pos: Tensor, slots: Tensor, top_k: int) -> Tensor:
    """The blocks of each query head, its own first: (B, H, T, min(top_k, N)), -1 where there are fewer."""
    num_blocks, size = slots.shape[1:]
    own = torch.arange(num_blocks, device=q.device) == (q_pos // size)[:, None, :, None]
    return top_blocks(products(q, means), reachable(q_pos, slots), top_k, own)


def moba_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    block: int = 512,
    top_k: int = 3,
    scale: float | None = None,
    means: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over `top_k` blocks of `block` positions. Returns (B, H, T, Dv) and the log-sum-exp (B, H, T).

    q (B, H, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv), positions (B, T) and (B, S) as for `lumen.attention.attention`;
    as that with `top_k` at the number of blocks. `means` spares a decode step the pass over all keys: those of
    `block_means`, of which the query's own block is never looked at. ValueError for less than one block, and for means
    of other blocks.
    """
    _check(q, k, v, q_pos, k_pos, top_k)
    slots = slots_of(k_pos, block)
    means = block_means(k, slots) if means is None else means
    if means.shape != (*k.shape[:2], slots.shape[1], k.shape[3]):
        raise ValueError(
            f"These keys have means of shape {(*k.shape[:2], slots.shape[1], k.shape[3])}, got {tuple(means.shape)}. "
            "Take `block_means` of the same keys and blocks."
        )
    chosen = moba_blocks(q, means, q_pos, slots, top_k)
    if q.shape[2] == 1:
        return gathered(q, k, v, q_pos, slots, chosen, scale=scale)
    return routed(q, k, v, q_pos, slots, as_reads(chosen, slots.shape[1]), scale=scale)


def naive_moba(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    *,
    block: int = 512,
    top_k: int = 3,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The same by loops and a T x S mask: one head, one query, one block at a time."""
    _check(q, k, v, q_pos, k_pos, top_k)
    batch, heads, num_q, _ = q.shape
    group = heads // k.shape[1]
    seen = torch.zeros(batch, heads, num_q, k.shape[2], dtype=torch.bool)
    for b in range(batch):
        number = torch.where(k_pos[b] >= 0, k_pos[b] // block, -1)  # block of each slot
        for h in range(heads):
            for t in range(num_q):
                own = int(q_pos[b, t]) // block if q_pos[b, t] >= 0 else -1
                scores = {}
                for i in range(own):
                    mine = number == i
                    if mine.any():
                        scores[i] = float((q[b, h, t] @ k[b, h // group, mine].mean(0)).detach())
                own_seen = (number == own) & (k_pos[b] <= q_pos[b, t]) if own >= 0 else number < -1
                room = top_k - int(own_seen.any())
                best = sorted(scores, key=lambda i: (-scores[i], i))[:room]
                seen[b, h, t] = torch.isin(number, torch.tensor([*best, own])) & (number >= 0)
    return masked(q, k, v, seen.to(q.device) & visible(q_pos, k_pos), scale)


def _check(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, top_k: int) -> None:
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    if top_k < 1:
        raise ValueError(f"A query reads its own block at least: top_k is 1 or more, got {top_k}.")
