"""The measurements behind `measure`: what each kind of operator of a decoder reaches on this device, alone.

Weights and caches are larger than the last-level cache and are visited in turn, as a decode step visits
them, so that a probe reads memory and not the copy it left in the cache a moment ago. All rates are of the
fastest repeat: a ceiling is what the machine does undisturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from lumen.bench.timer import compare, measure
from lumen.cost.flops import causal_pairs
from lumen.hardware.chip import Achieved, Curve

if TYPE_CHECKING:
    from lumen.models.config import ModelConfig

MIB = 2**20


def fastest(
    fn: Callable[[], object], device: torch.device, repeats: int = 30, budget_s: float = 0.4
) -> float:
    """Seconds of the fastest of many calls, inside a budget."""
    return measure(fn, repeats, inner=_inner(device), budget_s=budget_s).best


def fastest_each(
    fns: Mapping[int, Callable[[], object]], device: torch.device, budget_s: float = 1.0
) -> dict[int, float]:
    """The same for several calls in turns: a disturbance spoils one round of all, not all rounds of one."""
    calls = {str(key): fn for key, fn in fns.items()}
    timings = compare(calls, repeats=30, inner=_inner(device), budget_s=budget_s)
    return {key: timings[str(key)].best for key in fns}


def _inner(device: torch.device) -> int:
    """Calls a sample: a GPU is kept busy by several, so that waiting for it is not what is timed."""
    return 10 if device.type == "cuda" else 1


def beyond_cache(device: torch.device) -> int:
    """Bytes that no cache of the device holds: eight times the last level, 512 MiB at least.

    A virtual machine may be told less than it has: with 128 MiB, a sum ran at twice the speed of memory now and then.
    """
    if device.type == "cuda":
        level = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 32 * MIB)
    else:
        sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        units = {"K": 2**10, "M": MIB, "G": 2**30}
        texts = [path.read_text().strip() for path in sizes]
        level = max((int(t[:-1]) * units[t[-1]] for t in texts if t[-1:] in units), default=32 * MIB)
    return max(512 * MIB, 8 * level)


def read_bandwidth(device: torch.device) -> dict[str, float]:
    """Streaming reads in fp32: a matrix-vector product, which decoding is made of, and a plain sum. [B/s]"""
    from lumen.models.linear import Linear

    width = 4096
    layer = Linear(width, beyond_cache(device) // (4 * width), bias=False).to(device)
    vector, size = torch.ones(1, width, device=device), layer.weight.nbytes
    return {
        "matrix_vector": size / fastest(partial(layer, vector), device),
        "sum": size / fastest(layer.weight.sum, device),
    }


def probe_shape(device: torch.device) -> ModelConfig:
    """The layer whose operators are timed: SmolLM2-135M's on a CPU, Llama-3-8B's on a GPU."""
    from lumen.models.config import CONFIGS

    return CONFIGS["llama-3-8b" if device.type == "cuda" else "smollm2-135m"]


def matmul_curve(device: torch.device, dtype: torch.dtype, rows: tuple[int, ...]) -> Curve:
    """FLOP/s of a layer's weight matrices by number of rows, over more layers than a cache holds."""
    from lumen.cost.shapes import matmuls
    from lumen.models.linear import Linear

    shapes = [(m.inputs, m.outputs) for m in matmuls(probe_shape(device)) if m.part != "head"]
    linears: list[Linear] = []
    # As in `lumen.load`: weights made under inference mode are never packed, and another kernel would be timed.
    with torch.inference_mode(False):
        while sum(linear.weight.nbytes for linear in linears) < beyond_cache(device):
            linears += [Linear(*shape, bias=False).to(device, dtype) for shape in shapes]
    flops = sum(2 * linear.weight.numel() for linear in linears)

    def sweep(inputs: dict[int, Tensor]) -> None:
        for linear in linears:
            linear(inputs[linear.in_features])

    inputs = {n: {w: torch.randn(n, w, device=device).to(dtype) for w, _ in shapes} for n in rows}
    took = fastest_each({n: partial(sweep, inputs[n]) for n in rows}, device, budget_s=3.0)
    return tuple((n, flops * n / took[n]) for n in rows)


def attention_curve(device: torch.device, dtype: torch.dtype, lengths: tuple[int, ...]) -> Curve:
    """FLOP/s of causal attention over a whole prompt by its length, counting the visible pairs only."""
    config = probe_shape(device)
    group, dim = config.group_size, config.head_dim

    def attend(q: Tensor, k: Tensor) -> None:
        keys, values = k.repeat_interleave(group, 1), k.repeat_interleave(group, 1)
        F.scaled_dot_product_attention(q, keys, values, is_causal=True)

    def random(heads: int, length: int) -> Tensor:
        return torch.randn(1, heads, length, dim, device=device).to(dtype)

    calls = {n: partial(attend, random(config.num_heads, n), random(config.num_kv_heads, n)) for n in lengths}
    took = fastest_each(calls, device)
    return tuple((n, 4 * config.num_heads * dim * causal_pairs(n) / took[n]) for n in lengths)


