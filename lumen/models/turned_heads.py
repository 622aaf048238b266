"""Heads in other axes: rotations that leave a model as it is, and those that bring the heads of a group together.

Turn the keys of one head by a rotation R and its queries by the same: (Rq)·(Rk) = q·k, and no score notices. Values are
turned, too, if the output matrix turns them back. So the axes of a head mean nothing outside it, and a mean over heads
(`fewer_heads.mean`) adds numbers that have nothing to do with each other. Turning the heads of a group towards each
other first costs nothing:

    min over R of E|R k - t|²,  k = M x       R = U Vᵀ of the SVD of T C Mᵀ,  C = E[x xᵀ]      (orthogonal Procrustes)

Jin et al. 2024, Align Attention Heads Before Merging Them, arXiv 2412.20677. With RoPE between matrix and score only
rotations that keep its pairs together are free, and the models here that may be turned have none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .surgery import M, rebuilt, split_heads, stack_heads, stored_projections
from .to_latent import Moments
from .weights import tensor_of

Turns = Sequence[tuple[Tensor, Tensor]]  # layer by layer, rotations (H, D, D) of keys and of values
ROUNDS = 4  # of the search for a target that all of a group are turned to


@torch.no_grad()
def turned(model: M, turns: Turns) -> M:
    """The same function with the keys and values of each head in other axes; the model itself is left as it is.

    ValueError for a model with RoPE, for one whose heads are not all stored, and for turns of another number of layers.
    """
    config = model.config
    if config.positions == "rope" or config.num_kv_heads != config.num_heads or config.latent is not None:
        raise ValueError(
            f"{config.name} cannot be turned: that takes heads of their own, and keys without RoPE."
        )
    if len(turns) != config.num_layers:
        raise ValueError(
            f"{config.name} has {config.num_layers} layers, and there are turns for {len(turns)}."
        )
    state, changed = model.state_dict(), {}
    for layer, weight in stored_projections(config):
        of_keys, of_values = turns[layer]
        q, k, v = split_heads(config, tensor_of(model, weight))
        q, k, v = (_turn(r, x) for r, x in ((of_keys, q), (of_keys, k), (of_values, v)))
        changed[weight.name] = stack_heads(q, k, v)
        out = f"blocks.{layer}.attn.out.weight"
        heads = state[out].unflatten(1, (config.num_heads, -1))  # (D, H, head_dim)
        changed[out] = torch.einsum("hij,dhj->dhi", of_values, heads).flatten(1)
    return rebuilt(model, config, changed)


def _turn(rotations: Tensor, heads: Tensor) -> Tensor:
    return torch.einsum("hij,hj...->hi...", rotations, heads)


def random_turns(model: M, seed: int) -> Turns:
    """Rotations (and reflections) drawn uniformly for every head: what a model's training might have ended in."""
    config, dice = model.config, torch.Generator().manual_seed(seed)

    def some() -> Tensor:
        drawn = torch.randn(config.num_heads, config.head_dim, config.head_dim, generator=dice)
        q, r = torch.linalg.qr(drawn)
        rotations: Tensor = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]
        return rotations

    return [(some(), some()) for _ in range(config.num_layers)]


@torch.no_grad()
def aligning_turns(model: M, moments: Sequence[Moments] | None, count: int) -> Turns:
    """Rotations that bring the heads together which one of `count` new heads replaces: by the text of `moments`, or
    without (C = 1) by the matrices alone."""
    weights = {
        layer: tensor_of(model, w) for layer, w in stored_projections(model.config) if "weight" in w.name
    }
    turns = []
    for layer, weight in weights.items():
        _, k, v = split_heads(model.config, weight.double())
        second = torch.eye(k.shape[-1]).to(k) if moments is None else moments[layer].second
        keys, values = (_towards(x, second, count).to(weight) for x in (k, v))
        turns.append((keys, values))
    return turns


def _towards(heads: Tensor, second: Tensor, count: int) -> Tensor:
    """Rotations (H, head_dim, head_dim) of heads (H, head_dim, D) onto their group's mean, first onto its first."""
    members = len(heads) // count
    target = heads[::members].repeat_interleave(members, 0)
    for _ in range(ROUNDS):
        u, _, v = torch.linalg.svd(target @ second @ heads.mT)
        turns = u @ v
        middle = (turns @ heads).unflatten(0, (count, -1)).mean(1)
        target = middle.repeat_interleave(members, 0)
    return turns
