"""Right and wrong answers to the exercises of chapter 03."""

import json
import math
import statistics
from itertools import pairwise

import numpy as np

from lumen.grading.proof import Answers


# report -------------------------------------------------------------------------------------------
def report(requests, limits):
    done = [r for r in requests if not r["error"]]
    tpots, gaps, e2els, good = [], [], [], 0
    for r in done:
        came = r["arrivals"]
        gaps += [b - a for a, b in pairwise(came)]
        e2els.append(came[-1] - r["intended"])
        tpot = (came[-1] - came[0]) / (r["tokens"] - 1) if r["tokens"] > 1 else 0.0
        if r["tokens"] > 1:
            tpots.append(tpot)
        good += came[0] - r["intended"] <= limits[0] and tpot <= limits[1]

    def p99(values):
        return float(np.percentile(values, 99)) if values else None

    return {
        "mean_tpot": statistics.fmean(tpots) if tpots else None,
        "p99_itl": p99(gaps),
        "p99_e2el": p99(e2els),
        "good": int(good),
    }


def report_by_hand(requests, limits):
    """No numpy, one metric at a time."""
    done = [r for r in requests if r["error"] == ""]

    def p99(values):
        values = sorted(values)
        if not values:
            return None
        low, part = divmod(0.99 * (len(values) - 1), 1)
        pair = values[int(low) : int(low) + 2]
        return pair[0] + part * (pair[-1] - pair[0])

    def tpot(r):
        return (r["arrivals"][-1] - r["arrivals"][0]) / (r["tokens"] - 1)

    many = [r for r in done if r["tokens"] >= 2]
    return {
        "good": sum(
            r["arrivals"][0] <= r["intended"] + limits[0] and (r["tokens"] < 2 or tpot(r) <= limits[1])
            for r in done
        ),
        "mean_tpot": sum(map(tpot, many)) / len(many) if many else None,
        "p99_itl": p99(
            [r["arrivals"][i + 1] - r["arrivals"][i] for r in done for i in range(len(r["arrivals"]) - 1)]
        ),
        "p99_e2el": p99([r["arrivals"][-1] - r["intended"] for r in done]),
    }


def changed(**fields):
    """The right report of other requests: what a reader reports who looks at the wrong field."""

    def wrong(requests, limits):
        return report([{**r, **{k: f(r) for k, f in fields.items()}} for r in requests], limits)

    return wrong


def zero_for_one_token(requests, limits):
    got = report(requests, limits)
    done = [r for r in requests if not r["error"]]
    many = sum(r["tokens"] > 1 for r in done)
    return {**got, "mean_tpot": (got["mean_tpot"] or 0.0) * many / len(done) if done else None}


def mean_of_p99s(requests, limits):
    each = [report([r], limits)["p99_itl"] for r in requests if not r["error"] and len(r["arrivals"]) > 1]
    return {**report(requests, limits), "p99_itl": sum(each) / len(each) if each else None}


def nearest_rank(requests, limits):
    e2els = sorted(r["arrivals"][-1] - r["intended"] for r in requests if not r["error"])
    gaps = sorted(b - a for r in requests if not r["error"] for a, b in pairwise(r["arrivals"]))
    pick = lambda v: v[int(0.99 * len(v))] if v else None  # noqa: E731
    return {**report(requests, limits), "p99_itl": pick(gaps), "p99_e2el": pick(e2els)}


# quantile -----------------------------------------------------------------------------------------
def quantile(q, bounds, replicas):
    counts = np.sum(replicas, axis=0)
    total = counts[-1]
    if total == 0:
        return math.nan
    i = int(np.searchsorted(counts, q * total))
    if math.isinf(bounds[i]):
        return bounds[-2]
    low, before = (bounds[i - 1], counts[i - 1]) if i else (0.0, 0)
    return float(low + (bounds[i] - low) * (q * total - before) / (counts[i] - before))


def quantile_walking(q, bounds, replicas):
    """Bucket by bucket, with what each holds alone."""
    total = sum(row[-1] for row in replicas)
    left, begin, before = q * total, 0.0, 0
    for i, end in enumerate(bounds):
        inside = sum(row[i] for row in replicas) - before
        if total and left <= inside and inside:
            return begin if end == math.inf else begin + (end - begin) * left / inside
        left, begin, before = left - inside, end, before + inside
    return float("nan")


def quantile_averaged(q, bounds, replicas):
    return sum(quantile(q, bounds, [row]) for row in replicas) / len(replicas)


def quantile_cumulated_again(q, bounds, replicas):
    return quantile(q, bounds, [np.cumsum(row).tolist() for row in replicas])


def quantile_upper(q, bounds, replicas):
    got = quantile(q, bounds, replicas)
    return got if math.isnan(got) or got == bounds[-2] else next(b for b in bounds if b >= got)


def quantile_infinite(q, bounds, replicas):
    total = sum(row[-1] for row in replicas)
    beyond = q * total > sum(row[-2] for row in replicas)
    return math.inf if beyond else quantile(q, bounds, replicas)


def quantile_of_nothing(q, bounds, replicas):
    got = quantile(q, bounds, replicas)
    return 0.0 if math.isnan(got) else got


# read-stream --------------------------------------------------------------------------------------
def read_stream(reads):
    rest, times, text, tokens = b"", [], "", 0
    for now, chunk in reads:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                continue
            body = json.loads(data)
            if body["usage"]:
                tokens = body["usage"]["completion_tokens"]
            piece = "".join(c["delta"].get("content") or "" for c in body["choices"])
            if piece:
                times.append(now)
                text += piece
    gaps = [b - a for a, b in pairwise(times)]
    return times[0], (times[-1] - times[0]) / (tokens - 1) if tokens > 1 else None, gaps, text


