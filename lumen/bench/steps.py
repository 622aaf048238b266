"""The two quantities that all chapters quote: a decode step and a prefill of the real model, from the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from lumen.bench.names import Name
from lumen.bench.store import Measured, quantity
from lumen.bench.trust import publishing
from lumen.timing import Clock, Timing, once, quiet

if TYPE_CHECKING:
    from lumen.cache.base import Cache
    from lumen.hardware import Chip
    from lumen.models.layers import Decoder

CacheKind = Literal["static", "dynamic", "paged"]
ROUNDS, STEPS, FEWEST_STEPS, STEP_BUDGET_S = 4, 8, 24, 4.0
MOST_ROUNDS, SHORT_S = 20, 1.0  # steps of a toy take no time: more of them, until together they took a second
PREFILLS, FEWEST_PREFILLS, PREFILL_BUDGET_S = 9, 6, 8.0
IN_CACHE = 256e6  # so many bytes may stay in a processor's own caches, where memory's bandwidth is no bound
CHUNK, BLOCK = 256, 16  # tokens that fill a cache at once; positions of a block of the paged one


def decode_step(
    model: Decoder,
    batch: int = 1,
    context: int = 256,
    cache: CacheKind = "static",
    *,
    clock: Clock = time.perf_counter,
) -> Measured:
    """One decode step of `batch` rows whose new token sees `context` positions, itself included.

    Measured once per machine and kept. 32 steps in four rounds, 24 when they take over 4 s, up to 160 when they take
    less than a second; after each the cache is rewound, off the clock, so that the context stays. The step ends with
    the greedy choice of the next token.
    """
    name = name_of(model, "decode", batch, context, cache)
    seconds, why = floor(model, name)
    return quantity(name, lambda: Decode(model, name, clock).timing(), bound_s=seconds, bound=why)


def prefill(
    model: Decoder,
    prompt: int = 512,
    batch: int = 1,
    cache: CacheKind = "static",
    *,
    clock: Clock = time.perf_counter,
) -> Measured:
    """The prefill of `batch` prompts of `prompt` tokens each, up to the greedy choice of the first new token.

    Measured once per machine and kept: nine repeats, six when they take over 8 s, into one cache that is emptied off
    the clock, so its memory is warm as in a server that reuses it.
    """
    name = name_of(model, "prefill", batch, prompt, cache)
    seconds, why = floor(model, name)
    return quantity(name, lambda: Prefill(model, name, clock).timing(), bound_s=seconds, bound=why)


def name_of(model: Decoder, phase: str, batch: int, context: int, cache: str) -> Name:
    """The name of a phase of this model. ValueError for what the model or the caches cannot do."""
    from lumen.cost import dtype_name

    if context > model.config.max_positions:
        raise ValueError(
            f"{model.config.name} has {model.config.max_positions} positions, {context} are asked for."
        )
    if cache not in ("static", "dynamic", "paged"):
        raise ValueError(f'cache is "static", "dynamic" or "paged", got {cache!r}.')
    dtype = dtype_name(next(model.parameters()).dtype)
    return Name(model.config.name, phase, batch, context, dtype, kernel_of(model), cache)


def kernel_of(model: Decoder) -> str:
    """Which matrix kernel the model's linear layers use, as `lumen.models.linear.kernel_name(model)` says it."""
    from lumen.models import linear

    ask: Callable[[Decoder], str] | None = getattr(linear, "kernel_name", None)
    return ask(model) if ask else "default"


class Decode:
    """A filled cache and a step that can be taken again and again at the same context."""

    def __init__(self, model: Decoder, name: Name, clock: Clock = time.perf_counter) -> None:
        self.model, self.clock, self.held = model, clock, name.context - 1
        self.cache = _empty(model, name)
        self.next = _fill(model, self.cache, name.batch, self.held)

    def step(self) -> float:
        """Seconds of one step; the cache is rewound afterwards."""
        took = once(lambda: _forward(self.model, self.next, self.cache), self.clock)
        self.cache.rewind([self.held] * self.next.shape[0])
        return took

    def samples(self, count: int) -> list[float]:
        """`count` steps behind two that warm up. [s]"""
        import torch

        with torch.inference_mode(), quiet():
            self.step(), self.step()
            return [self.step() for _ in range(count)]

    def timing(self) -> Timing:
        taken: list[float] = []
        for done in range(MOST_ROUNDS):
            if done >= ROUNDS and sum(taken) >= SHORT_S:
                break
            taken += self.samples(STEPS)
            if len(taken) >= FEWEST_STEPS and sum(taken) > STEP_BUDGET_S:
                break
        return Timing(tuple(taken))


