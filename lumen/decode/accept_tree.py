"""Which drafts of a tree are kept: one way down, so that what comes out has exactly the target's distribution p.

Chosen children: u draws a token from p; a child that is this token is kept, and the walk goes on behind it. Nothing is
drawn that would not be drawn without drafts.

Drawn children: the candidates behind a place are tried one after the other, each against what its elders left.

    keep c with probability min(1, p(c) / q(c))        else    p <- max(0, p - q), in proportion
                                                               q <- q without c, in proportion

When none is kept, the token is drawn from what is left of p. Each try is the rule for one draft, applied to the p that
is left: whatever it gives has that p as its distribution, so, from the last try back to the first, the token has the p
of the beginning. It takes only that c was drawn from this q: without replacement. Miao et al. 2024, SpecInfer, section
4.3 (independent draws); Jeon et al. 2024, recursive speculative decoding, and Chen et al. 2024, Sequoia (without).

One number u decides one token here too: given that c is refused, (u - p/q) / (1 - p/q) is uniform again and meets the
next candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..sampling import pick
from .draft import Draft


def walk(draft: Draft, tokens: Sequence[int]) -> list[int]:
    """The tokens, of those drawn at each place, on the way from place 0 down: kept drafts and one more."""
    children, place, new = draft.children(), 0, []
    while True:
        new.append(tokens[place])
        below = next((i for i in children[place] if draft.tokens[i] == tokens[place]), None)
        if below is None:
            return new
        place = below + 1


class _Walk:
    """One row on its way down its tree: who is still to be tried where it stands, and what came so far.

    `start` is its place 0 among the places of all rows, `first` its draft 0 among their drafts.
    """

    def __init__(self, draft: Draft, start: int, first: int, numbers: Sequence[float]):
        self.draft, self.start, self.first, self.numbers = draft, start, first, numbers
        self.children = draft.children()
        self.new: list[int] = []
        self.refused: list[int] = []
        self.stand(0)

    def stand(self, place: int) -> None:
        self.untried, self.refused = list(self.children[place]), []
        self.number = self.numbers[self.start + place]  # what is left of it

    def hear(self, draft: int, odds: float) -> bool:
        """Whether the draft is kept, which it is with probability `odds`."""
        kept, token = self.number < odds, self.draft.tokens[draft]
        if kept:
            self.new.append(token)
            self.stand(draft + 1)
        else:
            self.refused.append(token)
            self.number = (self.number - odds) / (1 - odds)
        return kept


def drawn_tree(
    probs: Tensor, drafts: Sequence[Draft], starts: Sequence[int], rows: Sequence[int], numbers: Tensor
) -> list[list[int]]:
    """The new tokens of `rows`, whose trees were drawn. In each round every row that has a candidate tries one.

    probs (N, V) and numbers (N) as in `accept`; `starts[row]` is place 0 of a row.
    """
    trees, flat = [drafts[row] for row in rows], numbers.tolist()
    firsts = accumulate((len(tree.tokens) for tree in trees), initial=0)
    walks = [_Walk(drafts[row], starts[row], first, flat) for row, first in zip(rows, firsts, strict=False)]
    q_of = torch.cat([tree.probs for tree in trees if tree.probs is not None]).to(probs)
    p = probs[[walk.start for walk in walks]]  # what is left of the target where each row stands
    while going := [row for row, walk in enumerate(walks) if walk.untried]:
        asked = [(walks[row], walks[row].untried.pop(0)) for row in going]
        q = _without(q_of[[walk.first + i for walk, i in asked]], [walk.refused for walk, _ in asked])
        ids = torch.tensor([[walk.draft.tokens[i]] for walk, i in asked], device=p.device)
        before, behind = p[going], probs[[walk.start + i + 1 for walk, i in asked]]
        odds = (before.gather(1, ids).double() / chance(q, ids))[:, 0].tolist()
        left = (before - q).clamp_(min=0)
        mass = left.sum(-1, keepdim=True)
        left = torch.where(mass > 0, left / mass, before)  # p equals q but for rounding
        kept = [walk.hear(i, odd) for (walk, i), odd in zip(asked, odds, strict=True)]
        p[going] = torch.where(torch.tensor(kept, device=p.device)[:, None], behind, left)
    ends = pick(p, torch.tensor([walk.number for walk in walks], dtype=torch.float64)).tolist()
    return [[*walk.new, end] for walk, end in zip(walks, ends, strict=True)]


def _without(q: Tensor, taken: Sequence[Sequence[int]]) -> Tensor:
    """q (R, V) without the tokens that each row's elders took, in proportion. q is written to."""
    places = [(row, token) for row, tokens in enumerate(taken) for token in tokens]
    if places:
        row, token = zip(*places, strict=True)
        q[list(row), list(token)] = 0
        q /= q.sum(-1, keepdim=True)
    return q


def chance(q: Tensor, ids: Tensor) -> Tensor:
    """What q (R, V) gives the drafts `ids` (R, 1), in fp64. ValueError if one has no chance: it was not drawn so."""
    own = q.gather(1, ids).double()
    if not bool((own > 0).all()):
        token = int(ids[int((own > 0).int().argmin())])
        raise ValueError(
            f"A draft's own distribution gives token {token} no chance, so it was not drawn from it; hand over the "
            "probabilities after temperature and filters, and draw siblings without replacement."
        )
    return own
