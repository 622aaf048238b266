"""What chapter 09 shows: steps, budgets, ranks, two ways to use eight chips. Functions of data, no clock, no torch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, outcome, says, sentence
from lumen.explore.figures.theme import figure, label_line, log_axis, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.pages.ch09_cards import TTFTS, Pieces, Table, crossing, made_per_second, ms, nearly_free, seconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench.interference import Meeting
    from lumen.config import ModelConfig
    from lumen.hardware import Chip
    from lumen.serve.disagg import HandOver


# eight answers and a document ---------------------------------------------------------------------
def middle(runs: Sequence[Meeting]) -> Meeting:
    """The run whose longest gap is the median: what is drawn of it is what the tables say."""
    return sorted(runs, key=longest)[len(runs) // 2]


def alone(runs: Sequence[Meeting]) -> Estimate:
    """The steps before the document came."""
    return Estimate.of([t for run in runs for t in run.alone], "s")


def freeze_figure(runs: Sequence[Meeting]) -> go.Figure:
    """Every token that the readers see, and the one long gap."""
    run = middle(runs)
    fig = figure(
        f"One document stops eight answers for {ms(longest(run))} ms; before it came a step took "
        f"{ms(alone(runs).value)}",
        x="time since the document arrived (ms)",
        y="answer",
        height=330,
    )
    for row, times in enumerate(run.times):
        shown = [1e3 * t for t in times]
        marker = {"color": palette.blue, "size": 7}
        fig.add_scatter(x=shown, y=[row + 1] * len(shown), mode="markers", marker=marker)
    first = 1e3 * run.ttft
    diamond = {"color": palette.orange, "size": 11, "symbol": "diamond"}
    fig.add_scatter(x=[first], y=[0], mode="markers", marker=diamond)
    label_line(fig, first, 0, "first token for the document", palette.orange, anchor="right", shift=12)
    fig.update_yaxes(range=[8.6, -0.9], tickvals=[1, 4, 8])
    return fig


def plan_lines(run: Meeting, steps: int = 2) -> str:
    """The plans of the first steps, a line for the answers together and one for each other request."""
    lines = []
    for number, (_, _, pieces) in enumerate(run.steps[:steps]):
        answers = [held for held, count in pieces if count == 1]
        span = " to ".join(f"{held:,}" for held in sorted({min(answers), max(answers)}))
        lines += [f"step {number}", f"  {len(answers)} × 1 token behind {span}"]
        lines += [f"  1 × {count:,} tokens behind {held:,}" for held, count in pieces if count > 1]
    return "\n".join(lines)


# how long a step takes ----------------------------------------------------------------------------
def reading(run: Meeting) -> list[Pieces]:
    """The steps up to the long prompt's first token."""
    return [pieces for _, end, pieces in run.steps if end <= run.ttft + 1e-9]


def predicted(run: Meeting, chip: Chip, config: ModelConfig) -> tuple[float, float]:
    """(longest step, TTFT of the document), by the model. [s]"""
    steps = [seconds(pieces, chip, config) for pieces in reading(run)]
    return max(steps), sum(steps)


def in_matrices(step: cost.Prediction) -> float:
    return sum(step.parts[name] for name in ("projections", "mlp", "head"))


def parts_table(counts: Sequence[int], held: int, answers: int, chip: Chip, config: ModelConfig) -> Table:
    """Steps with more and more of a prompt beside the answers."""
    rows = []
    for count in counts:
        pieces = [(held, 1)] * answers + [(0, count)] * bool(count)
        step = cost.predict_mixed(config, chip, pieces, "fp32", cache="paged")
        rows.append(
            [
                f"{count:,}",
                ms(step.seconds),
                ms(in_matrices(step)),
                ms(step.parts["attention"]),
                f"{answers + count:,}",
            ]
        )
    headers = [
        "tokens of a prompt",
        "whole step (ms)",
        "matrices (ms)",
        "attention (ms)",
        "tokens in the step",
    ]
    return rows, headers, "rrrrr"


