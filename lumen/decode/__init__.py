"""Generation: padding prompts, the one loop, and the step under it that verifies drafts."""

from .batch import pad
from .compiled import Compiled
from .completion import Completion
from .draft import Draft
from .drafter import Context, Drafter, NoDraft
from .drafters import LookaheadDrafter, ModelDrafter, NgramDrafter, first_layers, skipping
from .generate import generate

__all__ = [
    "Compiled",
    "Completion",
    "Context",
    "Draft",
    "Drafter",
    "LookaheadDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "NoDraft",
    "first_layers",
    "generate",
    "pad",
    "skipping",
]
