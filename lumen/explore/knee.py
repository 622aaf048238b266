"""The knee explorer: what servers do as the offered load rises, under limits that the reader sets.

Every request of a load test is in the page: [due, TTFT, TPOT, tokens], times in seconds from when it was due. So a
limit is a slider and not another test. Where no load test was published, the samples come from `play_queue`, a
simulated server whose steps take what the cost model says, and are labelled as predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from lumen.explore.widget import JSWidget
from lumen.serve.load.schedule import arrivals
from lumen.serve.load.statistics import percentile

if TYPE_CHECKING:
    from lumen.hardware import Chip
    from lumen.models.config import ModelConfig

TTFTS = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
)  # limits to choose from, seconds
TPOTS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
ENOUGH = 0.9  # share of good requests from which a load counts as carried
Sample = Sequence[float | None]


def judge(run: Mapping[str, Any], ttft: float, tpot: float) -> dict[str, Any]:
    """One run under limits [s]: rates per second, percentiles [s], and the share of all requests that were good.

    `run` holds `samples` of (due, TTFT, TPOT or None, tokens), `duration` [s] and how many `failed`; a failed request
    is never good. A request of one token has no TPOT and meets any limit on it. The twin of `judge` in knee.js.
    """
    samples, seconds = run["samples"], run["duration"]
    good = sum(s[1] <= ttft and (s[2] is None or s[2] <= tpot) for s in samples)
    sent = len(samples) + run["failed"]
    paces = [s[2] for s in samples if s[2] is not None]
    first = [s[1] for s in samples]
    return {
        "throughput": len(samples) / seconds,
        "tokens": sum(s[3] for s in samples) / seconds,
        "goodput": good / seconds,
        "good": good / sent if sent else 0.0,
        "sent": sent,
        "ttft": [percentile(first, 50), percentile(first, 99)] if first else None,
        "tpot": [percentile(paces, 50), percentile(paces, 99)] if paces else None,
    }


def carried(runs: Sequence[Mapping[str, Any]], ttft: float, tpot: float) -> float | None:
    """The highest offered rate up to which, from the lowest on, nine requests in ten are good; None if none is."""
    found = None
    for run in runs:
        if judge(run, ttft, tpot)["good"] < ENOUGH:
            break
        found = run["rate"]
    return found


def play_queue(
    times: Sequence[float],
    step: Callable[[int, int], float],
    *,
    answer: int,
    slots: int = 8,
    together: int = 4,
) -> dict[str, Any]:
    """A server with continuous batching, simulated step by step. Requests come at `times` [s], ascending.

    A step admits who waits while slots last, `together` at most, and takes `step(new, old)` seconds for the prompts
    of the `new` ones and one token of each `old` one. Returns a run: `samples`, `duration`, `failed`.
    """
    now, ahead = 0.0, 0  # ahead: the first request that was not admitted yet
    running: dict[int, int] = {}  # request -> tokens it has made
    first, last = [0.0] * len(times), [0.0] * len(times)
    while ahead < len(times) or running:
        if not running:
            now = max(now, times[ahead])
        room, old = min(together, slots - len(running)), len(running)
        while ahead < len(times) and times[ahead] <= now and room:
            running[ahead] = 0
            ahead, room = ahead + 1, room - 1
        now += step(len(running) - old, old)
        for number, made in list(running.items()):
            if made == 0:
                first[number] = now
            running[number] += 1
            if made + 1 == answer:
                last[number] = now
                del running[number]
    samples = [
        [due, first[i] - due, (last[i] - first[i]) / (answer - 1) if answer > 1 else None, answer]
        for i, due in enumerate(times)
    ]
    return {"samples": samples, "duration": max(last), "failed": 0}


def step_times(
    config: ModelConfig, chip: Chip, dtype: object, *, prompt: int, answer: int
) -> Callable[[int, int], float]:
    """`step(new, old)` by the cost model: `new` whole prompts and a token of `old` answers halfway. [s]"""
    from lumen import cost

    @cache
    def step(new: int, old: int) -> float:
        pieces = [(prompt + answer // 2 - 1, 1)] * old + [(0, prompt)] * new
        return cost.predict_mixed(config, chip, pieces, dtype, cache="paged").seconds

    return step


def predicted_runs(
    step: Callable[[int, int], float], rates: Sequence[float], *, answer: int, slots: int = 8, count: int = 48
) -> list[dict[str, Any]]:
    """`play_queue` for each rate, Poisson arrivals."""
    played = [
        play_queue(arrivals(count, rate, seed=round(100 * rate)), step, answer=answer, slots=slots)
        for rate in rates
    ]
    return [{"rate": rate, **run} for rate, run in zip(rates, played, strict=True)]


class Knee(JSWidget):
    """Latency, throughput and goodput against offered load, for several engines and any limits.

    `engines` are dicts of `name`, `note` and `runs` in order of rate, each with `rate`, `duration` [s], `failed` and
    `samples`, as `benchmarks/load_test.py` writes them.

    >>> Knee(bench.load_evidence("load_test")["data"]["engines"], ttft=1.0, tpot=0.1)
    """

    module = "knee.js"
    label = "knee explorer"

    def __init__(
        self,
        engines: Sequence[Mapping[str, Any]],
        ttft: float = 1.0,
        tpot: float = 0.1,
        *,
        title: str = "To the knee",
        lead: str = "Choose the limits that you would promise, and see how much load each server carries.",
    ) -> None:
        if not 1 <= len(engines) <= 4 or not all(engine["runs"] for engine in engines):
            raise ValueError("The picture holds one to four engines, each with one run at least.")
        if ttft not in TTFTS or tpot not in TPOTS:
            raise ValueError(
                f"The sliders go through {', '.join(map(str, TTFTS))} s for TTFT and {', '.join(map(str, TPOTS))} s "
                f"for TPOT, got {ttft} and {tpot}."
            )
        kept = [
            {"name": engine["name"], "note": engine.get("note", ""), "runs": [_lean(run) for run in engine["runs"]]}
            for engine in engines
        ]  # fmt: skip
        super().__init__(
            engines=kept, ttfts=list(TTFTS), tpots=list(TPOTS), ttft=ttft, tpot=tpot, enough=ENOUGH, title=title,
            lead=lead,
        )  # fmt: skip


def _lean(run: Mapping[str, Any]) -> dict[str, Any]:
    """What the page needs of a run, in few characters: milliseconds are exact enough to be drawn."""
    samples = [
        [round(s[0], 2), round(s[1], 3), None if s[2] is None else round(s[2], 4), s[3]]
        for s in run["samples"]
    ]
    return {
        "rate": run["rate"],
        "duration": round(run["duration"], 3),
        "failed": run["failed"],
        "samples": samples,
    }
