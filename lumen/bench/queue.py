"""A queue of requests, all there from the start, through one engine: what each policy of admission makes of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lumen.timing import Clock, quiet, synchronize

if TYPE_CHECKING:
    from lumen.serve.engine import Engine
    from lumen.serve.request import Request


@dataclass(frozen=True)
class Served:
    """Answers and times of a queue. `ttft` is in seconds from the start, by request; `steps` says who was computed."""

    slots: int
    seconds: float
    answers: dict[str, list[int]]
    ttft: dict[str, float]
    steps: tuple[tuple[str, ...], ...]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers.values()))

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers a second, prompts and their time included."""
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """Share of slots that were computed, over all steps."""
        return sum(map(len, self.steps)) / (self.slots * len(self.steps))

    @property
    def mean_ttft(self) -> float:
        """Mean time to first token, the wait in the queue included. [s]"""
        return sum(self.ttft.values()) / len(self.ttft)

    def cells(self) -> list[tuple[int, str, int]]:
        """(slot, request, step) of everything that was computed: whoever comes takes the lowest free slot."""
        seats: dict[str, int] = {}
        found = []
        for step, names in enumerate(self.steps):
            seats = {name: seat for name, seat in seats.items() if name in names}
            for name in names:
                if name not in seats:
                    seats[name] = min(set(range(self.slots)) - set(seats.values()))
                found.append((seats[name], name, step))
        return found


def serve_queue(engine: Engine, requests: Sequence[Request], *, clock: Clock = time.perf_counter) -> Served:
    """Add all `requests` to an idle engine and step until the last one is done."""
    if not requests or engine.has_work:
        raise ValueError("serve_queue needs a request at least, and an engine that has nothing to do.")
    answers: dict[str, list[int]] = {request.id: [] for request in requests}
    ttft: dict[str, float] = {}
    steps: list[tuple[str, ...]] = []
    now = 0.0
    with quiet():
        synchronize()
        start = clock()
        for request in requests:
            engine.add(request)
        while engine.has_work:
            deltas = engine.step()
            now = clock() - start  # tokens are on the host by now, so the device has finished
            if engine.last_plan.work:
                steps.append(tuple(work.sequence.id for work in engine.last_plan.work))
            for delta in deltas:
                ttft.setdefault(delta.request_id, now)
                answers[delta.request_id] += delta.tokens
    return Served(engine.scheduler.limits.max_seqs, now, answers, ttft, tuple(steps))
