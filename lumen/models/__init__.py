"""Model configurations and the two readable decoders of the course.

`config` needs no torch; the model classes are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config import CONFIGS, ModelConfig

if TYPE_CHECKING:
    from .gptlite import GPTlite
    from .llama import Llama

__all__ = ["CONFIGS", "GPTlite", "Llama", "ModelConfig", "build"]


def build(config: ModelConfig) -> Any:
    """A model of this shape with random weights: `Llama` for RoPE, `GPTlite` for learned positions."""
    from .gptlite import GPTlite
    from .llama import Llama

    return (Llama if config.positions == "rope" else GPTlite)(config)


def __getattr__(name: str) -> Any:
    if name == "Llama":
        from .llama import Llama

        return Llama
    if name == "GPTlite":
        from .gptlite import GPTlite

        return GPTlite
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
