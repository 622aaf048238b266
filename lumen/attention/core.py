"""The one mask rule, and attention under it.

A query at position q may read a key at position k when ``0 <= k <= q`` and, with a window w, ``k > q - w``.
Padding has position -1, so it is never read and reads nothing. Left padding, right padding, chunks, decode
steps and mixed batches all follow from this rule; nothing else in the package decides what is visible.

Shapes: q (B, H, T, D); k, v (B, Hkv, S, D) with H a multiple of Hkv; q_pos (B, T); k_pos (B, S), or (B, Hkv, S)
when each key/value head keeps keys of its own choice. Scores are scaled by 1/sqrt(D). Vaswani et al. 2017,
section 3.2.1; grouped heads: Ainslie et al. 2023, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


def visible(q_pos: Tensor, k_pos: Tensor, window: int | None = None) -> Tensor:
    """Which keys each query may read. q_pos (B, T), k_pos (B, S) or (B, Hkv, S) -> bool (B, 1 or Hkv, T, S)."""
    q = q_pos[:, None, :, None]
    k = k_pos[:, None, None, :] if k_pos.dim() == 2 else k_pos[:, :, None, :]
    seen = (k >= 0) & (k <= q)
    return seen if window is None else seen & (k > q - window)


@dataclass(frozen=True)
class Mask:
    """The rule, worked out once per forward and shared by all layers.

    kind "all": every query reads every key. kind "causal": keys and queries are the same T positions in order.
    kind "tensor": `bias` (B, 1 or Hkv, T, S) holds 0 where a key may be read and -inf where not. `any_key`
    (B, 1 or Hkv, T, 1) says which queries read anything; the others give zero, not NaN. None: all do.
    """

    kind: Literal["all", "causal", "tensor"]
    bias: Tensor | None = None
    any_key: Tensor | None = None


def mask_for(
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    inspect: bool = True,
) -> Mask:
    """The cheapest mask that states the rule for these positions.

    A mask tensor takes SDPA off its fastest path, so the two commonest cases are recognised: one query per row
    that may read every key, and a whole prompt without padding. Recognising looks at the values, which would
    stall a GPU stream or break a compiled graph; `inspect=False` always returns the tensor.
    """
    seen = visible(q_pos, k_pos, window)
    if inspect:
        if bool(seen.all()):
            return Mask("all")
        same = q_pos.shape == k_pos.shape and window is None
        if (
            same
            and bool((q_pos == k_pos).all())
            and bool((q_pos[:, 1:] > q_pos[:, :-1]).all())
            and bool((q_pos >= 0).all())
        ):
            return Mask("causal")
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    any_key = seen.any(-1, keepdim=True)
    return Mask("tensor", bias, None if inspect and bool(any_key.all()) else any_key)


def attend_with(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention under a prepared mask. Returns (B, H, T, D); a query that may read nothing gets zeros."""
    batch, heads, num_q, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if mask.kind == "causal":
        if (
            group > 1
        ):  # every query head needs its own causal triangle: repeat K and V, cheap beside the T x T scores
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    # The `group` query heads of one KV head are folded into the query axis: K and V are read once, never repeated.
    q = q.reshape(batch, kv_heads, group * num_q, dim)
    bias = mask.bias
    if bias is not None and group > 1 and num_q > 1:
        bias = bias.repeat(1, 1, group, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    if mask.any_key is not None:
        out = out.masked_fill(~mask.any_key.repeat(1, 1, group, 1), 0.0)
    return out.reshape(batch, heads, num_q, dim)


def attention(
    q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, window: int | None = None
) -> Tensor:
    """Attention of queries at `q_pos` over keys at `k_pos` under the one rule. Returns (B, H, T, D)."""
    batch, heads, num_q, dim = q.shape
    if k.shape != v.shape or k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must be (B, Hkv, S, D) to match q {tuple(q.shape)}."
        )
    if heads % k.shape[1]:
        raise ValueError(f"{heads} query heads are not a multiple of {k.shape[1]} key/value heads.")
    if q_pos.shape != (batch, num_q) or k_pos.shape not in ((batch, k.shape[2]), k.shape[:3]):
        raise ValueError(
            f"q_pos must be {(batch, num_q)} and k_pos {(batch, k.shape[2])}, "
            f"got {tuple(q_pos.shape)} and {tuple(k_pos.shape)}."
        )
    return attend_with(q, k, v, mask_for(q_pos, k_pos, window, q.dtype))
