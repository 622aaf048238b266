"""What products with weight matrices reach: a rate by number of rows, and the fixed time that each of them takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lumen.hardware.chip import Curve
from lumen.hardware.kernel_choice import choose
from lumen.hardware.sampling import Budget, Samples
from lumen.hardware.starts import Step
from lumen.hardware.working_set import Measured, beyond_cache, inner, matrix, probe_shape

if TYPE_CHECKING:
    from lumen.models.linear import Linear

WIDE = 32768  # outputs of a matrix so large that the start of its product does not count
MANY = 64  # rows from which on that start is lost in the work


@dataclass(frozen=True)
class Products:
    """FLOP/s by number of rows, seconds a product takes beyond that, the best FLOP/s.

    `between` is seconds of an operator between two products, by number of rows.
    """

    rates: Measured
    starts: Curve
    peak: float
    between: Measured


class Layers:
    """Weight matrices of as many layers as no cache holds, and a few wide ones, read in turn."""

    def __init__(self, device: torch.device, dtype: torch.dtype):
        self.device, self.dtype, self.config = device, dtype, probe_shape(device)
        c = self.config
        up = 2 * c.intermediate_size if c.gated else c.intermediate_size
        heads = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        shapes = [
            (c.hidden_size, heads), (c.num_heads * c.head_dim, c.hidden_size),
            (c.hidden_size, up), (c.intermediate_size, c.hidden_size),
        ]  # fmt: skip
        bytes_each = torch.empty((), dtype=dtype).element_size()
        layer = bytes_each * sum(a * b for a, b in shapes)
        self.layers = [
            [matrix(*shape, device, dtype) for shape in shapes]
            for _ in range(max(1, beyond_cache(device) // layer))
        ]
        wide = bytes_each * c.hidden_size * WIDE
        count = max(1, beyond_cache(device) // (2 * wide))
        self.wide = [matrix(c.hidden_size, min(WIDE, 8 * up), device, dtype) for _ in range(count)]
        choose(nn.ModuleList(m for layer in self.layers for m in layer), progress=False)
        for m in self.wide:  # the kernels of the widest matrix of a layer
            m.chosen = self.layers[0][2].chosen

    def inputs(self, rows: int) -> dict[int, Tensor]:
        widths = {m.in_features for m in self.layers[0]}
        return {w: torch.randn(rows, w, device=self.device).to(self.dtype) for w in widths}

    def some(self, rows: int) -> list[Linear]:
        """All layers for few rows; for many, which the arithmetic bounds, as many as keep the time in hand."""
        count = len(self.layers) if rows < MANY else max(1, len(self.layers) * 16 // rows)
        return [m for layer in self.layers[:count] for m in layer]

    def products(self, budget: Budget, seconds: float, rows: Sequence[int]) -> Products:
        """FLOP/s of products by number of rows, and the seconds that one takes beyond its work.

        Two equations for two unknowns: a few wide matrices and many small ones take starts + FLOPs / rate. Few rows
        are timed as a decode step has them, with other operators between any two products.
        """
        few, many = [n for n in rows if n < MANY], [n for n in rows if n >= MANY]
        like = torch.empty((), device=self.device, dtype=self.dtype)
        sets: dict[tuple[str, int], list[Linear]] = {}
        calls: dict[tuple[str, int], Callable[[], object]] = {}
        steps: dict[int, Step] = {}
        for m in (
            *self.some(1),
            *self.wide,
        ):  # lays weights out as the kernels want them, before the clock starts
            m(torch.ones(4, m.in_features, device=self.device, dtype=self.dtype))
        for n in rows:
            these = sets["small", n] = self.some(n)
            calls["small", n] = partial(sweep, these, self.inputs(n))
            if n in few and self.device.type != "cuda":
                calls["small", n] = step = Step(n, these, like)
                steps[n] = step
            if n <= 8:  # from there on the start is small beside the work, and taken to be the same
                sets["wide", n] = self.wide
                calls["wide", n] = partial(sweep, self.wide, self.inputs(n))
        took: dict[tuple[str, int], Samples] = {}
        for what, group, share in (
            ("products of few rows", few, 5 / 7),
            ("products of many rows", many, 2 / 7),
        ):
            some = {key: call for key, call in calls.items() if key[1] in group}
            if some:
                took |= budget.each(what, some, share * seconds, inner=inner(self.device))
        work = {key: 2 * key[1] * sum(m.weight.numel() for m in these) for key, these in sets.items()}
        curve: list[tuple[int, float]] = []
        starts: list[tuple[int, float]] = []
        for n in sorted(few + many):
            small, wide = ("small", n), ("wide", n)
            if small not in took:
                continue
            count, in_all, start = len(sets[small]), took[small].median, starts[-1][1] if starts else 0.0
            if wide in took:
                share = work[small] / work[wide]
                start = max(0.0, (in_all - share * took[wide].median) / (count - share * len(self.wide)))
                starts.append((n, start))
            start = min(start, 0.9 * in_all / count)
            curve.append((n, work[small] / (in_all - start * count)))
        between = {
            n: Samples(tuple(step.operators_s[1:] or step.operators_s))
            for n, step in sorted(steps.items())
            if step.operators_s
        }
        return Products(
            Measured(tuple(curve), median(samples.spread for samples in took.values())),
            tuple(starts) or ((1, 0.0),),
            max(work[key] / samples.best for key, samples in took.items()),
            Measured(
                tuple((n, samples.median) for n, samples in between.items()),
                median(samples.spread for samples in between.values()) if between else 0.0,
            ),
        )


def sweep(matrices: Sequence[Linear], inputs: dict[int, Tensor]) -> None:
    for m in matrices:
        m(inputs[m.in_features])
