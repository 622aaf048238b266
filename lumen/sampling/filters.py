"""The filters between logits and probabilities. Each takes logits (B, V) in fp32 and one setting per row, shape (B, 1).

A filter removes a token by setting its logit to -inf. Each leaves at least one token and is the identity at its
"off" value, so that rows with different settings share one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = float("-inf")
_NUCLEUS = 256
_SLACK = 1e-6  # probabilities are fp32: mass within 1e-6 of the threshold counts as having reached it


def penalize(
    logits: Tensor, prompt: Tensor, output: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Make tokens that were used less likely. Off at repetition 1, presence 0, frequency 0.

    `prompt` and `output` (B, V) count each token's occurrences. Repetition divides a positive logit and
    multiplies a negative one, over prompt and output (Keskar et al. 2019, CTRL, section 4.1). Presence
    subtracts once and frequency once per occurrence, over the output only (OpenAI API reference).
    """
    seen = (prompt + output) > 0
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(seen, repeated, logits)
    return logits - presence * (output > 0) - frequency * output


def temperature(logits: Tensor, value: Tensor) -> Tensor:
    """Divide by the temperature; 0 is greedy: only the largest logit is left, the lowest id among equals.

    The maximum is subtracted first, so that a tiny temperature overflows to -inf and never to NaN.
    """
    top, best = logits.max(-1, keepdim=True)
    greedy = torch.full_like(logits, NEVER).scatter_(-1, best, 0.0)
    warm = (logits - top) / value.clamp(min=torch.finfo(logits.dtype).tiny)
    return torch.where(value > 0, warm, greedy)


def top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Keep exactly the k largest logits; among equals the lower id wins. Off at 0. Fan et al. 2018, section 5.4."""
    most = min(int(k.max()), logits.shape[-1])
    if most < 1:
        return logits
    count = k.long().clamp(max=most)
    kept = _largest(logits, logits.topk(most, -1).values, count.clamp(min=1))
    return torch.where(count > 0, kept, logits)


def _largest(logits: Tensor, ordered: Tensor, count: Tensor) -> Tensor:
    """Keep the `count` (B, 1) largest logits; `ordered` holds at least as many of each row's logits, largest first."""
    last = ordered.gather(-1, count - 1)
    drop = logits < last
    if bool(
        (drop.sum(-1, keepdim=True) + count < logits.shape[-1]).any()
    ):  # several equal the last one that is kept
        equal = logits == last
        room = count - (logits > last).sum(-1, keepdim=True)
        drop |= equal & (equal.cumsum(-1) > room)
    return logits.masked_fill(drop, NEVER)


def _smallest_set(logits: Tensor, order: Tensor, mass: Tensor) -> Tensor:
    """Keep tokens in `order` until their probability reaches `mass`; the first is always kept."""
    probs = logits.softmax(-1).gather(-1, order)
    before = probs.cumsum(-1) - probs
    drop = before >= mass - _SLACK
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), NEVER)


def top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches p. Off at 1. Holtzman et al. 2020, section 3.1.

    The set is small as a rule, so only the `_NUCLEUS` likeliest are sorted, and all only where that is not enough.
    """
    total = logits.logsumexp(-1, keepdim=True)
    for size in (_NUCLEUS, logits.shape[-1]):
        ordered = logits.topk(min(size, logits.shape[-1]), -1).values
        probs = (ordered - total).exp()
        inside = probs.cumsum(-1) - probs < p - _SLACK
        count = inside.sum(-1, keepdim=True).clamp(min=1)
        if bool(((count < ordered.shape[-1]) | (p >= 1)).all()):
            break
    return torch.where(p < 1, _largest(logits, ordered, count), logits)


def min_p(logits: Tensor, p: Tensor) -> Tensor:
    """Drop tokens less likely than p times the likeliest. Off at 0. Nguyen et al. 2024, section 3."""
    probs = logits.softmax(-1)
    return logits.masked_fill(probs < p * probs.amax(-1, keepdim=True), NEVER)


def typical(logits: Tensor, p: Tensor) -> Tensor:
    """Keep the tokens with surprise closest to the entropy, up to mass p. Off at 1. Meister et al. 2023, section 4."""
    log_probs = logits.log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs.nan_to_num(neginf=0.0)).sum(-1, keepdim=True)
    distance = (-log_probs - entropy).abs()
    kept = _smallest_set(logits, distance.argsort(dim=-1, stable=True), p)
    return torch.where(p < 1, kept, logits)
