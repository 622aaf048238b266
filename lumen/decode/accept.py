"""Which drafts are kept, so that what comes out has exactly the target's distribution p, whatever drafted it.

A draft d drawn from q is kept with probability min(1, p(d) / q(d)); where it is not, the token is drawn from what p has
over q, max(0, p - q) in proportion; behind the last kept draft stands a token from p itself. Leviathan et al. 2023,
algorithm 1; Chen et al. 2023, section 2. Greedy falls out of it: p has all its mass on one token.

One number u of the row's stream decides one token. Drawn drafts: kept if u < p/q, and given that it is not, the rest of
the interval, (u - p/q) / (1 - p/q), is uniform again and draws from the residual. Chosen drafts (q has all its mass on
d): u draws a token from p, and d is kept if it is that token, which has the odds p(d); if not, the token has the
residual's distribution. So a seeded answer with chosen drafts is, token for token, the answer without drafts.

Trees are the same rule with more than one try: see `accept_tree`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from ..sampling import pick
from .accept_tree import chance, drawn_tree, walk
from .draft import Draft, matched


def accept(probs: Tensor, drafts: Sequence[Draft], uniform: Sequence[float]) -> list[list[int]]:
    """The new tokens of every sequence: its accepted drafts and one more.

    probs (N, V) and `uniform` (N) hold len(draft) + 1 places of one sequence, then those of the next: behind its last
    token and behind each of its drafts, the target's distribution and the number that decides the token there.
    """
    numbers = torch.tensor(uniform, dtype=torch.float64)
    starts = [0, *accumulate(len(d.tokens) + 1 for d in drafts)]
    drawn = [row for row, d in enumerate(drafts) if d.probs is not None and d.tokens]
    if not drawn:
        return _chosen(probs, drafts, numbers)
    chains, trees = ([row for row in drawn if bool(drafts[row].parents) == tree] for tree in (False, True))
    new: dict[int, list[int]] = {}
    if chains:
        new |= zip(chains, _drawn(probs, drafts, starts, chains, numbers), strict=True)
    if trees:
        new |= zip(trees, drawn_tree(probs, drafts, starts, trees, numbers), strict=True)
    others = [row for row in range(len(drafts)) if row not in new]
    if others:
        at = [place for row in others for place in range(starts[row], starts[row + 1])]
        new |= zip(others, _chosen(probs[at], [drafts[row] for row in others], numbers[at]), strict=True)
    return [new[row] for row in range(len(drafts))]


def _chosen(probs: Tensor, drafts: Sequence[Draft], numbers: Tensor) -> list[list[int]]:
    """Draw a token at every place; drafts are kept as long as they are the token that was drawn."""
    tokens, at, new = pick(probs, numbers).tolist(), 0, []
    for draft in drafts:
        if draft.parents:
            new.append(walk(draft, tokens[at:]))
        else:
            kept = matched(draft.tokens, tokens[at:])
            new.append(tokens[at : at + kept + 1])
        at += len(draft.tokens) + 1
    return new


def _drawn(
    probs: Tensor, drafts: Sequence[Draft], starts: Sequence[int], rows: Sequence[int], numbers: Tensor
) -> list[list[int]]:
    """Keep drafts by p/q; then one draw per sequence, from the residual or, behind the last draft, from p."""
    places = [starts[row] + i for row in rows for i in range(len(drafts[row].tokens))]
    ids = torch.tensor([t for row in rows for t in drafts[row].tokens], device=probs.device)[:, None]
    q = torch.cat([d.probs for row in rows if (d := drafts[row]).probs is not None]).to(probs.device).float()
    p = probs[places]
    ratio = (p.gather(1, ids).double() / chance(q, ids))[:, 0].tolist()
    left = (p - q).clamp_(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, p)  # p equals q but for rounding
    new, final, last, at = [], [], [], 0
    for row in rows:
        count, start = len(drafts[row].tokens), starts[row]
        u = numbers[start : start + count + 1].tolist()
        odds = ratio[at : at + count]
        kept = next((i for i in range(count) if not u[i] < odds[i]), count)
        rejected = kept < count
        final.append(left[at + kept] if rejected else probs[start + count])
        last.append((u[kept] - odds[kept]) / (1 - odds[kept]) if rejected else u[count])
        new.append(list(drafts[row].tokens[:kept]))
        at += count
    ends = pick(torch.stack(final), torch.tensor(last, dtype=torch.float64)).tolist()
    return [[*tokens, end] for tokens, end in zip(new, ends, strict=True)]
