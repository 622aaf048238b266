"""DSA: an indexer with few small heads looks at every key, and attention reads the `top_k` that it points to.

The index score of a query for a key is the sum over the indexer's heads of weight x ReLU(query · key); all heads of the
attention read the same tokens. Scoring stays T x S, but of a fraction of the width, and may be done in eight bits.
DeepSeek-AI 2025, DeepSeek-V3.2-Exp, equations 1 and 2.

The indexer learns to point where attention looks: its softmax over the keys is drawn to the attention weights, summed
over the heads and scaled to one (the dense warm-up, equation 3). Attention itself is left as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import check_shapes, visible
from .blocks import gathered, slots_of, top_blocks


def index_scores(index_q: Tensor, index_k: Tensor, index_w: Tensor) -> Tensor:
    """index_q (B, J, T, E), index_k (B, S, E), index_w (B, T, J) -> (B, T, S), in fp32 at least."""
    exact = torch.promote_types(index_q.dtype, torch.float32)
    products = (index_q.to(exact) @ index_k.to(exact).transpose(1, 2)[:, None]).relu_()  # (B, J, T, S)
    return (products * index_w.to(exact).transpose(1, 2)[..., None]).sum(1)


def dsa_tokens(
    index_q: Tensor, index_k: Tensor, index_w: Tensor, q_pos: Tensor, slots: Tensor, top_k: int
) -> Tensor:
    """The positions that each query reads, best first: (B, 1, T, min(top_k, N)), -1 where there are fewer.

    slots (B, N, 1): blocks of one position, see `slots_of`. Of equal scores the earlier position wins.
    """
    at = slots[..., 0]
    row = torch.arange(at.shape[0], device=at.device)[:, None]
    ordered = index_k[row, at.clamp_min(0)]  # by position
    here = torch.where(at >= 0, torch.arange(at.shape[1], device=at.device), -1)
    chosen = [
        top_blocks(
            index_scores(index_q[:, :, t : t + 128], ordered, index_w[:, t : t + 128]),
            visible(q_pos[:, t : t + 128], here)[:, 0],
            top_k,
        )
        for t in range(0, max(q_pos.shape[1], 1), 128)
    ]
    return torch.cat(chosen, 1)[:, None]


def dsa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    index_w: Tensor,
    *,
    top_k: int = 2048,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention over the `top_k` tokens of the indexer. Returns (B, H, T, Dv) and the log-sum-exp (B, H, T).

    q, k, v and positions as for `lumen.attention.attention`, and as that with `top_k` at the number of keys.
    index_q (B, J, T, E), index_k (B, S, E), index_w (B, T, J): what the indexer made of the same tokens. ValueError for
    shapes that do not belong together and for less than one token.
    """
    check_index(q, k, v, q_pos, k_pos, index_q, index_k, index_w, top_k)
    slots = slots_of(k_pos, 1)
    chosen = dsa_tokens(index_q, index_k, index_w, q_pos, slots, top_k)
    return gathered(q, k, v, q_pos, slots, chosen.expand(-1, k.shape[1], -1, -1), scale=scale)


def index_loss(scores: Tensor, weights: Tensor, seen: Tensor) -> Tensor:
    """KL(attention || indexer) in nats, the mean over queries that see a key. The indexer's dense warm-up.

    scores (B, T, S) of the indexer; weights (B, H, T, S) of the attention that it is to follow, which gets no gradient;
    seen bool (B, T, S).
    """
    target = weights.detach().sum(1)
    target = target / target.sum(-1, keepdim=True).clamp_min(torch.finfo(target.dtype).tiny)
    some = seen.any(-1)
    logits = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    apart = torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1)
    return (apart * some).sum() / some.sum().clamp_min(1)


def check_index(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    index_q: Tensor,
    index_k: Tensor,
    index_w: Tensor,
    top_k: int,
) -> None:
    """ValueError, with a sentence, unless the indexer looked at these tokens."""
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    if top_k < 1:
        raise ValueError(f"A query reads one token at least: top_k is 1 or more, got {top_k}.")
    batch, num_q, num_k = q.shape[0], q.shape[2], k.shape[2]
    heads, width = (index_q.shape[1], index_q.shape[3]) if index_q.dim() == 4 else (0, 0)
    wanted = (batch, heads, num_q, width), (batch, num_k, width), (batch, num_q, heads)
    found = tuple(tuple(x.shape) for x in (index_q, index_k, index_w))
    if not heads or found != wanted:
        raise ValueError(
            f"The indexer's queries (B, J, T, E), keys (B, S, E) and weights (B, T, J) must belong to q "
            f"{tuple(q.shape)} and k {tuple(k.shape)}, got {found}."
        )
