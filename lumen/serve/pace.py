"""How many drafts are asked for: as many as pay, by the cost model and by what was accepted so far.

    one answer        a pass reads all weights whatever it computes: drafts are nearly free to verify
    many answers      the pass is bound by arithmetic: each draft costs what a token costs, and a refused one is lost
    long contexts     the pass is bound by reading caches, once for all drafts of an answer: they pay in any crowd

So drafts shrink, then stop, as the batch grows, unless contexts are long (MagicDec, arXiv 2408.11049); how early
depends on how often they are right. vLLM's older engine had one number for it (speculative_disable_by_batch_size); Liu
et al. 2024, SmartSpec, arXiv 2406.14066, chooses the length for the most tokens a second, as here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..cost.speculation import paying_length
from ..decode.draft import NOTHING, Draft, matched
from ..decode.drafter import Context, Drafter

STEP = 128  # contexts are told apart by so many tokens: a round's price hardly changes within
FADE = (
    0.98  # of what was seen is left after a step: a text changes, and so does how often its drafts are right
)


@dataclass
class Acceptance:
    """The chance α that a draft is accepted, given that those before it were. `kept` of `tried` drafts were, beside
    `weight` imagined ones of which `prior` were: what is seen fades, and without news the belief returns there, so
    that who has stopped tries again."""

    prior: float = 0.7
    weight: float = 8.0
    kept: float = 0.0
    tried: float = 0.0

    def fade(self) -> None:
        self.kept, self.tried = FADE * self.kept, FADE * self.tried

    def add(self, kept: int, drafted: int) -> None:
        """Of a chain all kept ones were tried, and the one that was refused; what stood behind it was never asked."""
        self.kept, self.tried = self.kept + kept, self.tried + kept + (kept < drafted)

    @property
    def value(self) -> float:
        return (self.kept + self.weight * self.prior) / (self.tried + self.weight)


class Paced(Drafter):
    """`drafter`, asked for no more than pays. ValueError for one of trees.

    `seconds(batch, context, drafts)` is the price of a round, see `lumen.cost.round_seconds`. `length` is what was
    asked for last.
    """

    def __init__(self, drafter: Drafter, seconds: Callable[[int, int, int], float]):
        if drafter.max_nodes:
            raise ValueError(f"{type(drafter).__name__} drafts trees; a pace is known for chains only.")
        self.drafter, self.max_drafts, self.length = drafter, drafter.max_drafts, drafter.max_drafts
        self.acceptance = Acceptance()
        self._seconds = seconds
        self._prices: dict[tuple[int, int], list[float]] = {}
        self._outputs: dict[Hashable, int] = {}  # how long each answer was when its draft was made
        self._verified: dict[Hashable, Sequence[int]] = {}

    def propose(self, contexts: Sequence[Context]) -> Sequence[Draft]:
        self.acceptance.fade()
        for c in contexts:
            if tokens := self._verified.pop(c.key, ()):
                self.acceptance.add(matched(tokens, c.output[self._outputs[c.key] :]), len(tokens))
            self._outputs[c.key] = len(c.output)
        length = sum(len(c.prompt) + len(c.output) for c in contexts) / len(contexts)
        self.length = paying_length(self.acceptance.value, self._prices_of(len(contexts), length))
        if self.length == 0:
            return [NOTHING] * len(contexts)
        return self.drafter.propose([replace(c, room=min(c.room, self.length)) for c in contexts])

    def saw(self, keys: Sequence[Hashable], drafts: Sequence[Draft], logits: Tensor) -> None:
        """What was verified may be less than what was proposed: a scheduler cuts what has no room."""
        self._verified |= {k: d.tokens for k, d in zip(keys, drafts, strict=True) if k in self._outputs}
        self.drafter.saw(keys, drafts, logits)

    def forget(self, key: Hashable) -> None:
        self._outputs.pop(key, None)
        self._verified.pop(key, None)
        self.drafter.forget(key)

    def _prices_of(self, batch: int, length: float) -> list[float]:
        context = STEP * max(1, round(length / STEP))
        if (batch, context) not in self._prices:
            prices = [self._seconds(batch, context, drafts) for drafts in range(self.max_drafts + 1)]
            self._prices[batch, context] = prices
        return self._prices[batch, context]
