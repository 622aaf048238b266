"""A random rotation before rounding: what was large in one channel is spread over all and wastes fewer codes.

A scale has to reach the largest of the numbers that share it. Turned by an orthogonal matrix, a vector keeps its length
and every product with another one that is turned alike, while each of its channels becomes a sum of all: an outlier of
size a among D channels becomes a / sqrt(D) everywhere. Ashkboos et al. 2024, QuaRot, section 4 (a Hadamard matrix with
random signs); Zandieh et al. 2025, TurboQuant, section 3 (any random rotation).

Caches undo it when they read, so nobody who reads need know.
"""

from __future__ import annotations

import torch
from torch import Tensor

SEED = 0  # every process turns alike: blocks travel


def rotation(width: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """An orthogonal matrix (width, width): x @ it turns, x @ it.mT turns back.

    Hadamard's with random signs where `width` is a power of two, of a random Gaussian otherwise.
    """
    draw = torch.Generator().manual_seed(SEED)
    if width & (width - 1):
        q, r = torch.linalg.qr(torch.randn(width, width, generator=draw, dtype=torch.float64))
        turn = q * r.diagonal().sign()
    else:
        signs = torch.randint(2, (width, 1), generator=draw, dtype=torch.float64) * 2 - 1
        turn = signs * hadamard(width) / width**0.5
    return turn.to(dtype).to(device)


def hadamard(width: int) -> Tensor:
    """Sylvester's matrix of +1 and -1, (width, width), rows orthogonal; `width` is a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < width:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix
