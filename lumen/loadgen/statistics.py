"""From records to the numbers a report prints: the sums behind `lumen load`, usable without a server.

    >>> from lumen.loadgen import Record, summarize
    >>> one = Record.of_tokens([0.5, 0.6, 0.8], start=0.1)
    >>> round(summarize([one])["mean_ttft_ms"])
    400

The keys are those that `vllm bench serve` writes. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lumen.loadgen.record import Record

METRICS = ("ttft", "tpot", "itl", "e2el")
SLOS = ("ttft", "tpot", "e2el")


def percentile(values: Sequence[float], p: float) -> float:
    """The value that p % of `values` do not exceed, straight between neighbours (numpy's default rule)."""
    if not 0 <= p <= 100:
        raise ValueError(f"A percentile lies between 0 and 100, got {p}.")
    if not len(values):
        raise ValueError("There is no percentile of no values.")
    return float(np.percentile(np.asarray(values, float), p))


def samples(records: Iterable[Record], metric: str, *, intended: bool = False) -> list[float]:
    """All values of a metric over the successful requests. [s]

    `ttft` leaves answers without a token out, `tpot` those of one token; `itl` pools every gap of every request.
    With `intended`, `ttft` and `e2el` count from when the request should have been sent, so waiting in the client is
    not forgotten.
    """
    good = [record for record in records if record.ok]
    if metric == "ttft":
        return [r.ttft + r.queue * intended for r in good if r.arrivals]
    if metric == "e2el":
        return [r.latency + r.queue * intended for r in good]
    if metric == "queue":
        return [r.queue for r in good]
    if metric == "tpot":
        return [r.tpot for r in good if r.tpot is not None]
    if metric == "itl":
        return [gap for r in good for gap in r.itl]
    raise ValueError(f"There is no metric {metric!r}; there are {', '.join(METRICS)} and queue.")


def is_good(record: Record, slo: Mapping[str, float], *, intended: bool = False) -> bool:
    """Whether a request met every limit of `slo`, a dict of ttft, tpot, e2el in **milliseconds**.

    A failed request is never good. One token has no TPOT and meets any limit on it; an answer without a token is
    known when it ends, and that must be soon enough for its first.
    """
    check_slo(slo)
    waited = record.queue * intended
    first = record.ttft if record.arrivals else record.latency
    got = {"ttft": first + waited, "tpot": record.tpot or 0.0, "e2el": record.latency + waited}
    return record.ok and all(1e3 * got[name] <= limit for name, limit in slo.items())


def check_slo(slo: Mapping[str, float]) -> None:
    for name, limit in slo.items():
        if name not in SLOS:
            raise ValueError(f"A goodput limit is on ttft, tpot or e2el, got {name!r}.")
        if not limit >= 0:
            raise ValueError(f"The goodput limit on {name} must not be negative, got {limit} ms.")


def peak_concurrency(records: Iterable[Record]) -> int:
    """Most requests that were under way at one moment; one that ends when another starts makes room first."""
    good = [r for r in records if r.ok]
    events = sorted([(r.start, 1) for r in good] + [(r.end, -1) for r in good])
    running = np.cumsum([change for _, change in events]) if events else [0]
    return int(max(running))


def peak_output_rate(records: Iterable[Record]) -> float:
    """Most tokens in one of the whole seconds since the first request was sent. [tokens/s]

    The tokens of a request are spread evenly over its events, for an event does not say how many it brings.
    """
    good = [r for r in records if r.ok and r.arrivals]
    if not good:
        return 0.0
    first = min(r.start for r in good)
    seconds: dict[int, float] = {}
    for record in good:
        for time in record.arrivals:
            second = int(time - first)
            seconds[second] = seconds.get(second, 0.0) + record.output_len / len(record.arrivals)
    return max(seconds.values())


def spread(values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float | None]:
    """mean, median, std and percentiles in milliseconds; None where there is nothing to average."""
    words = {f"p{p:g}": p for p in percentiles}
    if not len(values):
        return dict.fromkeys(("mean", "median", "std", *words))
    ms = 1e3 * np.asarray(values, float)
    found = {"mean": float(ms.mean()), "median": float(np.median(ms)), "std": float(ms.std())}
    return {**found, **{word: percentile(ms.tolist(), p) for word, p in words.items()}}


def summarize(
    records: Sequence[Record],
    *,
    duration: float | None = None,
    goodput: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = (99,),
) -> dict[str, Any]:
    """The report's numbers under vLLM's names: `mean_ttft_ms`, `p99_itl_ms`, `request_goodput`, …

    `duration` [s] is the run's; by default from the first send to the last token. Beside vLLM's keys stand
    `…_ttft_including_client_queue_ms` and `…_e2el_including_client_queue_ms`, counted from the intended send times, and
    `request_goodput_including_client_queue`, for which a request that the client held back is late as well.
    """
    if duration is None:
        ends = [max(r.end, r.start) for r in records]
        duration = max(ends) - min(r.start for r in records) if records else 0.0
    good = [r for r in records if r.ok]
    per_second = 1 / duration if duration > 0 else 0.0
    tokens_in, tokens_out = sum(r.prompt_len for r in good), sum(r.output_len for r in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(records) - len(good),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(good) * per_second,
        "request_goodput": None,
        "request_goodput_including_client_queue": None,
        "output_throughput": tokens_out * per_second,
        "total_token_throughput": (tokens_in + tokens_out) * per_second,
        "max_output_tokens_per_s": peak_output_rate(good),
        "max_concurrent_requests": peak_concurrency(good),
    }
    if goodput:
        result["request_goodput"] = sum(is_good(r, goodput) for r in records) * per_second
        fair = sum(is_good(r, goodput, intended=True) for r in records)
        result["request_goodput_including_client_queue"] = fair * per_second
    groups = {name: samples(good, name) for name in METRICS}
    groups["client_queue_time"] = samples(good, "queue")
    groups |= {
        f"{name}_including_client_queue": samples(good, name, intended=True) for name in ("ttft", "e2el")
    }
    for name, values in groups.items():
        for word, value in spread(values, percentiles).items():
            result[f"{word}_{name}_ms"] = value
    return result
