"""A decode step with next to no work of its own, into which real weight matrices are put.

What lies between two products of a real step is small, but cold: the weights pushed its code and its data out
of the caches. So operators and products are timed in turns, each on its own clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lumen.hardware.sampling import Budget, Samples
from lumen.hardware.working_set import inner
from lumen.models.counts import operators, products

if TYPE_CHECKING:
    from lumen.config import ModelConfig
    from lumen.models.linear import Linear


def tiny(layers: int) -> ModelConfig:
    """A decoder whose operators have next to nothing to do."""
    from lumen.config import ModelConfig

    return ModelConfig("tiny", 64, layers, 32, 4, 2, 8, 32, 64)


class Between(nn.Module):
    """In the place of a tiny matrix: gives a ready answer, after multiplying by a real one on a clock of its own."""

    def __init__(self, outputs: int, real: Linear | None, rows: int, like: Tensor):
        super().__init__()
        self.answer = like.new_full((rows, outputs), 0.1)
        self.real, self.seconds = real, 0.0
        self.x = like.new_ones(rows, real.in_features) if real is not None else None

    def forward(self, x: Tensor) -> Tensor:
        if self.real is not None:
            start = perf_counter()
            self.real(self.x)
            self.seconds += perf_counter() - start
        return self.answer


class Step:
    """One decode step of a tiny decoder, `rows` sequences, that multiplies by the `real` matrices where it has its own.

    Called, it gives the seconds of the products; `operators_s` collects the seconds of an operator between them.
    Without real matrices the step is all there is, and it gives that. For CPUs: the clock waits for nothing.
    """

    def __init__(self, rows: int, real: Sequence[Linear], like: Tensor, layers: int = 24):
        from lumen.cache.dense import StaticCache
        from lumen.models.llama import Llama

        config = tiny(len(real) // 4 or layers)
        with torch.inference_mode(False), torch.no_grad():
            self.model = Llama(config).to(like.device, like.dtype).eval()
        self.between: list[Between] = []
        for block in self.model.blocks:
            for home, name in (
                (block.attn, "qkv"),
                (block.attn, "out"),
                (block.mlp, "gate_up"),
                (block.mlp, "down"),
            ):
                place = len(self.between)
                outputs = getattr(home, name).out_features
                self.between.append(Between(outputs, real[place] if real else None, rows, like))
                setattr(home, name, self.between[-1])
        setattr(self.model, "lm_head", Between(config.vocab_size, None, rows, like))  # noqa: B010
        self.count = operators(config) - products(config)
        self.tokens = torch.ones(rows, 1, dtype=torch.int64, device=like.device)
        self.cache = StaticCache.for_model(self.model, rows, 64)
        self.cache.k, self.cache.v = self.cache.k.to(like.dtype), self.cache.v.to(like.dtype)
        self.operators_s: list[float] = []

    def __call__(self) -> float:
        start = perf_counter()
        self.model(self.tokens, None, self.cache)
        took = perf_counter() - start
        self.cache.rewind([0] * len(self.tokens))
        multiplied = sum(one.seconds for one in self.between)
        for one in self.between:
            one.seconds = 0.0
        self.operators_s.append((took - multiplied) / self.count)
        return multiplied or took


def warm_start(device: torch.device, dtype: torch.dtype, budget: Budget, seconds: float) -> Samples:
    """Seconds an operator takes with code and data in the caches: Python, the dispatcher, the launch.

    On a CPU without the products, whose start is measured with them; a GPU's host starts them like all others.
    """
    like = torch.empty((), device=device, dtype=dtype)
    if device.type != "cuda":
        step = Step(1, [], like)
        took = budget.each("operator starts", {0: step}, seconds)[0]
        return Samples(tuple(s / step.count for s in took.seconds))
    from lumen.cache.dense import StaticCache
    from lumen.models.llama import Llama

    model = Llama(tiny(24)).to(device, dtype).eval()
    tokens, cache = torch.ones(1, 1, dtype=torch.int64, device=device), StaticCache.for_model(model, 1, 64)

    def whole() -> None:
        model(tokens, None, cache)
        cache.rewind([0])

    took = budget.each("operator starts", {0: whole}, seconds, inner=inner(device))[0]
    return Samples(tuple(s / operators(model.config) for s in took.seconds))
