"""What chapter 03 shows: gaps, promises, testers, queues, prices. Functions of data, without a clock or torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lumen.bench import Estimate, miss, says, sentence
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.explore.prose.show import table_markdown
from lumen.loadgen import percentile, samples
from lumen.loadgen.queue import one_server

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured
    from lumen.hardware import Chip
    from lumen.loadgen import Record
    from lumen.loadgen.batched import Played

Table = tuple[list[list[Any]], list[str], str]

# TTFT and TPOT, in ms, that 99 of 100 requests must keep in MLPerf Inference, data centre: inference_rules.adoc.
RULES = "https://github.com/mlcommons/inference_policies/blob/ac93e89c0c9a8819eb0ad987768c2f6e22896714/inference_rules.adoc"
MLPERF = {
    "Llama-3.1-8B": ((2000, 100), (500, 30)),
    "Llama-2-70B": ((2000, 200), (450, 40)),
    "Llama-3.1-405B": ((6000, 175), (4500, 80)),
    "DeepSeek-R1": ((2000, 80), (1500, 15)),
    "GPT-OSS-120B": ((3000, 80), (2000, 20)),
}
QUERIES = 270_336  # what the same rules suggest for p99: 262,742, rounded up to a multiple of 8,192


# one answer ---------------------------------------------------------------------------------------
def usual_and_longest(answer: Record) -> tuple[float, float]:
    """Median and longest gap. [s]"""
    return statistics.median(answer.itl), max(answer.itl)


def gaps_figure(answer: Record) -> go.Figure:
    """Every gap a bar, and the mean of all."""
    gaps = [1e3 * gap for gap in answer.itl]
    usual = statistics.median(gaps)
    fig = figure(
        f"The mean gap is {statistics.mean(gaps):.0f} ms, the longest {max(gaps):,.0f} ms",
        x="token of the answer",
        y="gap before it (ms)",
    )
    at = list(range(2, len(gaps) + 2))
    colors = [palette.orange if gap > 3 * usual else palette.blue for gap in gaps]
    fig.add_bar(x=at, y=gaps, marker_color=colors)
    mean = statistics.mean(gaps)
    line = {"color": palette.grey, "dash": "dash"}
    fig.add_scatter(x=[at[0], at[-1]], y=[mean, mean], mode="lines", line=line)
    label_line(fig, at[-1], mean, "mean", palette.grey, anchor="right", shift=14)
    return fig


def opening(answer: Record, visitor: int, read: Measured, step: Measured) -> str:
    """What the figure shows, and that the stall is as long as chapter 1's clock says."""
    usual, longest = usual_and_longest(answer)
    assert answer.tpot
    others = statistics.mean(gap for gap in answer.itl if gap < longest)
    stall = Estimate(longest, longest, longest, 1, "s")
    gaps = Estimate.of([gap for gap in answer.itl if gap < longest])
    why = machine_now(gaps.scaled(1 / step.seconds, "×"))
    return (
        f"The visitor's prompt had {visitor:,} tokens. Without that one gap the mean is {milliseconds(others)}, "
        f"with it {milliseconds(answer.tpot)}, {100 * (answer.tpot / others - 1):.0f} % more on a chart of means. On "
        f"the user's screen the text stood still for **{milliseconds(longest)}**, {longest / usual:.0f} times the "
        f"median gap. The sum is right: {milliseconds(longest - usual)} more, spread over {len(answer.itl)} gaps, is "
        f"{milliseconds((longest - usual) / len(answer.itl))} each. A mean divides a stall by the length of the "
        "answer.\n\n"
        f"How long such a stall is could be known beforehand: the prefill of {visitor:,} tokens "
        f"({milliseconds(read.seconds)}) and the step that was due ({milliseconds(step.seconds)}), both from the "
        f"measurement store. For their sum: {miss(read.seconds + step.seconds, stall, why)}"
    )


