"""Exercises of chapter 03: a report, who notices, percentiles out of buckets, a stream reader, an SLO."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

from lumen.config import CONFIGS
from lumen.cost import kv_bytes, predict_decode, predict_prefill, weight_storage
from lumen.grading import FP64, Case, Cases, Constraint, Decision, ExerciseSet, Number, Statements
from lumen.grading.kinds.slip import bends
from lumen.hardware import CHIPS
from lumen.loadgen.statistics import percentile

exercises = ExerciseSet(
    "03",
    "Measuring",
    then="chapter 04, the KV cache",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | report | The report | build | 3 | 5 | 20 | 4 |
    | who-notices | One gap in four hundred | predict | 2 | 4 | 6 | 1 |
    | quantile | p99 out of buckets | build | 3 | 4 | 20 | 3 |
    | read-stream | A stream that is not one token per event | debug | 4 | 5 | 25 | 4 |
    | in-print | Five sentences on latency | literature | 2 | 4 | 10 | 2 |
    | slo | Replicas and places for a promise | decide | 3 | 5 | 15 | 3 |
    """,
)


# build: the report --------------------------------------------------------------------------------
def _report(requests: list[dict[str, Any]], limits: tuple[float, float], mode: str = "") -> dict[str, Any]:
    """The reference; `mode` names what goes wrong."""
    tpots: list[float] = []
    gaps: list[list[float]] = []
    e2els: list[float] = []
    weights: list[int] = []
    good = 0
    for one in requests:
        if one["error"] and not (mode in ("failed", "failed good") and one["arrivals"]):
            continue
        came, begin = one["arrivals"], one["sent" if mode == "sent" else "intended"]
        steps = (len(came) if mode == "events" else one["tokens"]) - 1
        tpot = (came[-1] - came[0]) / (steps + (mode == "n")) if steps else 0.0
        first = came[0] - (one["sent"] if mode == "sent first" else begin)
        between = [b - a for a, b in pairwise(came)]
        pace = max(between, default=0.0) if mode == "gaps" else tpot
        if mode in ("ms", "ms limits"):
            first, pace = 1e3 * first, 1e3 * pace
        under = first < limits[0] and pace < limits[1]
        kept = under if mode == "below" else first <= limits[0] and pace <= limits[1]
        good += kept and (steps > 0 or mode != "one")
        if one["error"] and mode == "failed good":
            continue
        tpots += [tpot] if mode == "zero" or (steps and (between or mode != "at once")) else []
        weights.append(steps)
        gaps.append(between)
        e2els.append(came[-1] - (one["sent"] if mode == "sent last" else begin))

    def p99(values: list[float]) -> float | None:
        if not values:
            return None
        below = 0.99 * (len(values) - 1) if mode == "floor" else 0.99 * len(values)
        return sorted(values)[int(below)] if mode in ("rank", "floor") else percentile(values, 99)

    each = [percentile(row, 99) for row in gaps if row]
    pooled = p99([gap for row in gaps for gap in row])
    mean = sum(tpots) / len(tpots) if tpots else 0.0 if mode == "nothing" else None
    if mode == "pooled" and tpots:
        mean = sum(sum(row) for row in gaps) / sum(weights)
    if mode == "nothing":
        e2els, pooled = e2els or [0.0], pooled or 0.0
    if mode == "averaged" and each:
        pooled = sum(each) / len(each)
    found = {"mean_tpot": mean, "p99_itl": pooled, "p99_e2el": p99(e2els)}
    unit = 1e3 if mode == "ms" else 1.0
    return {name: value and unit * value for name, value in found.items()} | {"good": int(good)}


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
    limits = (0.5, 0.1875)
    plain = _request(0.0, [0.4, 0.5, 0.65])
    return [
        Case("one request of three tokens", ([plain], limits)),
        Case("exactly at both limits", ([_request(0.0, [0.5, 0.6875])], limits)),
        Case("an answer of one token beside it", ([plain, _request(1.0, [1.3])], limits)),
        Case("only answers of one token", ([_request(0.0, [0.2]), _request(1.0, [1.7])], limits)),
        Case("five tokens in three events", ([_request(2.0, [2.3, 2.7, 2.8], 5)], limits)),
        Case("four tokens in a single event", ([_request(0.0, [0.3], 4), plain], limits)),
        Case("the client held it back", ([_request(3.0, [3.2, 3.25], intended=1.0), plain], limits)),
        Case("one request failed half way", ([plain, _request(5.0, [5.1, 5.9], error="hang-up")], limits)),
        Case("one request failed quickly", ([plain, _request(5.0, [5.1, 5.2], error="hang-up")], limits)),
        Case("no request at all", ([], limits)),
        Case("nothing succeeded", ([_request(0.0, [], error="HTTP 503")], limits)),
        Case("two answers of different lengths",
             ([_request(0.0, [0.1 * i + 0.1 for i in range(9)] + [1.9]), _request(0.0, [0.1, 0.12])], limits)),
        Case("forty requests", _many),
        Case("forty requests under other limits", lambda: (_many()[0], (0.2225, 0.03383))),
    ]  # fmt: skip


