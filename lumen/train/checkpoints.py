"""What is shipped: one safetensors file with the weights and what is needed to read them.

gptlite in fp16, the tied head once; what was made of it as differences to it (`lumen.io.deltas`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from ..io import deltas, safetensors
from ..models.decoder import Decoder
from .loop import Recipe

FOLDER = Path(__file__).parent.parent / "checkpoints"


def weights(model: Decoder) -> dict[str, Tensor]:
    """The model's tensors by name, a tied head once."""
    return {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}


def save(
    model: Decoder,
    characters: str,
    recipe: Recipe,
    results: Mapping[str, str],
    file: Path,
    base: Path | None = None,
) -> None:
    """Write a character model with its configuration, alphabet, recipe and `results` in the file's metadata.

    With `base`, the file of the model that it was made of, only what differs from that.
    """
    state = {name: value.half() for name, value in weights(model).items()}
    metadata = {
        "config": json.dumps(asdict(model.config)),
        "characters": json.dumps(characters),
        "recipe": json.dumps(asdict(recipe)),
        **results,
    }
    if base is not None:
        state = deltas.pack(weights(model), safetensors.read(base)[0])
        metadata |= {"base": base.stem, "base_sha256": deltas.digest(base)}
    safetensors.write(file, state, metadata)
