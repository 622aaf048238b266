"""`distribution` is the only source of probabilities: sampling, acceptance in speculation and residuals all read it.

Order of operations, as in Hugging Face transformers: logit bias, allowed tokens, penalties, temperature, top-k, top-p,
min-p, typical. Engines differ (llama.cpp applies the temperature last), so the order is part of the contract and is
tested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..inputs import as_float, as_int, shown, whole
from . import filters

SEEDS = -(2**63), 2**64 - 1  # those that torch's generators take
SMALL, LARGE = 1e-9, 1e9  # what a setting may be


class NoToken(ValueError):
    """No token can be drawn for a row. `why` is a sentence for whoever asked for it, without the row's number."""

    def __init__(self, why: str, row: int | None = None):
        super().__init__(why if row is None else f"Row {row} {why}")
        self.why = why if row is None else f"This answer {why}"


@dataclass(frozen=True)
class SamplingParams:
    """How one request turns logits into a token. The defaults sample from the model as it is.

    temperature 0 is greedy. `seed`, a whole number from -2^63 to 2^64 - 1, makes a request's draws its own, whatever
    shares its batch; None takes a random seed. A bias of -inf forbids its token. ValueError for a number outside its
    range: all are small enough that nothing made of them and of finite logits overflows in fp32.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None

    def __post_init__(self) -> None:
        limits = (
            ("temperature", SMALL, LARGE, f"0 (greedy) or between {SMALL:g} and {LARGE:g}", 0),
            ("top_k", 0, LARGE, f"0 (off) or a count up to {LARGE:g}", 0),
            ("top_p", 0, 1, "between 0 and 1 (off)", 1),
            ("min_p", 0, 1, "between 0 (off) and 1", 0),
            ("typical_p", 0, 1, "between 0 and 1 (off)", 1),
            ("repetition_penalty", SMALL, LARGE, f"between {SMALL:g} and {LARGE:g} (1 is off)", 1),
            ("presence_penalty", -LARGE, LARGE, f"between {-LARGE:g} and {LARGE:g} (0 is off)", 0),
            ("frequency_penalty", -LARGE, LARGE, f"between {-LARGE:g} and {LARGE:g} (0 is off)", 0),
        )
        for name, low, high, rule, off in limits:
            given = getattr(self, name)
            value = as_int(given) if name == "top_k" else as_float(given)
            if value is None or not (low <= value <= high or value == off):
                raise ValueError(f"{name} must be {rule}, got {shown(given)}.")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        if self.seed is not None:
            object.__setattr__(self, "seed", whole(self.seed, "seed", *SEEDS))

    @property
    def penalizes(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


def _biases(given: Any) -> dict[int, float]:
    """Biases by token id, -inf to forbid a token."""
    if not isinstance(given, Mapping):
        raise ValueError(f"logit_bias maps token ids to biases, got {shown(given)}.")
    found: dict[int, float] = {}
    for token, bias in given.items():
        value = as_float(bias)
        if value is None or not (-LARGE <= value <= LARGE or value == -math.inf):
            raise ValueError(
                f"logit_bias must be between {-LARGE:g} and {LARGE:g}, or -inf to forbid a token; token {shown(token)} "
                f"has {shown(bias)}."
            )
        found[whole(token, "A token id of logit_bias")] = value
    return found


GREEDY = SamplingParams(temperature=0.0)


def _counts(tokens: Sequence[Sequence[int]] | None, logits: Tensor) -> Tensor:
    counts = torch.zeros_like(logits)
    for row, ids in enumerate(tokens or ()):
        if len(ids):
            index = torch.as_tensor(list(ids), device=logits.device)
            counts[row].scatter_add_(0, index, torch.ones(len(ids), device=logits.device))
    return counts


def distribution(
    logits: Tensor,
    params: SamplingParams | Sequence[SamplingParams],
    prompt: Sequence[Sequence[int]] | None = None,
    output: Sequence[Sequence[int]] | None = None,
    *,
    drafts: Sequence[Sequence[int]] | None = None,
    allowed: Tensor | None = None,
) -> Tensor:
    """The probabilities that the next token is drawn from. logits (B, V) -> (B, V) in fp32, each row sums to 1.

    `params` is one for all rows or one per row. `prompt` and `output` are the token ids so far, row by row;
    only penalties read them. At temperature 0 all the mass is on one token. logits (B, T, V) -> (B, T, V): place t of
    a row stands behind its first t `drafts`. `allowed` bool (B, V) or (B, T, V) leaves the other tokens no chance.
    A logit of -inf is a token without a chance; NoToken where nothing else is left, and for NaN or +inf.
    """
    if logits.dim() not in (2, 3):
        raise ValueError(f"logits must be (B, V) or (B, T, V), got {tuple(logits.shape)}.")
    rows = [params] * logits.shape[0] if isinstance(params, SamplingParams) else list(params)
    if len(rows) != logits.shape[0]:
        raise ValueError(f"{len(rows)} sampling parameters for {logits.shape[0]} rows of logits.")
    if allowed is not None and (allowed.dtype != torch.bool or allowed.shape != logits.shape):
        raise ValueError(
            f"allowed must be bool of the logits' shape {tuple(logits.shape)}, got {allowed.dtype} "
            f"{tuple(allowed.shape)}."
        )
    if logits.dim() == 3:
        return _places(logits, rows, prompt, output, drafts, allowed)
    x = logits.float()
    _check(x)

    def column(name: str) -> Tensor:
        return torch.tensor([[float(getattr(p, name))] for p in rows], device=x.device)

    if any(p.logit_bias for p in rows):
        bias = torch.zeros_like(x)
        for row, p in enumerate(rows):
            for token, value in p.logit_bias.items():
                if not 0 <= token < x.shape[1]:
                    raise ValueError(
                        f"logit_bias names token {token}, outside the vocabulary (0 to {x.shape[1] - 1})."
                    )
                bias[row, token] = value
        x = x + bias
    if allowed is not None:
        x = x.masked_fill(~allowed.to(x.device), -math.inf)
    if any(p.penalizes for p in rows):
        x = filters.penalize(
            x, _counts(prompt, x), _counts(output, x),
            column("repetition_penalty"), column("presence_penalty"), column("frequency_penalty"),
        )  # fmt: skip
    if allowed is not None or any(p.logit_bias or p.penalizes for p in rows):
        _check(x)
    if not any(p.temperature for p in rows):  # every row greedy: no filter can change which token is left
        return torch.zeros_like(x).scatter_(-1, x.max(-1, keepdim=True).indices, 1.0)
    x = filters.temperature(x, column("temperature"))
    if any(p.top_k for p in rows):
        x = filters.top_k(x, column("top_k"))
    if any(p.top_p < 1 for p in rows):
        x = filters.top_p(x, column("top_p"))
    if any(p.min_p for p in rows):
        x = filters.min_p(x, column("min_p"))
    if any(p.typical_p < 1 for p in rows):
        x = filters.typical(x, column("typical_p"))
    return x.softmax(-1)


def _check(logits: Tensor) -> None:
    """Raise NoToken for a row (B, V) with NaN or +inf, or with nothing but -inf. The largest logit tells all three."""
    for row, most in enumerate(logits.amax(-1).tolist()):
        if most == -math.inf:
            raise NoToken(
                "is allowed no token at all; a grammar allows the end of sequence where nothing else may follow, and "
                "a logit bias of -inf leaves one token free.",
                row,
            )
        if not math.isfinite(most):
            raise NoToken(
                f"has logits that are no numbers ({most}): damaged weights, or a number too large for the dtype. "
                "Check the model's files, or load it in another dtype.",
                row,
            )


def _places(
    logits: Tensor,
    params: Sequence[SamplingParams],
    prompt: Sequence[Sequence[int]] | None,
    output: Sequence[Sequence[int]] | None,
    drafts: Sequence[Sequence[int]] | None,
    allowed: Tensor | None,
) -> Tensor:
    """(B, T, V): every place is a row of its own, whose output has grown by the drafts before it."""
    count, width, _ = logits.shape
    prompts, outputs = None, None
    if any(p.penalizes for p in params):
        prompts = [ids for ids in prompt or [[]] * count for _ in range(width)]
        outputs = [
            [*ids, *tail[:place]]
            for ids, tail in zip(output or [[]] * count, drafts or [[]] * count, strict=True)
            for place in range(width)
        ]
    flat = distribution(
        logits.flatten(0, 1), [p for p in params for _ in range(width)], prompts, outputs,
        allowed=None if allowed is None else allowed.flatten(0, 1),
    )  # fmt: skip
    return flat.unflatten(0, (count, width))
