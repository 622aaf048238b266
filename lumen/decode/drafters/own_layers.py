"""A model that drafts for itself with some of its layers: no second model, no memory for weights.

    first_layers    layers 0 to n - 1, then norm and head: Elhoushi et al. 2024, LayerSkip, section 4.3
    skipping        all layers but some: Zhang et al. 2024, Draft & verify, section 3

The first needs a model that was trained to be read early, the second a choice of layers that suits the model. Neither
is right often without it, and either is exact, because the whole model verifies.

The draft's keys are its own. LayerSkip reads the verifier's, which are the same numbers for the first layers; here they
belong to whoever owns the forward (rows of any cache in `generate`, blocks and tables in the engine), and a drafter
sees tokens alone. It costs the layers' share of the prompt's forward once, and as large a share of the cache.
"""

from __future__ import annotations

from collections.abc import Collection

from ...inputs import whole, wholes
from ...models.decoder import Decoder
from ...models.passing import Channels
from ...models.some_layers import some_layers
from ..compiled import Compiled
from .model import ModelDrafter


def first_layers(
    model: Decoder | Compiled, layers: int, max_drafts: int = 4, positions: int = 16_384
) -> ModelDrafter:
    """The first `layers` of `model` draft. ValueError unless there are so many and one more."""
    most = model.config.num_layers - 1
    if not 1 <= whole(layers, "layers") <= most:
        raise ValueError(
            f"{model.config.name} can draft with its first 1 to {most} layers, not {layers}: all of them would be the "
            "model itself."
        )
    return ModelDrafter(_plain(model), max_drafts, positions, Channels(exit=layers))


def skipping(
    model: Decoder | Compiled, skipped: Collection[int], max_drafts: int = 4, positions: int = 16_384
) -> ModelDrafter:
    """`model` drafts without the layers `skipped`. ValueError for layers that it has not, and if none are left."""
    out = {*wholes(tuple(skipped), "skipped")}
    layers = range(model.config.num_layers)
    if strange := out.difference(layers):
        raise ValueError(f"{model.config.name} has layers 0 to {len(layers) - 1}, not {sorted(strange)}.")
    return ModelDrafter(
        some_layers(_plain(model), [i for i in layers if i not in out]), max_drafts, positions
    )


def _plain(model: Decoder | Compiled) -> Decoder:
    """Its forwards are packed, and a graph is not."""
    return model.model if isinstance(model, Compiled) else model
