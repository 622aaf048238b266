"""Numbers in few bits: a step and a smallest value for those that share a scale, codes side by side in bytes.

    x        -0.9   0.1   0.6   2.1          step = (max - min) / 15        codes = round((x - min) / step)
    codes       0     5     8    15          read: codes * step + min       at most half a step off
    bytes    0x80, 0xF5                      channel i lies beside channel i + width / 2: a shift reads it

Scales are rounded to two bytes first and codes are made for the scale that is stored, so a short scale costs range and
never a wrong sum. What is packed here is what dense caches, blocks and KIVI all store.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .quant_format import QuantFormat
from .quant_rotate import rotation

_LEAST = 2.0**-24  # a step is never zero: the smallest number of half precision


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """Two bytes: half precision; beside bfloat16 its own kind, whose range it may need."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float16


def quantize(x: Tensor, bits: int, dim: int, kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 to 2^bits - 1 of x, uint8; the step and the smallest value along `dim`, 1 wide there, as `kind`."""
    x, top = _exact(x), 2**bits - 1
    low, high = x.aminmax(dim=dim, keepdim=True)
    step, low = _short((high - low) / top, kind).clamp_min_(_LEAST), _short(low, kind)
    codes = (x - low.to(x.dtype)).div_(step.to(x.dtype)).round_().clamp_(0, top)
    return codes.to(torch.uint8), step, low


def quantize_signed(x: Tensor, bits: int, dim: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes around zero, int8, and the step along `dim`: the largest magnitude is the largest code."""
    x, top = _exact(x), 2 ** (bits - 1) - 1
    step = _short(x.abs().amax(dim, keepdim=True) / top, kind).clamp_min_(_LEAST)
    return (x / step.to(x.dtype)).round_().clamp_(-top, top).to(torch.int8), step


def _exact(x: Tensor) -> Tensor:
    """Wide enough to divide in: half precision would round the codes themselves."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _short(x: Tensor, kind: torch.dtype) -> Tensor:
    limit = torch.finfo(kind).max
    return x.clamp(-limit, limit).to(kind)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Codes uint8 (..., W) as bytes (..., W * bits / 8). Eight bits are bytes already."""
    if bits == 8:
        return codes
    first, *more = codes.chunk(8 // bits, -1)
    for place, part in enumerate(more, 1):
        first = first | (part << (bits * place))
    return first


def unpack_bits(packed: Tensor, bits: int) -> Tensor:
    """What `pack_bits` was given."""
    if bits == 8:
        return packed
    return torch.cat([(packed >> shift) & (2**bits - 1) for shift in range(0, 8, bits)], -1)


class TokenCodec:
    """Vectors of one head, each on its own: x (..., W) -> codes (..., bytes), scales (..., groups or twice as many)."""

    def __init__(self, form: QuantFormat, width: int, dtype: torch.dtype, device: torch.device | str):
        self.form, self.dtype, self.groups = form, dtype, form.groups(width)
        self.layout = (
            (form.packed(width), torch.int8 if form.symmetric else torch.uint8),
            (form.scales(width), scale_dtype(dtype)),
        )
        self._turn = rotation(width, dtype, device) if form.rotated and width else None

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (_, code), (_, kind) = self.layout
        if self.groups == 0:
            return x.to(code), x.to(kind)
        if self._turn is not None:
            x = x @ self._turn
        grouped = x.unflatten(-1, (self.groups, -1))
        if self.form.symmetric:
            codes, step = quantize_signed(grouped, self.form.bits, -1, kind)
            return codes.flatten(-2), step.squeeze(-1)
        codes, step, low = quantize(grouped, self.form.bits, -1, kind)
        return pack_bits(codes.flatten(-2), self.form.bits), torch.cat([step, low], -2).squeeze(-1)

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        """(..., W) in the cache's dtype: one product, and one sum where there is a smallest value."""
        codes, scales = unpack_bits(codes, self.form.bits), scales.to(self.dtype)
        if self.groups == 0:
            return codes.to(self.dtype)
        if self.groups > 1:
            codes, scales = codes.unflatten(-1, (self.groups, -1)), scales.unsqueeze(-1)
        if self.form.symmetric:
            x = codes * scales
        else:
            step, low = scales.split(self.groups, -1 if self.groups == 1 else -2)
            x = (codes * step).add_(low)
        x = x.flatten(-2) if self.groups > 1 else x
        return x if self._turn is None else x @ self._turn.mT


class ChannelCodec:
    """The tokens of a block together: x (..., tokens, H, W) -> codes (..., tokens, H, bytes), scales (..., H, 2, W)."""

    def __init__(self, form: QuantFormat, width: int, dtype: torch.dtype, device: torch.device | str):
        self.form, self.dtype = form, dtype
        self.layout = (form.packed(width), torch.uint8), (width, scale_dtype(dtype))
        self._turn = rotation(width, dtype, device) if form.rotated else None

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self._turn is not None:
            x = x @ self._turn
        codes, step, low = quantize(x, self.form.bits, -3, self.layout[1][1])
        return pack_bits(codes, self.form.bits), torch.stack([step, low], -2).squeeze(-4)

    def decode(self, codes: Tensor, scales: Tensor) -> Tensor:
        step, low = scales.to(self.dtype).unsqueeze(-4).unbind(-2)
        x = (unpack_bits(codes, self.form.bits) * step).add_(low)
        return x if self._turn is None else x @ self._turn.mT
