"""A cache that keeps `budget` keys of each head and lets the others go; which ones, a rule says (see `evict_rules`).

    when   "always"   at most `budget` are left after each forward: memory stays what it is, however long the answer.
                      One slot more is reserved, where a new token is written before one of them leaves.
           "prompt"   the prompt is held until it ends, then `budget` keys of it are chosen, once; what comes later is
                      kept whole (Li et al. 2024, SnapKV; kvpress measures all rules in this way).

A forward that makes keys leave still reads them: its own answer is what it would be without. What stays keeps the
position that it had, so it is scored as a full attention would score it; only the others are missing from the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..attention.core import mask_for, weigh_with
from ..config import ModelConfig
from ..inputs import whole
from .base import MOST_ROWS, Cache
from .evict_rules import Held, Rule
from .evict_slots import Slots
from .traits import Expand, HasShape, Traits, storage_bytes, stored_dims

ROOM = 64  # free slots that a layer is given when an answer is kept whole
When = Literal["always", "prompt"]


class EvictingCache(Cache):
    """`budget` keys for each key/value head of each layer of a model, chosen by `rule`.

    `when` is "prompt" for rules that observe the prompt's last queries and "always" for others, unless it is given. A
    forward of many tokens holds them all while it runs: under "always" one layer's at a time. ValueError for a budget
    that is too small for the rule, and for a rule that observes where the model stores latents.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: int,
        budget: int,
        rule: Rule,
        when: When | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        rows, self.budget = whole(rows, "rows", 0, MOST_ROWS), whole(budget, "budget", 1)
        self.config, self.rule = config, rule
        self.when = when or ("prompt" if rule.observes else "always")
        if self.when not in ("always", "prompt") or (rule.observes and self.when == "always"):
            raise ValueError(
                f'when is "always" or "prompt", and "prompt" for a rule that observes the end of the prompt; got '
                f"{when!r} with {rule}."
            )
        if budget < rule.least:
            raise ValueError(
                f"{rule} needs a budget of {rule.least} keys at least, got {budget}. Give it more, or let the rule "
                "keep fewer of its own."
            )
        if rule.observes and config.latent is not None:
            raise ValueError(
                f"{rule} multiplies queries with stored keys, but {config.name} stores latents. Take a rule that "
                "observes nothing."
            )
        heads, *widths = stored_dims(config)
        k, v = (torch.zeros(rows, heads, 0, width, dtype=dtype, device=device) for width in widths)
        self._empty = Slots(k, v, k.new_zeros(k.shape[:3]).long(), k.new_zeros(k.shape[:3]).float())
        read = [config.cache_layer(layer) for layer in range(config.num_layers)]
        self._readers = [read.count(layer) for layer in config.storing_layers]
        self.traits = Traits(
            math.inf, max_rewind=0, per_head=True, same_positions=False, weighs=rule.weighs,
            readable=not rule.observes,
        )  # fmt: skip
        self.reset()

    @classmethod
    def for_model(
        cls, model: HasShape, rows: int, budget: int, rule: Rule, when: When | None = None
    ) -> EvictingCache:
        """An empty cache on the model's device and in its dtype."""
        weight = next(model.parameters())
        return cls(model.config, rows, budget, rule, when, weight.dtype, weight.device)

    def reset(self) -> None:
        rows, config = self._empty.k.shape[0], self.config
        self.lengths = self._empty.pos.new_zeros(rows)
        self.held = self._empty.pos.new_zeros(rows)  # keys that each head of a row holds
        self.layers = [self._empty] * len(self._readers)
        self.q_pos = self._empty.pos.new_zeros(rows, 0)  # of the queries that the rule observes
        none = self._empty.k.new_zeros(rows, config.num_heads, 0, config.head_dim)
        self.queries = [none] * (len(self._readers) if self.rule.observes else 0)
        self._prompt_ended = False

    def begin(self, pos: Tensor) -> None:
        super().begin(pos)
        after = self.held + (pos >= 0).sum(1)
        most: list[int] = torch.stack([self.held, after]).amax(1).tolist() if len(pos) else [0, 0]
        self._most, self._most_after = most  # keys that any head holds before this forward, and with its own
        self._ends = torch.maximum(self.lengths, pos.amax(1) + 1)
        self._after: dict[int, Slots] = {}
        self._asked: dict[int, Tensor] = {}
        self._left = list(self._readers)
        if self.queries:
            known = torch.cat([self.q_pos, pos], 1)
            self._last = known.topk(min(self.rule.observes, known.shape[1]), 1).indices
            self._last_pos = known.gather(1, self._last)

    def update(
        self, layer: int, k: Tensor, v: Tensor, pos: Tensor, q: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots, new = self.layers[layer], pos.shape[1]
        at = pos[:, None].expand(-1, k.shape[1], -1)
        if self.queries and q is not None:
            known = torch.cat([self.queries[layer], q], 2)
            self._asked[layer] = known.take_along_dim(self._last[:, None, :, None], 2)
        if self._most + new <= slots.size:
            after = slots.written(k, v, at)
        else:
            grows = self.when == "prompt" and slots.size > 0 and new < ROOM
            after = slots.joined(k, v, at, ROOM if grows else 0)
        self._after[layer] = after
        return after.k, after.v, after.pos if slots.size else pos

    def read(self, layer: int, q: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        slots = self._after.get(layer, self.layers[layer])
        return slots.k, slots.v, slots.pos

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        pos: Tensor,
        window: int | None = None,
        *,
        scale: float | None = None,
        causal: bool = True,
        expand: Expand | None = None,
    ) -> Tensor:
        out = super().attend(layer, q, k, v, pos, window, scale=scale, causal=causal, expand=expand)
        self._left[layer] -= 1
        if not self._left[layer]:  # layers that share these keys have read them, too
            self._evict(layer)
        return out

    def weigh(self, layer: int, weights: Tensor, pos: Tensor) -> None:
        read = self._after[layer].read
        read += _by_kv_head(weights, read.shape[1])

    def _evict(self, layer: int) -> None:
        """Let go of what this forward has in excess of the budget. It counts from `advance` on."""
        after = self._after[layer]
        if self.when == "prompt" or (self._most_after <= self.budget and after.size == self.budget + 1):
            return
        kept = self._best(layer, after, self._ends)
        if after.size == self.budget + 1:
            self._after[layer] = after.only(kept)
        else:
            self._after[layer] = after.chosen(kept, self.budget + 1 - kept.shape[2])

    def _best(self, layer: int, slots: Slots, lengths: Tensor) -> Tensor:
        """The `budget` slots (B, Hkv, N) that are worth most, or all where there are fewer; free ones come last."""
        worth = self.rule.score(Held(*slots, lengths, self.budget, layer)).masked_fill(
            slots.pos < 0, -math.inf
        )
        return worth.topk(min(self.budget, slots.size), -1).indices

    def advance(self, pos: Tensor) -> None:
        super().advance(pos)
        for layer in self._after:
            if self._left[layer]:  # a forward that left out layers, or wrote without reading
                self._evict(layer)
            self.layers[layer] = self._after[layer]
        self.held = self.held + (pos >= 0).sum(1)
        if self.when == "always":
            self.held.clamp_(max=self.budget)
        for layer, queries in self._asked.items():
            self.queries[layer], self.q_pos = queries, self._last_pos

    def prompt_ended(self) -> None:
        if self.when == "prompt" and not self._prompt_ended:
            cut = self.choosing(self.budget, self.rule)
            self.layers, self.held, self.queries, self._prompt_ended = cut.layers, cut.held, [], True

    def choosing(self, budget: int, rule: Rule, when: When = "prompt") -> EvictingCache:
        """What a cache of this budget and rule holds once the same prompt has ended: it is read once for all of them.

        This one stays as it is. ValueError where it has chosen already, or has not noted what the rule looks at.
        """
        if self.when == "always" or self._prompt_ended:
            raise ValueError(
                'Keys have left already, so no other rule can choose among them. Make the cache with when="prompt", '
                "and ask before the prompt ends."
            )
        if rule.observes > self.rule.observes or rule.weighs > self.rule.weighs:
            raise ValueError(
                f"{rule} looks at attention that {self.rule} has not noted. Read the prompt under a rule that weighs "
                "and observes as much as any that is to choose."
            )
        other = EvictingCache(
            self.config, len(self.lengths), budget, rule, when, self._empty.k.dtype, self._empty.k.device
        )
        other.lengths, other.held = self.lengths.clone(), self.held.clamp(max=budget)
        other.queries, other._prompt_ended = [], True
        for layer, slots in enumerate(self.layers):
            if not slots.size:  # nothing was read, and there is nothing to choose from
                continue
            if rule.observes:
                slots = slots._replace(read=self._observed(layer, slots, rule.observes))
            kept = other._best(layer, slots, self.lengths)
            free = ROOM if other.when == "prompt" else budget + 1 - kept.shape[2]
            other.layers[layer] = slots.chosen(kept, free)
        return other

    def _observed(self, layer: int, slots: Slots, count: int) -> Tensor:
        """What the prompt's last `count` queries read of each key: (B, Hkv, S)."""
        window = self.config.window_of(self.config.storing_layers[layer])
        last = self.q_pos.topk(min(count, self.q_pos.shape[1]), 1).indices
        q = self.queries[layer].take_along_dim(last[:, None, :, None], 2)
        mask = mask_for(self.q_pos.gather(1, last), slots.pos, window, q.dtype)
        _, weights = weigh_with(q, slots.k, slots.v, mask, self.config.query_scale)
        return _by_kv_head(weights, slots.pos.shape[1]).float()

    def rewind(self, lengths: Tensor | Sequence[int]) -> None:
        """Refused, unless it goes nowhere: what has left does not come back."""
        self._checked_lengths(lengths)

    def select(self, rows: Tensor | Sequence[int]) -> None:
        index = self._checked_rows(rows)
        self._empty, self.layers = self._empty.rows(index), [slots.rows(index) for slots in self.layers]
        self.queries, self.q_pos = [q[index] for q in self.queries], self.q_pos[index]
        self.lengths, self.held = self.lengths[index], self.held[index]

    @property
    def nbytes(self) -> int:
        """Keys, values, what the rule has noted of them, and the queries that it observes until the prompt ends."""
        noted = [x for slots in self.layers for x in (slots.k, slots.v, slots.read)]
        return storage_bytes([*noted, *self.queries])


def _by_kv_head(weights: Tensor, kv_heads: int) -> Tensor:
    """Weights (B, H, T, S) summed over queries and over the query heads that share a key/value head: (B, Hkv, S)."""
    return weights.unflatten(1, (kv_heads, -1)).sum((2, 3))
