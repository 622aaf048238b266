"""Exercises of chapter 03: a report, who notices, percentiles out of buckets, a stream reader, an SLO."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

from lumen.cost import cost_per_million_tokens, kv_bytes, predict_decode, predict_prefill, weight_storage
from lumen.grading import FP64, Case, Cases, Constraint, Decision, ExerciseSet, Number, Slip, Statements
from lumen.hardware import CHIPS
from lumen.models.config import CONFIGS
from lumen.serve.load.statistics import percentile

exercises = ExerciseSet("03", "Measuring", then="chapter 04, the KV cache")


# build: the report --------------------------------------------------------------------------------
def _report(
    requests: list[dict[str, Any]],
    limits: tuple[float, float],
    *,
    begin: str = "intended",
    per_event: bool = False,
    zero: bool = False,
    failed_too: bool = False,
    pooled: bool = True,
    rank: bool = False,
) -> dict[str, Any]:
    """The reference; every keyword switches one slip on."""
    good = 0
    tpots: list[float] = []
    gaps: list[list[float]] = []
    e2els: list[float] = []
    for one in requests:
        if one["error"] and not (failed_too and one["arrivals"]):
            continue
        came = one["arrivals"]
        steps = len(came) if per_event else one["tokens"]
        tpot = (came[-1] - came[0]) / (steps - 1) if steps > 1 else None
        tpots += [tpot or 0.0] if zero or tpot is not None else []
        gaps.append([b - a for a, b in pairwise(came)])
        e2els.append(came[-1] - one[begin])
        good += came[0] - one[begin] <= limits[0] and (tpot or 0.0) <= limits[1]

    def p99(values: list[float]) -> float | None:
        if not values:
            return None
        return sorted(values)[int(0.99 * len(values))] if rank else percentile(values, 99)

    flat = [gap for row in gaps for gap in row]
    each = [percentile(row, 99) for row in gaps if row]
    return {
        "mean_tpot": sum(tpots) / len(tpots) if tpots else None,
        "p99_itl": p99(flat) if pooled else (sum(each) / len(each) if each else None),
        "p99_e2el": p99(e2els),
        "good": int(good),
    }


def _request(
    sent: float, arrivals: list[float], tokens: int = -1, intended: float | None = None, error: str = ""
) -> dict[str, Any]:
    return {
        "intended": sent if intended is None else intended,
        "sent": sent,
        "arrivals": arrivals,
        "tokens": len(arrivals) if tokens < 0 else tokens,
        "error": error,
    }


def _many() -> tuple[list[dict[str, Any]], tuple[float, float]]:
    """Forty requests of 1 to 7 tokens with one stall; no two gaps alike."""
    rows = []
    for i in range(40):
        start = 0.37 * i
        times = [start + 0.2 + 0.013 * (i % 9)]
        for j in range(i % 7):
            times.append(times[-1] + 0.03 + 0.001 * ((i * j) % 11) + (0.9 if (i, j) == (19, 2) else 0.0))
        rows.append(_request(start, times, intended=start - 0.01 * (i % 4)))
    return rows, (0.3, 0.05)


def _report_cases() -> list[Case]:
    limits = (0.5, 0.1)
    plain = _request(0.0, [0.4, 0.5, 0.7])
    return [
        Case("one request of three tokens", ([plain], limits)),
        Case("an answer of one token beside it", ([plain, _request(1.0, [1.3])], limits)),
        Case("only answers of one token", ([_request(0.0, [0.2]), _request(1.0, [1.7])], limits)),
        Case("five tokens in three events", ([_request(2.0, [2.3, 2.7, 2.8], 5)], limits)),
        Case(
            "the client held it back",
            ([_request(3.0, [3.2, 3.25], intended=1.0), plain], limits),
            slip="`intended` is when the user asked. What the client or a busy tester adds is part of the wait.",
        ),
        Case("one request failed half way", ([plain, _request(5.0, [5.1, 5.9], error="hang-up")], limits)),
        Case("nothing succeeded", ([_request(0.0, [], error="HTTP 503")], limits)),
        Case("two answers of different lengths",
             ([_request(0.0, [0.1 * i + 0.1 for i in range(9)] + [1.9]), _request(0.0, [0.1, 0.12])], limits)),
        Case("forty requests", _many),
    ]  # fmt: skip


exercises.add(
    "report",
    title="The report",
    kind="build",
    difficulty=3,
    importance=5,
    minutes=20,
    points=4,
    shows="Five decisions turn one list of times into different reports, all under the same names.",
    forbidden=("lumen.serve.load.summarize", "lumen.serve.load.samples"),
    check=Cases(
        reference=_report,
        cases=_report_cases,
        tolerance=FP64,
        slips=[
            Slip(
                lambda *a: _report(*a, zero=True),
                "One token has no gap: leave it out of the mean, do not count it as 0.",
            ),
            Slip(
                lambda *a: _report(*a, per_event=True),
                "An event may bring several tokens. TPOT divides by tokens − 1, not by events − 1.",
            ),
            Slip(
                lambda *a: _report(*a, begin="sent"),
                "That counts from the sending. The user's clock started at `intended`.",
            ),
            Slip(
                lambda *a: _report(*a, failed_too=True),
                "A failed request has no latency, and it is never good.",
            ),
            Slip(
                lambda *a: _report(*a, pooled=False),
                "Percentiles do not average. Pool the gaps of all answers, then take p99.",
            ),
            Slip(
                lambda *a: _report(*a, rank=True),
                "The percentile lies straight between its two neighbours, at rank p/100 · (n − 1).",
            ),
        ],
    ),
)


# predict: who notices -----------------------------------------------------------------------------
def who_notices() -> float:
    """Percent of answers of 301 tokens that have a stall, if one gap in 400 is one."""
    return 100 * (1 - (1 - 1 / 400) ** 300)


exercises.add(
    "who-notices",
    title="One gap in four hundred",
    kind="predict",
    difficulty=2,
    importance=4,
    minutes=6,
    points=1,
    shows="A stall too rare for p99 to see is not rare for the users of a long answer.",
    check=Number(
        who_notices,
        unit="%",
        tolerance=0.001,
        slips=[
            Slip(0.25, "That is the share of the gaps. An answer is clean only if all of its gaps are."),
            Slip(75.0, "Adding up 300 times 0.25 % counts an answer with two stalls twice."),
            Slip(
                lambda got: abs(got - (100 - who_notices())) < 0.1,
                "That is the share of answers without a stall.",
            ),
            Slip(
                lambda got: 52.9 < got < 52.95, "301 tokens have 300 gaps; the first token comes with TTFT."
            ),
            Slip(
                lambda got: abs(got - who_notices() / 100) < 0.001,
                "In percent, please: a hundred times that.",
            ),
        ],
    ),
)


# build: percentiles out of buckets ----------------------------------------------------------------
def _quantile(q: float, bounds: list[float], replicas: list[list[int]], how: str = "") -> float:
    """Prometheus's histogram_quantile over summed replicas; `how` names a slip."""
    if how == "mean":
        each = [_quantile(q, bounds, [one]) for one in replicas]
        return sum(each) / len(each)
    counts = [sum(column) for column in zip(*replicas, strict=True)]
    if how == "apart":  # counts taken for those of each bucket alone
        for i in range(1, len(counts)):
            counts[i] += counts[i - 1]
    if counts[-1] == 0:
        return math.nan
    rank = q * counts[-1]
    i = next(i for i, count in enumerate(counts) if count >= rank)
    if i == len(bounds) - 1:
        return math.inf if how == "inf" else bounds[-2]
    low = bounds[i - 1] if i else 0.0
    before = counts[i - 1] if i else 0
    if how == "upper":
        return bounds[i]
    if how == "lower" and i == 0:
        return bounds[0]
    return low + (bounds[i] - low) * (rank - before) / (counts[i] - before)


