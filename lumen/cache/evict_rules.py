"""Which keys to keep when not all may stay: a rule is one `score`, and keys of a higher score stay longer.

    H2O              what was read most so far, and the newest           Zhang et al. 2023, algorithm 1
    SnapKV           what the prompt's last queries read                 Li et al. 2024, sections 3 and 4, listing 1
    KeyNorm          keys of a small norm                                Devoto et al. 2024, section 3
    SinksAndNewest   the first few and the newest                        Xiao et al. 2023, StreamingLLM: the same set
    Newest, Random   baselines

Each key/value head of each layer chooses for itself. Where a group of query heads shares it (GQA), what they read is
added up: one key is kept for all of them or for none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from ..inputs import real, whole


@dataclass(frozen=True)
class Held:
    """What a rule may look at: the keys of one layer, in any order.

    k (B, Hkv, S, D), v (B, Hkv, S, Dv), pos (B, Hkv, S) with -1 in slots that hold nothing, lengths (B,): the position
    of each row's next token. `read` (B, Hkv, S): the attention that each key got, summed over query heads and over the
    queries that the rule looks at; zeros for rules that look at none.
    """

    k: Tensor
    v: Tensor
    pos: Tensor
    read: Tensor
    lengths: Tensor
    budget: int
    layer: int

    def newest(self, count: int) -> Tensor:
        """The keys of the last `count` positions of each row: bool (B, Hkv, S)."""
        return self.pos >= (self.lengths - count)[:, None, None]


class Rule:
    """`weighs`: the rule looks at the attention of every query. `observes`: at that of the prompt's last so many."""

    weighs = False
    observes = 0

    @property
    def least(self) -> int:
        """The smallest budget that this rule makes sense with."""
        return 1

    def score(self, held: Held) -> Tensor:
        """How much each key is worth: (B, Hkv, S), inf for what must stay. What it says of empty slots is ignored."""
        raise NotImplementedError


@dataclass(frozen=True)
class H2O(Rule):
    """Heavy hitters: the attention that a key has got from all queries so far. Zhang et al. 2023.

    `recent` is the share of the budget that the newest keys take whatever they got. A sum favours old keys, which more
    queries have seen; `mean` divides by how many could see them, as kvpress does (ObservedAttentionPress).
    """

    recent: float = 0.5
    mean: bool = False
    weighs = True

    def __post_init__(self) -> None:
        real(self.recent, "recent", 0.0, 1.0)

    def score(self, held: Held) -> Tensor:
        read = held.read
        if self.mean:
            read = read / (held.lengths[:, None, None] - held.pos).clamp(min=1)
        return read.masked_fill(held.newest(int(self.recent * held.budget)), math.inf)


@dataclass(frozen=True)
class SnapKV(Rule):
    """What the last `observes` queries of the prompt read of it, pooled so that neighbours stay together.

    Li et al. 2024. Maximum over `kernel` positions as in their configurations; "mean" as in kvpress. The observed
    tokens' own keys always stay, and the attention among them counts nothing. Heads of a group are added up before a
    maximum is taken; for means the order, which is the other one in kvpress, makes no difference. The kernel is to span
    what belongs together: around the first digit of a number, one digit a token, 7 positions end three digits further.
    """

    observes: int = 32
    kernel: int = 7
    pooling: Literal["max", "mean"] = "max"

    def __post_init__(self) -> None:
        whole(self.observes, "observes", 1)
        if whole(self.kernel, "kernel", 1) % 2 == 0:
            raise ValueError(
                f"A pooling kernel has a middle, so it is odd; got {self.kernel}, take {self.kernel + 1}."
            )
        if self.pooling not in ("max", "mean"):
            raise ValueError(f'pooling is "max" or "mean", got {self.pooling!r}.')

    @property
    def least(self) -> int:
        return self.observes + 1

    def score(self, held: Held) -> Tensor:
        observed = held.newest(self.observes)
        order = held.pos.argsort(-1)  # pooling is over neighbours in the text, not in the slots
        read = held.read.masked_fill(observed, 0.0).gather(-1, order)
        pool = F.max_pool1d if self.pooling == "max" else F.avg_pool1d
        pooled = pool(read, self.kernel, 1, self.kernel // 2)
        # A maximum makes neighbours equal: of equals the later one stays, whatever slots they are in.
        rank = pooled.argsort(dim=-1, stable=True).argsort(-1).float()
        return torch.empty_like(rank).scatter(-1, order, rank).masked_fill(observed, math.inf)


@dataclass(frozen=True)
class KeyNorm(Rule):
    """Keys of a small Euclidean norm: they tend to be read much. Nobody's attention is needed. Devoto et al. 2024.

    RoPE keeps norms, so a token that is said twice has two equal keys in the first layer: the later one stays.
    """

    def score(self, held: Held) -> Tensor:
        return held.pos * 1e-13 - held.k.float().norm(dim=-1).double()


@dataclass(frozen=True)
class Newest(Rule):
    """A window: the newest keys. The baseline that loses the first token, and with it its fluency."""

    def score(self, held: Held) -> Tensor:
        return held.pos.float()


@dataclass(frozen=True)
class SinksAndNewest(Rule):
    """The first `sinks` keys and the newest: the set of StreamingLLM, at its old positions. Xiao et al. 2023."""

    sinks: int = 4

    def __post_init__(self) -> None:
        whole(self.sinks, "sinks", 0)

    @property
    def least(self) -> int:
        return self.sinks + 1

    def score(self, held: Held) -> Tensor:
        return held.pos.float().masked_fill(held.pos < self.sinks, math.inf)


@dataclass(frozen=True)
class Random(Rule):
    """Every set of keys is as likely as any other: each key has a number of its own, drawn once, that never changes.

    Drawing anew at each step would favour new keys, which have survived fewer draws. The number depends on row, layer,
    head and position; rows that `select` moves draw again.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        whole(self.seed, "seed")

    def score(self, held: Held) -> Tensor:
        rows, heads, _ = held.pos.shape
        places = torch.arange(rows * heads, device=held.pos.device).view(rows, heads, 1)
        return _scattered(_scattered(_scattered(places + self.seed) + held.layer) + held.pos).double()


def _scattered(x: Tensor) -> Tensor:
    """int64 -> int64 without visible order: the finaliser of splitmix64 (Steele et al. 2014), its constants signed."""
    x = x - 7046029254386353131
    x = (x ^ (x >> 30)) * -4658895280553007687
    x = (x ^ (x >> 27)) * -7723592293110705685
    return x ^ (x >> 31)
