"""Attention over parts of the keys, and the merge that makes one answer of them.

A decode step has one query a row and head: too few to keep a chip busy, while its keys may be many. They are cut into
splits that different cores (or chips) attend to at once. Each hands back its output and its log-sum-exp; a split's
share of the whole softmax is exp(lse_i) over the sum of them all. Dao et al. 2023, Flash-Decoding; Ye et al. 2025,
FlashInfer, section 2.2 (attention states and how they compose).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .flash import flash_attention


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """One attention out of several over disjoint keys. outs (..., Dv) and lses (...) -> the same of the whole.

    The order does not matter, and merged parts can be merged again. A part that saw nothing (lse -inf) counts nothing;
    where none saw anything the result is zeros and -inf. ValueError without parts or for shapes that differ.
    """
    if not outs or len(outs) != len(lses):
        raise ValueError(f"A merge needs outputs and as many log-sum-exps, got {len(outs)} and {len(lses)}.")
    if any(o.shape != outs[0].shape for o in outs) or any(s.shape != outs[0].shape[:-1] for s in lses):
        raise ValueError(
            f"Parts have outputs (..., Dv) and log-sum-exps (...) of one shape, got {[tuple(o.shape) for o in outs]} "
            f"and {[tuple(s.shape) for s in lses]}."
        )
    stacked = torch.stack(tuple(lses))
    best = stacked.amax(0)
    finite = best.masked_fill(best == float("-inf"), 0.0)  # -inf - -inf is no number
    shares = (stacked - finite).exp()
    total = shares.sum(0)
    weighted = (torch.stack(tuple(outs)).to(shares.dtype) * shares[..., None]).sum(0)
    out = weighted / total.masked_fill(total == 0, 1.0)[..., None]
    return out.to(outs[0].dtype), finite + total.log()


def split_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    *,
    splits: int,
    scale: float | None = None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:
    """Attention over `splits` parts of the keys, each on its own, and their merge. As `flash_attention` otherwise.

    A split may be empty or hold only keys that nobody may read. ValueError for less than one split.
    """
    if splits < 1:
        raise ValueError(f"The keys are cut into one split at least, got {splits}.")
    edges = [k.shape[2] * i // splits for i in range(splits + 1)]
    parts = [
        flash_attention(
            q, k[:, :, a:b], v[:, :, a:b], q_pos, k_pos[:, a:b], window,
            scale=scale, causal=causal, block_q=max(1, q.shape[2]), block_k=max(1, b - a),
        )
        for a, b in pairwise(edges)
    ]  # fmt: skip
    return merge(*zip(*parts, strict=True))
