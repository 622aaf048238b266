"""Distances inside the cache instead of those in the text: the sinks stand right before the ring, wherever it is.

    text     0 1 . . . . . . 8 9 10 11 12      sinks 2, newest 5, query at 12: the sinks are 12 and 11 positions away;
    cache    0 1 2 3 4 5 6                     in a text of seven tokens they would be 6 and 5: the gap is 6

StreamingLLM stores keys before they are turned and turns all of them in each step, to their places in the cache
(Xiao et al. 2023, section 3.2). Rotations add up, so keys that are stored turned do as well: inside the ring distances
are what they were, and only the sinks move, on by the gap. Or the query goes back by it, which is the same to them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..attention.core import Mask, attend_with
from ..parts import Window

TurnOn = Callable[[Tensor, Tensor], Tensor]
"""x (..., D), turned to its position already, and `by` (...) positions more, which broadcast -> x turned on."""


def gaps(pos: Tensor, kept: Window) -> Tensor:
    """How many positions a query at `pos` has lost between the sinks and its window. Any shape, padding 0."""
    return (pos - (kept.positions - 1)).clamp(min=0)


def attend_apart(
    q: Tensor,
    back: Tensor,
    k: Tensor,
    v: Tensor,
    k_pos: Tensor,
    sinks: int,
    mask: Mask,
    scale: float | None = None,
) -> Tensor:
    """One softmax over keys that the query q (B, H, T, D) reads and sinks that `back`, q turned back by its gap, reads.

    Queries and keys are laid out twice as wide, [q, back] over [k, 0] or [0, k]: each product has one part that
    counts. k (B, Hkv, S, D), v (B, Hkv, S, Dv), k_pos (B, S) -> (B, H, T, Dv).
    """
    first = ((k_pos >= 0) & (k_pos < sinks))[:, None, :, None]
    queries = torch.cat([q, back], -1)
    keys = torch.cat([k.masked_fill(first, 0), k.masked_fill(~first, 0)], -1)
    return attend_with(queries, keys, v, mask, q.shape[-1] ** -0.5 if scale is None else scale)
