"""A model that runs some of another's layers, with the other's own weights: a drafter that takes no memory for them.

Zhang et al. 2024, Draft & verify, section 3: which layers are skipped is chosen for each model. Elhoushi et al. 2024,
LayerSkip: the first ones draft, in a model that was trained to be read there; `Channels.exit` does that. Both as
drafters: `lumen.decode.drafters.own_layers`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

from torch import nn

from ..inputs import wholes
from .decoder import Decoder

M = TypeVar("M", bound=Decoder)


def some_layers(model: M, layers: Sequence[int]) -> M:
    """The layers of `model` whose numbers are given, in this order, between its embedding and its head.

    Weights are shared, not copied. ValueError for layers that the model has not, for none, and for models whose layers
    differ in kind (windows, states, keys of another layer): one that is left out could not be told from the others.
    """
    config, kept = model.config, wholes(layers, "layers")
    if (
        not kept
        or any(not 0 <= layer < config.num_layers for layer in kept)
        or sorted(set(kept)) != list(kept)
    ):
        raise ValueError(
            f"{config.name} has layers 0 to {config.num_layers - 1}; name some of them, each once and in order, got "
            f"{list(kept)}."
        )
    if (
        config.kv_from
        or config.linear is not None
        or len({config.window_of(i) for i in range(config.num_layers)}) > 1
    ):
        raise ValueError(f"The layers of {config.name} differ in kind; some of them alone are no model.")
    view = copy.copy(model)
    view._modules = dict(model._modules)
    view.config = config.with_(name=f"{config.name} in {len(kept)} layers", num_layers=len(kept))
    view.blocks = nn.ModuleList(_placed(model.blocks[layer], place) for place, layer in enumerate(kept))
    return view


def _placed(block: nn.Module, place: int) -> nn.Module:
    """The block with its own place in a cache."""
    moved = copy.copy(block)
    moved._modules = dict(block._modules)
    for name, part in block._modules.items():
        if hasattr(part, "place"):
            mixer = copy.copy(part)
            mixer.place = place  # type: ignore[union-attr]
            moved._modules[name] = mixer
    return moved