_TTFT = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf]
_A = [0, 0, 2, 11, 60, 190, 340, 480, 900, 970, 980, 985, 989, 996, 998, 999, 1000]
_B = [0, 0, 0, 0, 0, 1, 3, 8, 40, 70, 82, 90, 97, 99, 100, 100, 100]

exercises.add(
    "quantile",
    title="p99 out of buckets",
    kind="build",
    difficulty=3,
    importance=4,
    minutes=20,
    points=3,
    shows="Prometheus keeps no latencies, only counts; its p99 is exact to a bucket, and counts of replicas add up.",
    check=Cases(
        reference=_quantile,
        cases=[
            Case("one replica, p50", (0.5, [0.1, 0.2, 0.4, math.inf], [[10, 30, 40, 40]])),
            Case(
                "inside the first bucket",
                (0.2, [0.1, 0.2, math.inf], [[8, 9, 10]]),
                slip="The first bucket begins at 0.",
            ),
            Case("exactly at a bucket's end", (0.5, [0.1, 0.2, 0.4, math.inf], [[5, 10, 18, 20]])),
            Case("an empty bucket in between", (0.75, [0.1, 0.2, 0.4, math.inf], [[5, 5, 10, 10]])),
            Case(
                "beyond the last bound",
                (0.99, [0.1, 0.2, math.inf], [[2, 4, 10]]),
                slip="The last bucket has no end. Known is only that the value lies beyond the last finite bound.",
            ),
            Case("one observation", (0.99, [0.1, 0.2, math.inf], [[0, 1, 1]])),
            Case("TTFT of a vLLM server, p99", (0.99, _TTFT, [_A])),
            Case("two replicas, one of them busy", (0.9, _TTFT, [_A, _B])),
            Case("a replica without traffic", (0.95, _TTFT, [_A, [0] * len(_TTFT)])),
            Case(
                "nothing observed",
                (0.5, [0.1, math.inf], [[0, 0], [0, 0]]),
                slip="Nothing was observed, so there is no percentile: NaN, as Prometheus answers.",
            ),
        ],
        tolerance=FP64,
        slips=[
            Slip(
                lambda q, bounds, replicas: _quantile(q, bounds, replicas, "mean"),
                "Percentiles do not average. Add the counts of the replicas first.",
            ),
            Slip(
                lambda q, bounds, replicas: _quantile(q, bounds, replicas, "apart"),
                "The counts are cumulative already: bucket `le` holds everything up to its bound.",
            ),
            Slip(
                lambda q, bounds, replicas: _quantile(q, bounds, replicas, "upper"),
                "That is the bucket's end. Go into the bucket in proportion to the rank.",
            ),
            Slip(
                lambda q, bounds, replicas: _quantile(q, bounds, replicas, "inf"),
                "Infinity is no latency: answer with the last finite bound.",
            ),
        ],
    ),
)