def eight_alone(runs: Sequence[Meeting], chip: Chip, config: ModelConfig, held: int) -> str:
    """The model's price of a step without a prompt, beside the engine's clock."""
    by_model = seconds([(held, 1)] * 8, chip, config)
    low = "A step of the engine is planned, sampled and counted besides; the model prices the forward."
    high = "The model's prices are too high for a step this small."
    after = [(end - start, pieces) for run in runs for start, end, pieces in run.steps if start >= run.ttft]
    text = f"A step with the eight alone in it: {miss(by_model, alone(runs), why_low=low, why_high=high)}"
    if after:
        nine = median(seconds(pieces, chip, config) for _, pieces in after)
        clock = Estimate.of([took for took, _ in after], "s")
        text += (
            " Behind the freeze the document writes an answer, too, a ninth row that reads its own long cache: "
            + miss(nine, clock, why_low=low, why_high=high)
        )
    return text


@sentence(
    example={"tokens": 4.7, "model": 8.3}, at=1.0, unit="×", more_words=["shorter"], less_words=["longer"]
)
def shorter_gap(est: Estimate, tokens: float, model: float) -> str:
    """The longest gap, whole over chunked."""
    other = f"Counting tokens alone says {tokens:.1f}, the model {model:.1f}."
    why = {
        "less": "The tokens promise too much: later pieces look back, and few rows use the machine less well.",
        "more": "It is more than the tokens promise.",
    }.get(outcome(est, tokens), "This run cannot tell it from the tokens' number.")
    return says(
        est,
        more=f"In pieces the longest gap was {{x}} times shorter ({{low}} to {{high}}, {{n}} rounds). {other} {why}",
        less=f"In pieces the longest gap was longer: the ratio is {{x}} ({{low}} to {{high}}). {other}",
        same=f"No difference that this run can show: the ratio is {{x}} ({{low}} to {{high}}). {other}",
    )


@sentence(example={"steps": 22}, at=1.0, unit="×", more_words=["as long"], less_words=["sooner"])
def later_document(est: Estimate, steps: int) -> str:
    """TTFT in crumbs over TTFT whole."""
    lead = f"{steps} steps instead of one, and"
    return says(
        est,
        more=f"{lead} {{x}} times as long a wait ({{low}} to {{high}}, {{n}} rounds). Each product of its tokens with "
        "a weight is made once, however the prompt is cut. But the eight ride along in every step, a step of few rows "
        "uses the machine less well, and every piece looks back.",
        less=f"{lead} the document had its first token sooner: {{x}} of the wait ({{low}} to {{high}}).",
        same=f"{lead} no difference that this run can show: {{x}} times the wait ({{low}} to {{high}}).",
    )


Runs = Mapping[int, Sequence["Meeting"]]


def ratio(runs: Runs, of: Callable[[Meeting], float], a: int, b: int) -> Estimate:
    """`of` under budget `a` over `of` under budget `b`, round by round."""
    pairs = zip(runs[a], runs[b], strict=True)
    return Estimate.of([of(x) / of(y) for x, y in pairs], "×")


def longest(run: Meeting) -> float:
    return max(run.gaps)


def ttft(run: Meeting) -> float:
    return run.ttft


def trade_figure(runs: Runs, chip: Chip, config: ModelConfig) -> go.Figure:
    """The longest gap of the eight against the document's first token, a point a budget."""
    gap, wait = ratio(runs, longest, max(runs), min(runs)), ratio(runs, ttft, min(runs), max(runs))
    fig = figure(
        f"From {max(runs):,} tokens a step to {min(runs)}: longest gap divided by {gap.texts()[0]}, the "
        f"document's wait "
        f"times {wait.texts()[0]}",
        x="longest gap of the eight (ms)",
        y="first token of the document (ms)",
        log_x=True,
    )
    budgets = sorted(runs)
    clock = [(1e3 * median(map(longest, runs[b])), 1e3 * median(map(ttft, runs[b]))) for b in budgets]
    model = [[1e3 * t for t in predicted(runs[b][0], chip, config)] for b in budgets]
    pairs = zip(clock, model, strict=True)  # a label stands on the side where the other line is not
    sides = ["bottom center" if ours[1] < theirs[1] else "top center" for ours, theirs in pairs]
    dashed = {"color": palette.grey, "dash": "dash"}
    fig.add_scatter(
        x=[x for x, _ in model], y=[y for _, y in model], mode="lines+markers", line=dashed, name="predicted"
    )
    fig.add_scatter(
        x=[x for x, _ in clock],
        y=[y for _, y in clock],
        mode="lines+markers+text",
        line_color=palette.blue,
        text=[f"{b:,}" for b in budgets],
        textposition=sides,
        name="measured, by token budget",
    )
    fig.update_layout(showlegend=True)
    fig.update_yaxes(rangemode="tozero")
    log_axis(fig, "x", [50, 100, 200, 500, 1000, 2000, 5000])
    return fig


