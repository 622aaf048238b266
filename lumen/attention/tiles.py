"""Attention over tiles of queries: the same numbers, and never more weights at once than `most`.

Whoever wants to see the weights (eviction rules score keys by them), or has another mask for each key/value head,
cannot use a fused kernel's trick of never forming T x S numbers. A long prompt would then ask for gigabytes a layer:
8,192 queries of 9 heads over as many keys are 2.4 GB in fp32. Here a tile of queries at a time meets all keys, and what
its weights say is taken note of before the next tile is formed.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..parts import Window
from .core import attend_with, mask_for, weigh_with

MOST = 2**24  # weights, or numbers of a mask, that exist at once: 64 MiB in fp32

Weigh = Callable[[Tensor, Tensor], None]
"""What is told of a tile: weights (B, H, t, S) in fp32 at least, and the positions (B, t) of its queries."""


def attend_in_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    kept: Window | None = None,
    weigh: Weigh | None = None,
    most: int = MOST,
) -> Tensor:
    """Attention under the one rule, shapes and arguments as in `lumen.attention.core`: (B, H, T, Dv).

    `weigh`, if it is given, sees the weights of every tile, first queries first. One query of all rows and heads is the
    smallest tile, so with very many keys or rows a tile may still hold more than `most` numbers.
    """
    rows, heads, num_q = q.shape[:3]
    tile = max(1, most // max(1, rows * heads * k.shape[2]))
    inspect = not torch.compiler.is_compiling()
    outs = []
    for at in range(0, num_q, tile):
        part, part_pos = q[:, :, at : at + tile], q_pos[:, at : at + tile]
        mask = mask_for(part_pos, k_pos, window, q.dtype, inspect, causal, kept=kept)
        if weigh is None:
            outs.append(attend_with(part, k, v, mask, scale))
        else:
            out, weights = weigh_with(part, k, v, mask, scale)
            weigh(weights, part_pos)
            outs.append(out)
    return outs[0] if len(outs) == 1 else torch.cat(outs, 2)
