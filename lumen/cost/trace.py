"""Requests with realistic lengths, and how much reserved cache memory holds tokens while they run.

Lengths of prompts and answers vary over orders of magnitude; a log-normal has that spread. Numpy, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Policy = Literal["max", "power of two", "paged"]


@dataclass(frozen=True)
class Trace:
    """`prompt`, `output` (N,): tokens of each request. `limit` is the longest context a request may reach."""

    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    limit: int


def lognormal_trace(
    count: int,
    limit: int = 2048,
    prompt_median: float = 180,
    output_median: float = 120,
    sigma: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Prompts and outputs drawn from log-normals of the given medians and spread, cut so that both fit in `limit`."""
    if count < 1 or limit < 2:
        raise ValueError(
            f"A trace needs a request and a limit of two tokens at least, got {count} and {limit}."
        )
    draw = np.random.default_rng(seed)
    prompt = np.clip(np.rint(draw.lognormal(np.log(prompt_median), sigma, count)), 1, limit - 1).astype(
        np.int64
    )
    output = np.clip(np.rint(draw.lognormal(np.log(output_median), sigma, count)), 1, limit - prompt).astype(
        np.int64
    )
    return Trace(prompt, output, limit)


def reserved(
    length: NDArray[np.int64], policy: Policy, limit: int, block_size: int = 16
) -> NDArray[np.int64]:
    """Positions set aside for a sequence that holds `length` tokens now, element by element.

    "max": the limit, from the start, as one contiguous piece. "power of two": the piece is doubled when it is full.
    "paged": whole blocks, the last one partly filled.
    """
    if policy == "max":
        return np.full_like(length, limit)
    if policy == "power of two":
        doubled = 2 ** np.ceil(np.log2(np.maximum(length, 1))).astype(np.int64)
        return np.minimum(doubled, limit)
    if policy == "paged":
        if block_size < 1:
            raise ValueError(f"A block needs room for one token at least, got block_size {block_size}.")
        return -(-length // block_size) * block_size
    raise ValueError(f"There is no policy {policy!r}; use 'max', 'power of two' or 'paged'.")


def used_share(trace: Trace, policy: Policy, block_size: int = 16) -> float:
    """Share of reserved positions that hold a token, over all steps of all requests, each step counting once.

    A request passes through lengths prompt, prompt + 1, …, prompt + output - 1 (the last token is never stored).
    """
    used = held = 0
    for prompt, output in zip(trace.prompt.tolist(), trace.output.tolist(), strict=True):
        length = np.arange(prompt, prompt + output, dtype=np.int64)
        used += int(length.sum())
        held += int(reserved(length, policy, trace.limit, block_size).sum())
    return used / held


def moments(trace: Trace, count: int = 20_000, seed: int = 0) -> NDArray[np.int64]:
    """Tokens held by `count` requests met at random moments of a busy server, where each stays as long as it writes.

    Long answers are met more often than short ones: a request is drawn in proportion to its steps, then a step of it.
    """
    dice = np.random.default_rng(seed)
    who = dice.choice(len(trace.output), count, p=trace.output / trace.output.sum())
    return trace.prompt[who] + dice.integers(0, trace.output[who])


def concurrent(trace: Trace, policy: Policy, positions: int, block_size: int = 16) -> float:
    """Mean number of requests that fill a pool of `positions`, one by one, as a busy server meets them (`moments`)."""
    need = reserved(moments(trace), policy, trace.limit, block_size)
    if need.max() > positions:
        raise ValueError(
            f"A request needs {need.max()} positions and the pool has {positions}; make it larger."
        )
    ends = np.concatenate(([0], np.cumsum(need)))
    counts: list[int] = []
    at = 0
    while (
        ends[-1] - ends[at] > positions or not counts
    ):  # the last requests do not fill a pool: they do not count
        fits = int(np.searchsorted(ends, ends[at] + positions, side="right")) - 1 - at
        counts.append(fits)
        at += fits
    return float(np.mean(counts))
