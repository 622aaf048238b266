"""What chapter 10 shows: layers, queues, dashboards, knees. Functions of data, without a clock or torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lumen.bench import Estimate, NoEvidence, load_evidence, miss, says, sentence
from lumen.bench.numbers import percent
from lumen.explore.explorers.knee import carried, in_words, judge, predicted_runs
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.loadgen import arrivals, percentile, samples
from lumen.loadgen.batched import batched

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.loadgen import Record

Table = tuple[list[list[Any]], list[str], str]
Step = Callable[[int, int], float]
Span = tuple[str, float, float]

API, TEXT, PLAN, ENGINE, OUT = (
    "1 API", "2 tokenizer", "3 scheduler", "4 engine", "5 detokeniser",
)  # fmt: skip
LAYERS = (API, TEXT, PLAN, ENGINE, OUT)
RATES = (1.5, 3.0, 4.5, 6.0, 9.0)  # offered in benchmarks/load_test.py
LIMITS = (1.0, 0.15)  # seconds of TTFT and of TPOT
SENT, ANSWER = 64, 16  # tokens of a request there

PRODUCTION = [
    (
        "vllm",
        "GPUs, by default: most models, most hardware",
        "`--max-num-seqs` · `--max-num-batched-tokens` · `--max-num-queued-reqs`, running ones included",
        "cli/serve/",
    ),
    (
        "sglang",
        "prompts that share much, structured output",
        "`--max-running-requests` · `--chunked-prefill-size` · `--max-queued-requests`",
        "advanced_features/server_arguments",
    ),
    (
        "tensorrt-llm",
        "NVIDIA only, and the last percents count",
        "`--max_batch_size` · `--max_num_tokens` · –",
        "commands/trtllm-serve.html",
    ),
    (
        "llama.cpp",
        "CPU, laptop, any GPU; 2 to 8 bits; one file",
        "`--parallel` · `--ubatch-size` · –",
        "tools/server/README.md",
    ),
    ("ollama", "one person, one machine", "`OLLAMA_NUM_PARALLEL` · – · `OLLAMA_MAX_QUEUE`", "faq"),
    ("mlx-lm", "Apple silicon and its shared memory", "`--decode-concurrency` · – · –", ""),
    ("dynamo", "many nodes, on top of the engines", "routing by cache, prefill and decode apart", ""),
    ("llm-d", "the same idea on Kubernetes, around vLLM", "an inference gateway", ""),
    ("tgi", "nothing new: archived, read-only since 21 March 2026", "its README names the others", ""),
]  # fmt: skip
PRODUCTION_HEADERS = ("engine", "take it for", "slots · tokens a step · queue")


# one request --------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Way:
    """One request through five layers. Times in seconds since it was sent."""

    spans: list[Span]  # (layer, begin, end)
    first: float  # the first token is at the client
    last: float  # [DONE] is
    tokens: list[float]  # when each piece of text came
    ready: float  # when the step that made the first token was done
    later: int  # steps after it

    def spent(self, layer: str, *, first: bool) -> float:
        """Seconds of a layer until the first token, or per token after it."""
        if first:
            return sum(e - b for name, b, e in self.spans if name == layer and b <= self.ready)
        rest = sum(e - b for name, b, e in self.spans if name == layer and b > self.ready)
        return rest / max(1, self.later)

    @property
    def outside(self) -> float:
        """Share of the whole that was no forward."""
        return 1 - sum(e - b for name, b, e in self.spans if name == ENGINE) / self.last


def way(log: Sequence[Span], sent: float, pieces: Sequence[float], done: float) -> Way:
    """Put the stopwatch's log and the client's times on one axis. `pieces`: when text came."""
    at = {
        name: sorted((b, e) for layer, b, e in log if layer == name)
        for name in ("step", "forward", "scheduler", "tokenizer")
    }
    (begin, end), booked, steps = at["tokenizer"][0], at["scheduler"], at["step"]
    spans = [(API, sent, begin), (TEXT, begin, end), (PLAN, end, booked[0][0])]
    spans += [(PLAN, b, e) for b, e in booked] + [(ENGINE, b, e) for b, e in at["forward"]]
    spans += [(OUT, max(e for _, e in booked if e <= done), done) for _, done in steps]
    for came in pieces:
        spans.append((OUT, max((e for _, e in steps if e <= came), default=came), came))
    ready = max(e for _, e in steps if e <= pieces[0]) - sent
    moved = [(name, b - sent, e - sent) for name, b, e in spans]
    return Way(
        moved, pieces[0] - sent, done - sent, [t - sent for t in pieces], ready, max(1, len(steps) - 1)
    )


def way_figure(found: Way) -> go.Figure:
    """A bar for every stretch of time in which a layer had the request, to the fifth token."""
    fig = figure(
        f"From sending to [DONE]: {1e3 * found.last:,.0f} ms, of which {percent(found.outside, 1)} is no forward",
        x="since the request was sent (ms)", y="layer", height=330,
    )  # fmt: skip
    tones = (palette.grey, palette.green, palette.purple, palette.blue, palette.orange)
    for layer, color in zip(LAYERS, tones, strict=True):
        mine = [(1e3 * b, 1e3 * (e - b)) for name, b, e in found.spans if name == layer]
        fig.add_bar(
            base=[b for b, _ in mine], x=[max(w, 0.05) for _, w in mine], y=[layer] * len(mine), orientation="h",
            marker={"color": color, "line": {"color": color, "width": 1.5}},
        )  # fmt: skip
    zoom = 1e3 * found.tokens[min(4, len(found.tokens) - 1)]
    fig.update_layout(barmode="overlay", bargap=0.35)
    fig.update_xaxes(range=[-0.02 * zoom, 1.03 * zoom])
    fig.update_yaxes(autorange="reversed", title_text=None)
    return fig


def way_table(found: Way) -> Table:
    rows = [
        [layer, 1e3 * found.spent(layer, first=True), 1e3 * found.spent(layer, first=False)]
        for layer in LAYERS
    ]
    rows.append(["all", 1e3 * found.first, 1e3 * (found.last - found.first) / found.later])
    return rows, ["layer", "to the first token (ms)", "per later token (ms)"], "lrr"


def way_text(found: Way) -> str:
    return (
        f"Of the {milliseconds(found.first)} to the first token the forward took "
        f"{percent(found.spent(ENGINE, first=True) / found.first)}. (In the last column the rows may add up to more "
        f"than the "
        "whole: one token is sent while the next is computed.) Layer 4 had chapters of its own. Here come the faults "
        "and the waits of the others, from the end: 5, 3 and 1."
    )


# saturation ---------------------------------------------------------------------------------------
def symbols(slots: int, prompt: int, answer: int, prefill: float, step: float) -> Table:
    rows = [
        ["$B$", str(slots), "slots"],
        ["$n$", str(answer), "tokens of an answer"],
        ["$t_\\text{prefill}$", milliseconds(prefill), f"a prompt of {prompt} tokens, by chapter 2's cost model"],
        ["$t_\\text{step}(B)$", milliseconds(step), f"a token for each of {slots}, halfway, by the same"],
        ["$B/\\mu$", "?", "stay: how long a request is inside when all slots are taken"],
        ["$\\lambda$", "?", "offered load, requests a second: chosen by the world"],
    ]  # fmt: skip
    return rows, ["symbol", "here", "what it is"], "lrl"


def houses(records: Sequence[Record], slots: int) -> Estimate:
    """Saturation throughput out of a closed loop: `slots` over the time that each house of them took."""
    ends = [0.0, *sorted(r.end for r in records)[slots - 1 :: slots]]
    took = Estimate.of([b - a for a, b in pairwise(ends)], "s")
    return Estimate(slots / took.value, slots / took.high, slots / took.low, took.n, "requests/s")


def saturation_text(model: float, clock: Estimate, in_forwards: float, stay: float, slots: int) -> str:
    """`in_forwards`: share of the time that the engine's thread was in a forward. [0, 1]"""
    forward = clock.value / in_forwards
    why = (
        f"The engine's thread spent {percent(in_forwards)} of the run in forwards; nothing but forwards would "
        "have made "
        f"{forward:.2f} requests/s. What lies between that and the forecast is the cost model's error, the rest "
        f"is HTTP, "
        "the clients, and slots that stayed empty until their user had asked again."
    )
    return (
        f"The formula {miss(model, clock, why)}\n\nA check that needs no model: Little's law says "
        f"{clock.value:.2f}/s × {stay:.2f} s = **{clock.value * stay:.1f}** requests inside, and we know that it was "
        f"{slots}."
    )