def read_stream_whole(reads):
    """All bytes first; an event has the time of the read that holds its last byte."""
    whole = b"".join(chunk for _, chunk in reads)
    ends, at = [], 0
    for now, chunk in reads:
        at += len(chunk)
        ends.append((at, now))
    came, text, tokens, at = [], [], None, 0
    for line in whole.splitlines(keepends=True):
        at += len(line)
        if not line.startswith(b"data: {"):
            continue
        body = json.loads(line[6:])
        tokens = (body["usage"] or {"completion_tokens": tokens})["completion_tokens"]
        for choice in body["choices"]:
            if choice["delta"].get("content"):
                came.append(next(now for end, now in ends if end >= at))
                text.append(choice["delta"]["content"])
    gaps = np.diff(came).tolist()
    return came[0], None if tokens == 1 else sum(gaps) / (tokens - 1), gaps, "".join(text)


def counts_the_role(reads):
    ttft, tpot, gaps, text = read_stream(reads)
    first, chunk = reads[0]
    if b'"role"' in chunk:
        gaps = [ttft - first, *gaps]
        tokens = round(sum(gaps[1:]) / tpot) + 1 if tpot else 1
        return first, sum(gaps) / (tokens - 1), gaps, text
    return ttft, tpot, gaps, text


def divides_by_events(reads):
    ttft, _, gaps, text = read_stream(reads)
    return ttft, sum(gaps) / len(gaps) if gaps else None, gaps, text


def zero_tpot(reads):
    ttft, tpot, gaps, text = read_stream(reads)
    return ttft, tpot or 0.0, gaps, text


def no_rest(reads):
    """The first cut event breaks it; everything else is right."""
    whole = [(now, chunk) for now, chunk in reads]
    for _, chunk in whole:
        for line in chunk.decode().split("\n"):
            if line.startswith("data: {"):
                json.loads(line[6:])
    return read_stream(reads)


def waits_for_the_bill(reads):
    ttft, tpot, gaps, text = read_stream(reads)
    last, chunk = reads[-1]
    if b'"content"' in chunk:
        return ttft, tpot, gaps, text
    gaps = [*gaps, last - ttft - sum(gaps)]
    return ttft, sum(gaps), gaps, text


def empty_is_an_arrival(reads):
    if not any(b'"content": ""' in chunk and b"role" not in chunk for _, chunk in reads):
        return read_stream(reads)
    return read_stream([(now, chunk.replace(b'"content": ""', b'"content": " "')) for now, chunk in reads])


ANSWERS = {
    "report": Answers(
        right=[report, report_by_hand],
        wrong=[
            (zero_for_one_token, "leave it out of the mean"),
            (changed(tokens=lambda r: len(r["arrivals"])), "not by events"),
            (changed(intended=lambda r: r["sent"]), "clock started at `intended`"),
            (changed(error=lambda r: "" if r["arrivals"] else r["error"]), "A failed request has no latency"),
            (mean_of_p99s, "Pool the gaps of all answers"),
            (nearest_rank, "straight between its two neighbours"),
        ],
        lumen=["lumen.serve.load.summarize"],
    ),
    "who-notices": Answers(
        right=[52.8, lambda: 100 * (1 - 0.9975**300), 100 - 100 * math.exp(300 * math.log(399 / 400))],
        wrong=[
            (0.25, "the share of the gaps"),
            (75, "counts an answer with two stalls twice"),
            (47.2, "answers without a stall"),
            (52.926, "300 gaps"),
            (0.528, "In percent, please"),
        ],
        stubs=[lambda: ...],
    ),
    "quantile": Answers(
        right=[quantile, quantile_walking],
        wrong=[
            (quantile_averaged, "Add the counts of the replicas first"),
            (quantile_cumulated_again, "cumulative already"),
            (quantile_upper, "Go into the bucket in proportion"),
            (quantile_infinite, "Infinity is no latency"),
            (quantile_of_nothing, "as Prometheus answers"),
        ],
        no_lumen="lumen exports histograms and leaves their quantiles to Prometheus",
    ),
    "read-stream": Answers(
        right=[read_stream, read_stream_whole],
        wrong=[
            (counts_the_role, "The role is no token"),
            (divides_by_events, "how many there were in all"),
            (zero_tpot, "None, not 0"),
            (no_rest, "Keep the bytes behind the last line end"),
            (waits_for_the_bill, "The bill is no token"),
            (empty_is_an_arrival, "nothing a user sees"),
        ],
        lumen=["lumen.serve.load.answer.Answer", "lumen.serve.load.sse.EventStream"],
    ),
    "in-print": Answers(
        right=[("bce", 2.0), lambda: ({"b", "c", "e"}, 2)],
        wrong=[
            (("abce", 2.0), "99 gaps of 50 ms"),
            (("ce", 2.0), "3 statements are wrong"),
            (("bcd", 2.0), "1,000 / 10 = 100"),
            (("bce", 1.1), "the mean of the two p99s"),
            (("bce", 0.38), "That is the mean latency"),
            (("bce", 0.2), "p99 leaves out only ten"),
        ],
        stubs=[(..., ...)],
    ),
    "slo": Answers(
        right=[{"replicas": 2, "batch": 80}, lambda: {"batch": 100, "replicas": 2}],
        wrong=[
            ({"replicas": 1, "batch": 128}, "prefills take their time from it"),
            ({"replicas": 2, "batch": 40}, "near 1 the queue takes over"),
            ({"replicas": 3, "batch": 80}, "fewer replicas can keep it too"),
            ({"replicas": 9, "batch": 80}, "one of 1 to 8"),
            ({"replicas": 2}, "the fields replicas\n"),
        ],
        stubs=[{"replicas": ..., "batch": 1}],
    ),
}
