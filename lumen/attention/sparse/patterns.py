"""Patterns: which keys are read is settled before anybody has looked at them.

    Longformer   a window of tokens, and a few first tokens that all read and that read all
    BigBird      the same in blocks, and a few blocks more for each, drawn at random

Beltagy et al. 2020, Longformer, section 3.1. Zaheer et al. 2020, BigBird, sections 2 and 3 (with the random blocks any
two tokens are a few layers apart). Both were made for encoders (`causal=False`); a decoder reads the half that is past,
and its first tokens read what stands before them, as always.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check_shapes, visible
from ..flash import flash_attention
from ..split import merge
from .blocks import gathered, masked, routed, slots_of, top_blocks


def longformer_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int,
    *,
    first: int = 0,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """The window of the one rule, and the keys at positions below `first`: (B, H, T, Dv), log-sum-exp (B, H, T).

    q, k, v and positions as for `lumen.attention.attention`. Without `causal`, queries below `first` read every key.
    Window and first keys are attended to apart, the first without those of the window, and merged. ValueError for a
    window of less than one token.
    """
    _check_longformer(q, k, v, q_pos, k_pos, window, first)
    out, lse = flash_attention(q, k, v, q_pos, k_pos, window, scale=scale, causal=causal)
    if not first or not k_pos.numel() or int(k_pos.max()) < 0:
        return out, lse
    slots = slots_of(k_pos, first)[:, 0]  # (B, first)
    pos = torch.where(slots >= 0, torch.arange(first, device=k.device), -1)
    far = visible(q_pos, pos, causal=causal) & ~visible(q_pos, pos, window, causal)
    row = torch.arange(k.shape[0], device=k.device)[:, None]
    keys, values = (x.transpose(1, 2)[row, slots.clamp_min(0)].transpose(1, 2) for x in (k, v))
    out, lse = merge(*zip((out, lse), masked(q, keys, values, far, scale), strict=True))
    whole = ((q_pos >= 0) & (q_pos < first))[:, None]
    columns = whole.any(0)[0].nonzero()[:, 0]
    if causal or not columns.numel():
        return out, lse
    all_out, all_lse = flash_attention(
        q[:, :, columns], k, v, q_pos[:, columns], k_pos, scale=scale, causal=False
    )
    mine = whole[:, :, columns]
    out[:, :, columns] = torch.where(mine[..., None], all_out, out[:, :, columns])
    lse[:, :, columns] = torch.where(mine, all_lse, lse[:, :, columns])
    return out, lse


def naive_longformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int,
    *,
    first: int = 0,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """The same under one mask of T x S."""
    _check_longformer(q, k, v, q_pos, k_pos, window, first)
    seen = visible(q_pos, k_pos, window, causal)
    all_read = (k_pos < first)[:, None, None, :] | (q_pos < first)[:, None, :, None]
    return masked(q, k, v, seen | (all_read & visible(q_pos, k_pos, causal=causal)), scale)


def _check_longformer(
    q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, window: int, first: int
) -> None:
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    if window < 1 or first < 0:
        raise ValueError(
            f"A window has one token at least and `first` none at least, got {window} and {first}."
        )


@dataclass(frozen=True)
class BigBird:
    """Blocks of `block` positions: the query's own and `near` on either side, the `first`, and `drawn` at random.

    The draw depends on the seed, the head and the number of the query's block (and, reading in both directions, on how
    many blocks there are), so a decode step draws what the prefill drew.
    """

    block: int = 64
    near: int = 1
    first: int = 1
    drawn: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block < 1 or min(self.near, self.first, self.drawn) < 0:
            raise ValueError(
                f"A block has one position at least, and no number of blocks is negative: {self}."
            )

    def blocks(self, head: int, own: int, num_blocks: int, causal: bool = True) -> list[int]:
        """What a query of this head in block `own` reads of `num_blocks` blocks, in order."""
        ahead = range(min(own + 1, num_blocks) if causal else num_blocks)
        if own < self.first:
            return list(ahead)
        kept = [i for i in ahead if i < self.first or abs(i - own) <= self.near]
        rest = [i for i in ahead if i >= self.first and abs(i - own) > self.near]
        dice = random.Random(f"{self.seed}/{head}/{own}")
        return sorted(kept + dice.sample(rest, min(self.drawn, len(rest))))

    def reads(self, heads: int, q_pos: Tensor, num_blocks: int, causal: bool = True) -> Tensor:
        """q_pos (B, T) -> bool (B, heads, T, num_blocks)."""
        owns = int(q_pos.max()) // self.block + 1 if q_pos.numel() else 0
        table = torch.zeros(heads, max(owns, 1), num_blocks, dtype=torch.bool)
        for head in range(heads):
            for own in range(owns):
                table[head, own, self.blocks(head, own, num_blocks, causal)] = True
        found = table.to(q_pos.device)[:, q_pos.clamp_min(0) // self.block].transpose(0, 1)
        return found & (q_pos >= 0)[:, None, :, None]


def bigbird_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    shape: BigBird = BigBird(),
    *,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention over the blocks of a `BigBird`: (B, H, T, Dv) and the log-sum-exp (B, H, T).

    q, k, v and positions as for `lumen.attention.attention`.
    """
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    slots = slots_of(k_pos, shape.block)
    reads = shape.reads(q.shape[1], q_pos, slots.shape[1], causal)
    if q.shape[2] > 1:
        return routed(q, k, v, q_pos, slots, reads, scale=scale, causal=causal)
    chosen = top_blocks(reads.float(), reads, int(reads.sum(-1).max()))
    return gathered(q, k, v, q_pos, slots, chosen, scale=scale, causal=causal)


def naive_bigbird(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    shape: BigBird = BigBird(),
    *,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """The same under one mask of T x S, query by query."""
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    num_blocks = int(k_pos.max()) // shape.block + 1
    seen = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.bool)
    for row, head, t in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        if (here := int(q_pos[row, t])) >= 0:
            blocks = shape.blocks(head, here // shape.block, num_blocks, causal)
            seen[row, head, t] = torch.isin(k_pos[row] // shape.block, torch.tensor(blocks))
    return masked(q, k, v, seen & visible(q_pos, k_pos, causal=causal), scale)
