"""How a GGUF file scales rotary positions: a rule in its metadata, or one number for each frequency in a tensor.

llama.cpp stores Llama 3.1's rule worked out, as `rope_freqs.weight` (head_dim / 2): each frequency is divided by its
number. Where the numbers are those of the released rule, the rule is what we keep: only it fits into a config.json.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config import ModelConfig
from ..models.rope import frequencies
from ..parts import RopeScaling
from .errors import BadFile
from .fields import LONGEST, Fields

TENSOR = "rope_freqs.weight"
_READ = ("type", "factor", "original_context_length", "finetuned")
_LLAMA3_LENGTH = (
    8192  # what Llama 3 was trained on before 3.1 stretched it; 1 and 4 are the release's bounds too
)


def scaling_of(metadata: dict[str, Any], arch: str, positions: int, name: str) -> RopeScaling | None:
    """The rule that the metadata states. BadFile for one that our models do not have."""
    prefix = f"{arch}.rope.scaling."
    said = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    kind = said.get("type", "none")
    if kind == "none":
        return None
    other = sorted(said.keys() - set(_READ))
    if kind not in ("linear", "yarn") or other or not isinstance(said.get("factor"), float):
        what = f"rope.scaling.{other[0]}" if other else f"rope.scaling.type = {kind!r}"
        raise BadFile(f"{name} uses {what}; this reader knows linear and yarn scaling by a factor.")
    original = Fields(metadata, name).whole(f"{prefix}original_context_length", LONGEST, positions)
    return RopeScaling("linear" if kind == "linear" else "yarn", said["factor"], original)


def with_divisors(config: ModelConfig, divisors: np.ndarray) -> ModelConfig:
    """The same model with its frequencies divided. Raises ValueError for numbers that are none for it."""
    if config.rope_scaling is not None:
        raise ValueError("its rotary positions are scaled twice, by a rule and by a tensor")
    exact = config.with_(rope_scaling=RopeScaling("divisors", divisors=tuple(map(float, divisors.ravel()))))
    assert exact.rope_scaling is not None
    largest = max(exact.rope_scaling.divisors)
    if largest >= 1:
        rule = config.with_(rope_scaling=RopeScaling("llama3", round(largest, 3), _LLAMA3_LENGTH))
        if np.allclose(frequencies(rule), frequencies(exact), rtol=1e-5, atol=0):
            return rule
    return exact
