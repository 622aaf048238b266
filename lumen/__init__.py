"""Lumen: the package behind the course on LLM inference.

`import lumen` is cheap: torch is loaded when something that needs it is first used, so the cost model and the
calculators also run where torch is not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import bench, cost, explore, grading, hardware
    from .cache import DynamicCache, StaticCache
    from .decode import generate, pad
    from .explore.session import setup
    from .io.load import load
    from .models import CONFIGS, GPTlite, Llama, ModelConfig
    from .runtime import default_dtype, device
    from .sampling import SamplingParams

_HOME = {
    "load": "io.load",
    "generate": "decode",
    "pad": "decode",
    "DynamicCache": "cache",
    "StaticCache": "cache",
    "SamplingParams": "sampling",
    "GPTlite": "models",
    "Llama": "models",
    "CONFIGS": "models",
    "ModelConfig": "models",
    "default_dtype": "runtime",
    "device": "runtime",
    "setup": "explore.session",
}
_SUBMODULES = ("assets", "bench", "cost", "explore", "grading", "hardware")

__all__ = [
    "CONFIGS",
    "DynamicCache",
    "GPTlite",
    "Llama",
    "ModelConfig",
    "SamplingParams",
    "StaticCache",
    "__version__",
    "bench",
    "cost",
    "default_dtype",
    "device",
    "explore",
    "generate",
    "grading",
    "hardware",
    "load",
    "pad",
    "setup",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    elif name in _SUBMODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'lumen' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
