"""FLOPs of a decoder, exact for its matmuls, and the textbook approximations beside them.

A multiply-add is two FLOPs. Norms, rotations, softmax and activation functions are left out: they are a few
FLOPs per value against hundreds in the matmuls, and they cost time by the bytes they move, which `predict`
counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lumen.cost.linear import CHUNK, state_flops
from lumen.cost.shapes import matmuls
from lumen.inputs import nonnegative
from lumen.models.counts import absorbs, expand_flops, pair_flops

if TYPE_CHECKING:
    from lumen.config import ModelConfig


@dataclass(frozen=True)
class Flops:
    """FLOPs by part. `attention` is q·k and p·v, the only part that grows with the context; what linear layers do with
    their states counts there, too, and does not grow."""

    projections: float
    attention: float
    mlp: float
    head: float

    @property
    def linear(self) -> float:
        """FLOPs of the layers' weight matrices, head left out."""
        return self.projections + self.mlp

    @property
    def total(self) -> float:
        return self.projections + self.attention + self.mlp + self.head


def _flops(
    config: ModelConfig, rows: float, attention: float, head_rows: float, chunk: int | None = None
) -> Flops:
    """`rows` through the layers, `head_rows` through the head, and the FLOPs of attention to keys in all layers."""
    table = matmuls(config)
    per_row = {
        part: sum(2 * m.active for m in table if m.part == part) for part in ("projections", "mlp", "head")
    }
    attention += state_flops(config, chunk) * rows
    return Flops(per_row["projections"] * rows, attention, per_row["mlp"] * rows, per_row["head"] * head_rows)


def flops_per_token(config: ModelConfig, context: int = 0) -> Flops:
    """FLOPs of one token that attends to `context` keys, itself included; 0 leaves attention to keys out. [FLOP]

    Per layer: 2 x weights, and 4·H·D·n for attention (q·k and p·v, a multiply-add each, over n keys). Query heads
    count, not KV heads: sharing keys saves bytes, not arithmetic. Latent attention: `models.counts.pair_flops`.
    """
    return _flops(config, 1, pair_flops(config) * keys_seen(config, context), 1)


def keys_seen(config: ModelConfig, context: int) -> int:
    """Keys that a token sees in all layers together: `context` in each, fewer where a window ends the view."""
    return sum(context if window is None else min(context, window) for window in windows_of(config))


def windows_of(config: ModelConfig) -> list[int | None]:
    """How far back each layer sees that attends to keys; linear layers do not."""
    return [config.window_of(layer) for layer in range(config.num_layers) if not config.is_linear(layer)]


def causal_pairs(prompt: int, cached: int = 0, window: int | None = None) -> int:
    """(query, key) pairs of a causal prefill: Σ over positions of the keys each one sees. Exact.

    With `cached` keys before the prompt and no window: P·cached + P(P+1)/2.
    """
    first, last = cached + 1, cached + prompt  # keys seen by the first and by the last new token
    if window is None or last <= window:
        return prompt * (first + last) // 2
    growing = max(0, window - cached)  # tokens that still see everything before them
    return growing * (first + cached + growing) // 2 + (prompt - growing) * window


def prefill_flops(
    config: ModelConfig,
    prompt: int,
    batch: int = 1,
    *,
    cached: int = 0,
    head_rows: Literal["last", "all"] = "last",
    causal: bool = True,
) -> Flops:
    """FLOPs of `batch` prompts of `prompt` new tokens behind `cached` tokens. [FLOP]

    `causal=True` counts the pairs that are visible. `causal=False` counts the whole rectangle P x (cached +
    P), which an attention that computes and then masks performs and which torch's FLOP counter reports.
    `head_rows="last"` puts one row a sequence through the head, as generation needs; "all" puts every row,
    as perplexity needs.
    """
    nonnegative(prompt=prompt, batch=batch, cached=cached)
    if prompt < 1 or batch < 1:
        raise ValueError(
            f"A prefill needs a prompt and a batch of at least 1, got prompt={prompt}, batch={batch}."
        )
    full = prompt * (cached + prompt)
    pairs = sum(causal_pairs(prompt, cached, window) if causal else full for window in windows_of(config))
    rows, absorbed = batch if head_rows == "last" else batch * prompt, absorbs(config, prompt)
    attention = pair_flops(config, absorbed) * pairs
    if not absorbed:  # what lies in front is expanded too; the prompt's own share is among the projections
        attention += cached * expand_flops(config) * len(windows_of(config))
    return _flops(
        config, batch * prompt, batch * attention, rows, None if prompt == 1 else min(prompt, CHUNK)
    )


def step_flops(config: ModelConfig, batch: int, context: int) -> Flops:
    """FLOPs of a decode step: `batch` new tokens that see `context` keys each, their own included. [FLOP]"""
    return _flops(config, batch, batch * pair_flops(config) * keys_seen(config, context), batch)


def crossover_context(config: ModelConfig) -> float:
    """The context at which attention costs as many FLOPs as the layers' weight matrices. [tokens]

    2·(weights of a layer) / (FLOPs of a pair, 4·H·D). 6d for multi-head attention with a GELU MLP of 4d; 26,624 for
    Llama-3-8B. For a token with that many keys; a causal prefill, whose tokens see half of it on average,
    crosses at twice this length. Of a hybrid: the layers' matrices together, and the keys of those that attend.
    """
    attending = len(windows_of(config))
    if not attending:
        raise ValueError(f"{config.name} has linear layers only: nothing in it grows with the context.")
    return flops_per_token(config).linear / attending / pair_flops(config)


def approx_token_flops(num_parameters: float) -> float:
    """2N: FLOPs of a token by the rule of thumb, one multiply-add a parameter. [FLOP]"""
    return 2 * num_parameters


def approx_prefill_flops(num_parameters: float, prompt: int) -> float:
    """2NP: FLOPs of a prompt by the rule of thumb; leaves attention's square out. [FLOP]"""
    return 2 * num_parameters * prompt


def approx_layer_flops(width: int, context: int) -> int:
    """24d² + 4nd: one token in one layer, multi-head attention, an MLP of two matrices and width 4d. [FLOP]

    8d² projections, 16d² MLP, 4nd attention over n keys.
    """
    return 24 * width**2 + 4 * context * width


def active_share(active: float, total: float) -> float:
    """Share of a mixture of experts that one token uses: FLOPs follow `active`, memory `total`."""
    return active / total
