"""Weights under the names that Hugging Face publishes, into and out of our fused matrices.

Which tensors are stacked into which matrix is read off `describe.weights`. A module may have been swapped for one of
another kind (a quantized linear): whatever can say its `dequantized()` weight can be saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .describe import Weight, hf_shapes, weights
from .layers import Decoder

M = TypeVar("M", bound=Decoder)


def check_hf_state(config: ModelConfig, state: dict[str, Tensor]) -> None:
    """Names and shapes agree with the configuration, or a sentence that lists what does not. Changes nothing."""
    layers, experts = config.num_layers, 1 if config.experts is None else config.experts.count
    if layers * experts > len(state):  # before so many names are spelt
        raise ValueError(
            f"These weights do not fit {config.name}: {layers:,} layers with {experts:,} MLPs each cannot be made of "
            f"{len(state):,} tensors. Is it the right configuration?"
        )
    wanted = hf_shapes(config)
    missing = sorted(wanted.keys() - state.keys())
    extra = sorted(
        k
        for k in state.keys() - wanted.keys()
        if not k.endswith("rotary_emb.inv_freq") and k != "lm_head.weight"
    )
    wrong = sorted(k for k in wanted.keys() & state.keys() if tuple(state[k].shape) != wanted[k])
    if missing or extra or wrong:
        found = (("missing", missing), ("not part of this model", extra), ("wrong shape", wrong))
        parts = [
            f"{what}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for what, names in found
            if names
        ]
        raise ValueError(
            f"These weights do not fit {config.name}; {'; '.join(parts)}. Is it the right configuration?"
        )


@torch.no_grad()
def load_hf_state(model: M, state: dict[str, Tensor]) -> M:
    """Copy published weights into `model` in its own dtype, q, k, v and gate, up stacked. Checked before copying."""
    check_hf_state(model.config, state)
    for name, place, offset in places(model):
        fill(place, state[name], offset)
    return model


@torch.no_grad()
def to_hf_state(model: Decoder) -> dict[str, Tensor]:
    """The model's weights under the published names, as views of its own storage where they are stored so.

    Raises ValueError for a module that holds its weight in a form it cannot give back.
    """
    return {name: place if not offset else place - offset for name, place, offset in places(model)}


def places(model: Decoder) -> Iterator[tuple[str, Tensor, float]]:
    """`(published name, rows of ours that hold it, ours minus published)`, one tensor after another."""
    for weight in weights(model.config):
        held, row = tensor_of(model, weight), 0
        for name, rows in weight.sources:
            yield name, held[row : row + rows], weight.offset
            row += rows


@torch.no_grad()
def fill(place: Tensor, value: Tensor, offset: float) -> None:
    """Write a published tensor where it belongs."""
    place.copy_(value if not offset else value + offset)


def tensor_of(model: nn.Module, weight: Weight) -> Tensor:
    """The tensor that holds a parameter of `describe.weights`: its own storage, or what a quantized module gives back.

    Raises ValueError for a module that holds its weight in a form it cannot give back.
    """
    path, _, leaf = weight.name.rpartition(".")
    module = model.get_submodule(path)
    held: object = getattr(module, leaf, None)
    give_back = getattr(module, "dequantized", None)
    if leaf == "weight" and not _is(held, weight.shape) and callable(give_back):
        held = give_back()
    if not _is(held, weight.shape):
        raise ValueError(
            f"{path} is a {type(module).__name__} without a {leaf} of shape {weight.shape} in floating point; "
            "give it a method dequantized() that returns one, or put the original layer back before saving."
        )
    return held


def _is(held: object, shape: tuple[int, ...]) -> TypeGuard[Tensor]:
    return isinstance(held, Tensor) and held.is_floating_point() and tuple(held.shape) == shape