@sentence(example={}, unit="×", more_words=["slower"], less_words=["faster"])
def machine_now(est: Estimate) -> str:
    """The other gaps of this answer over the stored step: was the machine what it was when the store was measured?"""
    return says(
        est,
        worth=0.1,
        more="The machine was slower than when the store was measured: the other gaps of this answer took {x} times "
        "the stored step.",
        same="The other gaps of this answer show no difference to the stored step; a stall that came once is a "
        "single sample.",
        less="The machine was faster than when the store was measured: the other gaps of this answer took {x} of "
        "the stored step.",
    )


def on_an_a100() -> str:
    """The same stall from measurements that others published."""
    from lumen.cost.published import published

    found = {m.id: m for m in published()}
    read, step = found["trt-a100-7b-first-2048"], found["gpt-fast-7b-bf16"]
    return (
        f"On a GPU all of it is shorter, and a stall is a stall. On one A100 Llama-2-7B was measured to read "
        f"{read.prompt:,} tokens in {milliseconds(read.seconds)} ([{read.source.title}]({read.source.url}), "
        f"{read.source.date[:4]}) and to make one token in {milliseconds(step.seconds)} "
        f"([{step.source.title}]({step.source.url}), {step.source.date[:4]}): one visitor lasts "
        f"{read.seconds / step.seconds:.0f} gaps. With longer prompts and a 34-billion model on two A100s "
        "[Sarathi-Serve](https://arxiv.org/abs/2403.02310) (2024, figure 1) shows stalls of several seconds."
    )


def four_times(answer: Record) -> Table:
    """The four times of the answer, and what each shows of the stall."""
    usual, longest = usual_and_longest(answer)
    share = milliseconds((longest - usual) / len(answer.itl))
    rows = [
        ["TTFT", milliseconds(answer.ttft), "nothing", "time to first token: here the prefill alone"],
        [
            "$\\text{ITL}_i$",
            f"{milliseconds(min(answer.itl))} to {milliseconds(longest)}",
            "**the stall**",
            f"inter-token latency: {len(answer.itl)} gaps, one by one",
        ],
        ["TPOT", milliseconds(answer.tpot), f"{share} of it", "time per output token: the mean gap"],
        ["E2EL", milliseconds(answer.latency), "a later end", "end-to-end latency, to the last token"],
    ]
    return rows, ["symbol", "here", "of the stall it shows", "what it is"], "lrll"


def promises() -> Table:
    """MLPerf's limits."""
    rows = [
        [name, f"{a[0]:,} · {a[1]} ms", f"{b[0]:,} · {b[1]} ms", f"{1e3 / a[1]:.3g} · {1e3 / b[1]:.3g}"]
        for name, (a, b) in MLPERF.items()
    ]
    headers = ["model", "server: TTFT · TPOT", "interactive: TTFT · TPOT", "tokens/s for a reader"]
    return rows, headers, "lrrr"


# who notices --------------------------------------------------------------------------------------
def noticed_title(stalled: Any) -> str:
    return (
        f"{100 * stalled.mean():.0f} % of the gaps, {100 * stalled.any(axis=1).mean():.0f} % of the answers"
    )


def noticed(gaps: Any, stalled: Any, chance: float, bursts: float) -> str:
    """Why so many answers have a stall. `gaps` (answers, gaps) in s; `stalled` the same shape, bool."""
    share = 100 * stalled.any(axis=1).mean()
    per = gaps.shape[1]
    rows = []
    for name, pick in (("mean", np.mean), *((f"p{p}", p) for p in (50, 90, 99))):
        pair = [
            float(pick(v)) if callable(pick) else percentile(v, pick)
            for v in (gaps.ravel(), gaps.mean(axis=1))
        ]
        rows.append([name, *(1e3 * value for value in pair)])
    shown = table_markdown(rows, ["ms", f"ITL, {gaps.size:,} gaps", f"TPOT, {len(gaps):,} answers"])
    return (
        f"An answer is clean only if all {per} gaps are: $1 - {1 - chance:g}^{{{per}}}$ = "
        f"**{100 * (1 - (1 - chance) ** per):.0f} %** have a stall, and {share:.0f} % of the simulated ones. Users "
        "do not sample gaps; they sit through all of them.\n\n"
        f"The formula lives on independence. If the visitors come {BURST} in a row, as after a link was shared, as "
        f"many stalls reach only {bursts:.0f} % of the answers; spread as evenly as can be they would reach "
        f"{100 * min(1.0, per * chance):.0f} %. Formula first, then your own traffic.\n\n"
        f"The same tokens, counted twice:\n\n{shown}\n\n"
        "The means agree, for all answers are of one length. At p90 the gaps are all fine and TPOT is not; at p99 "
        "TPOT still hides what ITL shows, for it averages each stall away over its answer. A server that stalls can "
        f"keep a limit on TPOT. To catch stalls in {100 * chance:.0f} % of the gaps, put the limit on ITL, and "
        f"beyond its p{100 * (1 - chance):.0f}."
    )


