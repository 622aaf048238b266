"""Text as what a language model learns from: ids, the batch of a step, losses of windows.

Tokens are int64: a text (N,), a batch (B, T + 1) of which the first T are read and the last T predicted. Losses are
mean cross-entropies in nats per token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.decoder import Decoder
from .loop import Recipe

ROWS = 32  # windows that one forward of a validation takes


def encode(text: str, characters: str) -> Tensor:
    """Characters to ids, int64 (N,)."""
    ids = {c: i for i, c in enumerate(characters)}
    return torch.tensor([ids[c] for c in text])


def batch_at(text: Tensor, recipe: Recipe, step: int) -> Tensor:
    """The random windows of one step (B, T + 1); a function of the step, so that a resumed run sees the same ones."""
    room = len(text) - recipe.context - 1
    if room < 1:
        raise ValueError(
            f"A text of {len(text)} tokens has no window of {recipe.context} and the token after it to choose from; "
            "shorten Recipe.context or bring more text."
        )
    stream = torch.Generator().manual_seed(recipe.seed * 1_000_003 + recipe.first + step)
    starts = torch.randint(room, (recipe.batch,), generator=stream)
    return torch.stack([text[s : s + recipe.context + 1] for s in starts.tolist()])


def loss_of(model: Decoder, tokens: Tensor) -> Tensor:
    """Mean cross-entropy over a batch (B, T + 1), a scalar."""
    logits = model(tokens[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def window_losses(model: Decoder, text: Tensor, context: int, windows: int | None = None) -> Tensor:
    """Mean cross-entropy of each non-overlapping window of `context` tokens, all of them or so many. (windows,)

    Fewer than all lie at even distances, the first and the last among them: one scene of a play is easier or harder
    than the plays. Two models over the same text give pairs: what makes a window hard is the same for both.
    """
    whole = (len(text) - 1) // context
    count = whole if windows is None else min(windows, whole)
    if count < 1:
        raise ValueError(
            f"A text of {len(text)} tokens has no window of {context} tokens and the one after it to judge by."
        )
    starts = torch.arange(count) * (whole - 1) // max(1, count - 1) * context
    trains = model.training
    model.eval()
    losses = []
    for some in starts.split(ROWS):
        batch = text[some[:, None] + torch.arange(context + 1)]
        logits = model(batch[:, :-1])
        each = torch.nn.functional.cross_entropy(logits.mT, batch[:, 1:], reduction="none")
        losses.append(each.mean(1))
    model.train(trains)
    return torch.cat(losses)


def validation_loss(model: Decoder, text: Tensor, context: int, windows: int | None = None) -> float:
    """The mean of `window_losses`."""
    return float(window_losses(model, text, context, windows).double().mean())
