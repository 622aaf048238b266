"""Drafts from the text itself: what followed the last few tokens when they stood there before."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from ...inputs import whole
from ..draft import NOTHING, Draft
from ..drafter import Context, Drafter


class NgramDrafter(Drafter):
    """Looks the last few tokens up in what was said before, and guesses that it goes on as it did then.

    The longest ending of `longest` to `shortest` tokens that occurred before counts, at its first occurrence. No
    model; an `Endings` for each answer. Saxena 2023, prompt lookup decoding; vLLM calls it the ngram method.
    """

    def __init__(self, max_drafts: int = 4, longest: int = 4, shortest: int = 2):
        self.max_drafts, self.longest = whole(max_drafts, "max_drafts", 1), whole(longest, "longest", 1)
        self.shortest = whole(shortest, "shortest", 1, self.longest)
        self._answers: dict[Hashable, Endings] = {}

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        return [self._look_up(c) for c in contexts]

    def forget(self, key: Hashable) -> None:
        self._answers.pop(key, None)

    def _look_up(self, c: Context) -> Draft:
        known = self._answers.get(c.key)
        if known is None:
            known = self._answers[c.key] = Endings(self.longest, self.shortest)
            known.extend(c.prompt)
        known.extend(c.output[len(known.tokens) - len(c.prompt) :])
        start = known.before()
        if start is None:
            return NOTHING
        return Draft(known.tokens[start : start + min(c.room, self.max_drafts)])


class Endings:
    """Where each run of `shortest` to `longest` tokens of a growing text ended first: a suffix index of bounded depth.

    A token costs an entry a length when it comes, and a look-up as many, whatever the text's length. `look_up` is the
    same without an index.
    """

    def __init__(self, longest: int, shortest: int):
        self.tokens: list[int] = []
        self._sizes = range(longest, shortest - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}

    def extend(self, new: Sequence[int]) -> None:
        """The text goes on. What ends with its last token has nothing behind it, so it is entered by the next call."""
        first = max(len(self.tokens), 1)
        self.tokens += new
        text = self.tokens
        for end in range(first, len(text)):
            for size in self._sizes:
                if size <= end:
                    self._ends.setdefault(tuple(text[end - size : end]), end)

    def before(self) -> int | None:
        """The place behind the first occurrence of the text's longest ending that occurred before; None if none did."""
        text = self.tokens
        places = (self._ends.get(tuple(text[-size:])) for size in self._sizes if size < len(text))
        return next((place for place in places if place is not None), None)


def look_up(tokens: Sequence[int], longest: int, shortest: int) -> int | None:
    """`Endings.before` of a text by a scan of all of it: a search in bytes, where a token is 8 of them."""
    text = array("q", tokens).tobytes()
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        ending = text[-8 * size :]
        at = text.find(ending, 0, len(text) - 8)
        while at % 8 and at >= 0:  # a match across tokens is none
            at = text.find(ending, at + 1, len(text) - 8)
        if at >= 0:
            return at // 8 + size
    return None