def trade_table(runs: Runs, chip: Chip, config: ModelConfig) -> Table:
    """What the figure shows, in numbers, predictions beside."""
    rows = []
    for budget in sorted(runs, reverse=True):
        gap, first = predicted(runs[budget][0], chip, config)
        times = (median(map(longest, runs[budget])), median(map(ttft, runs[budget])), gap, first)
        rows.append([f"{budget:,}", *map(ms, times)])
    headers = [
        "token budget",
        "longest gap (ms)",
        "TTFT (ms)",
        "longest step, predicted (ms)",
        "TTFT, predicted (ms)",
    ]
    return rows, headers, "rrrrr"


def trade_misses(runs: Runs, chip: Chip, config: ModelConfig) -> str:
    """By how much the model missed, signed."""
    off = []
    for meetings in runs.values():
        by_model = predicted(meetings[0], chip, config)
        clock = (median(map(longest, meetings)), median(map(ttft, meetings)))
        off += [100 * (p / c - 1) for p, c in zip(by_model, clock, strict=True)]
    return f"Medians of {len(meetings)} rounds. {missed(Estimate.of(off, '%'), min(off), max(off))}"


@sentence(
    example={"lowest": -47.0, "highest": 5.0},
    at=0.0,
    unit="%",
    effect=40.0,
    more_words=["too high"],
    less_words=["comes on top"],
)
def missed(est: Estimate, lowest: float, highest: float) -> str:
    """Signed misses of the model, in per cent, and what their sign allows to say."""
    lead = f"The model's {{n}} numbers miss by {lowest:+.0f} to {highest:+.0f} % (median {est.value:+.0f})."
    return says(
        est,
        at=0,
        worth=10,
        less=f"{lead} It prices the forward alone; what the engine does between two of them comes on top.",
        more=f"{lead} Its prices, measured operator by operator, are too high here.",
        same=f"{lead} On the whole that is no bias that {{n}} numbers can show.",
    )


@sentence(example={"budget": 128, "gap": 9.1}, at=1.0, unit="×", more_words=["more"], less_words=["sooner"])
def bargain(est: Estimate, budget: int, gap: float) -> str:
    """TTFT under a middle budget over TTFT whole, and what it buys."""
    lead = f"{budget} tokens a step divide the longest gap by {gap:.1f}"
    return says(
        est,
        more=f"{lead}, for {{size}} more of the document's wait.",
        less=f"{lead}, and the document's token came sooner by {{size}}.",
        same=f"{lead}, and the document's wait changes by nothing that {{n}} rounds can show ({{x}}, {{low}} to "
        "{high}).",
    )


# who goes first -----------------------------------------------------------------------------------
CALM, BATCH, LATE = 60.0, 30, 10  # seconds before the rush; background jobs at 5 s, and 5 s into the rush


def waits(ageing: float, rush: float, step: float = 0.05) -> dict[int, list[float]]:
    """Simulated seconds until the first token, by priority (0 urgent, 1 background). The engine's own scheduler."""
    from lumen.cache import BlockPool
    from lumen.serve.request import Request
    from lumen.serve.scheduler import Limits, Scheduler

    scheduler = Scheduler(BlockPool(100, 16), limits=Limits(2, 64, ageing=ageing))
    coming = [
        (i * 0.3125, 0) for i in range(int(CALM / 0.3125))
    ]  # four in five of the 4 a second it can serve
    coming += [(CALM + i * 0.25, 0) for i in range(int(rush / 0.25))]  # all of them
    coming += [(5 + i / 1000, 1) for i in range(BATCH)] + [(CALM + 5 + i / 1000, 1) for i in range(LATE)]
    coming.sort()
    waited: dict[int, list[float]] = {0: [], 1: []}
    now = 0.0
    while coming or scheduler.waiting or scheduler.running:
        while coming and coming[0][0] <= now + 1e-9:
            at, priority = coming.pop(0)
            scheduler.add(Request(f"{priority} {at}", [0] * 20, 10, priority=priority, arrival=at))
        plan = scheduler.schedule(now)
        now += step
        scheduler.update(plan, {w.sequence.id: [0] for w in plan.work if w.samples})
        for sequence in [w.sequence for w in plan.work]:
            if len(sequence.output) == 1 and sequence.computed == 20:
                waited[sequence.request.priority].append(now - sequence.request.arrival)
            if len(sequence.output) == 10:
                scheduler.finish(sequence)
    return waited


