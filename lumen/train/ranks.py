"""What a rank costs before any training: gptlite's loss with latents of several ranks, by plain and by whitened SVD.

    python -m lumen.train.ranks                   # a minute or two on two quiet cores

The plain SVD needs the weights alone; the whitened one also needs a little of the text that the model learned from.
Losses are paired with those of the unconverted model, window by window. `lumen.train.uptrain` trains such models on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..arguments import MAX_COUNT, Parser, Whole
from ..bench.estimate import Estimate
from ..models.decoder import Decoder
from ..models.to_latent import full_rank, input_moments, to_latent
from .results import apart, average
from .text import window_losses
from .uptrain import start

RANKS = (16, 32, 64, 96, 128, 192, 256)
CONTEXT = 256
CALIBRATION = 64  # windows of CONTEXT tokens that the whitened SVD sees: 16,384 for 256 x 256 moments


@dataclass(frozen=True)
class RankLoss:
    """One rank: the numbers that a token takes in a layer's cache, and by how much the loss is above the unconverted
    model's, cut by the plain and by the whitened SVD. [nats per token]"""

    rank: int
    stored: int
    plain: Estimate
    whitened: Estimate


def loss_against_rank(
    model: Decoder,
    learned: Tensor,
    held_out: Tensor,
    ranks: Sequence[int] = RANKS,
    context: int = CONTEXT,
    windows: int | None = 64,
) -> tuple[Estimate, list[RankLoss]]:
    """The unconverted model's loss on `held_out` text (N,), all windows of `context` tokens or so many, and what
    each rank adds to it. Moments come from evenly spaced windows of `learned` (N,).

    ValueError for a rank that `to_latent` refuses.
    """
    moments = input_moments(model, spread(learned, context, CALIBRATION).split(16))
    before = window_losses(model, held_out, context, windows).tolist()
    found = []
    for rank in ranks:
        losses, stored = [], 0
        for given in (None, moments):
            made = to_latent(model, rank, given)
            stored = made.config.cache_dims.stored
            losses.append(apart(window_losses(made, held_out, context, windows).tolist(), before))
        found.append(RankLoss(rank, stored, *losses))
    return average(before), found


def spread(text: Tensor, context: int, count: int) -> Tensor:
    """`count` windows of `context` tokens (count, context) at even distances, fewer where the text holds no more."""
    count = min(count, len(text) // context)
    if count < 1:
        raise ValueError(f"A text of {len(text)} tokens has no window of {context}.")
    starts = torch.linspace(0, len(text) - context, count, dtype=torch.float64).long()
    return text[starts[:, None] + torch.arange(context)]


def table(before: Estimate, found: Sequence[RankLoss]) -> list[str]:
    """One line a rank, the unconverted model's loss on top."""
    lines = [
        f"gptlite: {before.value:.4f} nats per character (n = {before.n} windows)",
        f"{'rank':>5} {'numbers a token and layer':>26} {'plain SVD adds':>28} {'whitened adds':>28}",
    ]
    for one in found:
        both = (f"{e.value:+.4f} ({e.low:+.4f} to {e.high:+.4f})" for e in (one.plain, one.whitened))
        lines.append(f"{one.rank:5} {one.stored:26} " + " ".join(f"{said:>28}" for said in both))
    return lines


def main() -> None:
    parser = Parser(description="The loss of gptlite with latents of several ranks, before any training.")
    parser.add_argument("ranks", nargs="*", type=Whole(1, MAX_COUNT), metavar="RANK")
    parser.add_argument("--windows", type=Whole(2, MAX_COUNT), default=64)
    options = parser.parse_args()
    model, text = start()
    ranks = [r for r in RANKS if r <= full_rank(model.config)] if not options.ranks else options.ranks
    print(*table(*loss_against_rank(model, text.train, text.valid, ranks, windows=options.windows)), sep="\n")


if __name__ == "__main__":
    main()
