"""Drafters guess the next tokens of many rows at once; the step verifies the guesses, so a wrong one costs only time.

    class Always(Drafter):
        max_drafts = 2
        def propose(self, contexts):
            return [Draft([7, 7]) for _ in contexts]

A drafter with a model and a cache of its own learns from the next context what was accepted: it compares
`prompt + output` with the tokens that it has written for that `key` and rewinds to where they part.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..inputs import whole
from ..sampling import SamplingParams
from .draft import NOTHING, Draft


@dataclass(frozen=True)
class Context:
    """One row as a drafter sees it. `key` names it as long as it lives; drafts deeper than `room` are cut off."""

    key: Hashable
    prompt: Sequence[int]
    output: Sequence[int]
    room: int
    params: SamplingParams


class Drafter:
    """`propose` answers each context with a draft of `max_drafts` tokens at most, an empty one included.

    Drafters of trees say how many tokens a tree may have, `max_nodes`; `max_drafts` is then its depth.
    """

    max_drafts = 0
    max_nodes = 0  # chains only

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        raise NotImplementedError

    def forget(self, key: Hashable) -> None:
        """The row has ended; whatever is kept for it can go."""


class NoDraft(Drafter):
    """The null object: every step is one token."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        return [NOTHING] * len(contexts)


class NgramDrafter(Drafter):
    """Looks the last few tokens up in what was said before, and guesses that it goes on as it did then.

    The longest ending of `longest` to `shortest` tokens that occurred before counts, at its first occurrence. No
    model and no state. Saxena 2023, prompt lookup decoding; vLLM calls it the ngram method.
    """

    def __init__(self, max_drafts: int = 4, longest: int = 4, shortest: int = 2):
        self.max_drafts, self.longest = whole(max_drafts, "max_drafts", 1), whole(longest, "longest", 1)
        self.shortest = whole(shortest, "shortest", 1, self.longest)

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        return [self._look_up([*c.prompt, *c.output], min(c.room, self.max_drafts)) for c in contexts]

    def _look_up(self, tokens: list[int], room: int) -> Draft:
        text = array("q", tokens).tobytes()  # a search in bytes runs at memory speed; a token is 8 of them
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            ending = text[-8 * size :]
            at = text.find(ending, 0, len(text) - 8)
            while at % 8 and at >= 0:  # a match across tokens is none
                at = text.find(ending, at + 1, len(text) - 8)
            if at >= 0:
                start = at // 8 + size
                return Draft(tokens[start : start + room])
        return NOTHING