BURST = 5  # visitors in a row, for the answer to "what if they are not independent?"


def reached() -> Table:
    """Share of answers with a stall, by length and rarity."""
    rates = (1e-2, 1e-3, 1e-4)
    rows = [
        [f"{n:,}", *(f"{100 * (1 - (1 - rate) ** (n - 1)):.1f} %" for rate in rates)]
        for n in (16, 100, 250, 500)
    ]
    return rows, ["tokens of answer", *(f"one gap in {round(1 / rate):,}" for rate in rates)], "rrrr"


def rare() -> str:
    return (
        f"**Takeaway.** A gap beyond p99 is not rare for a user. If such gaps come independently, "
        f"{100 * (1 - 0.99**499):.0f} % of the answers of 500 tokens have one, and {100 * (1 - 0.999**499):.0f} % one "
        f"beyond p99.9. For half of them to have no stall, no more than one gap in "
        f"{math.ceil(1 / (1 - 0.5 ** (1 / 499))):,} may be one. Choose the percentile by the length of the answer."
    )


# two testers --------------------------------------------------------------------------------------
def one_freeze(service: float, frozen: float, requests: int) -> str:
    """The two times of the question."""
    return (
        f"A request takes **{milliseconds(service)}**, the freeze **{milliseconds(frozen)}**: {frozen / service:.1f} "
        f"times as long. It comes after {requests // 5} of the {requests} requests."
    )


