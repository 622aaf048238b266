"""Random numbers and the tokens that they pick: a stream of its own for every request.

A pass over k drafts may need k + 1 numbers of a stream and keep one token only. A number is used up by a token that is
kept, and by nothing else, so the i-th token of an answer always meets the i-th number: however many drafts were
verified on the way, whoever shares the batch, and after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .sampler import SamplingParams


def generators(params: Sequence[SamplingParams]) -> list[torch.Generator]:
    """One random stream per row, on the CPU so that a seed means the same draws on every device."""
    streams = []
    for p in params:
        stream = torch.Generator()
        streams.append(stream)
        if p.seed is None:
            stream.seed()
        else:
            stream.manual_seed(p.seed)
    return streams


def draw(probs: Tensor, streams: Sequence[torch.Generator]) -> Tensor:
    """One token per row, each by one number of its own stream, so a neighbour never changes a draw. See `pick`."""
    uniform = [torch.rand((), generator=g, dtype=torch.float64).item() for g in streams]
    return pick(probs, torch.tensor(uniform, dtype=torch.float64))


def pick(probs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row by inverting the cumulative distribution. probs (B, V), uniform (B,) in fp64 -> (B,) int64.

    Rows need not sum to 1. A token of probability zero is never picked. Greedy rows are read off: their one token
    needs no sum over the vocabulary.
    """
    most, tokens = probs.max(-1)
    rows = (most < 1).nonzero().squeeze(-1)
    if len(rows):
        cdf = probs[rows].double().cumsum(-1)
        at = uniform.to(probs.device)[rows, None] * cdf[:, -1:]
        tokens[rows] = torch.searchsorted(cdf, at, right=True).squeeze(-1).clamp(max=probs.shape[-1] - 1)
    return tokens


class Stream:
    """Uniform numbers in [0, 1), fp64, in the order in which `draw` takes them from the same seed."""

    def __init__(self, params: SamplingParams):
        (self._generator,) = generators([params])
        self._ahead: list[float] = []

    def peek(self, count: int) -> list[float]:
        """The next `count` numbers; they stay where they are."""
        while len(self._ahead) < count:
            self._ahead.append(torch.rand((), generator=self._generator, dtype=torch.float64).item())
        return self._ahead[:count]

    def use(self, count: int) -> None:
        """Move on by `count` numbers."""
        self.peek(count)
        del self._ahead[:count]
