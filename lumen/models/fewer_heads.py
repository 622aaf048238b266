"""Fewer key/value heads for a model that was trained with more: each new one is made of a group of old ones.

Query head i reads key/value head i // (H / Hkv), so the old heads that one new head replaces stand side by side:

    query heads     0 1 2 3 4 5 6 7 8
    3 old heads     0 0 0 1 1 1 2 2 2
    1 new head      0 0 0 0 0 0 0 0 0       made of old heads 0, 1 and 2

RoPE turns all heads alike and a mean commutes with it, so pooled projections give the means of the keys and values that
the cache held before, at every position. A norm on each head's key (`qk_norm`) follows after the merge, with its weight
as it was. Where the heads of a group are equal nothing is lost; elsewhere the result is where training goes on from
(`lumen.train.uptrain`). Ainslie et al. 2023, GQA, section 2.1; its section 3.3 compares the three merges.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..config import ModelConfig
from .surgery import M, rebuilt, split_heads, stack_heads, stored_projections
from .weights import tensor_of

Merge = Callable[[Tensor], Tensor]  # (members, ...) -> (...)


def mean(members: Tensor) -> Tensor:
    """The mean of a group: what it has in common stays, and what differs is averaged away."""
    return members.mean(0)


def first(members: Tensor) -> Tensor:
    """The first of a group, the others dropped: its own queries lose nothing, the others read a stranger's keys."""
    return members[0]


def fresh(seed: int) -> Merge:
    """A merge that keeps nothing: normal numbers of the group's deviation. What training makes good without a start."""
    dice = torch.Generator().manual_seed(seed)

    def drawn(members: Tensor) -> Tensor:
        numbers = torch.randn(members.shape[1:], generator=dice, dtype=torch.float32)
        return numbers.to(members) * members.std(correction=0)

    return drawn


@torch.no_grad()
def fewer_kv_heads(model: M, count: int, merge: Merge = mean) -> M:
    """`model` with `count` key/value heads in every layer; the model itself is left as it is.

    With as many as it has and `mean` or `first`, the copy equals the original in every bit. `merge` makes one head
    (head_dim, ...) of a group (members, head_dim, ...) of key or value rows, weights and biases alike. ValueError for a
    count that the heads cannot be grouped into evenly, and for latent attention.
    """
    config = model.config
    check_groups(config, count)
    changed = {}
    for _, weight in stored_projections(config):
        q, *both = split_heads(config, tensor_of(model, weight))
        k, v = (torch.stack([merge(group) for group in heads.unflatten(0, (count, -1))]) for heads in both)
        changed[weight.name] = stack_heads(q, k, v)
    return rebuilt(model, config.with_(name=_name(config, count), num_kv_heads=count), changed)


def check_groups(config: ModelConfig, count: int) -> None:
    """Whether the key/value heads can be merged into `count`, or a sentence."""
    if config.latent is not None:
        raise ValueError(
            f"{config.name} has latent attention: one latent serves all heads, and there are no key/value heads to "
            "merge. Choose a smaller rank."
        )
    held = config.num_kv_heads
    if isinstance(count, bool) or not isinstance(count, int) or count < 1 or held % count:
        fitting = [n for n in range(1, held + 1) if held % n == 0]
        raise ValueError(
            f"The {held} key/value heads of {config.name} cannot be merged into {count!r} equal groups; "
            f"choose one of {', '.join(map(str, fitting))}."
        )


def _name(config: ModelConfig, count: int) -> str:
    if count == config.num_kv_heads:
        return config.name
    return f"{config.name}-{'mqa' if count == 1 else f'gqa{count}'}"
