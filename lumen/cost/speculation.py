"""What drafting can gain: expected tokens per pass of the target, and the speed-up once the draft is paid.

α is the chance that a draft token is accepted, k the draft's length, c the cost of one draft step in target
steps. Source: Leviathan, Kalman, Matias 2023, Fast Inference from Transformers via Speculative Decoding,
section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lumen.cost.mixed import predict_mixed
from lumen.cost.predict import CacheKind, predict_decode
from lumen.hardware import Chip
from lumen.inputs import nonnegative

if TYPE_CHECKING:
    from lumen.config import ModelConfig


def expected_tokens(acceptance: float, draft_length: int) -> float:
    """Tokens that one pass of the target yields: (1 - α^(k+1)) / (1 - α), and k + 1 when α = 1."""
    nonnegative(draft_length=draft_length)
    if not 0 <= acceptance <= 1:
        raise ValueError(f"An acceptance rate lies between 0 and 1, got {acceptance}.")
    if acceptance == 1:
        return draft_length + 1.0
    return (1 - acceptance ** (draft_length + 1)) / (1 - acceptance)


def expected_tokens_limit(acceptance: float) -> float:
    """What `expected_tokens` tends to for endless drafts: 1 / (1 - α); infinite when α = 1."""
    return float("inf") if acceptance == 1 else 1 / (1 - acceptance)


def speculative_speedup(acceptance: float, draft_length: int, draft_cost: float) -> float:
    """Expected tokens over a round's cost, k·c + 1 target steps. Holds while the target is memory-bound."""
    nonnegative(draft_cost=draft_cost)
    return expected_tokens(acceptance, draft_length) / (draft_length * draft_cost + 1)


def best_draft_length(acceptance: float, draft_cost: float, longest: int = 64) -> tuple[int, float]:
    """The draft length with the best speed-up, and that speed-up; (0, 1.0) when drafting always loses."""
    speedups = [speculative_speedup(acceptance, k, draft_cost) for k in range(longest + 1)]
    best = max(range(longest + 1), key=speedups.__getitem__)
    return best, speedups[best]


def round_seconds(
    config: ModelConfig,
    chip: Chip,
    context: int,
    batch: int,
    draft_length: int,
    dtype: object = "bf16",
    *,
    drafter: ModelConfig | None = None,
    cache: CacheKind = "static",
) -> float:
    """Seconds of one round of a batch: `draft_length` steps of the model `drafter`, then one pass of the target over
    that many tokens and one more of each answer, at `context` keys each.

    Without a `drafter` drafts cost nothing. What verifying costs beyond a step is in here: in a large batch the pass
    is bound by arithmetic, and k + 1 tokens cost k + 1 times one.
    """
    nonnegative(draft_length=draft_length)
    if draft_length == 0:
        return predict_decode(config, chip, context, batch, dtype, cache=cache).seconds
    pieces = [(context - 1, draft_length + 1)] * batch
    rows = batch * (draft_length + 1)
    verify = predict_mixed(config, chip, pieces, dtype, head_rows=rows, cache=cache).seconds
    if drafter is None:
        return verify
    return verify + draft_length * predict_decode(drafter, chip, context, batch, dtype, cache=cache).seconds


def paying_length(acceptance: float, seconds: Sequence[float]) -> int:
    """The draft length with the most expected tokens a second, 0 if none pays. `seconds[k]`: a round with k drafts."""
    rates = [expected_tokens(acceptance, k) / each for k, each in enumerate(seconds)]
    return max(range(len(rates)), key=rates.__getitem__)
