"""What drafting can gain: expected tokens per pass of the target, and the speed-up once the draft is paid.

α is the chance that a draft token is accepted, k the draft's length, c the cost of one draft step in target
steps. Source: Leviathan, Kalman, Matias 2023, Fast Inference from Transformers via Speculative Decoding,
section 3.
"""

from __future__ import annotations

from lumen.inputs import nonnegative


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
