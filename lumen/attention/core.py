"""The one mask rule, and attention under it.

A query at position q may read a key at position k when ``0 <= k <= q`` and, with a window w, ``k > q - w``.
Padding has position -1, so it is never read and reads nothing. Left padding, right padding, chunks, decode
steps and mixed batches all follow from this rule; nothing else in the package decides what is visible. Three
arguments change it: `ancestors` (B, T, T) for the new tokens of a draft tree, `causal=False` for models that
read in both directions (encoders, diffusion), `kept` for caches that keep a window and the first tokens.

Shapes: q (B, H, T, D); k (B, Hkv, S, D), v (B, Hkv, S, Dv) with H a multiple of Hkv; q_pos (B, T); k_pos (B, S),
or (B, Hkv, S) when each key/value head keeps keys of its own choice. Scores are scaled by 1/sqrt(D) unless `scale`
says otherwise. Vaswani et al. 2017, section 3.2.1; grouped heads: Ainslie et al. 2023, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..parts import Window


def visible(
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    causal: bool = True,
    ancestors: Tensor | None = None,
    kept: Window | None = None,
) -> Tensor:
    """Which keys each query may read. q_pos (B, T), k_pos (B, S) or (B, Hkv, S) -> bool (B, 1 or Hkv, T, S).

    `ancestors[b, i, j]`: new token i descends from new token j or is it; the new tokens are the last T keys, in the
    order of the queries. Without `causal` a query reads every key that is no padding, on both sides of it; a window
    then holds on both sides too. `kept` is what the cache keeps: its window, and the sinks before it.
    """
    q = q_pos[:, None, :, None]
    k = k_pos[:, None, None, :] if k_pos.dim() == 2 else k_pos[:, :, None, :]
    seen = (k >= 0) & ((k <= q) if causal else (q >= 0))
    if window is not None:
        seen = seen & (k > q - window)
        seen = seen if causal else seen & (k < q + window)
    if kept is not None:
        seen = seen & ((k > q - kept.newest) | (k < kept.sinks))
    if ancestors is None:
        return seen
    held = seen.shape[-1] - ancestors.shape[-1]
    return torch.cat([seen[..., :held], seen[..., held:] & ancestors[:, None]], -1)


@dataclass(frozen=True)
class Mask:
    """The rule, worked out once per forward and shared by all layers.

    kind "all": every query reads every key. kind "causal": keys and queries are the same T positions in order.
    kind "tensor": `bias` (B, 1 or Hkv, T, S) holds 0 where a key may be read and -inf where not.
    """

    kind: Literal["all", "causal", "tensor"]
    bias: Tensor | None = None


def mask_for(
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    inspect: bool = True,
    causal: bool = True,
    ancestors: Tensor | None = None,
    kept: Window | None = None,
) -> Mask:
    """The cheapest mask that states the rule for these positions.

    A mask tensor takes SDPA off its fastest path, so the two commonest cases are recognised: one query per row
    that may read every key, and a whole prompt without padding. Recognising looks at the values, which would
    stall a GPU stream or break a compiled graph; `inspect=False` always returns the tensor.
    """
    seen = visible(q_pos, k_pos, window, causal, ancestors, kept)
    if inspect:
        if bool(seen.all()):
            return Mask("all")
        same = q_pos.shape == k_pos.shape and window is None and causal and ancestors is None
        if (
            same
            and bool((q_pos == k_pos).all())
            and bool((q_pos[:, 1:] > q_pos[:, :-1]).all())
            and bool((q_pos >= 0).all())
            and (kept is None or bool((q_pos < kept.positions).all()))
        ):
            return Mask("causal")
    return Mask(
        "tensor", torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
    )


def attend_with(q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None = None) -> Tensor:
    """Attention under a prepared mask. Returns (B, H, T, Dv); a query that may read nothing gets zeros.

    The zeros are SDPA's own, from torch 2.5 on and on every backend; tests hold it to that.
    """
    batch, heads, num_q, dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if mask.kind == "causal":
        if group > 1:
            # every query head needs its own causal triangle: repeat K and V, cheap beside the T x T scores
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    # The `group` query heads of one KV head are folded into the query axis: K and V are read once, never repeated.
    q = q.reshape(batch, kv_heads, group * num_q, dim)
    bias = mask.bias
    if bias is not None and group > 1 and num_q > 1:
        bias = bias.repeat(1, 1, group, 1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    return out.reshape(batch, heads, num_q, v.shape[3])


def weigh_with(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Attention that also hands out its weights, for those who score keys: (B, H, T, Dv) and weights (B, H, T, S).

    The same function as `attend_with`, written out: T x S weights per head exist at once, which fused kernels avoid.
    Weights are in fp32 at least, and zero in the row of a query that may read nothing.
    """
    batch, heads, num_q, dim = q.shape
    kv_heads, num_k = k.shape[1], k.shape[2]
    scale = dim**-0.5 if scale is None else scale
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, num_q, dim)
    scores = (grouped @ k.transpose(2, 3)[:, :, None]) * scale
    scores = scores.to(torch.promote_types(q.dtype, torch.float32))
    if mask.kind == "causal":
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    elif mask.bias is not None:
        scores = scores + mask.bias[:, :, None]
    blind = scores.amax(-1, keepdim=True) == float("-inf")
    weights = scores.softmax(-1).masked_fill(blind, 0.0)
    out = weights.to(v.dtype) @ v[:, :, None]
    return out.reshape(batch, heads, num_q, -1), weights.reshape(batch, heads, num_q, num_k)


def check_shapes(
    q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, per_head: bool = True
) -> None:
    """ValueError, with a sentence, unless the shapes are those at the top of this file.

    `per_head`: k_pos may be (B, Hkv, S), too.
    """
    if q.dim() != 4 or k.dim() != 4 or v.dim() != 4:
        raise ValueError(f"q, k and v have four dimensions, got {q.dim()}, {k.dim()} and {v.dim()}.")
    batch, heads, num_q, dim = q.shape
    if k.shape[:3] != v.shape[:3] or k.shape[0] != batch or k.shape[3] != dim:
        raise ValueError(
            f"k {tuple(k.shape)} and v {tuple(v.shape)} must be (B, Hkv, S, D) and (B, Hkv, S, Dv) to match "
            f"q {tuple(q.shape)}."
        )
    if heads % k.shape[1]:
        raise ValueError(f"{heads} query heads are not a multiple of {k.shape[1]} key/value heads.")
    allowed = ((batch, k.shape[2]), k.shape[:3]) if per_head else ((batch, k.shape[2]),)
    if q_pos.shape != (batch, num_q) or k_pos.shape not in allowed:
        raise ValueError(
            f"q_pos must be {(batch, num_q)} and k_pos {(batch, k.shape[2])}, "
            f"got {tuple(q_pos.shape)} and {tuple(k_pos.shape)}."
        )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    window: int | None = None,
    *,
    scale: float | None = None,
    causal: bool = True,
    ancestors: Tensor | None = None,
) -> Tensor:
    """Attention of queries at `q_pos` over keys at `k_pos` under the one rule. Returns (B, H, T, Dv)."""
    check_shapes(q, k, v, q_pos, k_pos)
    batch, num_q = q_pos.shape
    if ancestors is not None and ancestors.shape != (batch, num_q, num_q):
        raise ValueError(
            f"ancestors must be {(batch, num_q, num_q)}, one row and one column for each new token, "
            f"got {tuple(ancestors.shape)}."
        )
    mask = mask_for(q_pos, k_pos, window, q.dtype, causal=causal, ancestors=ancestors)
    return attend_with(q, k, v, mask, scale)
