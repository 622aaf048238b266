"""Generation: padding prompts, the one loop, and the step under it that verifies drafts."""

from .batch import pad
from .compiled import Compiled
from .completion import Completion
from .draft import Draft
from .drafter import Context, Drafter, NgramDrafter, NoDraft
from .generate import generate

__all__ = [
    "Compiled",
    "Completion",
    "Context",
    "Draft",
    "Drafter",
    "NgramDrafter",
    "NoDraft",
    "generate",
    "pad",
]
