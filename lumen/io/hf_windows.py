"""Sliding windows in a config.json: which layers see how far back.

`sliding_window` is the width. Which layers keep to it stands in `layer_types`, or follows from a number: every sixth
layer of Gemma 3 sees everything, Qwen's layers up to `max_window_layers` do. Mistral's window holds everywhere.
"""

from __future__ import annotations

from typing import Any

from ..config import LIMITS, Family, ModelConfig
from .errors import BadFile
from .fields import LONGEST, Fields


def read(said: Fields, name: str, family: Family, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that see everything nevertheless."""
    never = family == "llama" or family.startswith("deepseek")
    on = not never and (not family.startswith("qwen") or said.flag("use_sliding_window", False))
    if not on or not said.has("sliding_window"):
        return None, ()
    window = said.whole("sliding_window", LONGEST)
    types = said.values.get("layer_types")
    if types is None and family == "gemma3":
        every = said.whole("sliding_window_pattern", LIMITS["num_layers"], 6)
        types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    elif types is None and family.startswith("qwen"):
        first = said.whole("max_window_layers", LIMITS["num_layers"], 28, least=0)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    elif types is None:
        return window, ()
    if not isinstance(types, list) or len(types) != layers:
        raise said.bad("layer_types", f"a list of {layers} kinds, one for each layer")
    if other := [kind for kind in types if kind not in ("sliding_attention", "full_attention")]:
        raise BadFile(f"{name} has layers of the kind {other[0]!r:.40}, which this course does not run.")
    full = tuple(i for i, kind in enumerate(types) if kind == "full_attention")
    return (None, ()) if len(full) == layers else (window, full)


def write(config: ModelConfig) -> dict[str, Any]:
    """The entries of config.json."""
    said: dict[str, Any] = {"sliding_window": config.window}
    if config.family.startswith("qwen"):
        said["use_sliding_window"] = config.window is not None
    if config.family == "gemma3" or config.full_layers:
        kinds = (config.window_of(i) is None for i in range(config.num_layers))
        said["layer_types"] = ["full_attention" if full else "sliding_attention" for full in kinds]
    elif config.family.startswith("qwen"):
        said["max_window_layers"] = 0 if config.window is not None else config.num_layers
    return said
