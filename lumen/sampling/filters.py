"""The filters between logits and probabilities. Each takes logits (B, V) in fp32 and one setting per row, shape (B, 1).

A filter removes a token by setting its logit to -inf. Each leaves at least one token and is the identity at its
"off" value, so that rows with different settings share one call.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = float("-inf")
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
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ranks = torch.arange(logits.shape[-1], device=logits.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(-1, order, ranks)
    return logits.masked_fill((rank >= k) & (k > 0), NEVER)


def _smallest_set(logits: Tensor, order: Tensor, mass: Tensor) -> Tensor:
    """Keep tokens in `order` until their probability reaches `mass`; the first is always kept."""
    probs = logits.softmax(-1).gather(-1, order)
    before = probs.cumsum(-1) - probs
    drop = before >= mass - _SLACK
    drop[..., 0] = False
    return logits.masked_fill(torch.zeros_like(drop).scatter_(-1, order, drop), NEVER)


def top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep the smallest set of likeliest tokens whose mass reaches p. Off at 1. Holtzman et al. 2020, section 3.1."""
    kept = _smallest_set(logits, logits.argsort(dim=-1, descending=True, stable=True), p)
    return torch.where(p < 1, kept, logits)


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
