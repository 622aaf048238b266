"""One step of decoding for many rows: propose -> forward -> verify -> rewind. `generate` and the engine both run it.

    propose   the drafter guesses how each row goes on, as far as the row may go on
    forward   the last token and the drafts of every row, in one pass: k + 1 tokens cost little more than one
    verify    every place behind them has its distribution; drafts are kept by one exact rule, and one token is new
    rewind    what stands behind the last kept draft is taken back; of a tree, one path is written and nothing else was

Without drafts this is the plain loop: one token in, one token out. The forward and the rewind belong to whoever owns
the cache: a rectangle of rows here (`forward`), blocks and tables in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..cache import Cache, Tree
from ..models.passing import PLAIN, Channels
from ..sampling import NoToken, distribution
from .accept import accept
from .draft import NOTHING, Draft
from .drafter import Context, Drafter
from .row import DEAD_END, Row

if TYPE_CHECKING:
    from .compiled import Model


def propose(drafter: Drafter, rows: Sequence[Row], vocab_size: int) -> list[Draft]:
    """One draft per row, cut to what the row may still become and to tokens that exist. ValueError for a draft whose
    probabilities have the wrong shape, a missing one, or a tree of a drafter that says it drafts none."""
    room = [min(row.room, drafter.max_drafts) for row in rows]
    asked = [i for i, most in enumerate(room) if most > 0]
    found = [NOTHING] * len(rows)
    if not asked:
        return found
    contexts = [Context(rows[i].key, rows[i].prompt, rows[i].output, room[i], rows[i].params) for i in asked]
    drafts = drafter.propose(contexts)
    if len(drafts) != len(contexts):
        raise ValueError(f"The drafter was asked about {len(contexts)} rows and answered {len(drafts)}.")
    for i, draft in zip(asked, drafts, strict=True):
        shape = len(draft.tokens), vocab_size
        if draft.probs is not None and tuple(draft.probs.shape) != shape:
            raise ValueError(
                f"A draft of {shape[0]} tokens needs probabilities {shape}, got {tuple(draft.probs.shape)}; drafter "
                "and model must share a vocabulary."
            )
        draft = draft.within(room[i])
        if draft.parents:
            if not drafter.max_nodes:
                raise ValueError(
                    f"{type(drafter).__name__} proposed a tree, but its max_nodes is 0, for chains. Set it to the most "
                    "tokens that a tree may have, where trees are verified: in `generate`, not yet in the engine."
                )
            draft = draft.first(drafter.max_nodes)
        strange = next((at for at, t in enumerate(draft.tokens) if not 0 <= t < vocab_size), None)
        found[i] = draft if strange is None else draft.first(strange)
    return found


def branched(cache: Cache, drafts: Mapping[int, Draft]) -> Tree | None:
    """What the forward runs over instead of the cache if a row has a tree: node 0 is the row's last token, node i + 1
    its draft i. `drafts` by row; a row without rests."""
    if not any(draft.parents for draft in drafts.values()):
        return None
    shapes: list[list[int]] = [[] for _ in range(cache.lengths.shape[0])]
    for row, draft in drafts.items():
        shapes[row] = [-1, *(parent + 1 for parent in draft.above)]
    return Tree(cache, shapes)


def forward(
    model: Model,
    cache: Cache,
    new: Sequence[Sequence[int]],
    channels: Callable[[int], Channels] = lambda width: PLAIN,
) -> Tensor:
    """Run every row's new tokens behind what the cache holds of it; a row without any rests (position -1). In a `Tree`
    they stand where the tree says. `channels(width)` is told beside a rectangle of that width.

    Returns the final hidden states (N, D) of the N new tokens, row by row.
    """
    width, device = max(map(len, new)), cache.lengths.device
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in new], device=device)
    if isinstance(cache, Tree):
        pos = cache.pos
    else:
        pos = cache.lengths[:, None]
        if width > 1:
            pos = pos + torch.arange(width, device=device)
    if any(len(row) < width for row in new):
        real = torch.tensor([[i < len(row) for i in range(width)] for row in new], device=device)
        pos = torch.where(real, pos, -1)
        return model.hidden(tokens, pos, cache, channels(width))[real]
    return model.hidden(tokens, pos, cache, channels(width)).flatten(0, 1)


@dataclass
class _Ask:
    """What one row brings into `verify`: `at` is its first place, `masks` what may come at each, None for anything."""

    row: Row
    draft: Draft
    at: int
    masks: list[Tensor] | None = None
    dead: set[int] = field(default_factory=set)

    @property
    def places(self) -> range:
        return range(self.at, self.at + len(self.draft.tokens) + 1)


def verify(rows: Sequence[Row], drafts: Sequence[Draft], logits: Tensor) -> list[list[int]]:
    """The new tokens of every row: the drafts that are kept and one more. None for a row that cannot go on: its
    `error` says why, a grammar's dead end, logits that are no numbers, whatever its matcher or parameters raised.

    logits (N, V): len(draft) + 1 places for each of `rows`, one behind the other. Each sees the drafts on its way from
    the last token alone, and the stream's number behind as many tokens. Random streams and grammars move on by what is
    returned, and nothing behind an end-of-sequence token is.
    """
    starts = [0, *accumulate(len(draft.tokens) + 1 for draft in drafts)]
    asks = [_Ask(row, draft, at) for row, draft, at in zip(rows, drafts, starts[:-1], strict=True)]
    if not all(row.free for row in rows):
        for ask in asks:
            try:
                ask.masks, ask.dead = ask.row.allowed(ask.draft, logits.shape[1])
            except Exception as error:
                ask.row.error = error
    going = [ask for ask in asks if ask.row.error is None]
    new = dict(zip((ask.at for ask in going), _chosen(going, logits), strict=True))
    return [_taken(ask, new.get(ask.at, [])) for ask in asks]


def _chosen(asks: Sequence[_Ask], logits: Tensor) -> list[list[int]]:
    """Each row's tokens. Nothing has been taken yet, so if rows raise together, each is asked alone, and whoever raises
    then has the error."""
    try:
        return _chosen_together(asks, logits) if asks else []
    except Exception as error:
        if len(asks) > 1:
            return [new for ask in asks for new in _chosen([ask], logits)]
        asks[0].row.error = error
        return [[]]


def _chosen_together(asks: Sequence[_Ask], logits: Tensor) -> list[list[int]]:
    ways = [ask.draft.ways() for ask in asks]
    places = [(ask.row, way) for ask, to in zip(asks, ways, strict=True) for way in to]
    if len(places) < logits.shape[0]:
        logits = logits[[place for ask in asks for place in ask.places]]
    prompts, outputs = None, None
    if any(ask.row.params.penalizes for ask in asks):
        prompts = [row.prompt for row, _ in places]
        outputs = [[*row.output, *way] for row, way in places]
    masks = [mask for ask in asks for mask in ask.masks or ()]
    allowed = torch.stack(masks) if masks else None
    probs = distribution(logits, [row.params for row, _ in places], prompts, outputs, allowed=allowed)
    uniform: list[float] = []
    for ask, to in zip(asks, ways, strict=True):
        ahead = ask.row.stream.peek(max(map(len, to)) + 1)
        uniform += [ahead[len(way)] for way in to]
    return accept(probs, [ask.draft for ask in asks], uniform)


def _taken(ask: _Ask, tokens: list[int]) -> list[int]:
    """Move a row on by its new tokens, up to the first dead place on their way."""
    row = ask.row
    if row.error is None:
        try:
            if new := row.take(tokens[: _reach(ask.draft, ask.dead, tokens)]):
                return new
            row.error = NoToken(DEAD_END)
        except Exception as error:
            row.error = error
    return []


def _reach(draft: Draft, dead: set[int], tokens: Sequence[int]) -> int:
    """How many of a row's new tokens come before the first dead place on their way."""
    if not dead:
        return len(tokens)
    way = [0, *(i + 1 for i in draft.path(tokens))]
    return next((count for count, place in enumerate(way) if place in dead), len(tokens))
