"""Drafts from the model itself, by guessing many places at once and asking what it says there.

    text ... last ─ a1 ─ a2 ─ a3         row 0: guesses for the next places, each behind those before it
               │     │    │    │
               b0    b1   b2   b3        row 1: what was said behind row 0, one step ago
               │     │    │    │
               c0    c1   c2   c3        row 2

A column is a run of tokens that the model, asked again and again, has settled on: Jacobi's way to solve x = f(x). What
it says below the last row completes an n-gram, which goes into a pool under its first token; the rows move up by one.
N-grams of the pool that begin with the text's last token are the drafts that hope to be kept. All of it is one tree, so
one pass checks the drafts and goes on with the guesses. Fu et al. 2024, Break the sequential dependency of LLM
inference using lookahead decoding, sections 3.1 to 3.3.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

from torch import Tensor

from ...inputs import whole
from ..draft import Draft
from ..drafter import Context, Drafter


class LookaheadDrafter(Drafter):
    """`window` columns of guesses, n-grams of `ngram` tokens, at most `candidates` of them tried at a time.

    No model and no training, but a pass over up to `max_nodes` tokens. Guesses are the model's likeliest tokens, so
    they serve samples, too, less often. The first ones are random tokens of the text (`seed`).
    """

    def __init__(self, window: int = 5, ngram: int = 4, candidates: int = 5, seed: int = 0):
        self.window, self.ngram = whole(window, "window", 1), whole(ngram, "ngram", 2)
        self.candidates, self.seed = whole(candidates, "candidates", 1), whole(seed, "seed")
        self.max_drafts = max(window + ngram - 3, ngram - 1)
        self.max_nodes = window * (ngram - 1) - 1 + candidates * (ngram - 1)
        self._answers: dict[Hashable, _Guesses] = {}

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        drafts = []
        for c in contexts:
            text = [*c.prompt, *c.output]
            known = self._answers.get(c.key)
            if known is None:
                known = self._answers[c.key] = _Guesses(
                    self.window, self.ngram - 1, self.candidates, self.seed
                )
            known.move(text)
            drafts.append(known.tree())
        return drafts

    def saw(self, keys: Sequence[Hashable], drafts: Sequence[Draft], logits: Tensor) -> None:
        best, at = logits.argmax(-1).tolist(), 0
        for key, draft in zip(keys, drafts, strict=True):
            places = len(draft.tokens) + 1
            if key in self._answers:
                said = dict(zip(map(tuple, draft.ways()), best[at : at + places], strict=True))
                self._answers[key].hear(said)
            at += places

    def forget(self, key: Hashable) -> None:
        self._answers.pop(key, None)


class _Guesses:
    """One answer's window, `depth` rows of `width` guesses, and its pool. `rows[0][0]` is the text's last token."""

    def __init__(self, width: int, depth: int, most: int, seed: int):
        self.width, self.most, self.random = width, most, random.Random(seed)
        self.rows: list[list[int]] = [[] for _ in range(depth)]
        self.pool: dict[int, list[tuple[int, ...]]] = {}
        self.length = 0

    def move(self, text: Sequence[int]) -> None:
        """The text has grown: guesses for places that are known now go, random ones come behind the last."""
        for row in self.rows:
            del row[: len(text) - self.length]
            row += (self.random.choice(text) for _ in range(self.width - len(row)))
        self.rows[0][0], self.length = text[-1], len(text)

    def way(self, column: int) -> tuple[int, ...]:
        """The drafts on the way to the end of a column."""
        return (*self.rows[0][1 : column + 1], *(row[column] for row in self.rows[1:]))

    def tree(self) -> Draft:
        """The pool's candidates and all columns, merged where they begin alike."""
        tokens: list[int] = []
        parents: list[int] = []
        found: dict[tuple[int, int], int] = {}
        for way in [*self.pool.get(self.rows[0][0], ()), *map(self.way, range(self.width))]:
            at = -1
            for token in way:
                if (at, token) not in found:
                    found[at, token] = len(tokens)
                    tokens.append(token)
                    parents.append(at)
                at = found[at, token]
        return Draft(tokens, parents=parents)

    def hear(self, said: dict[tuple[int, ...], int]) -> None:
        """What the model says behind each way: n-grams for the pool, and the window's new last row."""
        new = [said.get(self.way(column)) for column in range(self.width)]
        for column, token in enumerate(new):
            if token is not None:
                first, *rest = (row[column] for row in self.rows)
                known = self.pool.setdefault(first, [])
                if (ngram := (*rest, token)) in known:
                    known.remove(ngram)
                known.append(ngram)
                del known[: -self.most]  # the latest are kept
        last = [
            self.rows[-1][0] if token is None else token for token in new
        ]  # cut off: the answer ends soon
        # Row r + 1 stands one place behind row r, so moved up it begins behind what was the last token.
        self.rows, self.length = [*self.rows[1:], last], self.length + 1
