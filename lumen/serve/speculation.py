"""Who drafts, chosen by a word: `--speculate ngram | layers:N | draft:MODEL`.

    ngram        what followed the last few tokens when they stood in the text before
    layers:N     the model's own first N layers
    draft:MODEL  a smaller model of the same vocabulary: a name, a folder, a .gguf file or a hub id

How many drafts are asked for is decided step by step, see `lumen.serve.pace`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..arguments import place, quoted
from .pace import Paced

if TYPE_CHECKING:
    from ..config import ModelConfig
    from ..decode.drafter import Drafter


@dataclass(frozen=True)
class Speculation:
    """One choice: its kind, and what stands behind the colon."""

    kind: str
    value: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.value}" if self.value else self.kind

    def drafter(self, model: Any, tokenizer: Any, max_drafts: int, positions: int) -> Paced:
        """Drafts for `model`, up to `max_drafts` a step; a cache of `positions` where the drafts need one.

        Loads the drafting model; measures this machine, about 15 s, if that was never done. ValueError for a drafting
        model of another vocabulary, and for layers that the model has not.
        """
        from .. import hardware
        from ..cost.speculation import round_seconds

        drafts, small = self._of(model, tokenizer, max_drafts, positions)
        chip, dtype, config = hardware.measure(), next(model.parameters()).dtype, model.config

        def seconds(batch: int, context: int, length: int) -> float:
            return round_seconds(config, chip, context, batch, length, dtype, drafter=small, cache="paged")

        return Paced(drafts, seconds)

    def _of(
        self, model: Any, tokenizer: Any, max_drafts: int, positions: int
    ) -> tuple[Drafter, ModelConfig | None]:
        """The drafter, and the shape of the model that each of its drafts takes a step of."""
        from ..decode.drafters import ModelDrafter, NgramDrafter, first_layers

        if self.kind == "ngram":
            return NgramDrafter(max_drafts), None
        if self.kind == "layers":
            drafter = first_layers(model, int(self.value), max_drafts, positions)
            return drafter, drafter.cache.config
        from ..io.load import load

        small, words = load(self.value)
        if small.config.vocab_size != model.config.vocab_size or not _alike(words, tokenizer):
            raise ValueError(
                f"--speculate {quoted(self.name)}: {small.config.name} has another vocabulary than "
                f"{model.config.name}, so its drafts mean nothing there; draft with a model of the same tokenizer."
            )
        small.warm_up()
        return ModelDrafter(small, max_drafts, positions), small.config


def speculation(text: str) -> Speculation:
    """The choice that a word names; argparse.ArgumentTypeError says which there are."""
    kind, colon, value = text.strip().partition(":")
    if kind == "ngram" and not colon:
        return Speculation(kind)
    if kind == "layers" and re.fullmatch(r"[1-9]\d{0,3}", value, re.ASCII):
        return Speculation(kind, value)
    if kind == "draft" and value.strip():
        return Speculation(kind, place(value))
    raise argparse.ArgumentTypeError(
        f"needs ngram, layers:N (the model's own first N layers) or draft:MODEL, got '{quoted(text)}'"
    )


def _alike(one: Any, other: Any) -> bool:
    """Whether each id stands for the same bytes in both."""
    size = one.vocab_size
    return size == other.vocab_size and all(one.token_bytes(i) == other.token_bytes(i) for i in range(size))
