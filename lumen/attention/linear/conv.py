"""The short convolution in front of linear attention: each channel sees itself at the last few tokens.

    y_t = Σ_w weight[w] x_(t - K + 1 + w)        K taps, each channel by itself, the newest token under the last tap

It binds a token to its neighbours, which a state, summed over all tokens, cannot tell apart (Fu et al. 2023, H3,
section 3.1; in Mamba, DeltaNet and Qwen3-Next over q, k and v). The K - 1 tokens before the next one are its state.
"""

from __future__ import annotations

import torch
from torch import Tensor


def short_conv(
    x: Tensor, weight: Tensor, *, state: Tensor | None = None, pos: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """y (B, T, C) and the last K - 1 tokens (B, K - 1, C) of each row, for x (B, T, C) and weight (C, K).

    `state` is what the tokens before left, None at the beginning: zeros. pos (B, T): a token at -1 is padding, wherever
    it stands; the others see each other across it, it never enters the state, and its y is zero. ValueError for shapes
    that do not belong together.
    """
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[2] or weight.shape[1] < 1:
        raise ValueError(
            f"A short convolution takes x (B, T, C) and weight (C, K), got {tuple(x.shape)} and {tuple(weight.shape)}."
        )
    (batch, length, channels), taps = x.shape, weight.shape[1]
    before = x.new_zeros(batch, taps - 1, channels) if state is None else state
    if before.shape != (batch, taps - 1, channels) or (pos is not None and pos.shape != x.shape[:2]):
        raise ValueError(
            f"Beside x {tuple(x.shape)} the state is {(batch, taps - 1, channels)} and pos {(batch, length)}, got "
            f"{tuple(before.shape)} and {None if pos is None else tuple(pos.shape)}."
        )
    if pos is None:
        line = torch.cat([before, x], 1)
        return _slid(line, weight, length), line[:, length:].clone()  # a view would keep the whole text alive
    real = pos >= 0
    rank = real.cumsum(1) - 1  # which of its row's tokens each one is
    # state | tokens, one behind the other | nothing | what padding writes
    line = torch.cat([before, x.new_zeros(batch, length + 1, channels)], 1)
    place = torch.where(real, rank + taps - 1, length + taps - 1)
    line = line.scatter(1, _over(place, channels), x)[:, :-1]
    y = _slid(line, weight, length).gather(1, _over(rank.clamp(min=0), channels))
    newest = real.sum(1, keepdim=True) + torch.arange(taps - 1, device=x.device)
    return y.masked_fill(~real[..., None], 0.0), line.gather(1, _over(newest, channels))


def _slid(line: Tensor, weight: Tensor, length: int) -> Tensor:
    """The taps laid over `length` places of a line (B, K - 1 + length, C)."""
    y = line[:, :length] * weight[:, 0]
    for tap in range(1, weight.shape[1]):
        y = torch.addcmul(y, line[:, tap : tap + length], weight[:, tap])
    return y


def _over(index: Tensor, channels: int) -> Tensor:
    """index (B, N) for every channel: (B, N, C)."""
    return index[..., None].expand(-1, -1, channels)