def parts(step: Step, slots: int) -> tuple[float, float]:
    """(a, b): what all share in a step, and what one more sequence adds to it. [s]"""
    each = (step(0, slots) - step(0, 1)) / (slots - 1)
    return step(0, 1) - each, each


def bathtub(count: int, mu: float, load: float, edges: float) -> float:
    """Seconds from arrival to the last token of the last of `count` requests at `load` > `mu` a second.

    `edges`: what filling and draining the house cost, (n - 1) times the part of a step that all share. [s]
    """
    return count / mu - count / load + edges


@sentence(example={}, unit="×", more_words=["later"], less_words=["sooner"])
def cover_text(est: Estimate) -> str:
    """The wait of the last requests over the tub's, with the whole interval of µ in it."""
    return says(
        est,
        more="the last were answered later than any of that, so µ alone is not the miss",
        less="the last were answered sooner than any of that, so µ alone is not the miss",
        same="that covers the clock",
        worth=0.0,
    )


def bathtub_text(count: int, clock: Estimate, load: float, edges: float, ends: Sequence[float]) -> str:
    mu = clock.value
    last = Estimate(
        statistics.median(ends[-3:]), min(ends[-3:]), max(ends[-3:]), 3, "s"
    )  # of the last three requests
    low, high = (bathtub(count, rate, load, edges) for rate in (clock.high, clock.low))
    tub, floor = bathtub(count, mu, load, edges), max(low, 0.1)  # a µ above the load would have no queue
    covered = cover_text(Estimate(last.value / tub, last.low / high, last.high / floor, last.n, "×"))
    why = (
        f"An error of the measured µ counts {load / (load - mu):.0f} times in the difference of the door: over its "
        f"interval, {clock.low:.2f} to {clock.high:.2f} requests/s, the tub says {low:.1f} to {high:.1f} s; "
        f"{covered}."
    )
    return (
        f"Door: {count / mu:.1f} − {count / load:.1f} = {count / mu - count / load:.1f} s. Fill and drain: "
        f"{edges:.1f} s. Together **{tub:.1f} s**; for the last three requests: "
        f"{miss(tub, last, why)}"
    )


