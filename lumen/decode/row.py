"""What one answer chooses its tokens by: parameters, random numbers, a grammar, a least length. The same in `generate`
and in the engine, so that an answer is the same in both."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling import Constraint, Matcher, SamplingParams, Stream

DEAD_END = "The grammar allows no token here, not even an end of sequence; the answer cannot go on."


@dataclass
class Row:
    """`output` is the caller's own list and grows there. Tokens of `ends` cannot come before `least` tokens; `limit` is
    how many there can be."""

    key: Hashable
    prompt: Sequence[int]
    output: Sequence[int]
    params: SamplingParams
    stream: Stream
    limit: int
    ends: Collection[int] = ()
    least: int = 0
    matcher: Matcher | None = None
    stuck: bool = False  # the grammar refused a token that it had allowed

    @property
    def room(self) -> int:
        """How many drafts can be of use: behind them one more token is always drawn."""
        return self.limit - len(self.output) - 1

    @property
    def free(self) -> bool:
        """Nothing forbids any token now."""
        return self.matcher is None and (len(self.output) >= self.least or not self.ends)

    def allowed(self, drafts: Sequence[int], size: int) -> tuple[list[Tensor], int]:
        """One mask (V,) for each place behind 0, 1 … `drafts`, and how many places can be reached.

        Places behind a draft that cannot come are never reached and allow all. A grammar goes before the least length:
        where it allows nothing but an end, the answer may end.
        """
        everything = torch.ones(size, dtype=torch.bool)
        masks, taken, reached = [], 0, len(drafts) + 1
        for place in range(len(drafts) + 1):
            mask = None if self.matcher is None else self.matcher.allowed()
            mask = everything if mask is None else mask
            if self.stuck or not bool(mask.any()):
                reached = place
                break
            if len(self.output) + place < self.least:
                longer = mask.clone()
                longer[list(self.ends)] = False
                mask = longer if self.matcher is None or bool(longer.any()) else mask
            masks.append(mask)
            if place == len(drafts) or drafts[place] in self.ends:
                break
            if self.matcher is not None:
                if not self.matcher.advance(drafts[place]):
                    break
                taken += 1
        if self.matcher is not None and taken:
            self.matcher.rollback(taken)
        return masks + [everything] * (len(drafts) + 1 - len(masks)), reached

    def take(self, tokens: list[int]) -> list[int]:
        """Move on by these tokens, up to an end of sequence; returns those that were taken."""
        end = next((i for i, t in enumerate(tokens) if t in self.ends), None)
        tokens = tokens if end is None else tokens[: end + 1]
        self.stream.use(len(tokens))
        if self.matcher is not None:
            for token in tokens:
                if token not in self.ends and not self.matcher.advance(token):
                    self.stuck = True
        return tokens


def started(constraint: Constraint, size: int) -> Matcher:
    """A new matcher, whose first mask was looked at. ValueError if it is none for a vocabulary of `size` tokens."""
    matcher = constraint()
    mask = matcher.allowed()
    if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != (size,)):
        raise ValueError(
            f"A constraint's mask must be bool of shape ({size},), one entry per token; got {mask.dtype} "
            f"{tuple(mask.shape)}."
        )
    return matcher
