"""What a drafter hands over: guesses for the next tokens, as a chain or as a tree.

    tokens    7  4  9  3        last token ─┬─ 7 ─┬─ 4
    parents  -1  0  0 -1                    │     └─ 9
                                            └─ 3

A place is where a token is decided: place 0 behind the last token, place i + 1 behind draft i. A chain is the tree in
which every place has one child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ..inputs import INT64, wholes


@dataclass(frozen=True)
class Draft:
    """Guesses for the tokens behind a context, in order.

    `parents[i]` is the draft that draft i continues, -1 for the last token; parents come before their children, and
    siblings differ. None: a chain, each draft continues the one before. ValueError for what is no such tree, and for
    tokens that are no whole numbers.

    `probs` (len(tokens), V) are the distributions that the tokens were drawn from, with numbers that the drafter does
    not share with the row; None: they were chosen, not drawn. Siblings are drawn one after the other without
    replacement, and how many are handed over does not depend on which they are. Each may hand over their common
    distribution: what its elders took is left out when it is verified.
    """

    tokens: Sequence[int] = ()
    probs: Tensor | None = None
    parents: Sequence[int] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", wholes(self.tokens, "tokens", -INT64))
        if self.parents is not None:
            object.__setattr__(self, "parents", wholes(self.parents, "parents", -INT64))
            _check(self.tokens, self.parents)

    @property
    def above(self) -> Sequence[int]:
        """The parent of every draft, a chain's included."""
        return range(-1, len(self.tokens) - 1) if self.parents is None else self.parents

    def first(self, count: int) -> Draft:
        """The draft cut to `count` tokens. The rest was never looked at, so nothing is lost but time."""
        count = max(0, count)
        if count >= len(self.tokens):
            return self
        probs, parents = self.probs, self.parents
        return Draft(
            self.tokens[:count],
            None if probs is None else probs[:count],
            None if parents is None else parents[:count],
        )

    def within(self, depth: int) -> Draft:
        """The draft cut to what can be among the next `depth` tokens."""
        if self.parents is None:
            return self.first(depth)
        levels: list[int] = []
        for parent in self.parents:
            levels.append(levels[parent] + 1 if parent >= 0 else 1)
        kept = [i for i, level in enumerate(levels) if level <= depth]
        if len(kept) == len(levels):
            return self
        new = {-1: -1} | {old: i for i, old in enumerate(kept)}
        probs = None if self.probs is None else self.probs[kept]
        return Draft([self.tokens[i] for i in kept], probs, [new[self.parents[i]] for i in kept])

    def ways(self) -> list[Sequence[int]]:
        """The drafts on the way to each place, as tokens: none to place 0."""
        if self.parents is None:
            return [self.tokens[:place] for place in range(len(self.tokens) + 1)]
        ways: list[Sequence[int]] = [()]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            ways.append((*ways[parent + 1], token))
        return ways

    def children(self) -> list[list[int]]:
        """The drafts behind each place, elder siblings first."""
        found: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for draft, parent in enumerate(self.above):
            found[parent + 1].append(draft)
        return found

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The drafts, from the top, that are the tokens which came; it ends at the first that is none."""
        if self.parents is None:
            return list(range(matched(self.tokens, tokens)))
        child = {
            (parent, token): i
            for i, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))
        }
        path: list[int] = []
        for token in tokens:
            draft = child.get((path[-1] if path else -1, token))
            if draft is None:
                break
            path.append(draft)
        return path


NOTHING = Draft()


def matched(drafts: Sequence[int], tokens: Sequence[int]) -> int:
    """How many drafts of a chain, from the first on, are the tokens that came."""
    return next(
        (i for i, (d, t) in enumerate(zip(drafts, tokens, strict=False)) if d != t),
        min(len(drafts), len(tokens)),
    )


def _check(tokens: Sequence[int], parents: Sequence[int]) -> None:
    if len(parents) != len(tokens):
        raise ValueError(f"A draft tree of {len(tokens)} tokens needs a parent for each, got {len(parents)}.")
    seen: set[tuple[int, int]] = set()
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if not -1 <= parent < i:
            raise ValueError(
                f"Draft {i} has parent {parent}; a parent is -1, the last token, or a draft before its child."
            )
        if (parent, token) in seen:
            raise ValueError(
                f"Draft {i} repeats token {token} behind {'the last token' if parent < 0 else f'draft {parent}'}; "
                "siblings differ, so merge what follows them."
            )
        seen.add((parent, token))
