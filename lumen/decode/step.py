"""One step of decoding for many rows: propose -> forward -> verify -> rewind. `generate` and the engine both run it.

    propose   the drafter guesses how each row goes on, as far as the row may go on
    forward   the last token and the drafts of every row, in one pass: k + 1 tokens cost little more than one
    verify    every place behind them has its distribution; drafts are kept by one exact rule, and one token is new
    rewind    what stands behind the last kept draft is taken back

Without drafts this is the plain loop: one token in, one token out. The forward and the rewind belong to whoever owns
the cache: a rectangle of rows here (`forward`), blocks and tables in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..sampling import distribution
from .accept import accept
from .drafter import NOTHING, Context, Draft, Drafter
from .row import Row

if TYPE_CHECKING:
    from ..cache import Cache
    from ..models.layers import Decoder


def propose(drafter: Drafter, rows: Sequence[Row], vocab_size: int) -> list[Draft]:
    """One draft per row, cut to what the row may still become and to tokens that exist. ValueError for a draft whose
    probabilities have the wrong shape, or a missing one."""
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
        draft = draft.first(room[i])
        strange = next((at for at, t in enumerate(draft.tokens) if not 0 <= t < vocab_size), None)
        found[i] = draft if strange is None else draft.first(strange)
    return found


def forward(model: Decoder, cache: Cache, new: Sequence[Sequence[int]]) -> Tensor:
    """Run every row's new tokens behind what the cache holds of it; a row without any rests (position -1).

    Returns the final hidden states (N, D) of the N new tokens, row by row.
    """
    width, device = max(map(len, new)), cache.lengths.device
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in new], device=device)
    pos = cache.lengths[:, None]
    if width > 1:
        pos = pos + torch.arange(width, device=device)
    if any(len(row) < width for row in new):
        real = torch.tensor([[i < len(row) for i in range(width)] for row in new], device=device)
        pos = torch.where(real, pos, -1)
        return model.hidden(tokens, pos, cache)[real]
    return model.hidden(tokens, pos, cache).flatten(0, 1)


def verify(rows: Sequence[Row], drafts: Sequence[Draft], logits: Tensor) -> list[list[int]]:
    """The new tokens of every row: the drafts that are kept and one more. None where a grammar is at a dead end.

    logits (N, V): len(draft) + 1 rows for each of `rows`, one behind the other. Random streams and grammars move on by
    what is returned, and nothing behind an end-of-sequence token is.
    """
    both = list(zip(rows, drafts, strict=True))
    places = [(row, draft.tokens[:i]) for row, draft in both for i in range(len(draft.tokens) + 1)]
    prompts, outputs = None, None
    if any(row.params.penalizes for row in rows):
        prompts = [row.prompt for row, _ in places]
        outputs = [[*row.output, *before] for row, before in places]
    allowed, most = _allowed(rows, drafts, logits)
    probs = distribution(logits, [row.params for row, _ in places], prompts, outputs, allowed=allowed)
    uniform = [row.stream.peek(len(draft.tokens) + 1) for row, draft in both]
    new = accept(probs, drafts, list(chain.from_iterable(uniform)))
    return [row.take(tokens[:count]) for row, tokens, count in zip(rows, new, most, strict=True)]


def _allowed(rows: Sequence[Row], drafts: Sequence[Draft], logits: Tensor) -> tuple[Tensor | None, list[int]]:
    """The mask (N, V) of tokens that may come at each place, None if all may everywhere; and how many tokens each row
    can take before its grammar allows nothing more."""
    most = [len(draft.tokens) + 1 for draft in drafts]
    if all(row.free for row in rows):
        return None, most
    masks: list[Tensor] = []
    for i, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
        found, most[i] = row.allowed(draft.tokens, logits.shape[1])
        masks += found
    return torch.stack(masks), most
