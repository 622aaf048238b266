"""Sliding windows in a config.json: which layers see how far back.

`sliding_window` is the width. Which layers keep to it stands in `layer_types`, or follows from a number: every sixth
layer of Gemma 3 sees everything, Qwen's layers up to `max_window_layers` do. Mistral's window holds everywhere.
"""

from __future__ import annotations

from typing import Any

from ..config import Family, ModelConfig
from .errors import BadFile


def read(data: dict[str, Any], name: str, family: Family, layers: int) -> tuple[int | None, tuple[int, ...]]:
    """The window, and the layers that see everything nevertheless."""
    window = data.get("sliding_window")
    if family == "llama" or (family.startswith("qwen") and not data.get("use_sliding_window", False)):
        window = None
    if window is None:
        return None, ()
    types = data.get("layer_types")
    if types is None and family == "gemma3":
        every = data.get("sliding_window_pattern", 6)
        types = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    elif types is None and family.startswith("qwen"):
        first = data.get("max_window_layers", 28)
        types = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    elif types is None:
        return window, ()
    if len(types) != layers or set(types) - {"sliding_attention", "full_attention"}:
        raise BadFile(f"{name} has layers of the kinds {sorted(set(types))}, which this course does not run.")
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