def crowd_figure(busy: Sequence[Record], calm: Sequence[Record], load: float) -> go.Figure:
    waits, calm_waits = (samples(r, "ttft", intended=True) for r in (busy, calm))
    paces, calm_paces = (samples(r, "tpot") for r in (busy, calm))
    fig = figure(
        f"The last first token came after {waits[-1]:.1f} s; its answer then took {milliseconds(paces[-1])} a token",
        x="request, in the order in which they came", y="TTFT and TPOT (seconds)", height=430, log_y=True,
    )  # fmt: skip
    for values, color, dash in (
        (waits, palette.orange, "solid"), (calm_waits, palette.blue, "solid"),
        (paces, palette.orange, "dot"), (calm_paces, palette.blue, "dot"),
    ):  # fmt: skip
        line = {"color": color, "dash": dash, "width": 2.5}
        fig.add_scatter(x=list(range(1, len(values) + 1)), y=values, mode="lines", line=line)
    log_axis(fig, "y", [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20])
    at = len(calm_waits)
    label_line(
        fig, at + 8, waits[at + 7], f"TTFT, {load:g} × capacity", palette.orange, anchor="left", shift=-16
    )
    label_line(fig, at, calm_waits[-1], "TTFT, half load", palette.blue, anchor="left", shift=10)
    label_line(
        fig, at + 8, paces[at + 7], f"TPOT, {load:g} × capacity", palette.orange, anchor="left", shift=14
    )
    label_line(fig, at, calm_paces[-1], "TPOT, half load", palette.blue, anchor="left", shift=-12)
    return fig


