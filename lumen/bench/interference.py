"""What a long prompt does to answers under way: the real engine, every gap between two tokens, under one token budget.

    meet(model, prompts, long, budget=256) -> Meeting

Each of `prompts` is answered; when all have written a few tokens, `long` arrives. Times are counted from that moment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from lumen.timing import quiet, synchronize

if TYPE_CHECKING:
    from lumen.models.layers import Decoder

Step = tuple[float, float, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class Meeting:
    """One run. Seconds, 0 when the long prompt arrived.

    `times` holds each answer's token times, the last one before the arrival first. `steps` are (start, end, pieces),
    a piece being (positions that were cached, tokens computed behind them), as `lumen.cost.predict_mixed` takes them.
    `answers` holds the tokens of all requests, the long one's last. `alone` holds the lengths of the steps before the
    arrival in which every answer, and nothing else, got one token.
    """

    budget: int
    times: list[list[float]]
    ttft: float
    steps: list[Step]
    answers: list[list[int]]
    alone: list[float]

    @property
    def gaps(self) -> list[float]:
        """Every gap between two tokens of an answer, from the last token before the arrival on. [s]"""
        return [after - before for line in self.times for before, after in pairwise(line)]


def meet(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    long: Sequence[int],
    budget: int,
    *,
    before: int = 4,
    after: int = 40,
    block_size: int = 16,
) -> Meeting:
    """Run until each answer has `after` tokens since the arrival and the long request has its first.

    The budget must be larger than the number of prompts, or the long one would never move: ValueError.
    """
    from lumen.serve.engine import Engine
    from lumen.serve.request import Request
    from lumen.serve.scheduler import Limits

    if budget <= len(prompts):
        raise ValueError(
            f"{len(prompts)} answers take {len(prompts)} tokens of every step; a budget of {budget} leaves nothing for "
            "the long prompt."
        )
    most = before + after + sum(map(len, [*prompts, long])) + 8  # no answer ends before the run does
    most = min(most, model.config.max_positions - max(map(len, [*prompts, long])))
    blocks = sum(-(-(len(p) + most) // block_size) for p in [*prompts, long])
    engine = Engine(
        model,
        num_blocks=blocks,
        block_size=block_size,
        prefix="none",
        limits=Limits(len(prompts) + 1, budget),
    )
    names = [f"answer {i}" for i in range(len(prompts))]
    answers: dict[str, list[int]] = {name: [] for name in [*names, "long"]}
    stamps: dict[str, list[float]] = {name: [] for name in answers}
    steps: list[Step] = []
    heard: list[int] = []  # how many answers got a token in each step

    def step() -> None:
        start = time.monotonic()
        deltas = engine.step()
        synchronize()
        end = time.monotonic()
        pieces = tuple((work.start, work.count) for work in engine.last_plan.work)
        steps.append((start, end, pieces))
        heard.append(len(deltas))
        for delta in deltas:
            answers[delta.request_id] += delta.tokens
            stamps[delta.request_id].append(end)

    for name, prompt in zip(names, prompts, strict=True):
        engine.add(Request(name, list(prompt), most))
    with quiet():
        while min(len(answers[name]) for name in names) < before:
            step()
        engine.add(Request("long", list(long), most))
        arrived, done = time.monotonic(), {name: len(answers[name]) for name in names}
        alone = [end - start for (start, end, pieces), told in zip(steps, heard, strict=True)
                 if told == len(names) == sum(count for _, count in pieces)]  # fmt: skip
        steps.clear()
        while not answers["long"] or min(len(answers[name]) - done[name] for name in names) < after:
            step()
    times = [[t - arrived for t in stamps[n][done[n] - 1 : done[n] + after]] for n in names]
    relative = [(start - arrived, end - arrived, pieces) for start, end, pieces in steps]
    return Meeting(budget, times, stamps["long"][0] - arrived, relative, list(answers.values()), alone)
