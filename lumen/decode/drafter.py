"""Drafters guess the next tokens of many rows at once; the step verifies the guesses, so a wrong one costs only time.

    class Always(Drafter):
        max_drafts = 2
        def propose(self, contexts):
            return [Draft([7, 7]) for _ in contexts]

A drafter with a model and a cache of its own learns from the next context what was accepted: it compares
`prompt + output` with the tokens that it has written for that `key` and rewinds to where they part.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import Tensor

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

    def saw(self, keys: Sequence[Hashable], drafts: Sequence[Draft], logits: Tensor) -> None:
        """What the model said of drafts: logits (N, V) hold len(draft) + 1 places of one row, then those of the next,
        before anything is kept or drawn. Not to be written to. Called behind the prompts too, with empty drafts."""

    def forget(self, key: Hashable) -> None:
        """The row has ended; whatever is kept for it can go."""


class NoDraft(Drafter):
    """The null object: every step is one token."""

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        return [NOTHING] * len(contexts)