NOT_THE_REPORT = {
    "zero": "an answer of one token has no gap: it is left out of the mean, not counted as 0, and the mean of "
    "nothing is None.",
    "ms": "all times are in seconds, the limits too; the chapter's report has milliseconds.",
    "one": "an answer of one token has no TPOT, so it cannot break the limit on it.",
    "at once": "tokens that came all at once have a TPOT of 0; an answer of one token has none.",
    "gaps": "the limit is on TPOT, the mean of the answer: a single gap may be longer.",
    "nothing": "where there is nothing to take a figure of, it is None, not 0.",
    "pooled": "the mean of TPOT is over answers, each counted once, however long it is.",
    "events": "an event may bring several tokens: TPOT divides by tokens − 1, not by events − 1.",
    "n": "n tokens have n − 1 times between them.",
    "sent": "the clock started at the sending; the user's started at `intended`.",
    "sent first": "the first token, too, is waited for since `intended`.",
    "sent last": "the latency, too, begins at `intended`.",
    "failed": "a failed request has no latency, and it is never good.",
    "failed good": "a failed request is never good, however quick it was.",
    "averaged": "percentiles do not average: pool the gaps of all answers, then take p99.",
    "rank": "p99 lies straight between its two neighbours, at rank 0.99 · (n − 1).",
    "floor": "p99 lies *between* two neighbours: go from the lower one by the rest of the rank.",
    "below": "a request exactly at its limits keeps them: at most means `<=`.",
    "ms limits": "all times are in seconds, the limits too.",
}

exercises.add(
    "report",
    shows="Five decisions turn one list of times into different reports, all under the same names.",
    forbidden=("lumen.loadgen.summarize", "lumen.loadgen.samples"),
    check=Cases(
        reference=_report,
        cases=_report_cases,
        tolerance=FP64,
        slips=bends(_report, NOT_THE_REPORT),
    ),
)


# predict: who notices -----------------------------------------------------------------------------
exercises.add(
    "who-notices",
    shows="A stall too rare for p99 to see is not rare for the users of a long chat.",
    check=Number(
        lambda: 100 * (1 - (1 - 1 / 400) ** 300),
        unit="%",
        tolerance=0.005,
        slips={
            0.25: "that is the share of the gaps. A chat is clean only if all of its gaps are.",
            7.23: "that is the share of the answers. A chat has ten of them.",
            75.0: "adding up 300 times 0.25 % counts a chat with two stalls twice.",
            47.2: "that is the share of chats without a stall.",
            54.0: "each answer of 31 tokens has 30 gaps; its first token comes with TTFT.",
            0.528: "that is the share; in percent it is a hundred times as much.",
        },
    ),
)


# build: percentiles out of buckets ----------------------------------------------------------------
def _quantile(q: float, bounds: list[float], replicas: list[list[int]], mode: str = "") -> float:
    """Prometheus's histogram_quantile over summed replicas; `mode` names what goes wrong."""
    if mode == "mean":
        each = [_quantile(q, bounds, [one]) for one in replicas]
        return sum(each) / len(each)
    counts = [sum(column) for column in zip(*replicas, strict=True)]
    if mode == "apart":  # counts taken for those of each bucket alone
        counts = [sum(counts[: i + 1]) for i in range(len(counts))]
    if counts[-1] == 0:
        return 0.0 if mode == "nothing" else math.nan
    rank = q * (counts[-1] - 1) if mode == "n - 1" else q * counts[-1]
    rank = math.ceil(rank) if mode == "ceil" else rank
    i = next(i for i, n in enumerate(counts) if n > rank or (n == rank and mode != "beyond"))
    if i == len(bounds) - 1:
        return math.inf if mode == "inf" else bounds[-2]
    low, before = (bounds[i - 1], counts[i - 1]) if i else (0.0, 0)
    if mode == "first" and not i:
        low = bounds[0]
    if mode in ("upper", "middle"):
        return bounds[i] if mode == "upper" else (low + bounds[i]) / 2
    inside = counts[i] if mode == "whole" else counts[i] - before
    return low + (bounds[i] - low) * (rank - before) / inside