RUSHES = (60, 240)
RULES = {"first come, first served": 1e-3, "ageing, 30 s": 30.0, "strict priority": float("inf")}


@cache
def ranks() -> dict[str, list[dict[int, list[float]]]]:
    return {name: [waits(ageing, rush) for rush in RUSHES] for name, ageing in RULES.items()}


def ranks_table() -> Table:
    rows = []
    for name, (short, long) in ranks().items():
        times = (median(short[0]), max(long[0]), max(short[1]), max(long[1]))
        rows.append([name, *(f"{t:.1f}" for t in times)])
    headers = [
        "rank",
        "urgent: median (s)",
        "urgent: longest (s)",
        f"background: longest in a rush of {RUSHES[0]} s (s)",
        f"background: in one of {RUSHES[1]} s (s)",
    ]
    return rows, headers, "lrrrr"


def ranks_text() -> str:
    """Deterministic: a simulation without a clock."""
    found = ranks()
    fcfs, ageing, strict = (found[name] for name in RULES)
    return (
        f"First come, first served makes people wait up to {max(fcfs[1][0]):.1f} s behind somebody's "
        f"{BATCH} batch jobs. Under strict "
        f"priority urgent requests hardly wait, and the background jobs of the "
        f"rush wait "
        f"{max(strict[0][1]):.0f} s when it lasts {RUSHES[0]} s, {max(strict[1][1]):.0f} s when it lasts "
        f"{RUSHES[1]}: they **starve** as long as it goes on. With ageing they wait {max(ageing[0][1]):.1f} s in the "
        f"short rush, {max(ageing[1][1]):.1f} s in the long one, and urgent requests give way to them, by "
        f"{max(ageing[1][0]):.1f} s at most here. "
        "That is the trade that $a$ sets: how long those who come later may still pass."
    )


# prefill here, decode there: measured --------------------------------------------------------------
def handover_text(handed: HandOver, layers: int) -> str:
    return (
        f"{handed.num_bytes / 1e6:.1f} MB in {layers} pieces, prefill {ms(handed.prefill_s)} ms;\n"
        f"{1e3 * handed.exposed_s:.1f} ms of journey left at its end"
    )


ENGINE, BOTH = "one engine, chunks of 128", "one engine, chunks of 128, both cores"
WHOLE, LAYERS = "apart, whole", "apart, layer by layer"


def documents(runs: Mapping[str, Sequence[Mapping[str, Any]]], way: str) -> list[Mapping[str, Any]]:
    """The journeys of the documents; the short requests' are left out."""
    return [h for run in runs[way] for h in run["handovers"] if h["num_tokens"] == 1000]