def cache_read_curve(device: torch.device, dtype: torch.dtype, batches: tuple[int, ...]) -> Curve:
    """B/s at which one query a sequence reads its keys and values, by number of sequences.

    The context is long, so that the fixed cost of the call, which counts as overhead, is not counted twice.
    """
    config = probe_shape(device)
    heads, dim, context = config.num_kv_heads, config.head_dim, 4096
    per_row = 2 * heads * context * dim * torch.empty((), dtype=dtype).element_size()
    pieces = max(1, -(-beyond_cache(device) // (per_row * max(batches))))
    shape = pieces, 2, max(batches), heads, context, dim
    cache = torch.randn(shape, device=device).to(dtype)

    def sweep(batch: int, q: Tensor) -> None:
        for keys, values in cache:
            for first in range(0, max(batches), batch):
                rows = slice(first, first + batch)
                F.scaled_dot_product_attention(q, keys[rows], values[rows])

    queries = {n: torch.randn(n, heads, config.group_size, dim, device=device).to(dtype) for n in batches}
    took = fastest_each({n: partial(sweep, n, queries[n]) for n in batches}, device)
    return tuple((n, cache.nbytes / took[n]) for n in batches)


def elementwise_rate(device: torch.device, dtype: torch.dtype) -> float:
    """B/s of a layer's norms, additions, rotation, activation function and reshape in a prefill.

    Bytes are those of `cost.elementwise_bytes`.
    """
    from lumen.cost.predict import elementwise_bytes
    from lumen.models.layers import RMSNorm, rotate

    config = probe_shape(device)
    rows = 4096 if device.type == "cuda" else 512
    width, mlp, dim = config.hidden_size, config.intermediate_size, config.head_dim
    turned_heads = config.num_heads + config.num_kv_heads
    x = torch.randn(1, rows, width, device=device, dtype=dtype)
    norm = RMSNorm(width, config.norm_eps).to(device, dtype)
    both = torch.randn(1, rows, 2 * mlp, device=device, dtype=dtype)
    heads = torch.randn(1, rows, turned_heads, dim, device=device, dtype=dtype)
    out = torch.randn(1, config.num_heads, rows, dim, device=device, dtype=dtype)
    cos = torch.randn(1, rows, 1, dim, device=device)

    def layer() -> None:
        norm(x)
        rotate(heads, cos, cos)
        out.transpose(1, 2).reshape(1, rows, -1)
        y = x + x
        norm(y)
        gate, up = both.chunk(2, -1)
        _ = F.silu(gate) * up
        _ = y + x

    return elementwise_bytes(config, rows, dtype) / config.num_layers / fastest(layer, device, 50)


def operator_overhead(device: torch.device, dtype: torch.dtype) -> float:
    """Seconds an operator takes when it has next to nothing to do.

    A decode step of a decoder 32 values wide, over its operators: Python, the dispatcher, the launch.
    """
    from lumen.cache.dense import StaticCache
    from lumen.cost.predict import operators
    from lumen.models.config import ModelConfig
    from lumen.models.llama import Llama

    config = ModelConfig("tiny", 64, 24, 32, 4, 2, 8, 32, 64)
    model = Llama(config).to(device, dtype).eval()
    token = torch.ones(1, 1, dtype=torch.int64, device=device)
    cache = StaticCache.for_model(model, 1, 64)
    start = [0]

    def step() -> None:
        model(token, None, cache)
        cache.rewind(start)

    return fastest(step, device, 200) / operators(config)


def achieved(device: torch.device, dtype: torch.dtype, rows: tuple[int, ...]) -> Achieved:
    """All curves in one format."""
    return Achieved(
        matmul=matmul_curve(device, dtype, rows),
        attention=attention_curve(device, dtype, (32, 128, 512, 1024)),
        cache_read=cache_read_curve(device, dtype, (1, 2, 4, 8)),
        elementwise=elementwise_rate(device, dtype),
    )


def quick_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of one small product, to see whether a format has arithmetic of its own here."""
    x = torch.randn(32, 576, device=device).to(dtype)
    weight = torch.randn(1536, 576, device=device).to(dtype)
    return 2 * 32 * weight.numel() / fastest(lambda: F.linear(x, weight), device, budget_s=0.2)
