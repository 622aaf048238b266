"""What chapter 07 shows: pairs and cosines, ways to decide, indexes, break-even. Functions of data, without a clock."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lumen.bench import Estimate, says, sentence
from lumen.bench.numbers import percent
from lumen.explore.figures.theme import figure, palette, percent_axis
from lumen.explore.prose.show import stacked, table_markdown
from lumen.semantic.check import check
from lumen.semantic.evaluate import Scored, gain, needed, rates, wilson
from lumen.semantic.index import IndexSpec
from lumen.semantic.pairs import HALVES, KINDS, SAME, Pair
from lumen.semantic.rivals import Set, as_one_cache, jaccard

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing
    from lumen.semantic.evaluate import Rates

Results = Mapping[str, Mapping[str, "Rates"]]
WAYS = (
    "cosine alone",
    "probe on the vectors",
    "cosine and word overlap",
    "cosine, overlap, rules weighed",
    "cosine and four rules",
    "cross-encoder",
)


def share(est: Estimate) -> str:
    """60.6 % (53.1 to 67.6)"""
    return f"{100 * est.value:.1f} % ({100 * est.low:.1f} to {100 * est.high:.1f})"


# one answer ---------------------------------------------------------------------------------------
def planets(swapped: float, same: float) -> str:
    return (
        f"**{swapped:.3f}.** The model that ignores order says 1, and it is off by {1 - swapped:.3f}. The true "
        f"paraphrase of the file question stood at {same:.2f}: a threshold that lets it in lets Saturn and Jupiter in."
    )


# pairs --------------------------------------------------------------------------------------------
def kinds_table(tune: Sequence[Scored]) -> str:
    """Every kind with its median pair."""
    rows = []
    for kind in KINDS:
        group = sorted((item for item in tune if item.pair.kind == kind), key=lambda item: item.score)
        middle = group[len(group) // 2]
        overlap = statistics.median(jaccard(i.pair.stored, i.pair.asked) for i in group)
        example = f"{middle.pair.stored} → {middle.pair.asked}"
        rows.append(
            [
                kind,
                "may hit" if kind in SAME else "must miss",
                f"{middle.score:.2f}",
                f"{overlap:.2f}",
                example,
            ]
        )
    return stacked(
        table_markdown(
            rows, ["kind", "label", "cosine", "overlap", "the median pair: stored → asked"], "llrrl"
        )
    )


def spread_figure(tune: Sequence[Scored]) -> go.Figure:
    """Where the kinds lie on the cosine."""
    highest = max(item.score for item in tune if not item.pair.same)
    fig = figure(
        f"The nearest pair that must miss stands at {highest:.3f}",
        x="cosine of the pair",
        y="pairs of the tune half",
        height=400,
    )
    groups = {
        "may hit: paraphrase, retyped": (SAME, palette.blue),
        "must miss, on the same subject": (
            ("opposite", "entity", "number", "roles", "cousin"),
            palette.orange,
        ),
        "must miss: unrelated, context": (("unrelated", "context"), palette.grey),
    }
    for name, (members, color) in groups.items():
        fig.add_histogram(
            x=[item.score for item in tune if item.pair.kind in members],
            name=name,
            marker_color=color,
            xbins={"start": -0.2, "end": 1.05, "size": 0.05},
        )
    fig.update_layout(barmode="stack", showlegend=True, legend_traceorder="normal")
    return fig


def usual(at: Rates, easy: Estimate) -> str:
    """What a threshold of 0.8 does to the pairs of the tune half."""
    traps = ", ".join(f"{k} of {n} {kind}" for kind, (k, n) in at.by_kind.items() if kind not in SAME)
    return (
        f"**{share(at.false_hits)}** of the pairs that must miss hit at 0.8: {traps}. A test set of paraphrases and "
        f"unrelated questions would have shown {share(easy)}. Of the pairs that may hit, "
        f"{share(at.recall)} do."
    )


def mixture_figure(plain: Rates, looked: Rates) -> go.Figure:
    """Precision against the share of traps among the near pairs, with a threshold alone and with a second look."""
    at = {f"threshold of {plain.threshold}": plain, "a second look": looked}
    shares = [x / 100 for x in range(1, 100)]
    names = list(at)
    half = [at[name].precision_at(0.5) for name in names]
    fig = figure(
        f"Where half of the near pairs are traps, {percent(half[0])} or {percent(half[-1])} of the hits are right",
        x="traps among the near pairs",
        y="hits that are right",
        height=380,
    )
    for name, color in zip(names, (palette.orange, palette.green, palette.blue), strict=False):
        fig.add_scatter(
            x=shares,
            y=[at[name].precision_at(1 - x) for x in shares],
            mode="lines",
            name=name,
            line_color=color,
        )
    fig.update_layout(showlegend=True)
    percent_axis(fig, "x")
    percent_axis(fig, "y")
    fig.update_xaxes(range=[0, 1])
    fig.update_yaxes(range=[0, 1.02])
    return fig


def raised(report: Sequence[Scored], start: float = 0.8) -> str:
    """What a higher threshold buys, at as many traps as paraphrases."""
    cuts = [start, *(c / 100 for c in range(81, 100) if c / 100 > start)]
    tried = [rates(report, cut, checked=False) for cut in cuts]
    first, last = tried[0], tried[-1]
    worth = [at.precision_at(0.5) for at in tried if at.right]
    return (
        f"From {first.threshold:.2f} to {last.threshold:.2f} the right hits fall from {first.right} to {last.right} "
        f"and the wrong ones from {first.wrong} to {last.wrong}. Where half of the near pairs are traps, "
        f"{percent(worth[0])} of the hits are right at the first, {percent(worth[-1])} at the last, and "
        f"{percent(max(worth))} at the "
        "best threshold between them."
    )


def price(pairs: Sequence[Pair]) -> str:
    """How often one changed word is a trap, among these pairs."""
    one = [pair.same for pair in pairs if check(pair.asked, pair.stored, ("edit",))]
    return (
        f"The last line is the price. {len(one)} of the {len(pairs):,} pairs differ in one word: {one.count(False)} "
        f"must miss, {one.count(True)} may hit. That mixture is the author's. In yours, with fewer traps, most of what "
        "this rule refuses may be rewordings."
    )


# the second look ----------------------------------------------------------------------------------
def ways_table(found: Results, part: str) -> str:
    """All ways to decide on one set of pairs."""
    rows = []
    for way in WAYS:
        if way not in found:
            continue
        at = found[way][part]
        kinds = [of(*at.by_kind[kind]) for kind in SAME]
        worth = f"{100 * at.precision_at(0.9):.1f} %"
        rows.append([way, share(at.recall), *kinds, share(at.false_hits), worth])
    headers = ["decided by", "recall", *SAME, "false hits", "right at 10 % traps"]
    return stacked(table_markdown(rows, headers, "lrrrrr"))


def of(hits: int, total: int) -> str:
    return f"{hits} of {total}"


def on_tune(chosen: Rates) -> str:
    """What was chosen on the tune half, and how it does there."""
    return (
        f"That is {chosen.threshold:.2f}. Of the {chosen.recall.n} pairs of the tune half that may hit, {chosen.right} "
        f"do, and of the {chosen.false_hits.n} that must miss {chosen.wrong} hit."
    )


GUARDED = ("opposite", "number", "roles")  # kinds of traps that a rule is made for


def guarded(at: Rates) -> Estimate:
    """The share of the false hits that are of a kind that a rule is made for."""
    if not at.wrong:
        raise ValueError("There is no false hit to look at.")
    return wilson(sum(at.by_kind[kind][0] for kind in GUARDED), at.wrong)


@sentence(at=0.5, unit="", effect=0.4, more_words=["Most"], less_words=["smaller part"])
def guarded_text(part: Estimate) -> str:
    """The share of false hits whose kind a rule is made for."""
    return says(
        part,
        at=0.5,
        more="Most false hits are of the kinds that a rule is made for.",
        same="Half of the false hits, as far as so few can tell, are of the kinds that a rule is made for.",
        less="The smaller part of the false hits is of the kinds that a rule is made for.",
    )


def by_kind(looked: Rates, near: Rates, on_tune: Rates) -> str:
    """What gets through on the third set, kind by kind: by the threshold alone (`near`), and by both (`looked`)."""
    rows = [
        [
            kind,
            "yes" if kind in GUARDED else "no",
            of(*near.by_kind[kind]),
            of(*looked.by_kind[kind]),
        ]
        for kind in KINDS
        if kind not in SAME
    ]
    let_in, left = [sum(at.by_kind[k][0] for k in GUARDED) for at in (near, looked)]
    known = sum(near.by_kind[k][1] for k in GUARDED)
    others = [k for k in KINDS if k not in (*SAME, *GUARDED)]
    far, free = (sum(near.by_kind[k][i] for k in others) for i in (0, 1))
    table = table_markdown(rows, ["kind", "a rule made for it", "near enough", "and past the rules"], "llrr")
    return (
        f"{guarded_text(guarded(looked))} The threshold lets {let_in} of their {known} in, since for the encoder they "
        f"are near; the rules stop {let_in - left}, and nothing else stands behind them. Of the {free} others "
        f"the threshold keeps {free - far} out by itself. A rule sees a *not*, a digit, an exchange of two words; what "
        "says the same in another way it does not see.\n\n"
        f"{table}\n\n"
        f"In all {share(looked.false_hits)} hit that must miss, {looked.wrong} of {looked.false_hits.n}, where 5 % had "
        f"been the budget. And **{share(looked.recall)}** of the pairs that may hit do; on the half that the rules "
        f"were written with it was {share(on_tune.recall)}. (The pairs of one wording resemble each other, so the true "
        "intervals are wider than these.)"
    )


@sentence(example={"share_of": "pairs that may hit"}, at=0.0, unit="points")
def rules_over_overlap(points: Estimate, share_of: str) -> str:
    """How much the four rules add to the one-line baseline."""
    return says(
        points,
        at=0.0,
        worth=2.0,
        more=f"Against the one-line baseline the rules find {{x}} points more of the {share_of} ({{low}} to {{high}}).",
        same=f"Among the {share_of}, these show no difference between the rules and the one-line baseline "
        "({x} points, {low} to {high}).",
        less=f"Of the {share_of} the rules find fewer than the one-line baseline: {{x}} points ({{low}} to {{high}}).",
    )


@sentence(at=0.0, unit="points")
def weighed_over_rules(points: Estimate) -> str:
    """Vetoes against weights."""
    return says(
        points,
        at=0.0,
        worth=2.0,
        more="Weighing the same evidence finds {x} points more than taking each rule as a veto ({low} to {high}).",
        same="Weighing the same evidence, or taking each rule as a veto: no difference that these pairs can show "
        "({x} points of recall, {low} to {high}).",
        less="Weighing the same evidence finds fewer than taking each rule as a veto: {x} points ({low} to {high}).",
    )


@sentence(at=0.0, unit="points")
def probe_over_threshold(points: Estimate) -> str:
    """What a classifier finds in the two vectors that their cosine does not show."""
    return says(
        points,
        at=0.0,
        worth=2.0,
        more="The probe finds {x} points more than a threshold alone ({low} to {high}): something of what tells a trap "
        "is left in the two vectors.",
        same="Between the probe and a threshold alone, no difference that these pairs can show ({x} points of recall, "
        "{low} to {high}).",
        less="The probe finds fewer than a threshold alone: {x} points ({low} to {high}).",
    )


def more(one: Rates, other: Rates, kinds: Sequence[str] = SAME) -> Estimate:
    """How many more of these pairs hit. [points]"""
    return gain(*([hit for kind in kinds for hit in at.hits[kind]] for at in (one, other)))


def compared(found: Results) -> str:
    """Who finds more, on the third set."""
    on_tune = found["cosine alone"]["tune"]
    rules, line, weighed, probe, alone = (
        found[way]["third"]
        for way in (
            "cosine and four rules", "cosine and word overlap", "cosine, overlap, rules weighed",
            "probe on the vectors", "cosine alone",
        )
    )  # fmt: skip
    fitted = sum(est.n for est in (on_tune.recall, on_tune.false_hits))
    return (
        f"{rules_over_overlap(more(rules, line), 'pairs that may hit')} Now by kind, "
        "since their mixture is the author's choice. "
        f"{rules_over_overlap(more(rules, line, ['retyped']), 'retyped pairs')} "
        f"{rules_over_overlap(more(rules, line, ['paraphrase']), 'paraphrases')} "
        "The line refuses nearly the same words on principle; where your users reword everything, one line may do.\n\n"
        f"{weighed_over_rules(more(weighed, rules))} "
        f"{probe_over_threshold(more(probe, alone))} It is a plain one, fitted on {fitted} pairs; what a "
        "larger one would find is not measured here."
    )


def cross_sentence(folder: str | None) -> str:
    """What the page can say of a cross-encoder."""
    known = {
        False: "No cross-encoder was at hand when this page was made, so nothing is claimed of one. Name the folder "
        "of a [sentence-transformers](https://www.sbert.net/examples/cross_encoder/applications/README.html) "
        "cross-encoder in `LUMEN_CROSS_ENCODER`, run again, and it has a row above.",
        True: "The cross-encoder of `LUMEN_CROSS_ENCODER` has a row above, counted like the others.",
    }
    return known[bool(folder)]


def ablation_table(found: Results) -> str:
    """Right and wrong hits with each rule left out."""
    parts = list(next(iter(found.values())))
    headers = ["rules", *(f"{part}: right, wrong" for part in parts)]
    rows = [[name, *(f"{by[p].right}, {by[p].wrong}" for p in parts)] for name, by in found.items()]
    return table_markdown(rows, headers, "l" + "r" * len(parts))


def ablation_text(found: Results) -> str:
    """What each rule stops and costs on the third set and the report half together."""
    every = found["all four"]
    parts = ("report", "third")

    def both(name: str) -> tuple[int, int]:
        by = found[name]
        return sum(by[p].right - every[p].right for p in parts), sum(
            by[p].wrong - every[p].wrong for p in parts
        )

    lines = []
    for name in found:
        if name.startswith("without"):
            right, wrong = both(name)
            lines.append(f"*{name.removeprefix('without ')}* {wrong} and {right}")
    may, must = (sum(getattr(every[p], name).n for p in parts) for name in ("recall", "false_hits"))
    dear = max((name for name in found if name.startswith("without")), key=lambda name: both(name)[0])
    right, wrong = both(dear)
    price = ""
    if right and wrong:
        ratio = (0.9 * right / may) / (0.1 * wrong / must)
        price = (
            f" The dearest is *{dear.removeprefix('without ')}*. Where one near pair in ten is a trap, it gives up "
            f"{ratio:.0f} right hits for each wrong one that it stops: worth it where a wrong answer costs more than "
            "that many answers written again, and else to be left out."
        )
    return (
        "Wrong hits that each rule alone stops on the report half and the third set together, and right hits that "
        f"it alone costs: {'; '.join(lines)}.{price}"
    )


def mistakes(items: Sequence[Scored], threshold: float, most: int = 4) -> str:
    """What a set loses to the rules and what gets through."""
    lost = [i for i in items if i.pair.same and i.rule and i.score >= threshold]
    through = [i for i in items if not i.pair.same and i.hit(threshold)]

    def some(group: Sequence[Scored]) -> list[Scored]:
        """A few, spread over the kinds: each kind's first, then each kind's second."""
        by_kind: dict[str, list[Scored]] = {}
        for item in group:
            by_kind.setdefault(item.pair.kind, []).append(item)
        turns = [
            member for place in range(len(group)) for g in by_kind.values() for member in g[place : place + 1]
        ]
        return turns[:most]

    rows = [[f"refused ({i.rule})", i.pair.stored, i.pair.asked] for i in some(lost)]
    rows += [[f"served ({i.pair.kind})", i.pair.stored, i.pair.asked] for i in some(through)]
    return (
        stacked(table_markdown(rows, ["mistake", "stored", "asked"]))
        + f"\n\nThere are {len(lost)} of the first sort on this half and {len(through)} of the second. The first cost "
        "an answer that is written again. The second cost trust."
    )


# the nearest of many ------------------------------------------------------------------------------
SHOWN = ("flat", "ivf nprobe 8", "ivf nprobe 64", "hnsw efSearch 16", "hnsw efSearch 64", "hnsw efSearch 256",
         "pq 48 B", "pq 48 B, 10 rescored")  # fmt: skip


def index_table(record: Mapping[str, Any]) -> str:
    """Recall, time, memory and time to build, from the evidence."""
    data = record["data"]
    rows = []
    for name in SHOWN:
        entry = data["indexes"][name]
        each = entry["bytes"] / data["vectors"]
        memory = f"{each:,.0f} B"
        if "needs" in entry:
            memory = f"{each:,.0f} B + {4 * data['width']:,} B"
        rows.append(
            [
                name,
                share(wilson(round(entry["recall_at_1"] * data["queries"]), data["queries"])),
                f"{1e6 * entry['seconds_per_query']['median']:,.0f} µs",
                memory,
                f"{entry['build_s']:.1f} s",
            ]
        )
    return stacked(
        table_markdown(rows, ["index", "recall@1", "a query", "memory a vector", "to build"], "lrrrr")
    )


def index_figure(record: Mapping[str, Any]) -> go.Figure:
    """Recall against time."""
    found = record["data"]["indexes"]
    flat = found["flat"]["seconds_per_query"]
    near = {n: e for n, e in found.items() if e["recall_at_1"] >= 0.95 and n != "flat"}
    quick = min(near, key=lambda n: near[n]["seconds_per_query"]["median"])
    times = Estimate.ratio(flat["samples"], near[quick]["seconds_per_query"]["samples"])
    fig = figure(
        f"{quick}: {percent(near[quick]['recall_at_1'])} of the nearest, {times.value:.0f} times as fast as "
        "reading all",
        x="time of one query (µs)",
        y="recall@1",
        height=400,
        log_x=True,
    )
    for kind, name, color in (("ivf", "IVF", palette.blue), ("hnsw", "HNSW", palette.orange)):
        points = sorted(
            (1e6 * e["seconds_per_query"]["median"], e["recall_at_1"])
            for e in found.values()
            if e["kind"] == kind
        )
        x, y = zip(*points, strict=True)
        fig.add_scatter(x=x, y=y, mode="lines+markers", line_color=color, name=name)
    for again, name, symbol in (
        ("", "PQ", "circle"),
        (", 10 rescored", "PQ, ten best compared again", "diamond"),
    ):
        size = [n for n in found if found[n]["kind"] == "pq" and ("rescored" in n) == bool(again)]
        fig.add_scatter(
            x=[1e6 * found[n]["seconds_per_query"]["median"] for n in size],
            y=[found[n]["recall_at_1"] for n in size],
            mode="markers+text", name=name, marker={"color": palette.green, "symbol": symbol, "size": 9},
            text=[n.removeprefix("pq ").removesuffix(", 10 rescored") for n in size], textposition="bottom center",
        )  # fmt: skip
    fig.add_scatter(
        x=[1e6 * flat["median"]], y=[1], mode="markers+text", text="flat", textposition="top center",
        marker_color=palette.grey, showlegend=False,
    )  # fmt: skip
    fig.update_layout(showlegend=True)
    percent_axis(fig)
    fig.update_yaxes(range=[0.2, 1.09])
    return fig


def index_text(record: Mapping[str, Any]) -> str:
    """Settings, queries, machine."""
    data, spec = record["data"], IndexSpec()
    lists = data["indexes"]["ivf nprobe 8"]["lists"]
    rescored = data["indexes"]["pq 48 B, 10 rescored"]
    return (
        f"Recall@1 is the share of queries for which the true nearest vector is named. {data['vectors']:,} distinct "
        f"lines of Shakespeare are stored and {data['queries']:,} other lines asked; the time is that of "
        f"{data['timed_queries']} of them, one by one, with one thread, five rounds ({record['cpu']}, "
        f"{record['date']}). IVF has {lists:,} lists; HNSW M = {spec.links} links a vector and efConstruction = "
        f"{spec.ef_build}. PQ with its ten best compared once more names {percent(rescored['recall_at_1'])}, but "
        "for that "
        "the vectors themselves must lie somewhere, on a disk for instance: that is the second figure in its "
        "column. A line of a play has no twin among the others; how often an index finds the paraphrase of a stored "
        "question is not measured here."
    )


# where it loses -----------------------------------------------------------------------------------
def break_even_table(look_s: float, writing: Mapping[int, float]) -> str:
    """From which hit rate on a look-up pays, by the length of the answer."""
    rows = [
        [n, f"{seconds:.2f} s", f"{100 * look_s / seconds:.1f} %" if look_s < seconds else "never"]
        for n, seconds in writing.items()
    ]
    return table_markdown(rows, ["tokens of the answer", "time to write it", "break-even hit rate"], "rrr")


@sentence(at=50.0, unit="%", bound=(None, 100.0))
def part_of_vector(part: Estimate) -> str:
    """How much of a look-up is the encoder, in percent. A part is no more than the whole, whatever the clocks say."""
    if part.low <= 100:
        part = Estimate(min(part.value, 100.0), part.low, min(part.high, 100.0), part.n, part.unit)
    return says(
        part,
        at=50.0,
        bound=(None, 100.0),
        contradicts="that the encoder is a part of the look-up",
        more="The encoder takes most of it: {x} % ({low} to {high}, n = {n}).",
        same="The encoder and everything else share it about equally, or this run cannot tell ({x} %, {low} to {high}, "
        "n = {n}).",
        less="The encoder takes the smaller part of it: {x} % ({low} to {high}, n = {n}).",
    )


def break_even_text(looking: Timing, encoding: Timing, step_s: float, writing: Mapping[int, float]) -> str:
    look, part = Estimate.of(looking), Estimate.ratio(encoding, looking).scaled(100, "%")
    return (
        f"A look-up takes {look} on this machine. {part_of_vector(part)} A decode "
        f"step of SmolLM2 from the measurement store takes {1e3 * step_s:.1f} ms, so a look-up costs as much as "
        f"{look.low / step_s:.1f} to {look.high / step_s:.1f} tokens. Break-even does not know what a wrong answer "
        "costs."
    )


def frozen(again: int, total: int, lost: Mapping[str, int], kinds: int) -> str:
    """`lost` maps what refused a retyped question to how often it did."""
    apart = sum(lost.values())
    by = ", ".join(f"{count} by *{rule}*" for rule, count in sorted(lost.items(), key=lambda kv: -kv[1]))
    return (
        f"{again} of {total} prompts were answered with the first asker's poem when they came a second time. To the "
        f"cache that is success. And {apart} of {kinds} retyped questions of the report half were computed again "
        f"although the answer was there ({by}). To *edit*, whoever replaces one word by a synonym (*fix*, *repair*) "
        "looks like somebody who replaced it by another thing. So does whoever adds a *Thanks!*: `words` takes the s "
        "off, and *thank* is not among the small words. The rules stand as they were when they first met the third "
        "set, this fault included."
    )


def one_cache(halves: Mapping[str, Set], counted: Mapping[str, Rates]) -> str:
    """Both halves in one cache, against the pairs by themselves."""
    parts = [halves[name] for name in HALVES]
    together = Set(
        [pair for part in parts for pair in part.pairs],
        np.concatenate([part.stored for part in parts]),
        np.concatenate([part.asked for part in parts]),
    )
    pairs = [counted[name] for name in HALVES]
    right, wrong = as_one_cache(together, pairs[0].threshold)
    alone = sum(at.wrong for at in pairs)
    said = {
        1: f"The company of the others brought {wrong - alone} more",
        0: "The company of the others changed nothing here, where most are about something else",
        -1: f"In company {alone - wrong} fewer came about: a right one lay nearer",
    }
    return (
        f"All {len(together.pairs)} stored questions of both halves in one cache, asked all the others: {right} right "
        f"hits and {wrong} wrong ones, where the pairs by themselves had {sum(at.right for at in pairs)} and {alone}. "
        f"{said[(wrong > alone) - (wrong < alone)]}: measure with the questions that you will have."
    )


def recap(opposite: float, same: float, swapped: float, usual_at: Rates, found: Results, pays: float) -> str:
    rules, alone = (found[way]["third"] for way in ("cosine and four rules", "cosine alone"))
    looked = guarded_text(guarded(rules))
    return (
        f"- **Near is not the same.** A question and its negation have a cosine of {opposite:.2f}, a paraphrase "
        f"{same:.2f}, two questions with their planets exchanged {swapped:.3f}.\n"
        "- **The exact cache first.** Prompt, model, parameters and tenant are the key; it can go stale, and it "
        "freezes chance.\n"
        f"- **A threshold alone** of 0.8 let {share(usual_at.false_hits)} of the pairs hit that must miss. Raised "
        f"until only 5 % of the tune half's do, it kept {share(alone.recall)} of the third set's pairs that may hit.\n"
        f"- **A second look** at both texts kept {share(rules.recall)}, with {share(rules.false_hits)} false hits; "
        f"{looked[0].lower() + looked[1:]}\n"
        f"- **What a hit is worth** depends on the traps in your traffic; to promise 1 % wrong hits takes "
        f"{needed(0.01)} labelled hits without a wrong one among them.\n"
        f"- **It pays** in time from a hit rate of {100 * pays:.1f} % on, for 100 tokens of SmolLM2 on this machine. "
        "A wrong answer is not in that sum."
    )