@sentence(example={}, unit="×", more_words=["above"], less_words=["below"])
def cap_text(est: Estimate) -> str:
    """TPOT in the middle of a crowd, over its cap by the closed loop."""
    return says(
        est,
        more="{size} above it: a full house took longer here than in the closed loop that gave µ",
        less="{size} below it. Beyond saturation a token takes no longer than at it",
        same="no different from it, within what µ allows. Beyond saturation a token takes no longer",
    )


def crowd_takeaway(share: float, busy: Sequence[Record], clock: Estimate, slots: int, answer: int) -> str:
    """`share` of TTFT that was queue, by the server; `clock`: requests/s of a full house."""
    paces = samples(busy, "tpot")
    middle = paces[len(paces) // 4 : 3 * len(paces) // 4]  # at both ends the house is not full
    pace = Estimate.of(middle, "s")
    tokens = (answer - 1) / slots  # of each answer, per request that a full house finishes
    ratio = Estimate(
        pace.value * clock.value * tokens,
        pace.low * clock.low * tokens,
        pace.high * clock.high * tokens,
        pace.n,
        "×",
    )
    value, low, high = (1e3 / (mu * tokens) for mu in (clock.value, clock.high, clock.low))
    cap = Estimate(value, low, high, clock.n, "ms")
    return (
        f"**Takeaway.** {percent(share)} of the time to first token was spent in the queue. The cap on TPOT, "
        f"$B / (\\mu\\,(n-1))$, is {cap} by the measured µ; in the middle of the crowd TPOT was "
        f"{pace.scaled(1e3, 'ms')}: {cap_text(ratio)}. It is the queue that no longer empties."
    )


# below saturation ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class Knee:
    """Where the queue begins, by Little's law and by a simulated engine. Rates in requests/s, times in s."""

    mu: float
    rates: list[float]
    inside: list[float]  # simulated mean number inside or waiting
    p50: list[float]
    p90: list[float]
    formula: float  # the rate at which mean + 1.28 roots reach the slots, by the formula
    simulated: float  # the same with the simulated mean
    crowd: float  # the mean number at that point


def knee(step: Step, answer: int, slots: int, count: int = 6000) -> Knee:
    """Loads from 20 to 95 % of saturation through `batched`, and the formula beside them."""
    prefill, full = step(1, 0), step(0, slots)
    mu = slots / (slots * prefill + (answer - 1) * full)
    crowd = ((math.sqrt(1.28**2 + 4 * slots) - 1.28) / 2) ** 2  # mean + 1.28 sqrt(mean) = slots
    alone, each = parts(step, slots)
    own = prefill + (answer - 1) * each
    formula = crowd / ((answer - 1) * alone + crowd * own)
    rates = [mu * part / 100 for part in range(20, 96, 5)]
    played = [batched(arrivals(count, rate, seed=1), step, answer=answer, places=slots) for rate in rates]
    inside = [rate * statistics.mean(p.latency) for rate, p in zip(rates, played, strict=True)]
    i = next((i for i, value in enumerate(inside) if i and value > crowd), len(inside) - 1)
    part = (crowd - inside[i - 1]) / (inside[i] - inside[i - 1])
    simulated = rates[i - 1] + part * (rates[i] - rates[i - 1])
    median, tail = ([percentile(p.ttft, q) for p in played] for q in (50, 90))
    return Knee(mu, rates, inside, median, tail, formula, simulated, crowd)


def knee_figure(found: Knee) -> go.Figure:
    fig = figure(
        f"At {100 * found.simulated / found.mu:.0f} % of saturation the p90 has left its floor, the median not yet",
        x="offered load (% of saturation)", y="simulated TTFT (s)", height=380, log_y=True,
    )  # fmt: skip
    x = [100 * rate / found.mu for rate in found.rates]
    for name, values, color in (("p90", found.p90, palette.orange), ("p50", found.p50, palette.blue)):
        fig.add_scatter(x=x, y=values, mode="lines", line={"color": color, "width": 2.5})
        label_line(fig, x[-3], values[-3], name, color, anchor="right", shift=12)
    log_axis(fig, "y", [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10])
    at = 100 * found.simulated / found.mu
    fig.add_vline(x=at, line={"dash": "dash", "color": palette.grey})
    return fig


def knee_text(found: Knee) -> str:
    apart = round(100 * found.formula / found.mu) - round(100 * found.simulated / found.mu)
    why = (
        "crowds slow their own members down, so the mean of a fluctuating crowd lies above what the formula says of "
        "a steady one"
        if apart > 0 else  # not measured
        "the formula, of a steady crowd, was not too hopeful here"
    )  # fmt: skip
    return (
        f"Here $\\bar k + 1.28\\sqrt{{\\bar k}} = B$ gives $\\bar k = {found.crowd:.1f}$. By the formula for "
        f"$\\bar k$ that is "
        f"at {100 * found.formula / found.mu:.0f} % of saturation, in the simulated engine (steps by the cost model, "
        f"6,000 requests a load) at {100 * found.simulated / found.mu:.0f} %: {why}. "
        "A server that is planned for less than that wastes nothing: the last tenth of its users needs the rest."
    )


# dashboards ---------------------------------------------------------------------------------------
def dashboard(
    exact: Sequence[float], buckets: Sequence[tuple[float, float]], estimate: Callable[..., float]
) -> tuple[Table, str, float]:
    """The client's percentiles beside those from buckets; the text; how far the p99's bucket lets one be off."""
    rows, worst, low, high = [], 0.0, 0.0, 0.0
    edges = [0.0, *(edge for edge, _ in buckets)]
    for p in (50, 90, 99):
        true, guess = percentile(exact, p), estimate(p / 100, buckets)
        high = next(edge for edge in edges if edge >= true)
        low = max(edge for edge in edges if edge < high)
        rows.append(
            [f"p{p}", percent(guess / true - 1, signed=True), f"{true:.3g}", f"{guess:.3g}", f"{low:g} to {high:g}"]
        )  # fmt: skip
        worst = max(worst, abs(guess / true - 1))
    room = high / low - 1 if low else math.inf
    headers = ["TTFT", "off by", "at the client (s)", "from buckets (s)", "bucket (s)"]
    text = (
        f"Off by up to {percent(worst)} here. All values with these counts give the same estimate, so a p99 anywhere "
        f"between "
        f"{low:g} and {high:g} s can be off by up to {percent(room)}. Two consequences. If you promise 300 ms, there "
        f"should be "
        "an edge at 300 ms: then the share *within* the promise is exact. And quantiles of several servers are "
        "made by "
        "adding buckets first, never by averaging quantiles."
    )
    return (rows, headers, "lrrrr"), text, room


# several servers ----------------------------------------------------------------------------------
def replicas(step: Step, answer: int, slots: int, part: float = 0.8, count: int = 6000) -> Table:
    """p90 of TTFT on one of m replicas, each offered `part` of saturation, dealt in turns.

    Dealt by lot, each replica sees a Poisson process, whatever their number: that is the row of one. Dealt in turns,
    it sees every m-th arrival, whose gaps are sums of m: a gamma distribution of shape m.
    """
    mu = slots / (slots * step(1, 0) + (answer - 1) * step(0, slots))
    rows = []
    for many in (1, 2, 4, 8):
        times = arrivals(count, part * mu, many, seed=1)
        tail = percentile(batched(times, step, answer=answer, places=slots).ttft, 90)
        name = "any number, by lot" if many == 1 else f"{many}, in turns"  # not measured
        rows.append([name, milliseconds(tail)])
    return rows, ["replicas, and how requests are dealt", "p90 of TTFT (simulated)"], "lr"


def attempts(load: float, mu: float, retries: int) -> float:
    """Attempts a second at a door that lets `mu` in, when everyone who is refused tries `retries` times again."""
    rate = load
    for _ in range(200):
        refused = max(0.0, 1 - mu / rate)
        rate = load * sum(refused**i for i in range(retries + 1))
    return rate


def retry_text(over: float = 1.5, retries: int = 3) -> str:
    made = attempts(over, 1.0, retries)
    return (
        f"At {over:g} times saturation, {retries} retries at once turn every 100 users into {100 * made / over:.0f} "
        "attempts, and not one more of them is served. Where a refusal costs the server nothing, that is only noise. "
        "A *timeout* is worse: an attempt that was given up after it had been computed has taken a slot for "
        "nothing, and "
        "its retry takes a second one. So clients wait longer after each refusal and at random, a `Retry-After` "
        "header "
        "says how long, and a client that gives up must be noticed."
    )


# engines ------------------------------------------------------------------------------------------
def engines(step: Step, slots: int) -> tuple[list[dict[str, Any]], str]:
    """Servers for the knee explorer, and where their numbers come from: the published test, or our own forecast."""
    try:
        found = load_evidence("load_test")
        several = [dict(one) for one in found["data"]["engines"]]
        if not all("rounds" in run for one in several for run in one["runs"]):
            raise NoEvidence("load_test was written by an older benchmark")
    except NoEvidence:
        runs = predicted_runs(step, RATES, answer=ANSWER, slots=slots)
        source = "predicted by the cost model for this machine: no load test has been published yet"
        return [
            {"name": "lumen, predicted", "weights": "", "version": "", "runs": runs, "note": source}
        ], source
    source = f"measured {found['date']} on {found['cpu']}, {found['data']['setting']['threads']} threads"
    for one in several:
        one["note"] = ", ".join(x for x in (one["version"], f"{one['weights']} weights", source) if x)
    return several, source


def engines_table(several: Sequence[Mapping[str, Any]]) -> Table:
    rows = []
    for one in several:
        seen = [judge(run, *LIMITS) for run in one["runs"]]
        low, peak = seen[0], max(seen, key=lambda s: s["throughput"])
        rows.append(
            [one["name"], in_words(carried(one["runs"], *LIMITS), one["runs"]), f"{peak['throughput']:.2f}",
             milliseconds(low["ttft"][0]), milliseconds(low["tpot"][0])]
        )  # fmt: skip
    return rows, ["server", "carries", "finishes at most", "TTFT, lowest load", "TPOT, lowest load"], "lrrrr"


def engines_text(several: Sequence[Mapping[str, Any]], source: str) -> str:
    bytes_of = {"Q4_1": "4-bit weights", "fp32": "32-bit weights"}
    read = "; ".join(
        f"{e['name']} reads {bytes_of.get(e['weights'], e['weights'])}" for e in several if e["weights"]
    )
    kinds = {e["weights"] for e in several}
    told = (
        f"{read}. So this compares servers as one would use them on a CPU, not equal arithmetic."
        if len(kinds) > 1
        else f"All read {bytes_of.get(*kinds, *kinds)}."
        if read  # not measured
        else "`benchmarks/load_test.py` measures it, beside llama.cpp's `llama-server` and vLLM where they are "
        "installed."
    )
    return (
        f"Requests a second, within {LIMITS[0]:g} s of TTFT and {1e3 * LIMITS[1]:g} ms of TPOT; in brackets the "
        f"least and the most of three rounds ({source}). {told}"
    )


# the toll -----------------------------------------------------------------------------------------
@sentence(example={}, unit="×", more_words=["more"], less_words=["less"])
def toll_text(est: Estimate) -> str:
    """Gap at the client over the forward in it, one stream."""
    return says(
        est,
        more="{percent}: {size} more than the forward in it",
        less="{percent}: {size} less than the forward, which one token sent during the next one can explain",
        same="none beside the forward that {n} gaps can show",
    )


def toll_table(one: Estimate) -> Table:
    rows = [["a token for one stream, at the client, here", toll_text(one)]]
    try:
        summary = load_evidence("server_overhead")["data"]["summary"]
    except NoEvidence:
        summary = None
    if summary:
        rows.append(
            [
                f"a step of {summary['streams']} streams, at bare sockets, published",
                f"{percent(summary['overhead'], 1, signed=True)} of {1e3 * summary['model_step']:.1f} ms "
                f"({percent(summary['overhead_low'], 1, signed=True)} to "
                f"{percent(summary['overhead_high'], 1, signed=True)}, {summary['rounds']} rounds)",
            ]
        )
    return rows, ["what is paid", "price"], "ll"


def loops_text(closed: Sequence[Record], busy: Sequence[Record]) -> str:
    a, b = (percentile(samples(r, "ttft", intended=True), 90) for r in (closed, busy))
    return (
        f"p90 of TTFT was **{milliseconds(a)}** for the eight who took turns, **{milliseconds(b)}** for the "
        f"crowd. The "
        "same server, all slots taken in both. Eight people who each wait their turn can never be nine, so no "
        "queue can "
        "form. A closed loop measures what a server can do; only an open loop measures what happens to people."
    )


def recap(
    found: Way,
    checks: tuple[int, int, int, int],
    mu: tuple[float, Estimate],
    last: tuple[float, float, int],
    share: float,
    bend: Knee,
    room: float,
    engines_rows: Table,
) -> str:
    """The objectives again, with the numbers of the page. `checks`: broken, stopped, missed, leaked."""
    broken, stopped, missed, leaked = checks
    carries = "; ".join(f"{row[0]} carries {row[1]} requests/s" for row in engines_rows[0])
    return (
        f"- **Five layers.** Of one request's {milliseconds(found.last)}, {percent(found.outside, 1)} was no forward.\n"
        f"- **Certain text only.** Token by token, {broken} of 2,000 answers came out broken; of {stopped} "
        f"stops, the "
        f"short ways missed {missed} and leaked {leaked}. With held bytes and held text: none.\n"
        f"- **Saturation.** $B / (B\\,t_\\text{{prefill}} + (n-1)\\,t_\\text{{step}}(B))$ said {mu[0]:.2f} "
        f"requests a second, the clock {mu[1].value:.2f}. Beyond it the bathtub, with door, fill and drain, said "
        f"{last[0]:.1f} s for the last of {last[2]}, the clock {last[1]:.1f} s; {percent(share)} of TTFT was queue.\n"
        f"- **The knee.** By Little's law and the root of a crowd it comes at "
        f"{100 * bend.formula / bend.mu:.0f} % of saturation, in the simulated engine at "
        f"{100 * bend.simulated / bend.mu:.0f} %.\n"
        f"- **Dashboards.** A p99 in its bucket can be off by {percent(room)}.\n"
        f"- **Within {LIMITS[0]:g} s and {1e3 * LIMITS[1]:g} ms:** {carries}."
    )
