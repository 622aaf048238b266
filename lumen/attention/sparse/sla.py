"""SLA: blocks of the attention map in three classes: critical ones exactly, marginal ones linearly, others not at all.

    1  critical     the few blocks with nearly all of the weight: softmax attention over them alone
    0  marginal     flat, of low rank: linear attention, whose sums over a block serve every query that wants them
   -1  negligible   skipped

The classes come from the mean query of a block of queries against the mean keys of the blocks. The two results are
added, the linear one through a matrix that is learned: it starts at zero, as sparse attention, and is tuned with the
model. For models that read in both directions (diffusion transformers). Zhang et al. 2025, SLA, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check_shapes, visible
from .blocks import masked, products, routed, slots_of
from .moba import block_means


@dataclass(frozen=True)
class SLA:
    """`critical` and `negligible` are shares of a row of blocks, the paper's; one block is always critical."""

    block: int = 64
    critical: float = 0.05
    negligible: float = 0.10

    def __post_init__(self) -> None:
        shares = self.critical, self.negligible
        if self.block < 1 or not all(0 <= x <= 1 for x in shares) or sum(shares) > 1:
            raise ValueError(
                f"Shares of blocks lie between 0 and 1 and add up to 1 at most, blocks have one position: {self}."
            )

    def counts(self, num_blocks: int) -> tuple[int, int]:
        """How many of a row's blocks are critical, and how many negligible."""
        critical = max(1, round(self.critical * num_blocks))
        return critical, min(round(self.negligible * num_blocks), num_blocks - critical)


def block_classes(q: Tensor, k: Tensor, slots_q: Tensor, slots_k: Tensor, shape: SLA) -> Tensor:
    """1 critical, 0 marginal, -1 negligible: (B, H, blocks of queries, blocks of keys). A block without keys is -1."""
    queries, keys = block_means(q, slots_q), block_means(k, slots_k)
    scores = products(queries, keys)
    held = (slots_k >= 0).any(-1)  # (B, N)
    order = (
        scores.masked_fill(~held[:, None, None], float("-inf"))
        .sort(dim=-1, descending=True, stable=True)
        .indices
    )
    rank = order.argsort(-1)
    limits = torch.tensor([shape.counts(n) if n else (0, 0) for n in held.sum(1).tolist()], device=q.device)
    critical, negligible = limits[:, :, None, None, None].unbind(1)
    kept = held.sum(1)[:, None, None, None] - negligible
    return (rank < critical).long() - (rank >= kept).long()


def sla_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    project: Tensor,
    shape: SLA = SLA(),
    *,
    scale: float | None = None,
) -> Tensor:
    """Exact over the critical blocks, plus linear over the marginal ones times `project` (Dv, Dv): (B, H, T, Dv).

    q, k, v and positions as for `lumen.attention.attention`, read in both directions. As that with `critical` at 1.
    The features of the linear part are the softmax of a query, or key, over its channels.
    """
    _check(q, k, v, q_pos, k_pos, project)
    slots_q, slots_k = slots_of(q_pos, shape.block), slots_of(k_pos, shape.block)
    if not slots_q.shape[1] or not slots_k.shape[1]:  # nothing but padding
        return q.new_zeros(*q.shape[:3], v.shape[3])
    classes = block_classes(q, k, slots_q, slots_k, shape)
    batch, heads = q.shape[:2]
    row = torch.arange(batch, device=q.device)[:, None]
    own = q_pos.clamp_min(0) // shape.block
    reads = (classes == 1).transpose(1, 2)[row, own].transpose(1, 2)  # (B, H, T, N)
    exact, _ = routed(q, k, v, q_pos, slots_k, reads, scale=scale, causal=False)

    group = heads // k.shape[1]
    place, real = slots_k.clamp_min(0), (slots_k >= 0)[:, :, :, None, None]
    keys = k.softmax(-1).transpose(1, 2)[row[..., None], place] * real  # (B, N, size, Hkv, D)
    values = v.transpose(1, 2)[row[..., None], place]
    sums = torch.einsum("bnshd,bnshe->bhnde", keys, values).repeat_interleave(group, 1)
    norms = keys.sum(2).transpose(1, 2).repeat_interleave(group, 1)  # (B, H, N, D)
    marginal = (classes == 0).to(v.dtype)
    sums, norms = torch.einsum("bhmn,bhnde->bhmde", marginal, sums), marginal @ norms
    features = q.softmax(-1).transpose(1, 2)[row[..., None], slots_q.clamp_min(0)].permute(0, 3, 1, 2, 4)
    weight = (features @ norms[..., None]).clamp_min(torch.finfo(q.dtype).tiny)
    linear = (features @ sums) / weight  # (B, H, blocks of queries, size, Dv)
    linear = linear.flatten(2, 3).gather(
        2, q_pos.clamp_min(0)[:, None, :, None].expand(-1, heads, -1, v.shape[3])
    )
    return exact + (linear * (q_pos >= 0)[:, None, :, None]) @ project.to(v.dtype)


def naive_sla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_pos: Tensor,
    k_pos: Tensor,
    project: Tensor,
    shape: SLA = SLA(),
    *,
    scale: float | None = None,
) -> Tensor:
    """The same by loops over blocks and two T x S masks."""
    _check(q, k, v, q_pos, k_pos, project)
    batch, heads, num_q, _ = q.shape
    group = heads // k.shape[1]
    sees = visible(q_pos, k_pos, causal=False)
    critical = torch.zeros(batch, heads, num_q, k.shape[2], dtype=torch.bool)
    marginal = torch.zeros_like(critical)
    number_q, number_k = (torch.where(p >= 0, p // shape.block, -1) for p in (q_pos, k_pos))
    for b in range(batch):
        blocks = sorted(set(number_k[b].tolist()) - {-1})
        many, few = shape.counts(len(blocks)) if blocks else (0, 0)
        for h in range(heads):
            for i in set(number_q[b].tolist()) - {-1}:
                mine = number_q[b] == i
                mean = q[b, h, mine].mean(0)
                scores = {j: float(mean @ k[b, h // group, number_k[b] == j].mean(0)) for j in blocks}
                best = sorted(blocks, key=lambda j: (-scores[j], j))
                for j in best[:many]:
                    critical[b, h] |= mine[:, None] & (number_k[b] == j)
                for j in best[many : len(best) - few]:
                    marginal[b, h] |= mine[:, None] & (number_k[b] == j)
    exact, _ = masked(q, k, v, critical & sees, scale)
    weights = q.softmax(-1) @ k.softmax(-1).repeat_interleave(group, 1).transpose(2, 3) * (marginal & sees)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    return exact + weights @ v.repeat_interleave(group, 1) @ project.to(v.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, project: Tensor) -> None:
    check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    if project.shape != (v.shape[3], v.shape[3]):
        raise ValueError(f"project must be {(v.shape[3], v.shape[3])}, got {tuple(project.shape)}.")
