"""When each token of one answer came: the arrival times that a user would see, without a network in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lumen.timing import Clock, quiet, synchronize

if TYPE_CHECKING:
    from lumen.models.layers import Decoder


def token_times(
    model: Decoder,
    prompt: Sequence[int],
    new_tokens: int,
    before_step: Callable[[int], Any] = lambda step: None,
    *,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Seconds from the start to each of `new_tokens` greedy tokens; the first holds the prefill.

    `before_step(i)` runs before token i is computed, on the same clock: what a server does for somebody else
    between two tokens of this answer. The device is waited for after every token, as a server that streams does.
    """
    import torch

    from lumen.cache.dense import StaticCache

    if not prompt or new_tokens < 1:
        raise ValueError("An answer needs a prompt of one token at least, and one token of its own.")
    if len(prompt) + new_tokens - 1 > model.config.max_positions:
        raise ValueError(
            f"{len(prompt)} + {new_tokens} tokens are more than the {model.config.max_positions} positions of "
            f"{model.config.name}."
        )
    device = next(model.parameters()).device
    tokens = torch.tensor([list(prompt)], device=device)
    times: list[float] = []
    with torch.inference_mode(), quiet():
        state = StaticCache.for_model(model, 1, len(prompt) + new_tokens)
        synchronize()
        start = clock()
        for step in range(new_tokens):
            before_step(step)
            tokens = model.head(model.hidden(tokens, None, state)[:, -1]).argmax(-1, keepdim=True)
            synchronize()
            times.append(clock() - start)
    return times
