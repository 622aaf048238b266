"""Right and wrong answers to the exercises of chapter 03."""

import json
import math

import numpy as np

from lumen.grading.proof import Submissions


# report -------------------------------------------------------------------------------------------
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


def tpot_of_several_events(requests, limits):
    """Leaves an answer out that came in one event, whatever it holds."""
    found = report_by_hand(requests, limits)
    many = [r for r in requests if not r["error"] and len(r["arrivals"]) > 1]
    tpots = [(r["arrivals"][-1] - r["arrivals"][0]) / (r["tokens"] - 1) for r in many]
    return {**found, "mean_tpot": sum(tpots) / len(tpots) if tpots else None}


def tpot_over_all_tokens(requests, limits):
    """Divides by the tokens instead of the times between them."""
    found = report_by_hand(requests, limits)
    many = [r for r in requests if not r["error"] and r["tokens"] > 1]
    tpots = [(r["arrivals"][-1] - r["arrivals"][0]) / r["tokens"] for r in many]
    return {**found, "mean_tpot": sum(tpots) / len(tpots) if tpots else None}


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


# read-stream --------------------------------------------------------------------------------------
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
        tokens = (body.get("usage") or {"completion_tokens": tokens})["completion_tokens"]
        for choice in body["choices"]:
            if choice["delta"].get("content"):
                came.append(next(now for end, now in ends if end >= at))
                text.append(choice["delta"]["content"])
    gaps = np.diff(came).tolist()
    return came[0], None if tokens == 1 else sum(gaps) / (tokens - 1), gaps, "".join(text)


def reads_wait_for_text(reads):
    """Several events of one read taken for one arrival."""
    ttft, tpot, gaps, text = read_stream_whole(reads)
    return ttft, tpot, [gap for gap in gaps if gap], text


ANSWERS = {
    "report": Submissions(
        right=[report_by_hand],
        wrong=[
            (lambda requests, limits: requests[0] and report_by_hand(requests, limits), "IndexError"),
            (tpot_of_several_events, "gave: 0.125 at ['mean_tpot']"),
            (tpot_over_all_tokens, "n − 1 times between them"),
        ],
        lumen=["lumen.loadgen.summarize"],
    ),
    "who-notices": Submissions(
        right=[52.8, 52.9, 53, 100 - 100 * math.exp(300 * math.log(399 / 400))],
        wrong=[(53.97, "30 gaps"), (30, "larger by a factor of about 2")],
        stubs=[lambda: ...],
    ),
    "quantile": Submissions(
        right=[quantile, quantile_walking],
        wrong=[(lambda q, bounds, replicas: quantile(q, bounds, replicas[:2]), "gave: 0.395")],
        no_lumen="lumen exports histograms and leaves their quantiles to Prometheus",
    ),
    "read-stream": Submissions(
        right=[read_stream_whole],
        wrong=[(reads_wait_for_text, "0.4 at [2][0]")],
        lumen=["lumen.loadgen.answer.StreamedAnswer", "lumen.loadgen.sse.EventStream"],
    ),
    "in-print": Submissions(
        right=[lambda: ({"b", "c", "e"}, 2)],
        wrong=[
            (("abce", 2.0), "99 gaps of 50 ms"),
            (("ce", 2.0), "3 statements are wrong"),
            (("bcd", 2.0), "1,000 / 10 = 100"),
        ],
        stubs=[(..., ...)],
    ),
    "slo": Submissions(
        right=[{"replicas": 2, "places": 80}, lambda: {"places": 98, "replicas": 2}],
        wrong=[
            ({"replicas": 1, "places": 100}, "load FAILS: 2"),
            ({"replicas": 2, "places": 104}, "TPOT FAILS: 31"),
            ({"replicas": 2, "places": 40}, "near 1 the queue takes over"),
            ({"replicas": 3, "places": 112}, "4,500 tokens of cache a place"),
            ({"replicas": 3, "places": 80}, "fewer replicas can keep it too"),
            ({"replicas": 9, "places": 80}, "one of 1 to 8"),
            ({"replicas": 2}, "the fields replicas\n"),
        ],
        stubs=[{"replicas": ..., "places": 1}],
    ),
}