_TTFT = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf]
_A = [0, 0, 2, 11, 60, 190, 340, 480, 900, 970, 980, 985, 989, 996, 998, 999, 1000]
_B = [0, 0, 0, 0, 0, 1, 3, 8, 40, 70, 82, 90, 97, 99, 100, 100, 100]
_THREE, _FOUR = [0.1, 0.2, math.inf], [0.1, 0.2, 0.4, math.inf]

BUCKETS: dict[str, Any] = {
    "one replica, p40": (0.4, _FOUR, [[10, 30, 40, 40]]),
    "inside the first bucket": (0.2, _THREE, [[8, 9, 10]]),
    "exactly at a bucket's end": (0.5, _FOUR, [[5, 10, 18, 20]]),
    "exactly at a bucket's end, the next one empty": (0.5, _FOUR, [[5, 10, 10, 20]]),
    "an empty bucket in between": (0.75, _FOUR, [[5, 5, 10, 10]]),
    "beyond the last bound": (0.99, _THREE, [[2, 4, 10]]),
    "one observation": (0.99, _THREE, [[0, 1, 1]]),
    "TTFT of a vLLM server, p99": (0.99, _TTFT, [_A]),
    "two replicas, one of them busy": (0.9, _TTFT, [_A, _B]),
    "a replica without traffic": (0.95, _TTFT, [_A, [0] * len(_TTFT)]),
    "three replicas": (0.6, _FOUR, [[1, 3, 9, 10], [0, 0, 2, 8], [7, 9, 30, 40]]),
    "nothing observed": (0.5, [0.1, math.inf], [[0, 0], [0, 0]]),
}

NOT_THE_QUANTILE = {
    "mean": "percentiles do not average: add the counts of the replicas first.",
    "apart": "the counts are cumulative already: bucket `le` holds everything up to its bound.",
    "first": "the first bucket begins at 0.",
    "ceil": "the rank is q · total as it stands, whole or not.",
    "n - 1": "the rank is q · total here; 0.99 · (n − 1) is for samples that were kept.",
    "middle": "that is the bucket's middle: go into the bucket in proportion to the rank.",
    "upper": "that is the bucket's end: go into the bucket in proportion to the rank.",
    "whole": "divide by what lies in the bucket alone: its count less the count before it.",
    "inf": "infinity is no latency: answer with the last finite bound.",
    "beyond": "a bucket that reaches the rank exactly holds it: the first with count >= q · total.",
    "nothing": "nothing was observed, so there is no quantile: NaN, as Prometheus answers.",
}

exercises.add(
    "quantile",
    shows="Prometheus keeps no latencies, only counts; its p99 is exact to a bucket, and counts of replicas add up.",
    check=Cases(
        reference=_quantile,
        cases=BUCKETS,
        tolerance=FP64,
        slips=bends(_quantile, NOT_THE_QUANTILE),
    ),
)