# debug: a stream reader ---------------------------------------------------------------------------
def broken_read_stream(reads: list[tuple[float, bytes]]) -> tuple[float, float, list[float], str]:
    """The reader as it is handed out."""
    times: list[float] = []
    text = ""
    for now, chunk in reads:
        for line in chunk.decode().split("\n"):
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line[6:])
                times.append(now)
                for choice in event["choices"]:
                    text += choice["delta"].get("content", "")
    gaps = [b - a for a, b in pairwise(times)]
    return times[0], sum(gaps) / len(gaps), gaps, text


def mended_read_stream(
    reads: list[tuple[float, bytes]], how: str = ""
) -> tuple[float, float | None, list[float], str]:
    """The reference; `how` names a slip that stays in."""
    times: list[float] = []
    text, tokens, rest = "", 0, b""
    for now, chunk in reads:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            pieces = [choice["delta"].get("content") or "" for choice in event["choices"]]
            text += "".join(pieces)
            role = how == "role" and any("role" in choice["delta"] for choice in event["choices"])
            if any(pieces) or role or (how == "bill" and not pieces):
                times.append(now)
    gaps = [b - a for a, b in pairwise(times)]
    steps = len(times) if how == "events" else tokens
    tpot = (times[-1] - times[0]) / (steps - 1) if steps > 1 else None
    if how == "zero" and tpot is None:
        tpot = 0.0
    return times[0], tpot, gaps, text


