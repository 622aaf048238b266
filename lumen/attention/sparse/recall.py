"""Does a selection find what attention looks at? The share of the weight, and of the heaviest keys, that it catches.

A selector says which keys each query reads at a budget: bool (B, C, T, S) with C = 1, Hkv or H, from queries and keys
alone. Those that score blocks always read the query's own, and the first one with `first=True`: many models keep
most of their weight on the first token, whatever it says (Xiao et al. 2024, StreamingLLM). A budget is `budget` keys a
query head; where heads of a group choose apart, more are fetched for the group.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check_shapes, mask_for, visible, weigh_with
from .blocks import as_reads, products, reachable, slots_of, top_blocks, upper_bound
from .dsa import dsa_tokens
from .moba import block_means
from .nsa import NSA, block_scores, compress


@dataclass(frozen=True)
class Caught:
    """mass (B, H, T): share of a query's attention weight on the picked keys. top (B, H, T): share of its heaviest
    keys that are among them. NaN for queries that see nothing."""

    mass: Tensor
    top: Tensor


def weights_of(q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, scale: float | None = None) -> Tensor:
    """The weights of full attention, (B, H, T, S)."""
    check_shapes(q, k, k, q_pos, k_pos, per_head=False)
    return weigh_with(
        q, k, k, mask_for(q_pos, k_pos, dtype=torch.promote_types(q.dtype, torch.float32)), scale
    )[1]


def caught(weights: Tensor, picked: Tensor, top: int = 32) -> Caught:
    """weights (B, H, T, S) of full attention, picked bool (B, 1 or Hkv or H, T, S)."""
    if (
        picked.dim() != 4
        or picked.shape[2:] != weights.shape[2:]
        or weights.shape[1] % picked.shape[1]
        or top < 1
    ):
        raise ValueError(
            f"picked {tuple(picked.shape)} must be (B, C, T, S) to weights {tuple(weights.shape)}, C a divisor of H, "
            f"and the heaviest keys one at least, got {top}."
        )
    picked = picked.repeat_interleave(weights.shape[1] // picked.shape[1], 1)
    best = weights.topk(min(top, weights.shape[3]), -1)
    real = best.values > 0
    found = (picked.gather(-1, best.indices) & real).sum(-1) / real.sum(-1)
    blind = ~real.any(-1)
    mass = (weights * picked).sum(-1)
    return Caught(mass.masked_fill(blind, float("nan")), found)


def heaviest(weights: Tensor, budget: int) -> Tensor:
    """The best there is: each head's own heaviest keys."""
    best = weights.topk(min(_checked(budget), weights.shape[3]), -1)
    return torch.zeros_like(weights, dtype=torch.bool).scatter(-1, best.indices, True) & (weights > 0)


def newest(q_pos: Tensor, k_pos: Tensor, budget: int, first: int = 0) -> Tensor:
    """The newest keys, and the `first` ones of them all (Xiao et al. 2024, StreamingLLM)."""
    near = visible(q_pos, k_pos, max(1, _checked(budget) - first))
    return near | (visible(q_pos, k_pos) & (k_pos < first)[:, None, None])


def drawn(q_pos: Tensor, k_pos: Tensor, budget: int, seed: int = 0) -> Tensor:
    """Any keys."""
    seen = visible(q_pos, k_pos)
    dice = torch.Generator().manual_seed(seed)
    return _tokens(torch.rand(seen.shape, generator=dice), seen, budget)


def by_mean(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, budget: int, block: int = 64, first: bool = False
) -> Tensor:
    """Blocks by the product with their mean key (MoBA), for each query head."""
    slots = slots_of(k_pos, block)
    return _blocks(products(q, block_means(k, slots)), q_pos, k_pos, slots, budget, first)


def by_bound(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, budget: int, block: int = 64, first: bool = False
) -> Tensor:
    """Blocks by the largest product that any key inside their channels' minima and maxima could have, for each head.

    Tang et al. 2024, Quest, section 3.3.
    """
    slots = slots_of(k_pos, block)
    row = torch.arange(k.shape[0], device=k.device)[:, None, None]
    keys, real = k.transpose(1, 2)[row, slots.clamp_min(0)], (slots >= 0)[..., None, None]
    low = torch.where(real, keys, float("inf")).amin(2).transpose(1, 2)  # (B, Hkv, N, D)
    high = torch.where(real, keys, float("-inf")).amax(2).transpose(1, 2)
    return _blocks(upper_bound(q, low, high), q_pos, k_pos, slots, budget, first)


def by_compressed(
    q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, budget: int, block: int = 64, first: bool = False
) -> Tensor:
    """Blocks by the weights of their compressed keys (NSA, with means of 32 every 16), for each group of heads."""
    shape = NSA(select=block, block=min(32, block), stride=min(16, block))
    held, slots = compress(k, k, k_pos, shape), slots_of(k_pos, block)
    weights = weights_of(q, held.k, q_pos, held.pos)
    scores = block_scores(weights, shape, slots.shape[1], k.shape[1])
    return _blocks(scores, q_pos, k_pos, slots, budget, first)


def by_index(
    index_q: Tensor, index_k: Tensor, index_w: Tensor, q_pos: Tensor, k_pos: Tensor, budget: int
) -> Tensor:
    """Tokens by an indexer's scores (DSA), the same for all heads."""
    slots = slots_of(k_pos, 1)
    chosen = dsa_tokens(index_q, index_k, index_w, q_pos, slots, _checked(budget))
    return _at(as_reads(chosen, slots.shape[1]), q_pos, k_pos, 1)


def _blocks(scores: Tensor, q_pos: Tensor, k_pos: Tensor, slots: Tensor, budget: int, first: bool) -> Tensor:
    num_blocks, size = slots.shape[1:]
    if budget < size * (1 + first):
        raise ValueError(
            f"A budget of {budget} keys has no room for {1 + first} blocks of {size}, which are always read."
        )
    numbers = torch.arange(num_blocks, device=scores.device)
    always = (numbers == (q_pos // size)[:, None, :, None]) | ((numbers == 0) & first)
    chosen = top_blocks(scores, reachable(q_pos, slots), budget // size, always)
    return _at(as_reads(chosen, num_blocks), q_pos, k_pos, size)


def _at(reads: Tensor, q_pos: Tensor, k_pos: Tensor, size: int) -> Tensor:
    """Blocks that are read (B, C, T, N) -> keys that are read (B, C, T, S)."""
    number = (k_pos.clamp_min(0) // size)[:, None, None].expand(*reads.shape[:3], -1)
    return reads.gather(-1, number) & visible(q_pos, k_pos)


def _tokens(scores: Tensor, seen: Tensor, budget: int) -> Tensor:
    return as_reads(top_blocks(scores.to(seen.device), seen, _checked(budget)), seen.shape[-1])


def _checked(budget: int) -> int:
    if budget < 1:
        raise ValueError(f"A budget is one key a query at least, got {budget}.")
    return budget