# debug: a stream reader ---------------------------------------------------------------------------
def _read_stream(
    reads: list[tuple[float, bytes]], mode: str = ""
) -> tuple[float, float | None, list[float], str]:
    """The reference; `mode` names a fault that stays in."""
    times: list[float] = []
    text, tokens, rest, begun = "", 0, b"", 0.0
    for now, chunk in reads:
        since, begun = (begun if rest else now), (begun if rest and b"\n" not in chunk else now)
        if mode == "whole":  # every read taken for whole characters and events
            chunk, rest = chunk.decode().encode(), b""
        elif mode in ("replace", "ignore"):
            chunk = chunk.decode(errors=mode).encode()
        if mode == "held" and not chunk.endswith(b"\n"):
            rest += chunk
            continue
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if not line.startswith(b"data: ") or line == b"data: [DONE]":
                continue
            event = json.loads(line[6:])
            usage = event["usage"] if mode == "usage" else event.get("usage")
            tokens = (usage or {}).get("completion_tokens", tokens)
            deltas = [choice["delta"] for choice in event["choices"]]
            if mode == "no text" and any("role" in delta for delta in deltas):
                continue
            pieces = [delta.get("content", "") for delta in deltas]
            if mode != "null":
                pieces = [piece or "" for piece in pieces]
            if mode == "strip":
                pieces = [piece if piece.strip() else "" for piece in pieces]
            text += "".join(pieces)
            role = mode == "role" and any("role" in delta for delta in deltas)
            empty = mode == "empty" and any(delta.keys() == {"content"} for delta in deltas)
            came = any(pieces) or role or empty or (mode == "bill" and not pieces)
            if came and not (mode == "together" and times[-1:] == [now]):
                times.append(since if mode == "began" else now)
            since = now
    gaps = [b - a for a, b in pairwise(times)]
    steps = len(times) if mode in ("events", "arrivals") and (mode == "events" or len(times) < 2) else tokens
    tpot = (times[-1] - times[0]) / (steps - (mode != "n")) if steps > 1 else None
    if mode == "zero" and tpot is None:
        tpot = 0.0
    return times[0], tpot, gaps, text.strip() if mode == "stripped" else text


def _event(content: str | None = None, finish: str | None = None, usage: bool = True, **delta: str) -> bytes:
    """Without `content` there is none; with usage=False the field is missing instead of null."""
    if content is not None:
        delta["content"] = content
    body: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    body |= {"usage": None} if usage else {}
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def _bill(tokens: int) -> bytes:
    body = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\ndata: [DONE]\n\n"


def _stream_cases() -> list[Case]:
    role, end = _event("", role="assistant"), _event(finish="stop")
    split = _event(" né")
    at = split.index("é".encode()) + 1  # in the middle of a character
    one, two = _event("one"), _event(" two")
    some = [
        (0.1, role),
        (0.2, _event("")),
        (0.5, _event("a")),
        (0.6, _event("").replace(b'""', b"null")),
        (0.9, _event("b") + end + _bill(4)),
    ]
    return [
        Case("two tokens", ([(0.4, _event("One")), (0.6, _event(" two") + end + _bill(2))],)),
        Case("the first event is only the role",
             ([(0.1, role), (0.5, _event("A")), (0.8, _event("B")), (0.8, end + _bill(2))],)),
        Case("three tokens in one event", ([(0.3, _event("a")), (0.9, _event("bcd") + end + _bill(4))],)),
        Case("an answer of one token", ([(0.25, _event("42") + end + _bill(1))],)),
        Case("an event split over three reads",
             ([(0.2, _event("Il est")), (0.3, split[:5]), (0.5, split[5:at]), (0.7, split[at:] + end + _bill(2))],)),
        Case("two events in one read", ([(0.2, _event("a") + _event("b")), (0.6, _event("c") + end + _bill(3))],)),
        Case("the bill comes late", ([(0.2, _event("a")), (0.4, _event("b") + end), (1.4, _bill(2))],)),
        Case("empty, null and missing contents", (some,)),
        Case("a read with the end of one event and the beginning of the next",
             ([(0.2, one[:20]), (0.5, one[20:] + two[:30]), (0.9, two[30:] + end + _bill(2))],)),
        Case("four tokens in a single event", ([(0.1, role), (0.6, _event("abcd") + end + _bill(4))],)),
        Case("text beside the role, and line breaks for tokens",
             ([(0.3, _event("A", role="assistant")), (0.5, _event("\n")), (0.6, _event("B")),
               (0.7, _event("\n") + end + _bill(4))],)),
        Case("usage only in the bill",
             ([(0.2, _event("a", usage=False)), (0.5, _event("b", "stop", usage=False) + _bill(2))],)),
    ]  # fmt: skip


