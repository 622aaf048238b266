"""Tiled attention with the online softmax: the scores exist one tile at a time, never T x S of them at once.

For a tile of queries the keys are walked tile by tile. Three things are kept of what was seen so far: the largest
score m, the sum l of exp(score - m), and the sum of the values weighted so. When a tile brings a larger score, both
sums are scaled down by exp(m_old - m_new): the result is that of one softmax over all keys, up to rounding.

Milakov and Gimelshein 2018 (the online softmax), Rabe and Staats 2021 (attention in O(n) memory), Dao et al. 2022
(tiles for the memory hierarchy), Dao 2023, algorithm 1 (queries in the outer loop, one division at the end).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .core import check_shapes, visible


@dataclass
class Traffic:
    """Bytes between main memory and a fast store that holds one tile of everything, and the tiles that cost them."""

    read: int = 0
    written: int = 0
    tiles: int = 0
    skipped: int = 0

    @property
    def moved(self) -> int:
        return self.read + self.written


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    block_q: int = 128,
    block_k: int = 128,
    traffic: Traffic | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention under the one rule, tile by tile. Returns (B, H, T, Dv) and the log-sum-exp (B, H, T), fp32 or more.

    q (B, H, T, D), k (B, Hkv, S, D), v (B, Hkv, S, Dv), positions (B, T) and (B, S) as for `lumen.attention.attention`.
    Tiles in which no query may read a key are skipped; those in which each may read all are not masked. A query that
    may read nothing gets zeros, and a log-sum-exp of -inf. `traffic` counts the bytes that a kernel would move which
    holds a tile of queries while keys and values stream past. Memory beyond the result: two tiles of B x H x block_q x
    block_k numbers, scores and weights. ValueError for shapes that do not belong together and for tiles of less than
    one row.
    """
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    batch, heads, num_q, dim = q.shape
    kv_heads, num_k, value_dim = k.shape[1], k.shape[2], v.shape[3]
    if block_q < 1 or block_k < 1:
        raise ValueError(f"A tile has one row and one column at least, got {block_q} x {block_k}.")
    group = heads // kv_heads
    scale = dim**-0.5 if scale is None else scale
    exact = torch.promote_types(q.dtype, torch.float32)
    grouped = q.reshape(batch, kv_heads, group, num_q, dim)
    out = q.new_empty(batch, kv_heads, group, num_q, value_dim)
    lse = torch.empty(batch, kv_heads, group, num_q, dtype=exact, device=q.device)
    key_tiles = [slice(at, min(at + block_k, num_k)) for at in range(0, num_k, block_k)]
    for at in range(0, num_q, block_q):
        rows = slice(at, min(at + block_q, num_q))
        tile = (grouped[:, :, :, rows].to(exact) * scale).flatten(2, 3)  # (B, Hkv, G * rows, D)
        best = tile.new_full((*tile.shape[:3], 1), float("-inf"))
        total, weighted = torch.zeros_like(best), tile.new_zeros(*tile.shape[:3], value_dim)
        if traffic is not None:
            traffic.read += tile.numel() * q.element_size()
        for keys in key_tiles:
            seen = _seen(q_pos[:, rows], k_pos[:, keys], window, causal)
            if traffic is not None:
                traffic.skipped += seen is None
                traffic.tiles += seen is not None
            if seen is None:
                continue
            one_k, one_v = k[:, :, keys].to(exact), v[:, :, keys].to(exact)
            if traffic is not None:
                traffic.read += one_k.numel() * k.element_size() + one_v.numel() * v.element_size()
            scores = tile @ one_k.transpose(2, 3)
            if isinstance(seen, Tensor):
                scores = scores.masked_fill(~seen.repeat(1, 1, group, 1), float("-inf"))
            above = torch.maximum(best, scores.amax(-1, keepdim=True))
            finite = above.masked_fill(above == float("-inf"), 0.0)  # -inf - -inf is no number
            weights = (scores - finite).exp_()
            shrink = (best - finite).exp_()
            total = total * shrink + weights.sum(-1, keepdim=True)
            weighted = weighted * shrink + weights @ one_v
            best = above
        blind = total == 0
        out[:, :, :, rows] = (
            (weighted / total.masked_fill(blind, 1.0)).unflatten(2, (group, -1)).to(out.dtype)
        )
        lse[:, :, :, rows] = (best + total.log()).squeeze(-1).unflatten(2, (group, -1))
    if traffic is not None:
        traffic.written += out.numel() * out.element_size() + lse.numel() * lse.element_size()
    return out.flatten(1, 2), lse.flatten(1, 2)


def naive_traffic(q: Tensor, k: Tensor, v: Tensor) -> Traffic:
    """What attention moves that writes its scores, reads them for the softmax, writes the weights and reads those.

    Each operator reads its inputs from memory once and writes its output there, in the dtype of `q`.
    Dao et al. 2022, algorithm 0.
    """
    scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2] * q.element_size()
    out = q.numel() // q.shape[3] * v.shape[3] * q.element_size()
    inputs = sum(x.numel() * x.element_size() for x in (q, k, v))
    return Traffic(read=inputs + 2 * scores, written=2 * scores + out)


def _seen(q_pos: Tensor, k_pos: Tensor, window: int | None, causal: bool) -> Tensor | Literal[True] | None:
    """Which of a tile's pairs may be read: None for none of them, True for all, else bool (B, 1, T, S)."""
    seen = visible(q_pos, k_pos, window, causal)
    if bool(seen.all()):
        return True
    return seen if bool(seen.any()) else None
