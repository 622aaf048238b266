"""Drafts from the text itself: what followed the last few tokens when they stood there before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ...inputs import whole
from ..draft import NOTHING, Draft
from ..drafter import Context, Drafter


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