NOT_THE_STREAM = {
    "whole": "a read ends where the network wants: keep the bytes behind the last line end.",
    "replace": "a character cut in two is not a bad one: decode whole lines, not reads.",
    "ignore": "a character cut in two is not one to drop: decode whole lines, not reads.",
    "held": "an event is complete with its own line end: it does not wait for the rest of the next one.",
    "no text": "an event may hold text beside the role; only the role itself is no token.",
    "strip": "white space is text too: a line break is a token that the user sees.",
    "arrivals": "tokens that came all at once have a TPOT of 0; None is for an answer of one token.",
    "stripped": "white space is text too, at the ends of the answer as well.",
    "null": "content may be null: then the event carries no text.",
    "usage": "in the events before the bill `usage` may be missing.",
    "began": "an event arrives with the read that completes it.",
    "together": "two events that one read completed are two arrivals, a gap of 0 apart.",
    "n": "n tokens have n − 1 times between them.",
    "role": "the role is no token: TTFT ends with the first text.",
    "empty": "an event without text is nothing that a user sees: no arrival.",
    "events": "an event may bring several tokens; the bill says how many there were in all.",
    "zero": "one token has no time per further token: None, not 0.",
    "bill": "the bill is no token, nor is an event that only says why: the answer ended with its last text.",
}

exercises.add(
    "read-stream",
    shows="Faults that real code shipped: TTFT of a role, an event for a token, a split event, a division by 0.",
    forbidden=("lumen.loadgen.answer.StreamedAnswer", "lumen.loadgen.sse.EventStream"),
    given="broken_read_stream",
    check=Cases(
        reference=_read_stream,
        cases=_stream_cases,
        tolerance=FP64,
        slips=bends(_read_stream, NOT_THE_STREAM),
    ),
)


# literature ---------------------------------------------------------------------------------------
exercises.add(
    "in-print",
    shows="Common sentences on latency go wrong in one way: they leave out those who wait longest.",
    check=Statements(
        false="bce",
        why={
            "a": "0.5 s + 99 gaps of 50 ms are 5.45 s.",
            "b": "TTFT also holds the queue, the tokenizer and the network. Under load the queue can be most of it.",
            "c": "TPOT is a mean per request, ITL every gap. A stall hides in the first and stands in the second.",
            "d": "1,000 / 10 = 100.",
            "e": "Percentiles do not average; the busiest replica has most of the tail.",
        },
        number=Number(
            lambda: percentile([0.2] * 900 + [2.0] * 100, 99),
            unit="s",
            slips={
                1.1: "that is the mean of the two p99s: pool the thousand and look at the slowest ten.",
                0.38: "that is the mean latency, and that of the p99s by their requests. A p99 is neither.",
                0.2: "a hundred of the thousand requests take longer, and p99 leaves out only ten.",
            },
        ),
    ),
)


# decide -------------------------------------------------------------------------------------------
RATE, PROMPT, ANSWER = 10.0, 4000, 500  # requests per second; tokens
LLAMA, H100 = CONFIGS["llama-3-8b"], CHIPS["H100 SXM"]
_PREFILL = predict_prefill(LLAMA, H100, PROMPT, 1, "bf16").seconds


def _tpot(config: dict[str, Any]) -> float:
    """Seconds per token: steps get the time that prefills leave them, on each replica."""
    reading = RATE / config["replicas"] * _PREFILL
    if reading >= 1:
        return math.inf
    return predict_decode(LLAMA, H100, PROMPT + ANSWER // 2, config["places"], "bf16").seconds / (1 - reading)


def _load(config: dict[str, Any]) -> float:
    """Share of a replica's places that are taken (Little: requests in = rate x time in)."""
    return RATE / config["replicas"] * (_PREFILL + _tpot(config) * (ANSWER - 1)) / config["places"]


def _memory_gb(config: dict[str, Any]) -> float:
    cache = kv_bytes(LLAMA, PROMPT + ANSWER, config["places"], "bf16")
    return (weight_storage(LLAMA, "bf16") + cache) / 1e9


exercises.add(
    "slo",
    shows="More places make tokens slower and the queue shorter; promise and memory bound them, the price picks.",
    check=Decision(
        choices={"replicas": range(1, 9), "places": range(1, 257)},
        constraints=[
            Constraint(
                "TPOT",
                lambda config: 1e3 * _tpot(config),
                at_most=30.0,
                unit="ms",
                slip="a step gets slower with every user in it, and prefills take their time from it.",
            ),
            Constraint(
                "load",
                _load,
                at_most=0.9,
                unit="of the places",
                slip="requests per second × seconds in a place, over the places: near 1 the queue takes over.",
            ),
            Constraint(
                "memory",
                _memory_gb,
                at_most=80.0,
                unit="GB",
                slip="weights, and 4,500 tokens of cache a place.",
            ),
        ],
        cost=lambda config: config["replicas"],
        unit="replicas",
        dearer="The promise holds, but fewer replicas can keep it too, with other places.",
    ),
)