def apart_table(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """The published rounds: longest gap, the documents' TTFT, and what was left of the journey."""
    rows = []
    for way in (ENGINE, BOTH, WHOLE, LAYERS):
        gaps = [max(run["gaps"]) for run in runs[way]]
        first = [t for run in runs[way] for t in run["long_ttft"]]
        left = [h["exposed_s"] for h in documents(runs, way)]
        exposed = f"{1e3 * median(left):.1f}" if left else "–"
        rows.append(
            [
                way.replace("chunks of", "budget"),
                ms(median(gaps)),
                ms(median(first)),
                exposed,
                f"{ms(min(first))} to {ms(max(first))}",
            ]
        )
    headers = ["way", "longest gap (ms)", "TTFT (ms)", "journey left (ms)", "TTFT, least to most (ms)"]
    return rows, headers, "lrrrr"


def apart_text(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What the published run shows: the journey that was left, and the comparison with one engine on both cores."""
    left = {way: median(h["exposed_s"] for h in documents(runs, way)) for way in (WHOLE, LAYERS)}
    prefills = [h["prefill_s"] for way in left for h in documents(runs, way)]
    pairs = list(zip(runs[BOTH], runs[LAYERS], strict=True))
    gap = Estimate.of([max(one["gaps"]) / max(two["gaps"]) for one, two in pairs], "×")
    wait = Estimate.of([median(two["long_ttft"]) / median(one["long_ttft"]) for one, two in pairs], "×")
    return (
        f"Published run, {len(pairs)} rounds of eight answers and three documents of 1,000 tokens. These arrive faster "
        f"than one core reads them, so their TTFT holds a queue. Layer by layer, {1e3 * left[LAYERS]:.1f} ms of the "
        f"journey are left instead of {1e3 * left[WHOLE]:.0f}, after prefills of {min(prefills):.2f} to "
        f"{max(prefills):.2f} s. The fair comparison is one engine with *both* cores. {apart_gap(gap)} "
        f"{apart_wait(wait)}"
    )


@sentence(at=1.0, unit="×", more_words=["shorter"], less_words=["longer"])
def apart_gap(est: Estimate) -> str:
    """Longest gap of one engine on both cores over that of the two apart."""
    return says(
        est,
        more="Against it the longest gap apart is {x} times shorter ({low} to {high}).",
        less="Against it the longest gap apart is longer (ratio {x}, {low} to {high}).",
        same="Against it the longest gap apart shows no difference (ratio {x}, {low} to {high}).",
    )


@sentence(at=1.0, unit="×", more_words=["as long"], less_words=["sooner"])
def apart_wait(est: Estimate) -> str:
    """TTFT of the documents apart over that in one engine on both cores."""
    return says(
        est,
        more="The documents wait {x} times as long ({low} to {high}): the core that writes cannot help the one that "
        "reads.",
        less="The documents have their first token sooner ({x} of the wait, {low} to {high}).",
        same="The documents' wait shows no difference ({x}, {low} to {high}).",
    )


# where it loses -----------------------------------------------------------------------------------
def reading_table(length: int, chip: Chip, config: ModelConfig) -> Table:
    """What a prompt pays again when it is cut: reading, beside the time of its matrices."""
    kappa, weights = cost.kv_bytes_per_token(config, "fp32"), cost.weight_bytes(config, "fp32")
    rows = []
    for chunk in (length, 248, 56, 16):
        cuts = [(start, min(chunk, length - start)) for start in range(0, length, chunk)]
        assert sum(cost.causal_pairs(count, held) for held, count in cuts) == cost.causal_pairs(length)
        steps = [cost.predict_mixed(config, chip, [cut], "fp32", cache="paged") for cut in cuts]
        again = kappa * sum(held for held, _ in cuts)
        rows.append(
            [
                f"{chunk:,}",
                ms(sum(step.seconds for step in steps)),
                ms(sum(map(in_matrices, steps))),
                ms(len(cuts) * weights / chip.bandwidth),
                f"{again / 1e6:,.0f}",
            ]
        )
    headers = [
        "chunk",
        "prompt alone, predicted (ms)",
        "matrices (ms)",
        "reading their weights (ms)",
        "MB of cache read again",
    ]
    return rows, headers, "rrrrr"


@sentence(example={"whole": 0.7}, at=1.0, unit="×", more_words=["as long"], less_words=["sooner"])
def crumbs(est: Estimate, whole: float) -> str:
    """TTFT in chunks of 32 over TTFT in one piece, beside one answer."""
    lead = (
        f"Beside one answer, 512 tokens take {milliseconds(whole)} to the first token whole; in chunks of 32"
    )
    return says(
        est,
        more=f"So with hardly anybody to protect it is a loss. {lead} **{{x}} times** as long ({{low}} to {{high}}, "
        "{n} rounds).",
        less=f"{lead} it came sooner ({{x}} of the time, {{low}} to {{high}}).",
        same=f"{lead} there is no difference that this run can show ({{x}}, {{low}} to {{high}}).",
    )


def traps_text(runs: Runs) -> str:
    """The first trap, with its number from this page."""
    whole, usual = middle(runs[max(runs)]), alone(runs[max(runs)]).value
    more = 200
    many = [*(b - a for a, b in pairwise(whole.times[0])), *[usual] * more]
    hidden = sorted(many)[int(0.99 * (len(many) - 1))]
    return (
        f"Here: the longest gap is {ms(max(many))} ms. With {more} gaps of {ms(usual)} ms more in its answer, the mean "
        f"gap is {ms(sum(many) / len(many))} ms and p99 {ms(hidden)} (computed)."
    )


# recap --------------------------------------------------------------------------------------------
@sentence(
    example={"wait": Estimate(1.6, 1.5, 1.7, 3, "×"), "budget": 64},
    at=1.0,
    unit="×",
    more_words=["shorter"],
    less_words=["longer"],
)
def bounded(est: Estimate, wait: Estimate, budget: int) -> str:
    """The longest gap whole over chunked, and the document's wait beside it."""
    lead = f"With {budget} tokens a step the longest gap"
    x, low, high = wait.texts()
    rest = f"and the document's TTFT {x} times what it was ({low} to {high})."
    return says(
        est,
        more=f"{lead} was {{x}} times shorter ({{low}} to {{high}}), {rest}",
        less=f"{lead} was longer here (ratio {{x}}), {rest}",
        same=f"{lead} showed no difference here (ratio {{x}}, {{low}} to {{high}}), {rest}",
    )


def recap(runs: Runs, length: int, again: Mapping[str, int], steps: int) -> str:
    whole = runs[max(runs)]
    gap, wait = ratio(runs, longest, max(runs), min(runs)), ratio(runs, ttft, min(runs), max(runs))
    ageing, strict = ranks()["ageing, 30 s"], ranks()["strict priority"]
    return (
        f"- **The freeze was one step** of {length + 8:,} tokens: {ms(median(map(longest, whole)))} ms, "
        f"where a step of the eight alone "
        f"took {ms(alone(whole).value)}.\n"
        f"- **A token budget bounds the step.** {bounded(gap, wait, min(runs))} Beside 32 answers of "
        f"Llama-3-8B, "
        f"{nearly_free()['H100 SXM']} prompt tokens a step are nearly free on an H100 (predicted).\n"
        f"- **One rule, no phases**: computed catches up with total inside two budgets. {steps:,} plans "
        f"equal to the real scheduler's.\n"
        f"- **Preemption changes no answer**: it takes what can be computed again, {again['recompute']} "
        f"tokens in our squeeze, "
        f"{again['recompute, with a prefix cache']} with a prefix cache.\n"
        f"- **Nobody starves** when ranks are fixed at arrival and age: in a rush of {RUSHES[1]} s a background job "
        f"waits {max(ageing[1][1]):.1f} s at most instead of {max(strict[1][1]):.0f} (simulated).\n"
        f"- **Apart** costs κ·L bytes, hidden layer by layer on a link above {made_per_second() / 1e9:.1f} "
        f"GB/s (Llama-3-8B on an H100). It "
        f"serves more where both limits are tight: under gaps of {1e3 * crossing(TTFTS[1]):.0f} ms when a "
        f"first token may take "
        f"{ms(TTFTS[1])} (eight A100, no queue, predicted); with loose limits together does."
    )


def workload(seed: int) -> tuple[dict[str, int], list[tuple[int, int, int, int, int]]]:
    """A random workload on a tiny pool: (limits, requests as (step, priority, number, prompt, new tokens))."""
    dice = random.Random(seed)
    size, blocks, slots = dice.randint(1, 4), dice.randint(4, 14), dice.randint(1, 5)
    limits = {"blocks": blocks, "size": size, "slots": slots, "budget": slots + dice.choice([0, 1, 3, 20])}
    coming = []
    for number in range(dice.randint(1, 9)):
        prompt = dice.randint(1, blocks * size // 2)
        new = dice.randint(1, blocks * size - prompt + 1)
        coming.append((dice.randint(0, 12), dice.randint(0, 2), number, prompt, new))
    return limits, sorted(coming)
