"""The knee explorer: what servers do as the offered load rises, under limits that the reader sets.

Every request of a load test is in the page: [TTFT, TPOT], in seconds from when it was due. So a limit is a slider and
not another test. A load is offered in several rounds, and only its steady part counts: the queue is not in equilibrium
while the first requests come and while the last ones leave. Where no load test was published, the samples come from
`play_queue`, a simulated server whose steps take what the cost model says, and are labelled as predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from lumen.explore.explorers.widget import JSWidget
from lumen.loadgen.schedule import arrivals
from lumen.loadgen.statistics import percentile

if TYPE_CHECKING:
    from lumen.config import ModelConfig
    from lumen.hardware import Chip

# limits to choose from, seconds
TTFTS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
TPOTS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
ENOUGH = 0.9  # share of good requests from which a load counts as carried
STEADY = (0.2, 0.95)  # of the time in which requests are sent: what lies before and behind is not looked at
Sample = Sequence[float | None]


def steady(samples: Sequence[Sample], sent_for: float, failed: Sequence[float] = ()) -> dict[str, Any]:
    """One round out of `samples` of (due, TTFT, TPOT or None, tokens) whose requests were sent for `sent_for` seconds.

    Kept are requests that were *due* in the window of STEADY, however late they were answered; `finished` and `tokens`
    are of answers that *ended* in it, whenever they began. `failed` are the times at which failed ones were due.
    """
    begin, end = (part * sent_for for part in STEADY)
    finished = tokens = 0
    for due, ttft, tpot, count in samples:
        assert due is not None and ttft is not None and count is not None
        if begin <= due + ttft + (tpot or 0.0) * (count - 1) < end:
            finished, tokens = finished + 1, tokens + int(count)
    return {
        "seconds": end - begin,
        "finished": finished,
        "tokens": tokens,
        "failed": sum(begin <= due < end for due in failed),
        "samples": [list(s[1:3]) for s in samples if s[0] is not None and begin <= s[0] < end],
    }


def _shares(one: Mapping[str, Any], ttft: float, tpot: float) -> tuple[int, int]:
    """How many of a round's requests kept both limits, and how many there were."""
    good = sum(s[0] <= ttft and (s[1] is None or s[1] <= tpot) for s in one["samples"])
    return good, len(one["samples"]) + one["failed"]


def judge(run: Mapping[str, Any], ttft: float, tpot: float) -> dict[str, Any]:
    """One offered load under limits [s]: rates per second, percentiles [s], and the share of requests that were good.

    `run["rounds"]` are as `steady` gives them. `ttft` and `tpot` are (p50, p90, least and most p90 of a round), `good`
    is (share, least and most share of a round). A failed request is never good. A request of one token has no TPOT and
    meets any limit on it. The twin of `judge` in knee.js.
    """
    rounds = run["rounds"]
    seconds = sum(one["seconds"] for one in rounds)
    counts = [_shares(one, ttft, tpot) for one in rounds]
    good, sent = (sum(column) for column in zip(*counts, strict=True))
    parts = [a / b if b else 0.0 for a, b in counts]
    found: dict[str, Any] = {
        "throughput": sum(one["finished"] for one in rounds) / seconds,
        "tokens": sum(one["tokens"] for one in rounds) / seconds,
        "goodput": good / seconds,
        "good": [good / sent if sent else 0.0, min(parts), max(parts)],
        "sent": sent,
    }
    for name, at in (("ttft", 0), ("tpot", 1)):
        each = [[s[at] for s in one["samples"] if s[at] is not None] for one in rounds]
        values = [v for part in each for v in part]
        tails = [percentile(part, 90) for part in each if part]
        found[name] = (
            [percentile(values, 50), percentile(values, 90), min(tails), max(tails)] if values else None
        )
    return found


def crossing(rates: Sequence[float], shares: Sequence[float]) -> float:
    """The offered rate at which the share of good requests falls to ENOUGH; 0 if it never was so high.

    More load cannot help, so shares that rise with the load are noise and are averaged with their neighbours
    (isotonic regression) before the line between two rates is followed down. The last rate if all are good.
    """
    blocks: list[list[float]] = []  # sum, count
    for share in shares:
        blocks.append([share, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] < blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + count]
    smooth = [total / count for total, count in blocks for _ in range(int(count))]
    if smooth[0] < ENOUGH:
        return 0.0
    for i in range(1, len(rates)):
        if smooth[i] < ENOUGH:
            part = (smooth[i - 1] - ENOUGH) / (smooth[i - 1] - smooth[i])
            return rates[i - 1] + part * (rates[i] - rates[i - 1])
    return rates[-1]


def carried(runs: Sequence[Mapping[str, Any]], ttft: float, tpot: float) -> list[float]:
    """The offered rate at which nine requests in ten are still good, and the least and most of a single round.

    0: not even the lowest rate. The highest rate: it, or more. The twin of `carried` in knee.js.
    """
    rates = [run["rate"] for run in runs]
    counts = [[_shares(one, ttft, tpot) for one in run["rounds"]] for run in runs]
    share = [sum(a for a, _ in c) / max(1, sum(b for _, b in c)) for c in counts]
    each = [
        crossing(rates, [c[r][0] / max(1, c[r][1]) for c in counts]) for r in range(min(map(len, counts)))
    ]
    found = crossing(rates, share)
    return [found, min(found, *each), max(found, *each)]


def in_words(found: Sequence[float], runs: Sequence[Mapping[str, Any]]) -> str:
    """`carried` as the page says it: "4.2 (4.0 to 4.4)", "less than 1.5", "9 or more"."""
    value, low, high = found
    if value <= 0:
        return f"less than {runs[0]['rate']:g}"
    if value >= runs[-1]["rate"]:
        return f"{runs[-1]['rate']:g} or more"
    return f"{value:.2g} ({low:.2g} to {high:.2g})"


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
    step: Callable[[int, int], float],
    rates: Sequence[float],
    *,
    answer: int,
    slots: int = 8,
    count: int = 140,
    rounds: int = 3,
) -> list[dict[str, Any]]:
    """`play_queue` for each rate, Poisson arrivals, in as many rounds as a load test has."""
    runs = []
    for rate in rates:
        made = []
        for number in range(rounds):
            times = arrivals(count, rate, seed=round(100 * rate) + number)
            played = play_queue(times, step, answer=answer, slots=slots)
            made.append(steady(played["samples"], count / rate))
        runs.append({"rate": rate, "rounds": made})
    return runs


class Knee(JSWidget):
    """Latency, throughput and goodput against offered load, for several engines and any limits.

    `engines` are dicts of `name`, `note` and `runs` in order of rate, each with `rate` and `rounds`, as
    `benchmarks/load_test.py` writes them.

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
    rounds = [
        {
            **one,
            "seconds": round(one["seconds"], 3),
            "samples": [[round(s[0], 3), None if s[1] is None else round(s[1], 4)] for s in one["samples"]],
        }
        for one in run["rounds"]
    ]
    return {"rate": run["rate"], "rounds": rounds}
