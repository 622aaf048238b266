"""An engine with continuous batching, simulated step by step: whoever is inside slows everybody inside.

That is where it differs from a queue with places: its service time depends on its load. No clock, no model; how long
a step takes is a function that is handed in, for instance one that asks `lumen.cost`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Played:
    """One run, request by request. `tpot` is empty for answers of one token; `seconds` ends with the last token."""

    ttft: list[float]
    tpot: list[float]
    latency: list[float]
    seconds: float
    steps: int

    def good(self, ttft: float, tpot: float) -> int:
        """Requests that kept both limits. [s]"""
        paces = self.tpot or [0.0] * len(self.ttft)
        return sum(first <= ttft and pace <= tpot for first, pace in zip(self.ttft, paces, strict=True))


def batched(
    arrivals: Sequence[float],
    step: Callable[[int, int], float],
    *,
    answer: int,
    places: int,
    together: int = 8,
) -> Played:
    """Requests come at `arrivals` [s], ascending, and get `answer` tokens each; `places` fit inside.

    A step admits who waits while places last, `together` at most, and takes `step(new, old)` seconds for the
    prompts of the `new` ones and one token of each `old` one. A prompt's step makes its first token.
    """
    if answer < 1 or places < 1 or together < 1:
        raise ValueError(
            f"An engine needs a token, a place and a newcomer a step at least, got {answer}, {places}, {together}."
        )
    first, last = [0.0] * len(arrivals), [0.0] * len(arrivals)
    inside: deque[tuple[int, int]] = deque()  # (step of its last token, request), in the order of both
    now, ahead, count = 0.0, 0, 0
    while ahead < len(arrivals) or inside:
        if not inside:
            now = max(now, arrivals[ahead])
        old, begin = len(inside), ahead
        end = min(ahead + min(together, places - old), len(arrivals))
        while ahead < end and arrivals[ahead] <= now:
            ahead += 1
        pause, alike = step(ahead - begin, old), 1
        if ahead == begin:  # the same step again, until somebody leaves or may enter
            alike = inside[0][0] - count + 1
            if begin < end:
                alike = min(alike, math.ceil((arrivals[ahead] - now) / pause))
        now += alike * pause
        for i in range(begin, ahead):
            first[i] = now
            inside.append((count + answer - 1, i))
        count += alike
        while inside and inside[0][0] == count - 1:
            last[inside.popleft()[1]] = now
    ttft = [a - due for a, due in zip(first, arrivals, strict=True)]
    latency = [b - due for b, due in zip(last, arrivals, strict=True)]
    gaps = answer - 1
    tpot = [(b - a) / gaps for a, b in zip(first, last, strict=True)] if gaps else []
    return Played(ttft, tpot, latency, max(last, default=0.0), count)
