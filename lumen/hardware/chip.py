"""What the cost model needs to know of a chip: how fast it computes, how fast it reads, how much it holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

Kind = Literal["datasheet", "measured", "estimate", "paper"]

# (size, rate) points of a measured curve, sizes rising
Curve = tuple[tuple[int, float], ...]


def at(curve: Curve, size: float) -> float:
    """A curve's value at `size`: straight lines between the points on log-log axes, flat beyond the ends.

    Next to a point of value 0 the line is straight in the value itself.
    """
    if not curve:
        raise ValueError("A curve without points has no value.")
    if size <= curve[0][0]:
        return curve[0][1]
    for (x0, y0), (x1, y1) in pairwise(curve):
        if size <= x1:
            share = math.log(size / x0) / math.log(x1 / x0)
            return y0 * (y1 / y0) ** share if y0 and y1 else y0 + share * (y1 - y0)
    return curve[-1][1]


@dataclass(frozen=True)
class Achieved:
    """What the operators of a decoder reach on a chip that was measured, beside its two ceilings.

    `matmul` FLOP/s of weight matrices streamed from memory, by number of rows, and `matmul_start` seconds that
    every product takes beyond that, however small its matrix. `attention` FLOP/s of causal attention over a
    whole prompt, by its length. `cache_read` B/s of one query a sequence reading its cache, by number of
    sequences. `elementwise` B/s of norms, rotations, additions and activation functions, by number of rows.

    All are medians, as a clock beside them will show a median; the ceilings in `Chip` are the best that was
    seen.
    """

    matmul: Curve
    attention: Curve
    cache_read: Curve
    elementwise: Curve
    matmul_start: Curve = ((1, 0.0),)


@dataclass(frozen=True)
class Chip:
    """A chip, with where its numbers come from.

    `flops` dense FLOP/s by format (headlines that assume 2:4 sparsity are halved). `bandwidth` of main
    memory in B/s, `memory` in B (decimal, as sold), `power_w` board power in W. `price_per_hour` is a dated
    estimate or None, explained in `price_source`. `asynchronous` chips work while the host prepares the next
    operator.

    The rest is for chips that were measured, and empty for a datasheet, which makes its predictions bounds.
    `overhead_s` is the time an operator takes beyond its work when code and data lie in the caches;
    `cold_overhead` the same, by number of rows, when more weights were read since it last ran than
    `cache_bytes`, the last cache, holds. `achieved` holds curves by format. `uncertainty` says how sure each
    rate is: half the width of the middle half of its samples, as a share of their median; 1 for what was
    sampled less than three times.
    """

    name: str
    flops: Mapping[str, float]
    bandwidth: float
    memory: float
    power_w: float | None = None
    price_per_hour: float | None = None
    overhead_s: float = 0.0
    cold_overhead: Curve = ()
    cache_bytes: float = 0.0
    source: str = ""
    kind: Kind = "datasheet"
    note: str = ""
    price_source: str = ""
    asynchronous: bool = False
    achieved: Mapping[str, Achieved] = field(default_factory=dict)
    details: Mapping[str, float] = field(default_factory=dict)
    uncertainty: Mapping[str, float] = field(default_factory=dict)

    def overhead(self, weight_bytes: float, rows: int = 1) -> float:
        """Seconds an operator takes beyond its work in a model that reads so many bytes of weights a step. [s]"""
        cold = self.cold_overhead and weight_bytes > self.cache_bytes
        return at(self.cold_overhead, rows) if cold else self.overhead_s

    def peak(self, dtype: object = "bf16") -> float:
        """Dense FLOP/s in a format. Takes "bf16", "bfloat16" or torch.bfloat16. [FLOP/s]"""
        from lumen.formats import dtype_name

        name = dtype_name(dtype)
        if name not in self.flops:
            raise ValueError(
                f"No {name} rate is known for {self.name}; choose from {', '.join(self.flops) or 'none'}."
            )
        return self.flops[name]


def ridge(chip: Chip, dtype: object = "bf16") -> float:
    """The intensity at which the chip's arithmetic and its memory take equally long: P / BW. [FLOP/B]"""
    return chip.peak(dtype) / chip.bandwidth
