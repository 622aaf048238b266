"""Tokens that an answer may not have: all but a few (`allowed_token_ids`), or the last one of a bad word.

A bad word is a run of tokens. Its last token is forbidden wherever the answer ends in the others, so that a word of one
token never comes and one of several never gets finished (transformers' NoBadWordsLogitsProcessor; vLLM's `bad_words`).
It is a rule about tokens: a word spelled by other tokens than the tokenizer's own gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WordRules:
    """A `Constraint`: calling it makes the matcher of one answer. ValueError for tokens outside the vocabulary, for an
    empty run, and where no token is left.

    `only` None allows all `vocab_size` tokens. An end of sequence that is not among `only` never comes.
    """

    vocab_size: int
    only: Collection[int] | None = None
    runs: Collection[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        if not all(self.runs):
            raise ValueError("A bad word without tokens forbids nothing; leave it out.")
        named = [*(self.only or ()), *(token for run in self.runs for token in run)]
        strange = next((token for token in named if not 0 <= token < self.vocab_size), None)
        if strange is not None:
            raise ValueError(f"There is no token {strange}; ids go from 0 to {self.vocab_size - 1}.")
        if not bool(self._always().any()):
            raise ValueError("These rules allow no token at all; allow one more, or forbid one less.")

    def __call__(self) -> WordMatcher:
        return WordMatcher(self._always(), [run for run in self.runs if len(run) > 1])

    def _always(self) -> Tensor:
        """What may come whatever came before: bool (V,)."""
        mask = torch.full((self.vocab_size,), self.only is None)
        mask[list(self.only or ())] = True
        mask[[run[0] for run in self.runs if len(run) == 1]] = False
        return mask


class WordMatcher:
    """Follows one answer; `always` (V,) holds everywhere, `runs` of two tokens or more where all but the last came."""

    def __init__(self, always: Tensor, runs: Sequence[tuple[int, ...]]):
        self._always, self._runs = always, runs
        self._longest = max(map(len, runs), default=0)
        self._came: list[int] = []

    def allowed(self) -> Tensor:
        if not (never := self._finishing()):
            return self._always
        mask = self._always.clone()
        mask[never] = False
        return mask

    def advance(self, token: int) -> bool:
        if not bool(self._always[token]) or token in self._finishing():
            return False
        self._came.append(token)
        return True

    def rollback(self, count: int) -> None:
        if count:
            del self._came[-count:]

    def _finishing(self) -> list[int]:
        """Last tokens of the runs that stand at the end of the answer but for them."""
        end = tuple(self._came[-self._longest :])
        return [run[-1] for run in self._runs if end[len(end) - len(run) + 1 :] == run[:-1]]


def spelled(words: Sequence[str], encode: Callable[[str], list[int]]) -> list[tuple[int, ...]]:
    """The runs of each word, at the start of a text and behind a blank. `encode` adds no special tokens."""
    ways = (way for word in words for way in (word.lstrip(), " " + word.lstrip()))
    return list(dict.fromkeys(tuple(encode(way)) for way in ways))