class Testers:
    """Rounds of the load test: {"waits" | "sends" | "batched": [(records, service times in s), …]}, and the "
    "question."""

    def __init__(
        self,
        rounds: Mapping[str, Sequence[tuple[list[Record], list[float]]]],
        service: float,
        freeze: float,
        load: float,
    ) -> None:
        self.rounds, self.service, self.freeze, self.load = rounds, service, freeze, load
        first = rounds["waits"][0][0]
        self.requests = len(first)

    def latencies(self, who: str, intended: bool) -> list[list[float]]:
        return [samples(records, "e2el", intended=intended) for records, _ in self.rounds[who]]

    def slow(self, who: str, intended: bool = True) -> list[int]:
        """Requests over twice the service time, one count a round."""
        return [sum(value > 2 * self.service for value in values) for values in self.latencies(who, intended)]

    def forecast(self) -> float:
        """Late requests for one freeze: (freeze / s - 1) · load / (1 - load) rounded up, as far as the run goes."""
        late = max(0.0, (self.freeze / self.service - 1) * self.load / (1 - self.load))
        return float(min(self.requests - self.requests // 5, math.ceil(late)))

    def inside(self, services: Sequence[float]) -> tuple[float, float]:
        """Median service time of a round and its freeze. [s]"""
        frozen = self.requests // 5
        usual = statistics.median(s for i, s in enumerate(services) if i != frozen)
        return usual, services[frozen] - usual

    def replayed(self, services: Sequence[float]) -> int:
        """Slow requests of a queue that is fed with a round's own service times."""
        due = [i * self.service / self.load for i in range(self.requests)]
        seen = samples(one_server(due, services), "e2el", intended=True)
        return sum(value > 2 * self.service for value in seen)


def testers_title(t: Testers) -> str:
    sent, due = statistics.median(t.slow("waits", False)), statistics.median(t.slow("sends"))
    return f"With one freeze {due:.0f} requests were slow; the tester who waits counts {sent:.0f}"


def testers_figure(t: Testers) -> go.Figure:
    """The first round: three views of the same schedule."""
    fig = figure(
        "The same schedule, seen by three testers", x="when the request was due (s)", y="latency (ms)"
    )
    lines = (
        ("sends on time", "sends", True, palette.orange),
        ("waits, from the sending", "waits", False, palette.blue),
        ("on time, batching server", "batched", True, palette.green),
    )
    for i, (name, who, intended, color) in enumerate(lines):
        records = t.rounds[who][0][0]
        values = [1e3 * v for v in samples(records, "e2el", intended=intended)]
        fig.add_scatter(
            x=[r.intended for r in records], y=values, mode="lines+markers", line_color=color, name=name
        )
        fig.add_annotation(
            x=1, y=1 - 0.09 * i, xref="paper", yref="paper", text=name, showarrow=False, xanchor="right",
            font={"size": 13, "color": color},
        )  # fmt: skip
    fig.update_yaxes(rangemode="tozero")
    return fig


def testers_table(t: Testers) -> Table:
    """How each tester counts, the median of the rounds and their range."""
    rows = []
    for name, who, intended in (
        ("waits for each answer, clock from the sending", "waits", False),
        ("waits for each answer, clock from when it was due", "waits", True),
        ("sends when it is due", "sends", True),
        ("sends when it is due, server that batches", "batched", True),
    ):
        counts, values = t.slow(who, intended), t.latencies(who, intended)
        p90 = statistics.median(percentile(v, 90) for v in values)
        rows.append(
            [
                name,
                f"{statistics.median(counts):.0f} ({min(counts)} to {max(counts)})",
                milliseconds(p90),
            ]
        )
    return rows, ["tester", f"slow of {t.requests}", "p90"], "lrr"


@sentence(example={}, unit="×", more_words=["undercounts"])
def undercount(est: Estimate) -> str:
    """Slow requests when they are sent in time, over those that the waiting tester counts."""
    return says(
        est,
        more="The script met the freeze once, politely sent nothing in the meantime, and undercounts {x}-fold.",
        same="In these rounds the two testers do not differ by more than the rounds do.",
        less="In these rounds the tester who waits counts more than there were, {x} of them for every 1 counted.",
    )


@sentence(example={}, unit="×", more_words=["overcounts"], less_words=["misses some"])
def correction_in_order(est: Estimate) -> str:
    """Corrected count over true count on a server that takes one request after the other."""
    return says(
        est,
        worth=0.15,
        more="Counted from when each was due, the waiting tester overcounts on this server, in these rounds {x} "
        "times the true number.",
        same="Counted from when each was due, the same script agrees with the tester who really sends, as far as "
        "these rounds can tell: a server that takes one request at a time, in order, does not care where the queue "
        "stands.",
        less="Counted from when each was due, the waiting tester still misses some: in these rounds it finds {x} of "
        "every 1 there were.",
    )


@sentence(example={}, unit="×", more_words=["finds {x} times", "too high"], less_words=["too low"])
def correction_batched(est: Estimate) -> str:
    """Corrected count over true count on a server that takes everybody who waits into one pass."""
    return says(
        est,
        worth=0.15,
        more="On a server that takes everybody who waits into one pass the corrected count is too high: it finds {x} "
        "times the slow requests there were. The waiting tester lets no two requests meet, so it charges a queue "
        "that this server would not have had.",
        same="On a server that takes everybody who waits into one pass these rounds show no difference to the "
        "corrected count.",
        less="On a server that takes everybody who waits into one pass the corrected count is too low in these "
        "rounds, {x} of every 1.",
    )


@sentence(example={}, unit="×", more_words=["more than"], less_words=["fewer"])
def replayed_count(est: Estimate) -> str:
    """Slow requests of a queue with the round's own service times, over those of the round: the end of a sentence."""
    return says(
        est,
        worth=0.15,
        more=", more than were counted: the service times alone do not explain the miss.",
        same=", the count within what these rounds can tell: service times that vary are enough to explain the miss.",
        less=", fewer than were counted: something besides the service times made requests late.",
    )


def testers_text(t: Testers) -> str:
    """The explanation behind the fold."""
    true, batched = t.slow("sends"), t.slow("batched")
    blind, due = t.slow("waits", False), t.slow("waits")
    at_least = [[max(1, count) for count in counts] for counts in (true, batched, blind, due)]
    again = [t.replayed(services) for _, services in t.rounds["sends"]]
    inside = [t.inside(services) for _, services in t.rounds["sends"]]
    replay = Estimate.ratio([max(1, count) for count in again], at_least[0])
    why = (
        f"In these rounds a request took {milliseconds(statistics.median(s for s, _ in inside))} in the median and "
        f"the freeze {milliseconds(statistics.median(f for _, f in inside))}. The times as they were, put into the "
        f"loop of a queue, give {statistics.median(again):.0f} slow requests{replayed_count(replay)}"
    )
    return (
        f"While the server stood still for {milliseconds(t.freeze)}, requests went on being due, one every "
        "$s / \\text{load}$. Afterwards it answers one every $s$, so from request to request the wait shrinks by "
        "$s / \\text{load} - s$. It is above $s$ for\n\n"
        "$$ \\left(\\frac{\\text{freeze}}{s} - 1\\right) \\cdot \\frac{\\text{load}}{1 - \\text{load}} $$\n\n"
        f"requests, rounded up: each service time of freeze beyond the first makes {t.load / (1 - t.load):.1f} late. "
        f"In requests: {miss(t.forecast(), Estimate.of([max(1.0, c) for c in true], ''), why)}\n\n"
        f"{undercount(Estimate.ratio(at_least[0], at_least[2]))} "
        f"{correction_in_order(Estimate.ratio(at_least[3], at_least[0]))}\n\n"
        f"{correction_batched(Estimate.ratio(at_least[3], at_least[1]))}"
    )


# queues -------------------------------------------------------------------------------------------
def one_place(latencies: Any) -> str:
    """What a queue with one place does at a load of 90 %, before the question with 64."""
    return (
        f"With one place and a load of 90 % the mean is {latencies.mean():.1f} service times and p99 "
        f"{percentile(latencies, 99):.0f}. An engine has places for many requests at once. Give it 64, and 64 times "
        "the arrivals, so that its load is 90 % again."
    )


def places_figure(curves: Mapping[int, Mapping[float, Any]]) -> go.Figure:
    """p99 against load for each number of places."""
    tails = {c: {load: percentile(v, 99) for load, v in runs.items()} for c, runs in curves.items()}
    one, most = min(tails), max(tails)
    fig = figure(
        f"At 90 % load p99 is {tails[one][0.9]:.0f} service times with one place, {tails[most][0.9]:.2f} with {most}",
        x="load (share of the places that are taken)",
        y="p99 latency (service times)",
        height=420,
        log_y=True,
    )
    log_axis(fig, "y", [1, 2, 5, 10, 20, 50])
    for color, (c, line) in zip((palette.orange, palette.purple, palette.blue), tails.items(), strict=False):
        fig.add_scatter(x=list(line), y=list(line.values()), mode="lines+markers", line_color=color)
        name = "1 place" if c == 1 else f"{c} places"
        label_line(fig, 0.8, line[0.8], name, color, anchor="right", shift=13)
    return fig


def places_text(curves: Mapping[int, Mapping[float, Any]]) -> str:
    at = {c: {load: percentile(runs[load], 99) for load in (0.9, 0.95)} for c, runs in curves.items()}
    rows = [
        [c, v[0.9], v[0.95], f"{100 * float(np.mean(curves[c][0.9] > 1.001)):.0f} %"] for c, v in at.items()
    ]
    shown = table_markdown(rows, ["places", "p99, 90 %", "p99, 95 %", "who waits, 90 %"], "rrrr")
    most = max(at)
    return (
        f"{shown}\n\nWith {most} places {most / 10:.1f} of them are free on average at 90 %, and it takes a crowd to "
        f"fill them all. With one place, nine arrivals in ten find it taken. The factor $1 / (1 - \\text{{load}})$ "
        "is that of one server; the more places, the nearer to full a server may run before waits are long. A rule "
        "such as “stay below 70 %” fits one number of places. See it in the explorer above: no freeze, random "
        f"arrivals, {most} places."
    )


def engine_figure(played: Mapping[float, Played], idle: float, queue: Mapping[float, float]) -> go.Figure:
    """The engine against the post office: latency over that of an idle machine."""
    p50 = {load: percentile(run.latency, 50) / idle for load, run in played.items()}
    p99 = {load: percentile(run.latency, 99) / idle for load, run in played.items()}
    fig = figure(
        f"At 90 % load half of the requests already take {p50[0.9]:.1f} times as long as on an idle engine",
        x="load (offered rate over that of the full engine)",
        y="latency (times that of an idle one)",
    )
    for name, line, color, anchor in (
        ("engine, p99", p99, palette.orange, "right"),
        ("engine, p50", p50, palette.ochre, "left"),
        ("post office, p99", dict(queue), palette.blue, "left"),
    ):
        fig.add_scatter(x=list(line), y=list(line.values()), mode="lines+markers", line_color=color)
        shift = 16 if anchor == "right" else -14
        label_line(fig, 0.7, line[0.7], name, color, anchor=anchor, shift=shift)
    fig.update_yaxes(rangemode="tozero")
    return fig


def goodput_figure(rates: Sequence[float], offered: Mapping[float, tuple[float, float]]) -> go.Figure:
    """offered: rate -> (throughput, goodput), requests a second."""
    last = max(offered)
    fig = figure(
        f"Offered {last:.0f} requests/s: throughput {offered[last][0]:.0f}, goodput {offered[last][1]:.1f}",
        x="offered (requests/s)",
        y="requests/s",
    )
    label_at = rates[-2]
    for i, (name, color) in enumerate((("throughput", palette.blue), ("goodput", palette.orange))):
        line = [offered[rate][i] for rate in rates]
        fig.add_scatter(x=list(rates), y=line, mode="lines+markers", line_color=color)
        label_line(fig, label_at, offered[label_at][i], name, color, anchor="left", shift=14)
    fig.update_yaxes(rangemode="tozero")
    return fig


def goodput_text(offered: Mapping[float, tuple[float, float]], count: int) -> str:
    best = max(offered, key=lambda rate: offered[rate][1])
    last = max(offered)
    return (
        f"Throughput rises to its ceiling and stays there: on that curve a hopeless overload looks like a full "
        f"success. Goodput is highest at {best:.1f} requests/s offered, {offered[best][1]:.1f} a second, and at "
        f"{last:.1f} it "
        f"is {offered[last][1]:.1f}: everybody is served, and nearly everybody too late. How far it falls beyond the "
        f"ceiling depends on how long the test runs, here {count:,} requests: the queue grows as long as the "
        "overload lasts. Chapter 10 measures such a curve on real servers."
    )


def prices(rows: Sequence[tuple[int, float, float, Mapping[str, tuple[float, float]]]]) -> Table:
    """rows: (places, full rate in 1/s, $ per million at it, {promise: (share carried, $ per million)})."""
    names = list(rows[0][3])
    shown = [
        [str(p), f"{full:.1f}/s, ${dollars:.3f}", *(f"{100 * r[n][0]:.0f} %, ${r[n][1]:.3f}" for n in names)]
        for p, full, dollars, r in rows
    ]
    return shown, ["places", "full, no promise", *names], "r" * (2 + len(names))


def prices_text(
    rows: Sequence[tuple[int, float, float, Mapping[str, tuple[float, float]]]], chip: Chip
) -> str:
    from lumen.cost.published import summary

    loose, tight = list(rows[0][3])
    few, mid, many = rows
    cheapest = min(rows, key=lambda row: row[3][tight][1])
    price = f"${chip.price_per_hour:.2f} an hour ({chip.price_source.split(':')[0]})"
    slower = next(line for line in summary() if line[:2] == ("H100 SXM", "prefill"))
    return (
        f"The price of a promise depends on the engine. The looser one leaves {100 * few[3][loose][0]:.0f} % of the "
        f"rate of {few[0]} places and {100 * mid[3][loose][0]:.0f} % of that of {mid[0]}: a token costs "
        f"{1 / few[3][loose][0]:.2f} and "
        f"{1 / mid[3][loose][0]:.2f} times what it would on the full machine. The tighter one leaves "
        f"{100 * many[3][tight][0]:.0f} % of that of {many[0]}, for with more places taken every step is too long, "
        f"and {cheapest[0]} places sell the cheapest token of the three. **The number of places sets latency and "
        "price together.**\n\n"
        f"All of this is *predicted*, at datasheet rates and {price}. The {slower[2]} prefills that others "
        f"published for this chip took {slower[3]:.1f} times their bound in the median "
        "([chapter 2a](02a_chips.ipynb) shows all). An engine that is slower by a factor keeps a promise as far as "
        "this one keeps one that is tighter by it, so the shares do not carry over either: take the kind of "
        "trade from here, and its numbers from your own load test."
    )


PRODUCTION = [
    (
        "vllm",
        "load test; a burstiness of 1 is Poisson",
        "`vllm bench serve`: `--request-rate`, `--burstiness`, `--max-concurrency`, `--goodput`",
        "benchmarking/cli/",
    ),
    (
        "vllm",
        "live histograms of TTFT, ITL and E2EL",
        "`/metrics`",
        "design/metrics/",
    ),
    (
        "sglang",
        "load test",
        "`bench_serving`: `--request-rate`, `--max-concurrency`",
        "https://github.com/sgl-project/sglang/blob/main/docs/developer_guide/bench_serving.md",
    ),
    (
        "tensorrt-llm",
        "load test that began as vLLM's client",
        "`benchmark_serving`: `--max-concurrency`",
        "commands/trtllm-serve/run-benchmark-with-trtllm-serve.html",
    ),
    (
        "prometheus",
        "add the buckets first, take the quantile last",
        "`histogram_quantile`",
        "querying/functions/#histogram_quantile",
    ),
    (
        "llama.cpp",
        "tokens/s, mean ± deviation, prompt and answer apart; no percentiles",
        "`llama-bench`",
        "tools/llama-bench/README.md",
    ),
]


# where it loses -----------------------------------------------------------------------------------
def spread_text(spread: Mapping[int, Any], endless: float) -> str:
    """spread: size -> ((low, middle, high) of p90, the same of p99)."""
    low, middle, high = spread[100][1]
    rows = [
        [f"{size:,}", f"{p99[0]:.1f} to {p99[2]:.1f}", f"{p99[1]:.1f}", f"{p90[0]:.1f} to {p90[2]:.1f}"]
        for size, (p90, p99) in spread.items()
    ]
    headers = ["requests in a run", "p99 in 9 runs of 10", "p99, middle run", "p90 in 9 runs of 10"]
    return (
        table_markdown(rows, headers, "rrrr")
        + f"\n\nWith 100 requests nine runs in ten put the p99 of the *same* server between {low:.1f} and {high:.1f} "
        f"service times, and the middle run says {middle:.1f} where the endless run says {endless:.1f}: one request "
        "in a hundred is one request, and a short run starts with an empty queue. p90 suffers, too: neighbours in a "
        "queue wait for the same reason, so a hundred of them tell less than a hundred independent samples. "
        f"MLPerf suggests [{QUERIES:,} queries]({RULES}) for a p99 within 0.05 points at 99 % confidence, "
        "and ten minutes at least. Rule of thumb for less: a hundred requests *beyond* the percentile, ten thousand "
        "for p99."
    )


def controls(
    blind: Mapping[float, float], true: Mapping[float, float], averaged: float, pooled: float
) -> Table:
    low, high = min(blind), max(blind)
    rows = [
        [
            f"the waiting tester's p99 at loads of {100 * low:.0f} % and {100 * high:.0f} %",
            f"{blind[low]:.1f} and {blind[high]:.1f}",
            f"{true[low]:.1f} and {true[high]:.1f}",
        ],
        ["mean of two servers' p99s, of 9,000 and 1,000 requests", f"{averaged:.1f}", f"{pooled:.1f}"],
    ]
    return rows, ["in service times", "it says", "true"], "lrr"


def slips(
    answer: Record, speeds: Sequence[float], empty: tuple[float, float], pushed: tuple[float, float] | None
) -> Table:
    """Traps in this page's own numbers: what the slip says, what is right."""
    rate = 1 / statistics.mean(1 / speed for speed in speeds)
    assert answer.tpot
    rows = [
        [
            "mean of the answers' speeds, for tokens over seconds",
            f"{statistics.mean(speeds):.1f} tokens/s",
            f"{rate:.1f} tokens/s",
        ],
        [
            "TTFT + TPOT · n as the latency",
            milliseconds(answer.ttft + answer.tpot * answer.output_len),
            milliseconds(answer.latency),
        ],
        ["an empty function, timed once a reading", f"{1e9 * empty[0]:,.0f} ns", f"{1e9 * empty[1]:,.0f} ns"],
    ]
    if pushed is not None:
        rows.append(["first call of a streamer as a token", milliseconds(pushed[0]), milliseconds(pushed[1])])
    return rows, ["slip", "it says", "right"], "lrr"


def streamer_text(pushed: Sequence[tuple[float, int]]) -> str:
    """What the streamer saw: (seconds, tokens) of each call. Empty: transformers is not installed."""
    tail = (
        "The same trap waits in chat APIs: the first event of a stream may carry only the role. Real servers add "
        "more of the kind: three tokens in one event, an event cut in two by the network, an answer of a single "
        "token, a last event with the bill and no text. Exercise 4 gives you all of them."
    )
    if not pushed:  # not measured: the library is missing
        return (
            "transformers is not installed here. In the book's run its first call carried the prompt. " + tail
        )
    return (
        f"{len(pushed) - 1} tokens, and **{len(pushed)} calls**. The first carries {pushed[0][1]} tokens: it is the "
        "*prompt*, handed over before anything was computed. Whoever stops the clock there reports a TTFT of "
        f"{milliseconds(pushed[0][0])} instead of {milliseconds(pushed[1][0])}, and the prefill turns up as a gap "
        f"between tokens. {tail}"
    )


def recap(
    answer: Record, chance: float, tokens: int, t: Testers, curves: Mapping[int, Any], rows: Sequence[Any]
) -> str:
    """The objectives again, with the numbers just found."""
    usual, longest = usual_and_longest(answer)
    loose, tight = list(rows[0][3])
    return (
        f"- **Four times.** Of one answer with a stall of {milliseconds(longest)}, TPOT said "
        f"{milliseconds(answer.tpot)}, the "
        f"median gap {milliseconds(usual)}. Only the gaps one by one showed it.\n"
        f"- **Who notices.** Stalls in {100 * chance:.0f} % of the gaps, independent of each other, reach "
        f"{100 * (1 - (1 - chance) ** (tokens - 1)):.0f} % of answers of {tokens} tokens. For 500 tokens, one gap in "
        f"a thousand reaches {100 * (1 - 0.999**499):.0f} %.\n"
        f"- **The tester who waits.** With one freeze {statistics.median(t.slow('sends')):.0f} of {t.requests} "
        f"requests were slow; the tester who waits counted {statistics.median(t.slow('waits', False)):.0f}. Send on "
        "time, and measure from then.\n"
        f"- **Load and price.** At 90 % load p99 is {percentile(curves[1][0.9], 99):.0f} service times with one "
        f"place and {percentile(curves[64][0.9], 99):.2f} with 64. Of the full rate of an engine with 64 places, "
        f"predicted, “{loose}” leaves {100 * rows[1][3][loose][0]:.0f} %, “{tight}” {100 * rows[1][3][tight][0]:.0f} "
        "%."
    )
