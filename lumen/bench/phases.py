"""Time a generation with prefill and decode kept apart. The first token belongs to the prefill."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from lumen.timing import Clock, Timing, quiet, synchronize

if TYPE_CHECKING:
    from lumen.cache.base import Cache
    from lumen.models.layers import Decoder


@dataclass(frozen=True)
class Generation:
    """Times of a generation: `prefill` up to the first token, a sample a repeat; `decode`, one a step."""

    prompt_len: int
    new_tokens: int
    batch: int
    dtype: str
    cache: str
    prefill: Timing
    decode: Timing | None  # None when only the first token was asked for

    @property
    def ttft(self) -> float:
        """Seconds until the first token, at the median."""
        return self.prefill.median

    @property
    def tpot(self) -> float:
        """Seconds from one token of a sequence to its next, at the median."""
        if self.decode is None:
            raise ValueError(
                "Only one token was generated: there is no gap between tokens. Ask for two or more."
            )
        return self.decode.median

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, all sequences together."""
        return self.batch * self.prompt_len / self.ttft

    @property
    def decode_rate(self) -> float:
        """Generated tokens a second, all sequences together, prefill left out."""
        return self.batch / self.tpot


def generation(
    model: Decoder,
    prompt_len: int,
    new_tokens: int,
    batch: int = 1,
    *,
    cache: Literal["static", "dynamic"] | Callable[[Decoder, int, int], Cache] = "static",
    repeats: int = 3,
    warmup: int = 1,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> Generation:
    """Generate greedily from random prompts and time it.

    Gives `repeats` samples of the prefill and repeats x (new_tokens - 1) of the decode step. `cache` is a
    kind, or a function (model, rows, capacity) -> cache. Random tokens cost what real ones do in a dense
    model. Only the last row of the prompt goes through the head. The device is waited for after every step,
    as a server that streams does.
    """
    import torch

    limit = model.config.max_positions
    if min(prompt_len, new_tokens, batch, repeats) < 1 or warmup < 0:
        raise ValueError(
            "prompt_len, new_tokens, batch and repeats must be at least 1, and warmup not negative."
        )
    if prompt_len + new_tokens - 1 > limit:
        raise ValueError(
            f"{prompt_len} + {new_tokens} tokens are more than the {limit} positions of {model.config.name}."
        )
    make = _cache_maker(cache)
    weight = next(model.parameters())
    dice = torch.Generator().manual_seed(seed)
    prompt = torch.randint(model.config.vocab_size, (batch, prompt_len), generator=dice).to(weight.device)
    prefills: list[float] = []
    steps: list[float] = []
    with torch.inference_mode(), quiet():
        for repeat in range(warmup + repeats):
            state = make(model, batch, prompt_len + new_tokens)
            tokens, marks = prompt, []
            synchronize()
            marks.append(clock())
            for _ in range(new_tokens):
                last = model.hidden(tokens, None, state)[:, -1]
                tokens = model.head(last).argmax(-1, keepdim=True)
                synchronize()
                marks.append(clock())
            if repeat >= warmup:
                gaps = [after - before for before, after in pairwise(marks)]
                prefills.append(gaps[0])
                steps += gaps[1:]
    return Generation(
        prompt_len=prompt_len,
        new_tokens=new_tokens,
        batch=batch,
        dtype=str(weight.dtype).removeprefix("torch."),
        cache=cache if isinstance(cache, str) else type(state).__name__,
        prefill=Timing(tuple(prefills)),
        decode=Timing(tuple(steps)) if steps else None,
    )


def _cache_maker(cache: str | Callable[[Decoder, int, int], Cache]) -> Callable[[Decoder, int, int], Cache]:
    from lumen.cache.dense import DynamicCache, StaticCache

    if callable(cache):
        return cache
    if cache == "static":
        return StaticCache.for_model
    if cache == "dynamic":
        return lambda model, rows, capacity: DynamicCache.for_model(model, rows)
    raise ValueError(
        f'cache is "static", "dynamic" or a function (model, rows, capacity) -> cache, got {cache!r}.'
    )
