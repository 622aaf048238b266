"""Where drafts come from: the text itself, a smaller model, some of the model's own layers."""

from .model import ModelDrafter
from .ngram import NgramDrafter

__all__ = ["ModelDrafter", "NgramDrafter"]