def _read_by_read(reads: list[tuple[float, bytes]], errors: str = "strict") -> Any:
    """A slip: every read is taken for whole events, so a cut one cannot be decoded or parsed."""
    for _, chunk in reads:
        for line in chunk.decode(errors=errors).split("\n"):
            if line.startswith("data: {"):
                json.loads(line[6:])
    return mended_read_stream(reads)


CUT = "A read ends where the network wants. Keep the bytes behind the last line end for the next read."


def _event(content: str | None = None, finish: str | None = None, **delta: str) -> bytes:
    if content is not None:
        delta["content"] = content
    body = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _bill(tokens: int) -> bytes:
    body = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"


def _stream_cases() -> list[Case]:
    role, end = _event("", role="assistant"), _event(finish="stop")
    split = _event(" né")
    at = split.index("é".encode()) + 1  # in the middle of a character
    return [
        Case("two tokens", ([(0.4, _event("One")), (0.6, _event(" two") + end + _bill(2))],)),
        Case(
            "the first event is only the role",
            ([(0.1, role), (0.5, _event("A")), (0.8, _event("B")), (0.8, end + _bill(2))],),
        ),
        Case("three tokens in one event", ([(0.3, _event("a")), (0.9, _event("bcd") + end + _bill(4))],)),
        Case("an answer of one token", ([(0.25, _event("42") + end + _bill(1))],)),
        Case(
            "an event split over three reads",
            ([(0.2, _event("Il est")), (0.3, split[:5]), (0.5, split[5:at]), (0.7, split[at:] + end + _bill(2))],),
            slip=CUT,
        ),
        Case("two events in one read", ([(0.2, _event("a") + _event("b")), (0.6, _event("c") + end + _bill(3))],)),
        Case("the bill comes late", ([(0.2, _event("a")), (0.4, _event("b") + end), (1.4, _bill(2))],)),
        Case(
            "empty and missing contents",
            (
                [
                    (0.1, role),
                    (0.2, _event("")),
                    (0.5, _event("a")),
                    (0.6, _event("")),
                    (0.9, _event("b") + end + _bill(4)),
                ],
            ),
            slip="An event without text is nothing a user sees: no arrival.",
        ),
    ]  # fmt: skip


exercises.add(
    "read-stream",
    title="A stream that is not one token per event",
    kind="debug",
    difficulty=4,
    importance=5,
    minutes=25,
    points=4,
    shows="Four faults that real clients shipped: TTFT of a role, TPOT per event, a split event, a division by 0.",
    forbidden=("lumen.serve.load.answer.Answer", "lumen.serve.load.sse.EventStream"),
    check=Cases(
        reference=mended_read_stream,
        cases=_stream_cases,
        tolerance=FP64,
        broken=broken_read_stream,
        slips=[
            Slip(_read_by_read, CUT),
            Slip(lambda reads: _read_by_read(reads, "replace"), CUT),
            Slip(
                lambda reads: mended_read_stream(reads, "role"),
                "The role is no token. TTFT ends with the first text.",
            ),
            Slip(
                lambda reads: mended_read_stream(reads, "events"),
                "An event may bring several tokens; the bill says how many there were in all.",
            ),
            Slip(
                lambda reads: mended_read_stream(reads, "zero"),
                "One token has no time per further token: None, not 0.",
            ),
            Slip(
                lambda reads: mended_read_stream(reads, "bill"),
                "The bill is no token: the answer ended with its last text.",
            ),
        ],
    ),
)


