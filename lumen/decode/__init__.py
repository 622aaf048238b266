"""Generation: padding prompts and the one loop."""

from .batch import pad
from .generate import Completion, generate

__all__ = ["Completion", "generate", "pad"]
