"""What a cache that keeps less costs in prediction: perplexity of held-out text, read through the cache.

    block    t0 t1 t2 … | t512 t513 …         one passage of text
             prompt     | scored one by one   each prediction reads what the cache has kept by then

A whole passage in one forward would show nothing: keys leave after the forward that brings them. So the prompt goes in,
the cache is told that it has ended, and what follows is fed token by token and predicted as an answer would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from lumen.bench.estimate import COVERAGE, RESAMPLES, SEED, Estimate
from lumen.inputs import whole, wholes

if TYPE_CHECKING:
    from lumen.cache.base import Cache
    from lumen.models.decoder import Decoder

MakeCache = Callable[["Decoder", int, int], "Cache"]
"""(model, rows, positions of a row) -> an empty cache."""


@dataclass(frozen=True)
class Losses:
    """Mean loss of each stretch [nats a token], block after block; `scored` tokens of each were predicted."""

    stretches: tuple[float, ...]
    scored: int

    @classmethod
    def of(cls, costs: torch.Tensor, stretch: int | None = None) -> Losses:
        """From what each token of each block cost, (B, T), in stretches of so many tokens; whole blocks if left out.

        ValueError for a length that does not divide the blocks.
        """
        stretch = _dividing(stretch, costs.shape[1])
        return cls(tuple(costs.unflatten(1, (-1, stretch)).mean(2).flatten().tolist()), stretch)

    def perplexity(self) -> Estimate:
        """exp(mean loss), with an interval from a bootstrap over stretches: neighbouring tokens are not independent."""
        return _exp_mean(self.stretches, "")

    def over(self, other: Losses) -> Estimate:
        """How many times the perplexity of `other` this is, on the same stretches: what they share cancels.

        ValueError unless both are of as many stretches and tokens.
        """
        if len(self.stretches) != len(other.stretches) or self.scored != other.scored:
            raise ValueError(
                f"Perplexities are compared on the same stretches, got {len(self.stretches)} of {self.scored} tokens "
                f"and {len(other.stretches)} of {other.scored}."
            )
        return _exp_mean([a - b for a, b in zip(self.stretches, other.stretches, strict=True)], "×")


def passages(ids: Sequence[int], length: int, count: int) -> list[list[int]]:
    """`count` passages of `length` tokens, spread evenly over a text; none overlaps another."""
    length, count = whole(length, "length", 1), whole(count, "count", 1)
    ids = wholes(ids, "ids")
    if length * count > len(ids):
        raise ValueError(
            f"{count} passages of {length} tokens do not fit into {len(ids)}; take fewer, shorter ones, or more text."
        )
    starts = [round(i * (len(ids) - length) / max(1, count - 1)) for i in range(count)]
    return [ids[at : at + length] for at in starts]


@torch.inference_mode()
def losses(
    model: Decoder,
    blocks: Sequence[Sequence[int]],
    make: MakeCache,
    *,
    prompt: int,
    step: int = 1,
    batch: int = 8,
    stretch: int | None = None,
) -> Losses:
    """Predict each block's tokens from `prompt` on, through caches that `make` makes for `batch` blocks at a time.

    `step` tokens are fed at once: more is quicker, and their own keys are then not yet evicted when they are read.
    `stretch`: how many tokens make a sample of their own, all that a block predicts if left out.
    ValueError for blocks of different lengths or without a token to predict, and for a stretch that divides them not.
    """
    lengths = {len(block) for block in blocks}
    if len(lengths) != 1:
        raise ValueError(f"Blocks are equally long, so that each counts as much; got {sorted(lengths)}.")
    (length,) = lengths
    prompt, step = whole(prompt, "prompt", 1, length - 1), whole(step, "step", 1)
    stretch = _dividing(stretch, length - prompt)
    tokens = torch.tensor([list(block) for block in blocks], device=next(model.parameters()).device)
    found = []
    for rows in tokens.split(whole(batch, "batch", 1)):
        cache = make(model, len(rows), length)
        hidden = model.hidden(rows[:, :prompt], None, cache)[:, -1:]
        cache.prompt_ended()
        found.append(predicted(model, rows[:, prompt:], cache, hidden, step))
    return Losses.of(torch.cat(found), stretch)


@torch.inference_mode()
def predicted(
    model: Decoder, tokens: torch.Tensor, cache: Cache, hidden: torch.Tensor, step: int = 1
) -> torch.Tensor:
    """What tokens (B, T) cost [nats], (B, T) in fp64, from a cache that has read what stands before them, down to
    `hidden` (B, 1, D), and is then fed `step` of them at once."""
    costs = [_costs(model, hidden, tokens[:, :1])]
    for at in range(0, tokens.shape[1] - 1, step):
        after = tokens[:, at + 1 : at + 1 + step]
        costs.append(_costs(model, model.hidden(tokens[:, at : at + after.shape[1]], None, cache), after))
    return torch.cat(costs, 1)


def _dividing(stretch: int | None, scored: int) -> int:
    """A number of tokens that divides those which a block predicts."""
    stretch = scored if stretch is None else whole(stretch, "stretch", 1, scored)
    if scored % stretch:
        raise ValueError(
            f"{scored} predicted tokens are no whole number of stretches of {stretch}; choose a length that divides "
            "them."
        )
    return stretch


def _costs(model: Decoder, hidden: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """-log p of expected (B, t) after hidden (B, t, D)."""
    logits = model.head(hidden).float().transpose(1, 2)
    return F.cross_entropy(logits, expected, reduction="none").double()


def _exp_mean(values: Sequence[float], unit: str) -> Estimate:
    """exp of the mean with the middle 95 % of resamples; of one value no interval is known."""
    each = np.asarray(values, dtype=np.float64)
    means = each[np.random.default_rng(SEED).integers(0, len(each), (RESAMPLES, len(each)))].mean(1)
    value = math.exp(each.mean())
    low, high = np.exp(np.quantile(means, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2]))
    return Estimate(value, min(value, float(low)), max(value, float(high)), len(each), unit)