# literature ---------------------------------------------------------------------------------------
def pooled_p99() -> float:
    """p99 of 900 requests of 0.2 s and 100 of 2 s, together."""
    return percentile([0.2] * 900 + [2.0] * 100, 99)


exercises.add(
    "in-print",
    title="Five sentences on latency",
    kind="literature",
    difficulty=2,
    importance=4,
    minutes=10,
    points=2,
    shows="Common sentences on latency go wrong in one way: they leave out those who wait longest.",
    check=Statements(
        false="bce",
        why={
            "a": "0.5 s + 99 gaps of 50 ms are 5.45 s.",
            "b": "TTFT also holds the queue, the tokenizer and the network. Under load the queue is most of it.",
            "c": "TPOT is a mean per request, ITL every gap. A stall hides in the first and stands in the second.",
            "d": "1,000 / 10 = 100.",
            "e": "Percentiles do not average; the busiest replica has most of the tail.",
        },
        number=Number(
            pooled_p99,
            unit="s",
            tolerance=1e-3,
            slips=[
                Slip(
                    1.1,
                    "That is the mean of the two p99s. Pool the thousand requests and look at the slowest ten.",
                ),
                Slip(0.38, "That is the mean latency."),
                Slip(0.2, "A hundred of the thousand requests take longer, and p99 leaves out only ten."),
            ],
        ),
    ),
)


# decide -------------------------------------------------------------------------------------------
RATE, PROMPT, ANSWER = 40.0, 1000, 250  # requests per second; tokens
LLAMA, H100 = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
_PREFILL = predict_prefill(LLAMA, H100, PROMPT, 1, "bf16").seconds


def _tpot(config: dict[str, Any]) -> float:
    """Seconds per token: decode gets the time that prefills leave it, on each replica."""
    reading = RATE / config["replicas"] * _PREFILL
    if reading >= 1:
        return math.inf
    return predict_decode(LLAMA, H100, PROMPT + ANSWER // 2, config["batch"], "bf16").seconds / (1 - reading)


def _tpot_ms(config: dict[str, Any]) -> float:
    return 1e3 * _tpot(config)


def _load(config: dict[str, Any]) -> float:
    """Share of a replica's places that are taken (Little: requests in = rate x time in)."""
    return RATE / config["replicas"] * (_PREFILL + _tpot(config) * (ANSWER - 1)) / config["batch"]


def _memory_gb(config: dict[str, Any]) -> float:
    return (weight_storage(LLAMA, "bf16") + kv_bytes(LLAMA, PROMPT + ANSWER, config["batch"], "bf16")) / 1e9


def _dollars(config: dict[str, Any]) -> float:
    return cost_per_million_tokens(config["replicas"] * (H100.price_per_hour or 0.0), RATE * ANSWER)


exercises.add(
    "slo",
    title="Replicas and places for a promise",
    kind="decide",
    difficulty=3,
    importance=5,
    minutes=15,
    points=3,
    shows="A larger batch makes tokens slower and the queue shorter; the promise bounds both, the price picks.",
    check=Decision(
        choices={"replicas": range(1, 9), "batch": range(1, 257)},
        constraints=[
            Constraint(
                "TPOT",
                _tpot_ms,
                at_most=13.0,
                unit="ms",
                slip="A step gets slower with every user in it, and prefills take their time from it.",
            ),
            Constraint(
                "load",
                _load,
                at_most=0.8,
                unit="of the places",
                slip="Requests per second × seconds in a place, over the places: near 1 the queue takes over.",
            ),
            Constraint(
                "memory",
                _memory_gb,
                at_most=80.0,
                unit="GB",
                slip="Weights, and 1,250 tokens of cache a place.",
            ),
        ],
        cost=_dollars,
        unit="$ per million tokens",
        within=0.0,
        dearer="The promise holds, but fewer replicas can keep it too, with another batch.",
    ),
)
