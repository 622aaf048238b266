"""The parts that the two decoders share: norms, the rotary table, and attention with the cache passed in.

Shapes: B rows, T new tokens, D = hidden_size, H query heads, Hkv key/value heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..cache.base import NoCache
from ..config import ModelConfig
from .linear import Linear

if TYPE_CHECKING:
    from ..cache.base import Cache


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in fp32. (B, T, D) -> (B, T, D). Zhang and Sennrich 2019."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x.float(), self.weight.shape, self.weight.float(), self.eps).to(x.dtype)


def rope_table(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and signed sin of every position's angles, each (max_positions, head_dim), built in fp64 and kept in fp32.

    Angles in bf16 are off by whole turns at a few thousand positions, so the table never follows the model's
    dtype. The first half of sin is negated, which spares `rotate` an operation. Su et al. 2021, RoFormer,
    section 3.4; channel i is paired with i + head_dim/2 as in the Llama releases.
    """
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.arange(config.max_positions, dtype=torch.float64)[:, None] * config.rope_theta**-half
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1).float(), torch.cat([-sin, sin], -1).float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys to their positions. x (B, T, heads, head_dim); cos, sin (B, T, 1, head_dim)."""
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat([second, first], -1), sin).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query self-attention. Queries, keys and values come from one matrix: one weight read for three."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = (
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
        )
        self.window = config.window
        rows = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = Linear(config.hidden_size, rows, bias=config.bias)
        self.out = Linear(config.num_heads * config.head_dim, config.hidden_size, bias=config.bias)

    def forward(
        self, x: Tensor, pos: Tensor, cache: Cache, layer: int, turn: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D). `turn` is the rotary (cos, sin) of these positions, None with learned positions."""
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        turned, v = heads.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], 2)
        if turn is not None:
            turned = rotate(turned, *turn)
        q, k = turned.split([self.num_heads, self.num_kv_heads], 2)
        y = cache.attend(layer, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), pos, self.window)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Decoder(nn.Module):
    """What every decoder of the course answers to: `forward`, `hidden` and `head` over (tokens, pos, cache).

    A subclass sets `config`, `embed` and `lm_head`, and writes `run(tokens, pos, cache)`.
    """

    config: ModelConfig
    lm_head: nn.Linear

    def run(self, tokens: Tensor, pos: Tensor, cache: Cache) -> Tensor:
        raise NotImplementedError

    def hidden(self, tokens: Tensor, pos: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Final hidden states, normalised, ready for `head`. tokens (B, T) int64 -> (B, T, D).

        `pos` (B, T) holds absolute positions and -1 for padding; None means the next T positions of each row.
        With a cache the new keys and values are stored, and its `lengths` move on. Raises `CacheFull` before
        anything is written.
        """
        if tokens.dim() != 2 or tokens.shape[1] < 1:
            raise ValueError(f"tokens must be (B, T) with T at least 1, got {tuple(tokens.shape)}.")
        if pos is None:
            steps = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
            pos = steps if cache is None else cache.lengths[:, None] + steps
        if pos.shape != tokens.shape:
            held = "" if cache is None else f"; the cache holds {cache.lengths.shape[0]} rows"
            raise ValueError(
                f"pos must have the shape of tokens {tuple(tokens.shape)}, got {tuple(pos.shape)}{held}."
            )
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            # On a GPU this look would stall the stream; generate() checks there.
            check_range(tokens, pos, self.config)
        state = NoCache() if cache is None else cache
        state.begin(pos)
        x = self.run(tokens, pos, state)
        state.advance(pos)
        return x

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of any selection of hidden states. (..., D) -> (..., V)."""
        return self.lm_head(hidden)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run two tokens: what is done once, such as packing weights, is done now and not while a request waits."""
        self(torch.zeros((1, 2), dtype=torch.int64, device=next(self.parameters()).device))

    def forward(self, tokens: Tensor, pos: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Logits of every new token. tokens (B, T) int64 -> (B, T, V). See `hidden` for `pos` and `cache`."""
        return self.head(self.hidden(tokens, pos, cache))


def check_range(tokens: Tensor, pos: Tensor, config: ModelConfig) -> None:
    """Token ids inside the vocabulary and positions inside the model's range, or a sentence."""
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= config.vocab_size:
        raise ValueError(
            f"Token id {low if low < 0 else high} is outside the vocabulary of {config.name} "
            f"(0 to {config.vocab_size - 1}). Was the text encoded by another model's tokenizer?"
        )
    last = int(pos.max())
    if last >= config.max_positions:
        raise ValueError(
            f"Position {last} is past the last one that {config.name} knows ({config.max_positions - 1}). "
            "Shorten the prompt or ask for fewer new tokens."
        )
