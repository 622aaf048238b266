"""The naive twins of NSA and DSA: loops over queries and blocks that say what is read, and one mask of T x S.

Same signatures as what they stand beside; nothing is shared with it but the squeeze, which is the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import visible
from .blocks import masked
from .dsa import check_index
from .nsa import NSA, Squeeze, check_parts, mean_of


def naive_nsa(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    q_pos: Tensor,
    k_pos: Tensor,
    gates: Tensor,
    shape: NSA = NSA(),  # noqa: B008 - frozen
    *,
    squeeze: tuple[Squeeze, Squeeze] = (mean_of, mean_of),
    scale: float | None = None,
) -> Tensor:
    """`nsa_attention`, one query and one group of heads at a time."""
    check_parts(q, keys, values, q_pos, k_pos, gates)
    batch, heads, num_q, dim = q.shape
    kv_heads = keys[0].shape[1]
    group = heads // kv_heads
    factor = dim**-0.5 if scale is None else scale
    coarse = q.new_zeros(batch, heads, num_q, values[0].shape[3])
    seen = torch.zeros(batch, kv_heads, num_q, k_pos.shape[1], dtype=torch.bool, device=q.device)
    for b in range(batch):
        slot = {int(p): s for s, p in enumerate(k_pos[b]) if p >= 0}
        for t in range(num_q):
            here = int(q_pos[b, t])
            begins = [
                i
                for i in range(0, max(0, here + 2 - shape.block), shape.stride)
                if all(p in slot for p in range(i, i + shape.block))
            ]
            for g in range(kv_heads):
                mine = slice(g * group, (g + 1) * group)
                share: dict[int, Tensor] = {}
                if begins:
                    places = [[slot[p] for p in range(i, i + shape.block)] for i in begins]
                    k, v = (phi(x[0][b, g, places]) for phi, x in zip(squeeze, (keys, values), strict=True))
                    weights = (q[b, mine, t] @ k.T * factor).softmax(-1)  # (group, blocks)
                    coarse[b, mine, t] = weights @ v
                    share = dict(zip(begins, weights.detach().sum(0), strict=True))
                scores = _equation_9(share, shape, here)
                scores = {j: s for j, s in scores.items() if _holds(slot, j, shape, here)}
                own = here // shape.select
                always = [j for j in scores if j < shape.first or own - shape.local < j <= own]
                ranked = sorted(scores, key=lambda j: (j not in always, -scores[j], j))
                for j in ranked[: shape.count]:
                    inside = range(j * shape.select, (j + 1) * shape.select)
                    seen[b, g, t, [slot[p] for p in inside if p in slot and p <= here]] = True
    fine, _ = masked(q, keys[1], values[1], seen, scale)
    near, _ = masked(q, keys[2], values[2], visible(q_pos, k_pos, shape.window), scale)
    return sum(gates[..., i, None] * part for i, part in enumerate((coarse, fine, near)))  # type: ignore[return-value]


def _equation_9(share: dict[int, Tensor], shape: NSA, here: int) -> dict[int, float]:
    """Score of every block up to the query's own; share[i] is the weight of the compressed block that begins at i."""
    scores = {}
    for j in range(here // shape.select + 1 if here >= 0 else 0):
        terms = [
            share.get((j * shape.select // shape.stride + m - n) * shape.stride)
            for m in range(shape.select // shape.stride)
            for n in range(shape.block // shape.stride)
        ]
        scores[j] = float(sum(float(x) for x in terms if x is not None))
    return scores


def _holds(slot: dict[int, int], j: int, shape: NSA, here: int) -> bool:
    return any(p in slot for p in range(j * shape.select, min((j + 1) * shape.select, here + 1)))


def naive_dsa(
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
    """`dsa_attention`, one query and one key at a time."""
    check_index(q, k, v, q_pos, k_pos, index_q, index_k, index_w, top_k)
    batch, _, num_q, _ = q.shape
    seen = torch.zeros(batch, 1, num_q, k.shape[2], dtype=torch.bool, device=q.device)
    for b in range(batch):
        for t in range(num_q):
            scores = {}
            for s in range(k.shape[2]):
                if 0 <= k_pos[b, s] <= q_pos[b, t]:
                    products = [float(index_q[b, j, t] @ index_k[b, s]) for j in range(index_q.shape[1])]
                    scores[s] = sum(float(index_w[b, t, j]) * max(0.0, x) for j, x in enumerate(products))
            best = sorted(scores, key=lambda s: (-scores[s], int(k_pos[b, s])))[:top_k]
            seen[b, 0, t, best] = True
    return masked(q, k, v, seen, scale)
