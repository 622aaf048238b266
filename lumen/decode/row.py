"""What one answer chooses its tokens by: parameters, random numbers, a grammar, a least length. The same in `generate`
and in the engine, so that an answer is the same in both."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..sampling import Constraint, Matcher, SamplingParams, Stream
from .draft import Draft

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
    error: Exception | None = (
        None  # what this row's own part of a step raised: it ends here, its neighbours do not
    )

    @property
    def room(self) -> int:
        """How many drafts can be of use: behind them one more token is always drawn."""
        return self.limit - len(self.output) - 1

    @property
    def free(self) -> bool:
        """Nothing forbids any token now."""
        return self.matcher is None and (len(self.output) >= self.least or not self.ends)

    def allowed(self, draft: Draft, size: int) -> tuple[list[Tensor], set[int]]:
        """One mask (V,) for each place of a draft, and the places where the grammar allows nothing.

        Places behind a draft that cannot come are never reached and allow all. A grammar goes before the least length:
        where it allows nothing but an end, the answer may end. The grammar goes down every branch and comes back.
        """
        everything = torch.ones(size, dtype=torch.bool)
        masks, dead = [everything] * (len(draft.tokens) + 1), set()
        ways, children = draft.ways(), draft.children()
        taken, todo = 0, [0]
        while todo:
            place = todo.pop()
            depth = len(ways[place])
            if self.matcher is not None and place:
                if taken >= depth:
                    self.matcher.rollback(taken - depth + 1)
                    taken = depth - 1
                if not self.matcher.advance(ways[place][-1]):
                    continue
                taken += 1
            mask = None if self.matcher is None else self.matcher.allowed()
            mask = everything if mask is None else mask
            if self.stuck or not bool(mask.any()):
                dead.add(place)
                continue
            if len(self.output) + depth < self.least:
                longer = mask.clone()
                longer[list(self.ends)] = False
                mask = longer if self.matcher is None or bool(longer.any()) else mask
            masks[place] = mask
            todo += [i + 1 for i in reversed(children[place]) if draft.tokens[i] not in self.ends]
        if self.matcher is not None and taken:
            self.matcher.rollback(taken)
        return masks, dead

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
