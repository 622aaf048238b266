"""Scores from 8-bit queries and keys, after the keys were smoothed. The softmax and the values stay in full precision.

Keys of real models share a large offset: some channels are far from zero for every token. An 8-bit scale that has to
reach it leaves little for what tells the tokens apart. But an offset that all keys have in common adds the same number
to all scores of a query, and the softmax does not see it: so it is subtracted before rounding, for one
pass over the keys. Zhang et al. 2024, SageAttention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .core import attention

LEVELS = 127  # of a signed byte, symmetric


def smooth(k: Tensor, k_pos: Tensor) -> Tensor:
    """Keys (B, Hkv, S, D) without their mean over the tokens that are no padding (position -1)."""
    real = (k_pos >= 0)[:, None, :, None]
    mean = (k * real).sum(2, keepdim=True) / real.sum(2, keepdim=True).clamp_min(1)
    return k - mean


def to_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers in [-127, 127] and a scale for each row: x (..., D) -> int8 (..., D), scale (..., 1)."""
    scale = x.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny) / LEVELS
    return (x / scale).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def lowbit_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    *,
    smoothed: bool = True,
    scale: float | None = None,
    causal: bool = True,
) -> Tensor:
    """Attention with 8-bit queries and keys, one scale a token. Shapes and rule as `lumen.attention.attention`.

    Attention over the rounded rows: the numbers of an int8 kernel up to rounding in fp32, and not its speed.
    `smoothed=False` leaves the keys' common offset in, to see what it costs.
    """
    keys = smooth(k, k_pos) if smoothed else k
    (q8, q_scale), (k8, k_scale) = to_int8(q), to_int8(keys)
    return attention(
        q8.to(q.dtype) * q_scale,
        k8.to(k.dtype) * k_scale,
        v,
        q_pos,
        k_pos,
        window,
        scale=scale,
        causal=causal,
    )