class Prefill:
    """Prompts and a cache that is emptied for each repeat."""

    def __init__(self, model: Decoder, name: Name, clock: Clock = time.perf_counter) -> None:
        self.model, self.clock = model, clock
        self.cache = _empty(model, name)
        self.prompts = _tokens(model, name.batch, name.context)

    def run(self) -> float:
        """Seconds of one prefill; the cache is emptied afterwards."""
        took = once(lambda: _forward(self.model, self.prompts, self.cache), self.clock)
        self.cache.rewind([0] * self.prompts.shape[0])
        return took

    def samples(self, count: int) -> list[float]:
        """`count` prefills behind one that warms up. [s]"""
        import torch

        with torch.inference_mode(), quiet():
            self.run()
            return [self.run() for _ in range(count)]

    def timing(self) -> Timing:
        import torch

        taken: list[float] = []
        with torch.inference_mode(), quiet():
            self.run()
            while len(taken) < PREFILLS:
                taken.append(self.run())
                if len(taken) >= FEWEST_PREFILLS and sum(taken) > PREFILL_BUDGET_S:
                    break
        return Timing(tuple(taken))


def _forward(model: Decoder, tokens: Any, cache: Cache) -> Any:
    """The next token of each row, after the whole forward: only the last position goes through the head."""
    return model.head(model.hidden(tokens, None, cache)[:, -1]).argmax(-1, keepdim=True)


def _empty(model: Decoder, name: Name) -> Cache:
    from lumen.cache.dense import DynamicCache, StaticCache
    from lumen.cache.paged import BlockStore

    if name.cache == "static":
        return StaticCache.for_model(model, name.batch, name.context)
    if name.cache == "dynamic":
        return DynamicCache.for_model(model, name.batch)
    blocks = name.batch * -(-name.context // BLOCK)
    return BlockStore.for_model(model, blocks, BLOCK).rows(name.batch)


def _tokens(model: Decoder, batch: int, count: int) -> Any:
    """Random token ids from a fixed seed: in a dense model every token costs the same."""
    import torch

    dice = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (batch, count), generator=dice).to(
        next(model.parameters()).device
    )


def _fill(model: Decoder, cache: Cache, batch: int, count: int) -> Any:
    """Put `count` tokens of each row through the model into the cache; return each row's next token."""
    import torch

    tokens = _tokens(model, batch, count + 1)
    with torch.inference_mode():
        for part in tokens[:, :count].split(CHUNK, 1) if count else ():
            model.hidden(part, None, cache)
    return tokens[:, count:]


def floor(model: Decoder, name: Name) -> tuple[float | None, str]:
    """The time that nothing beats on this chip: bytes at its bandwidth, or FLOPs at its peak, and which of them. [s]

    A reader whose chip was not measured yet gets none: that would take longer than the step.
    """
    chip = _chip()
    if chip is None:
        return None, ""
    from lumen import cost

    config = model.config
    if name.phase == "decode":
        moved = cost.step_bytes(config, name.batch, name.context, name.dtype)
        num_bytes, flops = (
            moved.weights + moved.cache_read,
            cost.step_flops(config, name.batch, name.context).total,
        )
    else:
        num_bytes = cost.weight_bytes(config, name.dtype)
        flops = cost.prefill_flops(config, name.context, name.batch).total
    if num_bytes < IN_CACHE:
        num_bytes = 0.0
    memory, compute = num_bytes / chip.bandwidth, flops / chip.peak(name.dtype)
    if memory >= compute:
        return memory, f"{num_bytes / 1e6:,.0f} MB at {chip.bandwidth / 1e9:.1f} GB/s"
    return compute, f"{flops / 1e9:,.1f} GFLOP at {chip.peak(name.dtype) / 1e12:.2f} TFLOP/s"


def _chip() -> Chip | None:
    """The chip as it was measured; measured now only for a publication."""
    from lumen import hardware

    return hardware.measure() if publishing() else hardware.kept()
