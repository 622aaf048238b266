"""Drafts from a smaller model: it says a few tokens by itself, and the model checks them all in one pass.

Leviathan et al. 2023, Fast inference from transformers via speculative decoding; Chen et al. 2023, Accelerating large
language model decoding with speculative sampling. The two must share a vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from ...inputs import whole
from ...models.passing import PLAIN, Channels
from ...sampling import SamplingParams, Stream, distribution, pick
from ..compiled import Model
from ..draft import NOTHING, Draft
from ..drafter import Context, Drafter
from .own import OwnCache

_OTHER = 0x9E3779B97F4A7C15  # makes another seed of a seed: drafts share no number with what judges them


class ModelDrafter(Drafter):
    """`model` drafts up to `max_drafts` tokens for each answer, all answers side by side, from a cache of its own.

    Drafts are drawn from the drafting model's own distribution under the request's settings, which is handed over with
    them; at temperature 0 they are its best tokens. A draft of k tokens takes k forwards of `model`, the first over
    whatever it has not read yet. `positions` is what its cache holds of all answers together; one that no longer fits,
    or is longer than the model knows positions, is not drafted for. `channels` are told to every forward: with an
    `exit`, the first layers of a model draft (Elhoushi et al. 2024, LayerSkip).
    """

    def __init__(
        self, model: Model, max_drafts: int = 4, positions: int = 16_384, channels: Channels = PLAIN
    ):
        self.max_drafts = whole(max_drafts, "max_drafts", 1)
        self.model = model
        self.cache = OwnCache(model, whole(positions, "positions", 1), channels=channels)
        self._streams: dict[Hashable, Stream] = {}

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        rows = [_Row(c, min(c.room, self.max_drafts), self._stream(c)) for c in contexts]
        while going := [row for row in rows if len(row.tokens) < row.depth]:
            hidden = self.cache.read([(row.context.key, row.text) for row in going])
            for row in going:
                if row.context.key not in hidden:
                    row.depth = len(row.tokens)
            if going := [row for row in going if row.context.key in hidden]:
                _draw(going, self.model.head(torch.stack([hidden[row.context.key] for row in going])))
        return [row.draft() for row in rows]

    def forget(self, key: Hashable) -> None:
        self.cache.forget(key)
        self._streams.pop(key, None)

    def _stream(self, context: Context) -> Stream:
        stream = self._streams.get(context.key)
        if stream is None:
            seed = context.params.seed
            other = None if seed is None else (seed ^ _OTHER) % 2**64
            stream = self._streams[context.key] = Stream(SamplingParams(seed=other))
        return stream


class _Row:
    """One answer while it is drafted for."""

    def __init__(self, context: Context, depth: int, stream: Stream):
        self.context, self.depth, self.stream = context, depth, stream
        self.text = [*context.prompt, *context.output]
        self.tokens: list[int] = []
        self.probs: list[Tensor] = []

    def draft(self) -> Draft:
        if not self.tokens:
            return NOTHING
        drawn = self.context.params.temperature > 0
        return Draft(self.tokens, torch.stack(self.probs) if drawn else None)


def _draw(rows: Sequence[_Row], logits: Tensor) -> None:
    """One more token for every row, from logits (rows, V)."""
    contexts = [row.context for row in rows]
    outputs = [[*row.context.output, *row.tokens] for row in rows]
    q = distribution(logits, [c.params for c in contexts], [c.prompt for c in contexts], outputs)
    uniform = [number for row in rows for number in row.stream.peek(1)]
    for row, token, probs in zip(
        rows, pick(q, torch.tensor(uniform, dtype=torch.float64)).tolist(), q, strict=True
    ):
        row.stream.use(1)
        row.tokens.append(token)
        row.text.append(token)
        row.probs.append(probs)
