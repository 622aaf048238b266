"""NSA: every query reads the past three times, each time a part of it, and gates weigh what it found.

    compressed   every `stride` positions, `block` of them squeezed into one key and one value: all the past, coarsely
    selected     the `count` blocks of `select` positions that the compressed keys point to, in full
    window       the newest `window` positions, in full

A query reads a compressed key once the last of its positions is past: its position is that of its last token, and the
one mask rule does the rest. Scores of the compressed keys are added up over the blocks they lie in and over the heads
of a group, so one fetch serves them all. The three parts have keys and values of their own (one part would learn for
the others), and three softmaxes. Yuan et al. 2025, Native Sparse Attention, sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core import check_shapes, visible
from ..flash import flash_attention
from .blocks import gathered, reachable, slots_of, top_blocks, weigh_seen

Squeeze = Callable[[Tensor], Tensor]  # keys or values of a block (..., block, D) -> (..., D)


@dataclass(frozen=True)
class NSA:
    """Sizes, in positions; those of the paper, section 4.1. `first` and `local` of the `count` blocks are always read.

    ValueError unless `stride` divides `block` and `select`, and `count` has room for the blocks that are always read.
    """

    block: int = 32
    stride: int = 16
    select: int = 64
    count: int = 16
    window: int = 512
    first: int = 1
    local: int = 2

    def __post_init__(self) -> None:
        if (
            min(self.block, self.stride, self.select, self.count, self.window, self.local) < 1
            or self.first < 0
        ):
            raise ValueError(f"NSA's sizes are whole numbers from 1 on (`first` from 0 on), got {self}.")
        if self.block % self.stride or self.select % self.stride:
            raise ValueError(
                f"A stride of {self.stride} must divide compressed blocks of {self.block} and selected ones of "
                f"{self.select}: their scores are added up stride by stride."
            )
        if self.count < self.first + self.local:
            raise ValueError(
                f"{self.count} blocks have no room for {self.first} first and {self.local} local ones, which are "
                "always read. Raise `count`."
            )


class BlockMLP(nn.Module):
    """The learned squeeze: positions inside the block are added, then an MLP over the block as one long vector.

    (..., block, D) -> (..., D). Yuan et al. 2025, equation 7.
    """

    def __init__(self, block: int, dim: int, hidden: int | None = None):
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(block, dim))
        self.up = nn.Linear(block * dim, hidden or dim)
        self.down = nn.Linear(hidden or dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(nn.functional.gelu(self.up((x + self.place).flatten(-2))))


def mean_of(x: Tensor) -> Tensor:
    """The squeeze that has nothing to learn. (..., block, D) -> (..., D)."""
    return x.mean(-2)


@dataclass(frozen=True)
class Compressed:
    """k (B, Hkv, N, D), v (B, Hkv, N, Dv), and each one's position, that of its last token: pos (B, N), -1 where one
    of its tokens is not there."""

    k: Tensor
    v: Tensor
    pos: Tensor


def compress(
    k: Tensor,
    v: Tensor,
    k_pos: Tensor,
    shape: NSA,
    squeeze: tuple[Squeeze, Squeeze] = (mean_of, mean_of),
    held: Compressed | None = None,
) -> Compressed:
    """One key and one value for every `stride` positions. k (B, Hkv, S, D), v (B, Hkv, S, Dv), k_pos (B, S).

    `held` is what was made of the same keys when they were fewer: blocks that it has in every row are not made again,
    so a decode step squeezes one block at most in `stride` steps.
    """
    flat = slots_of(k_pos, shape.stride).flatten(1)  # slot of each position, -1 for none
    if flat.shape[1] < shape.block:
        flat = nn.functional.pad(flat, (0, shape.block - flat.shape[1]), value=-1)
    slots = flat.unfold(1, shape.block, shape.stride)  # (B, N, block)
    done = 0 if held is None else int((held.pos >= 0).all(0).long().cumprod(0).sum())
    done = min(done, slots.shape[1])
    slots = slots[:, done:]
    row = torch.arange(k.shape[0], device=k.device)[:, None, None]
    new = [
        phi(x.transpose(1, 2)[row, slots.clamp_min(0)].permute(0, 3, 1, 2, 4))  # (B, Hkv, N, block, D)
        for phi, x in zip(squeeze, (k, v), strict=True)
    ]
    last = torch.arange(done, done + slots.shape[1], device=k.device) * shape.stride + shape.block - 1
    pos = torch.where((slots >= 0).all(-1), last, -1)
    if held is not None:
        new = [torch.cat([old[:, :, :done], x], 2) for old, x in zip((held.k, held.v), new, strict=True)]
        pos = torch.cat([held.pos[:, :done], pos], 1)
    return Compressed(new[0], new[1], pos)


def block_scores(weights: Tensor, shape: NSA, num_blocks: int, kv_heads: int) -> Tensor:
    """What the weights of the compressed keys say about the blocks to select: (B, H, T, N) -> (B, Hkv, T, num_blocks).

    A compressed key counts for a block once for each of its strides that lies in it (equation 9), and the heads of a
    group are added up (equation 10).
    """
    strides = torch.arange(weights.shape[3], device=weights.device)[:, None]
    strides = strides + torch.arange(shape.block // shape.stride, device=weights.device)
    shared = weights.new_zeros(weights.shape[3], num_blocks + 1)
    inside = (strides * shape.stride // shape.select).clamp_max(num_blocks)
    shared.scatter_add_(1, inside, torch.ones_like(inside, dtype=weights.dtype))
    return weights.unflatten(1, (kv_heads, -1)).sum(2) @ shared[:, :num_blocks]


def nsa_blocks(
    q: Tensor, held: Compressed, q_pos: Tensor, slots: Tensor, shape: NSA, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """The compressed part, and what it points to: (B, H, T, Dv) and block numbers (B, Hkv, T, n), -1 for none."""
    num_blocks, kv_heads, outs, chosen = slots.shape[1], held.k.shape[1], [], []
    numbers = torch.arange(num_blocks, device=q.device)
    for at in range(0, max(q.shape[2], 1), 128):
        some, pos = q[:, :, at : at + 128], q_pos[:, at : at + 128]
        grouped = some.unflatten(1, (kv_heads, -1))  # (B, Hkv, G, t, D)
        seen = visible(pos, held.pos)[:, :, None]
        weights, _ = weigh_seen(grouped, held.k[:, :, None], seen, scale)
        out = (weights @ held.v[:, :, None].to(weights.dtype)).flatten(1, 2).to(q.dtype)
        scores = block_scores(weights.flatten(1, 2), shape, num_blocks, kv_heads)
        own = (pos // shape.select)[:, None, :, None]
        always = (numbers < shape.first) | ((numbers <= own) & (numbers > own - shape.local))
        allowed = reachable(pos, slots).expand_as(scores)
        outs.append(out)
        chosen.append(top_blocks(scores, allowed, shape.count, always))
    return torch.cat(outs, 2), torch.cat(chosen, 2)


def nsa_attention(
    q: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    q_pos: Tensor,
    k_pos: Tensor,
    gates: Tensor,
    shape: NSA = NSA(),
    *,
    squeeze: tuple[Squeeze, Squeeze] = (mean_of, mean_of),
    scale: float | None = None,
    held: Compressed | None = None,
) -> Tensor:
    """The three parts, each times its gate: (B, H, T, Dv).

    q (B, H, T, D); keys and values of the compressed, the selected and the window part, each (B, Hkv, S, D) and
    (B, Hkv, S, Dv), which may be the same tensors; positions (B, T) and (B, S); gates (B, H, T, 3), between 0 and 1.
    `held`: what `compress` made of keys[0] and values[0], to spare a decode step that pass. ValueError for shapes that
    do not belong together.
    """
    check_parts(q, keys, values, q_pos, k_pos, gates)
    held = compress(keys[0], values[0], k_pos, shape, squeeze) if held is None else held
    slots = slots_of(k_pos, shape.select)
    coarse, chosen = nsa_blocks(q, held, q_pos, slots, shape, scale)
    fine, _ = gathered(q, keys[1], values[1], q_pos, slots, chosen, scale=scale)
    near, _ = flash_attention(q, keys[2], values[2], q_pos, k_pos, shape.window, scale=scale)
    return (gates[..., None] * torch.stack([coarse, fine, near], -2)).sum(-2)


def check_parts(
    q: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor], q_pos: Tensor, k_pos: Tensor, gates: Tensor
) -> None:
    """ValueError, with a sentence, unless these are three parts of one shape and their gates."""
    if len(keys) != 3 or len(values) != 3:
        raise ValueError(f"NSA has three parts, got {len(keys)} keys and {len(values)} values.")
    for k, v in zip(keys, values, strict=True):
        check_shapes(q, k, v, q_pos, k_pos, per_head=False)
    if any(k.shape != keys[0].shape for k in keys) or any(v.shape != values[0].shape for v in values):
        raise ValueError("The three parts have keys of one shape and values of one shape.")
    if gates.shape != (*q.shape[:3], 3):
        raise ValueError(f"gates must be {(*q.shape[:3], 3)}, one for each part, got {tuple(gates.shape)}.")
