"""GGUF's quantized blocks as fp32, the two kinds that the course's model uses.

A matrix is stored in blocks of 32 neighbouring values. `raw` is (blocks, bytes of one block), uint8:

    Q4_1   2 bytes scale (fp16), 2 bytes minimum (fp16), 16 bytes: value i in the low half of byte i, value i + 16
           in the high half; value = code * scale + minimum
    Q8_0   2 bytes scale (fp16), 32 signed bytes; value = code * scale

The same numbers, bit for bit, as the `gguf` package's formulas, which unpack every other kind; these use all cores
and write each value once or twice, so a model is there as soon as from a file of fp32 numbers five times as large.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

SIZE = 32  # values in a block


def q4_1(raw: Tensor) -> Tensor:
    """(n, 20) -> (n, 32)."""
    scale, low = raw[:, :4].contiguous().view(torch.float16).float().unbind(1)  # (n,), (n,)
    value = torch.empty(len(raw), 2, SIZE // 2)
    value[:, 0] = raw[:, 4:] & 15
    value[:, 1] = raw[:, 4:] >> 4
    return value.mul_(scale[:, None, None]).add_(low[:, None, None]).view(-1, SIZE)


def q8_0(raw: Tensor) -> Tensor:
    """(n, 34) -> (n, 32)."""
    scale = raw[:, :2].contiguous().view(torch.float16).float()  # (n, 1)
    return raw[:, 2:].view(torch.int8).float().mul_(scale)


UNPACK: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {"Q4_1": (20, q4_1), "Q8_0": (34, q8_0)}


def unpack(raw: np.ndarray, kind: str) -> np.ndarray | None:
    """The values of a whole tensor, flat, in fp32; None for a kind that is left to the `gguf` package."""
    if kind not in UNPACK:
        return None
    width, formula = UNPACK[kind]
    return (
        formula(torch.from_numpy(np.array(raw)).view(-1, width)).view(-1).numpy()
    )  # a copy: the map is read-only
