"""The keys and values that a drafting model keeps of its own, for answers that come and go.

    known     p p p p p o o o o        what the answer consists of now
    written   p p p p p o o d d        what stands in the cache: the last drafts were refused
                           ^ from here on it is written again

A table of blocks for each answer, so that rows of any length run packed in one forward, a refused draft is written
over and an answer that ends gives its blocks back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...cache import BlockStore, CacheFull, PackedCache, Segment
from ...config import ModelConfig
from ...models.passing import PLAIN, Channels
from ..compiled import Model


@dataclass
class _Answer:
    table: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)  # the tokens that stand in the table's blocks


class OwnCache:
    """What `model` has read of each answer, within `positions` in all. `channels` are told to every forward, and
    `config` is the shape of what runs then.

    Whatever does not fit, in blocks or among the positions that the model knows, is not read: see `read`.
    """

    def __init__(self, model: Model, positions: int, block_size: int = 16, channels: Channels = PLAIN):
        self.model, self.channels = model, channels
        self.config = _shape(model.config, channels.exit)
        weight = next(model.parameters())
        num_blocks = -(-positions // block_size)
        self.store = BlockStore(self.config, num_blocks, block_size, weight.dtype, weight.device)
        self._answers: dict[Hashable, _Answer] = {}

    def read(self, known: Sequence[tuple[Hashable, Sequence[int]]]) -> dict[Hashable, Tensor]:
        """Bring the cache up to what is known of some answers: of each the hidden state (D,) behind its last token.

        Only what is new is computed. An answer for which there is no room is missing in what is returned, and loses
        what it had here: the next answers need it more.
        """
        segments: list[Segment] = []
        tokens: list[int] = []
        keys: list[Hashable] = []
        for key, text in known:
            answer = self._answers.setdefault(key, _Answer())
            start = min(_common(answer.written, text), len(text) - 1)
            if not self._reserve(answer, len(text)):
                self.forget(key)
                continue
            answer.written[start:] = text[start:]
            segments.append(Segment(answer.table, start, len(text) - start))
            tokens += text[start:]
            keys.append(key)
        if not keys:
            return {}
        try:
            cache = PackedCache(self.store, segments)
            hidden = self.model.hidden(
                torch.tensor([tokens], device=self.store.device), cache.pos, cache, self.channels
            )[0]
        except BaseException:  # nobody knows which layers were written
            for key in keys:
                self.forget(key)
            raise
        ends = torch.tensor([s.count for s in segments]).cumsum(0) - 1
        return dict(zip(keys, hidden[ends.to(hidden.device)], strict=True))

    def forget(self, key: Hashable) -> None:
        """Give an answer's blocks back."""
        answer = self._answers.pop(key, None)
        if answer is not None:
            self.store.pool.release(answer.table)

    def _reserve(self, answer: _Answer, length: int) -> bool:
        if length > self.model.config.max_positions:
            return False
        missing = -(-length // self.store.block_size) - len(answer.table)
        if missing > 0:
            try:
                answer.table += self.store.allocate(missing)
            except CacheFull:
                return False
        return True


def _shape(config: ModelConfig, layers: int | None) -> ModelConfig:
    """The model that runs: the first `layers`, or all. ValueError for one that keeps states."""
    if config.linear is not None:
        raise ValueError(
            f"{config.name} has linear layers, whose states cannot be taken back to where a draft was refused, so it "
            "cannot draft; take a model of attention alone."
        )
    return config if layers is None else config.with_(num_layers=layers, kv_from=config.kv_from[:layers])


def _common(written: Sequence[int], known: Sequence[int]) -> int:
    """How many tokens from the first on are the same."""
    size = min(len(written), len(known))
    if written[:size] == known[:size]:  # nearly always, and compared at memory speed
        return size
    return next(i for i in range(size) if written[i] != known[i])
