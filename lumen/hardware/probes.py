"""The measurements behind `measure`: what each kind of operator of a decoder reaches on this device, alone.

Weights and caches are larger than the last cache and are visited in turn, as a decode step visits them, so
that a probe reads memory and not the copy it left in the cache a moment ago. No probe sees the model that is
predicted later: the shapes are those of one layer, timed by themselves.

Each probe takes a `Budget` and the seconds it may spend of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from statistics import median
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from lumen.hardware.chip import Achieved
from lumen.hardware.products import Layers, Products, sweep
from lumen.hardware.sampling import Budget, Samples
from lumen.hardware.working_set import (
    Measured,
    beyond_cache,
    inner,
    last_cache,
    matrix,
    probe_shape,
    rates,
)
from lumen.models.counts import elementwise_bytes


def read_bandwidth(device: torch.device, budget: Budget, seconds: float) -> dict[str, Samples]:
    """Seconds a byte of streaming reads in fp32, by the way of reading.

    Two new arrays, together more than any cache holds, are summed in turn and searched for their maximum; one is
    multiplied by a vector, which decoding is made of; and one is summed again and again, as a careless benchmark
    does, where it alone is four times the last cache. Which is fastest depends on the processor, and how fast on the
    pages an array was given: so look more than once.
    """
    size, width = beyond_cache(device) // 8, 4096  # values of a half, four bytes each
    halves = [matrix(width, max(1, size // width), device, torch.float32) for _ in range(2)]
    flat = [half.weight.view(-1) for half in halves]
    in_turn, vector = cycle(flat), torch.ones(1, width, device=device)
    calls: dict[str, Callable[[], object]] = {
        "sum": lambda: next(in_turn).sum(),
        "maximum": lambda: next(in_turn).amax(),
        "matrix_vector": partial(halves[1], vector),
    }
    read = flat[0].nbytes
    if read >= 4 * last_cache(device):
        calls["sum_again"] = flat[0].sum
    took = budget.each("bandwidth", calls, seconds, inner=inner(device))
    return {kind: Samples(tuple(s / read for s in samples.seconds)) for kind, samples in took.items()}


def attention_curve(
    device: torch.device, dtype: torch.dtype, budget: Budget, seconds: float, lengths: Sequence[int]
) -> Measured:
    """FLOP/s of causal attention over a whole prompt by its length, counting the visible pairs only."""
    config = probe_shape(device)
    group, dim = config.group_size, config.head_dim

    def attend(q: Tensor, k: Tensor) -> None:
        keys, values = k.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        F.scaled_dot_product_attention(q, keys, values, is_causal=True)

    def random(heads: int, length: int) -> Tensor:
        return torch.randn(1, heads, length, dim, device=device).to(dtype)

    calls = {n: partial(attend, random(config.num_heads, n), random(config.num_kv_heads, n)) for n in lengths}
    took = budget.each("attention", calls, seconds, inner=inner(device))
    return rates({n: 4 * config.num_heads * dim * n * (n + 1) / 2 for n in lengths}, took)


def cache_read_curve(
    device: torch.device, dtype: torch.dtype, budget: Budget, seconds: float, batches: Sequence[int]
) -> Measured:
    """B/s at which one query a sequence reads its keys and values, by number of sequences.

    The context is long, so that the fixed cost of the call, which counts as overhead, is not counted twice.
    """
    config = probe_shape(device)
    heads, dim, context = config.num_kv_heads, config.head_dim, 4096
    per_row = 2 * heads * context * dim * torch.empty((), dtype=dtype).element_size()
    pieces = 4 * max(1, beyond_cache(device) // (4 * per_row * max(batches)))
    cache = torch.full((pieces, 2, max(batches), heads, context, dim), 0.01, device=device, dtype=dtype)

    share = pieces // 4  # of the pieces a call, going on where the last one stopped
    turn = cycle(range(0, pieces, share))

    def read(batch: int, q: Tensor) -> None:
        first_piece = next(turn)
        for keys, values in cache[first_piece : first_piece + share]:
            for first in range(0, max(batches), batch):
                rows = slice(first, first + batch)
                F.scaled_dot_product_attention(q, keys[rows], values[rows])

    queries = {n: torch.randn(n, heads, config.group_size, dim, device=device).to(dtype) for n in batches}
    calls = {n: partial(read, n, queries[n]) for n in batches}
    took = budget.each("reading a cache", calls, seconds, inner=inner(device))
    return rates(dict.fromkeys(batches, cache.nbytes / 4), took)


def elementwise_curve(layers: Layers, budget: Budget, seconds: float, rows: Sequence[int]) -> Measured:
    """B/s of a layer's norms, additions, rotation, activation function and reshape, by number of rows.

    What they take beyond the same operators on two rows, whose fixed cost counts as overhead (a single row is
    contiguous where two are not, and cheaper). A layer's weights are read before each, off the clock, so that few
    rows are as cold as in a step. Many rows make tensors so large that the allocator returns them to the system:
    every operator pays for fresh pages.
    """
    from lumen.models.layers import RMSNorm, rotate

    config, device, dtype = layers.config, layers.device, layers.dtype
    width, mlp, dim = config.hidden_size, config.intermediate_size, config.head_dim
    turned_heads = config.num_heads + config.num_kv_heads
    norm = RMSNorm(width, config.norm_eps).to(device, dtype)
    weights, one_row = cycle(layers.layers), layers.inputs(1)

    def some(*shape: int) -> Tensor:
        return torch.full((1, *shape), 0.5, device=device, dtype=dtype)

    def layer(n: int) -> Callable[[], float | None]:
        x, both, heads = some(n, width), some(n, 2 * mlp), some(n, turned_heads, dim)
        out, cos = some(config.num_heads, n, dim), torch.full((1, n, 1, dim), 0.5, device=device)

        def run() -> float | None:
            sweep(next(weights), one_row)
            start = perf_counter()
            norm(x)
            rotate(heads, cos, cos)
            out.transpose(1, 2).reshape(1, n, -1)
            y = x + x
            norm(y)
            gate, up = both.chunk(2, -1)
            _ = F.silu(gate) * up
            _ = y + x
            return perf_counter() - start if device.type != "cuda" else None

        return run

    few, many = [n for n in rows if n <= 512], [n for n in rows if n > 512]
    took = budget.each(
        "elementwise operators",
        {n: layer(n) for n in (few[0], 2, *few[1:])},
        seconds / 2,
        inner=inner(device),
    )
    if many:
        these = {n: layer(n) for n in many}
        took |= budget.each("elementwise operators of many rows", these, seconds / 2, inner=inner(device))
    start = took.pop(2).median if 2 in took else 0.0
    beyond = {n: max(s.median - start, 0.1 * s.median) for n, s in took.items()}
    work = {n: elementwise_bytes(config, n - 2, dtype) / config.num_layers for n in rows}
    curve = tuple((n, work[n] / beyond[n]) for n in sorted(took))
    return Measured(curve, median(s.spread for s in took.values()))


def achieved(
    layers: Layers, rows: Sequence[int], budget: Budget, seconds: float
) -> tuple[Achieved, Products, dict[str, float]]:
    """All curves in the format of `layers`, what else the products showed, and how uncertain each curve is."""
    device, dtype = layers.device, layers.dtype
    large = tuple(n for n in (8, 512, 32, 4096, 128, 2048, 8192) if n <= 2 * max(rows))
    ends = budget.spent + seconds
    found = {
        "attention": attention_curve(device, dtype, budget, 0.08 * seconds, (512, 32, 128, 1024)),
        "cache_read": cache_read_curve(device, dtype, budget, 0.12 * seconds, (1, 8, 4, 2)),
        "elementwise": elementwise_curve(layers, budget, 0.12 * seconds, large),
    }
    products = layers.products(budget, max(0.0, ends - budget.spent), rows)
    found["matmul"] = products.rates
    curves = {name: one.curve for name, one in found.items()}
    sure = {name: one.uncertainty for name, one in found.items()}
    return Achieved(**curves, matmul_start=products.starts), products, sure


def quick_rate(device: torch.device, dtype: torch.dtype, budget: Budget) -> float:
    """FLOP/s of one small product, to see whether a format has arithmetic of its own here."""
    x = torch.randn(32, 576, device=device).to(dtype)
    weight = torch.randn(1536, 576, device=device).to(dtype)
    call = partial(F.linear, x, weight)
    return 2 * 32 * weight.numel() / min(budget.once(call, inner(device)) for _ in range(3))
