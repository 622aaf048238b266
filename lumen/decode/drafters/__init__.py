"""Where drafts come from: the text itself, a smaller model, some of the model's own layers, its own guesses."""

from .lookahead import LookaheadDrafter
from .model import ModelDrafter
from .ngram import NgramDrafter
from .own_layers import first_layers, skipping

__all__ = ["LookaheadDrafter", "ModelDrafter", "NgramDrafter", "first_layers", "skipping"]
