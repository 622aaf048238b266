"""What chapter 14 shows of states: pairs that they hold, rules to write, what was learned, what a token costs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent, size
from lumen.config import ModelConfig
from lumen.explore.figures.theme import (
    figure,
    label_line,
    log_axis,
    palette,
    percent_axis,
)
from lumen.explore.prose.boxes import milliseconds
from lumen.explore.prose.writes import WRITES
from lumen.parts import LinearLayers
from lumen.timing import Timing

if TYPE_CHECKING:
    import plotly.graph_objects as go

Table = tuple[list[list[Any]], list[str], str]
Kept = Mapping[str, Any]
NOT_PUBLISHED = (
    "These numbers come from a published measurement, `{name}`, which this copy of the course does not have: "
    "`{command}` makes it."
)
COMMANDS = {
    "recall": "python -m lumen.train.recall` and then `python -m lumen.train.recall --publish",
    "linear_decode": "python benchmarks/linear_decode.py",
    "sparse_recall": "python benchmarks/sparse_recall.py",
}


def not_published(name: str) -> str:
    return NOT_PUBLISHED.format(name=name, command=COMMANDS[name])


def evidence(name: str) -> Kept | None:
    """The data of a published measurement, None where this copy has none."""
    from lumen.bench import load_evidence

    try:
        found: Kept = load_evidence(name)["data"]
    except FileNotFoundError:
        return None
    return found


def estimate(fields: Kept) -> Estimate:
    """An estimate as it lies in a file."""
    return Estimate(fields["value"], fields["low"], fields["high"], fields["n"], fields.get("unit", ""))


def apart(a: Estimate, b: Estimate, unit: str = "points") -> Estimate:
    """A share less another in points, with the widest interval that the two allow."""
    value, low, high = a.value - b.value, a.low - b.high, a.high - b.low
    return Estimate(100 * value, 100 * low, 100 * high, min(a.n, b.n), unit)


# the opening --------------------------------------------------------------------------------------
def opening(width: int = 64) -> str:
    """A phone book in a state that adds and in one that corrects: what comes back for a name that was told twice."""
    from lumen.explore.labs.phone_book import BOOK, PhoneBook, lines_of

    front, lines = PhoneBook(), lines_of(BOOK)
    added, corrected = (front.run(BOOK, rule, width) for rule in ("linear", "delta"))
    (name, old), (_, new) = lines[0], lines[-1]
    others = ", ".join(f"{one} {number}" for one, number in lines[1:-1])
    came = ", ".join(f"{one} {added.answers[one]}" for one, _ in lines[1:-1])
    adds, corrects = (drawn(rule, width) for rule in ("linear", "delta"))
    return (
        f"A state of {width} × {width} numbers is told digit by digit: {name} {old}, {others}. Then {name} moves: "
        f"{name} {new}. Asked for all three, it answers {came}, and for {name} **{added.answers[name]}**. A second "
        f"state, as large, told the same, answers {corrected.answers[name]}. Its rule has one subtraction more.\n\n"
        f"That is one draw of random keys. In {DRAWS} others the first state gives {name}'s new number in "
        f"{adds['new']}, the old one in {adds['old']}, digits of both in {adds['both']}, and a digit that stood in "
        f"neither in {adds['neither']}; the second gives the new one in {corrects['new']}. The two whose number "
        f"never changed both come back right in {adds['others']} and {corrects['others']}. "
        "These numbers share their first digits: other books give other counts."
    )


DRAWS = 200


def drawn(rule: str, width: int = 64) -> Counter[str]:
    """In how many of `DRAWS` phone books with other keys the name that was told twice gets which of its numbers, and
    all `others` their own."""
    from lumen.explore.labs.phone_book import BOOK, PhoneBook, lines_of

    front, lines, found = PhoneBook(), lines_of(BOOK), Counter[str]()
    (name, old), (_, new) = lines[0], lines[-1]
    for draw in range(1, DRAWS + 1):
        answers = front.run(BOOK, rule, width, draw).answers
        came = answers[name]
        told = all(digit in pair for digit, *pair in zip(came, old, new, strict=True))
        found["new" if came == new else "old" if came == old else "both" if told else "neither"] += 1
        found["others"] += all(answers[one] == number for one, number in lines[1:-1])
    return found


# states and caches --------------------------------------------------------------------------------
# name, heads, width of a key and of a value, bytes of a number in a state, of a token under attention, of a number else
MODELS = (
    ("the small ones below", 2, 8, 32, 4, 2 * 2 * 32 * 4, 4),
    ("the timed ones below", 8, 64, 64, 4, 2 * 8 * 64 * 4, 4),
    ("Kimi Linear", 32, 128, 128, 4, (512 + 64) * 2, 2),
)


def layers_table() -> Table:
    """What a layer keeps of a sequence as a state, and what attention keeps of a token, in three models."""
    rows: list[list[Any]] = []
    for symbol, what, value in (
        ("$H$", "heads, each with a state of its own", lambda m: f"{m[1]}"),
        ("$D$", "width of a key", lambda m: f"{m[2]}"),
        ("$D_v$", "width of a value", lambda m: f"{m[3]}"),
        ("", "bytes of a number in a state", lambda m: f"{m[4]}"),
        ("$H\\,D\\,D_v$", "numbers of a state, in bytes", lambda m: size(state(m))),
        ("", "the convolution's last three q, k, v", lambda m: size(convolution(m))),
        ("", "a token, where a layer attends instead", lambda m: size(m[5])),
        ("", "state and convolution, in tokens", lambda m: f"{(state(m) + convolution(m)) / m[5]:,.1f}"),
    ):
        rows.append([symbol, *(value(m) for m in MODELS), what])
    return rows, ["", *(m[0] for m in MODELS), "in one layer"], "lrrrl"


def state(model: Sequence[Any]) -> float:
    _, heads, keys, values, each, *_ = model
    return float(heads * keys * values * each)


def convolution(model: Sequence[Any]) -> float:
    """Three tokens' queries, keys and values, which a convolution over four keeps. [B]"""
    _, heads, keys, values, *_, each = model
    return float(3 * heads * (2 * keys + values) * each)


# capacity -----------------------------------------------------------------------------------------
def half_full(dim: int) -> int:
    """The number of pairs whose expected squared error, (n - 1) / D, is a half."""
    return dim // 2 + 1


def capacity_title(found: Sequence[float], dim: int) -> str:
    return f"{dim} × {dim} numbers: with {statistics.median(found):.0f} pairs in them the squared error is a half"


def capacity_story(dim: int, shares: Mapping[int, float]) -> str:
    """Where the error comes from, what the same numbers would hold as keys and values, and what a decision survives."""
    half = dim // 2
    many = max(shares)
    return (
        "The key that asks meets its own pair with weight 1, and each of the others with $k \\cdot k_s$: what was "
        "said there leaks in. Two random directions in $D$ dimensions have a squared overlap of $1/D$ on average, so "
        f"$n$ pairs leave an error of $(n - 1)/D$: a half at $1 + D/2 = {half_full(dim)}$ pairs.\n\n"
        f"Is that many? *A cache of the same size holds as many pairs without an error*: {half} keys and {half} "
        f"values of {dim} numbers are {2 * half * dim:,} numbers, and the state has {dim * dim:,}. Adding random "
        f"keys, a state is no better memory than a cache. It is one that does not grow. (Keys at right angles, {dim} "
        "at most, would not leak into each other at all.)\n\n"
        "And it does not break, it blurs. If a value is one of ten digits, an error of a half seldom makes another "
        f"digit the nearest: of {half} digits {percent(shares[half])} come back right, of {many} still "
        f"{percent(shares[many])}. A phone number with nothing else in the state is safe. A phone book is not, nor is "
        "a number after which much is told: that goes into the same sum, and is counted in the next section."
    )


def shares_figure(shares: Mapping[int, Mapping[int, float]]) -> go.Figure:
    """Digits that come back right against the digits told: width -> digits -> share."""
    widest = max(shares)
    told = sorted(shares[widest])
    fig = figure(
        f"A state forgets by degrees: of {told[-1]} digits {widest} × {widest} numbers still give back "
        f"{percent(shares[widest][told[-1]])}",
        x="digits told",
        y="digits that come back right",
        log_x=True,
        height=380,
    )
    for (width, found), color in zip(
        shares.items(), (palette.orange, palette.green, palette.blue), strict=False
    ):
        y = [found[n] for n in told]
        fig.add_scatter(x=told, y=y, mode="lines+markers", line_color=color)
        label_line(fig, told[-1], y[-1], f"  D = {width}", color, anchor="left", shift=0)
    log_axis(fig, "x", told)
    percent_axis(fig)
    fig.update_xaxes(range=[math.log10(told[0] / 1.15), math.log10(told[-1] * 2.2)])  # room for the names
    fig.update_yaxes(range=[0, 1.04])
    return fig


# four ways to write -------------------------------------------------------------------------------
RULES = {
    "linear": "$S + k^\\top v$",
    "gated": "$aS + k^\\top v$",
    "delta": "$S + \\beta k^\\top (v - kS)$",
    "gated_delta": "$aS + \\beta k^\\top (v - k\\,aS)$",
}


def rules_table() -> Table:
    """The four rules and where they come from."""
    sources = {
        "linear": "[Katharopoulos 2020](https://arxiv.org/abs/2006.16236)",
        "gated": "[gated linear attention](https://arxiv.org/abs/2312.06635) (a gate for each channel), "
        "[Mamba-2](https://arxiv.org/abs/2405.21060); with a fixed fade: "
        "[MiniMax-01](https://arxiv.org/abs/2501.08313)",
        "delta": "[Schlag 2021](https://arxiv.org/abs/2102.11174), [DeltaNet](https://arxiv.org/abs/2406.06484)",
        "gated_delta": "[Gated DeltaNet](https://arxiv.org/abs/2412.06464): Qwen3-Next; a gate for each channel: "
        "Kimi Linear",
    }
    rows = [[name.replace("_", " "), WRITES[name], formula, sources[name]] for name, formula in RULES.items()]
    return rows, ["rule", "a write will", "the new state", "in"], "llll"


TELLINGS = {
    "directions of their own": {},
    "keys that resemble each other": {"common": 0.25},
    "each told twice, the second counts": {"twice": True},
    "after 512 pairs of small talk": {"before": 512},
    "before 512 pairs of small talk": {"after": 512},
}
SAYS = {
    "linear": "adding",
    "gated": "fading first",
    "delta": "correcting",
    "gated_delta": "fading and correcting",
}
KEEP, SLOW = 0.97, 0.999  # what a write leaves of the state in the table, and another choice


Shares = Mapping[tuple[str, str], Estimate]  # (telling, rule) -> share of the digits that come back right


def told_table(share: Shares) -> Table:
    """Digits right by telling (rows) and rule (columns)."""
    rows = [[telling, *(percent(share[telling, rule].value) for rule in RULES)] for telling in TELLINGS]
    return rows, ["keys", *(name.replace("_", " ") for name in RULES)], "lrrrr"


@sentence(
    example={"rule": "adding"}, at=10.0, unit="%", more_words=["of a hundred right"], less_words=["fewer"]
)
def over_guessing(est: Estimate, rule: str) -> str:
    """Digits right in percent, against one of ten."""
    return says(
        est,
        at=10.0,
        more=f"{rule} gets {{x}} of a hundred right ({{low}} to {{high}})",
        same=f"{rule} is not told apart from guessing ({{estimate}})",
        less=f"{rule} gets fewer than a guess: {{x}} of a hundred ({{low}} to {{high}})",
    )


def told_story(share: Shares, slow: Mapping[str, Estimate], scene: Mapping[str, Estimate]) -> str:
    """Each way of telling, by intervals; after the small talk with another fade (`slow`); the opening's `scene`."""
    own, alike, twice, behind, then = TELLINGS

    def against(telling: str, rule: str, other: str = "linear") -> str:
        return compared(share[telling, other], share[telling, rule], SAYS[other], SAYS[rule])

    both, fades = SAYS["gated_delta"], SAYS["gated"]
    guesses = "; ".join(over_guessing(est.scaled(100, "%"), SAYS[rule]) for rule, est in scene.items())
    return (
        f"- Keys with {own}: {against(own, 'delta')}.\n"
        f"- {alike[0].upper()}{alike[1:]}: {against(alike, 'delta')}.\n"
        f"- Told twice: {against(twice, 'delta')}.\n"
        f"- {behind[0].upper()}{behind[1:]}: {against(behind, 'gated')}; {against(behind, 'delta', 'gated')}.\n"
        f"- {then[0].upper()}{then[1:]}: {against(then, 'delta')}.\n\n"
        "The fade was one choice of many. After the small talk, with the table's: "
        f"{against(behind, 'gated_delta', 'gated')}. With $a$ = {SLOW}: "
        f"{compared(slow['gated'], slow['gated_delta'], fades, both)}.\n\n"
        "And **the phone number of the opening**? Ten digits, then 2,000 pairs, all of them written; a guess is "
        f"right once in ten: {guesses}. A rule that fades leaves ${KEEP}^{{2000}}$ of it, {KEEP**2000:.0e}: nothing. "
        "To keep a number is to leave the small talk out: with $\\beta = 0$ and $a = 1$ a token changes nothing. A "
        "trained layer chooses both for every token, and makes its own keys; here all is random and fixed. But it "
        "chooses before anybody has asked."
    )


# what was learned ---------------------------------------------------------------------------------
KINDS = {
    "full": "attention to everything",
    "window": "attention to the last 16",
    "linear-8": "state, add (elu + 1), divided",
    "gated-8": "state, fade and add",
    "delta-8": "state, correct",
    "gated_delta-8": "state, fade and correct",
    "gated_delta-4": "state, fade and correct, D = 4",
    "gated_delta-16": "state, fade and correct, D = 16",
    "gated-16": "state, fade and add, D = 16",
    "hybrid-8": "three of states, one of attention",
}
LEARNED = 0.9  # a model that answers less of the shortest test is compared with nobody


def models_of(kept: Kept) -> dict[str, Kept]:
    found = {row["name"]: row for row in kept["models"]}
    return {name: found[name] for name in KINDS if name in found}


def spelled(est: Estimate) -> str:
    """A share with its interval: 58 % (55 to 61)."""
    return f"{percent(est.value)} ({100 * est.low:.0f} to {100 * est.high:.0f})"


def right(row: Kept, pairs: int) -> Estimate:
    """Share of the questions about so many pairs that a model answers right."""
    return estimate(row["accuracy"][str(pairs)])


def bytes_of(row: Kept) -> float:
    """What a sequence of the longest test keeps in memory. [B]"""
    return float(row["grows"] + row["fixed"])


@sentence(
    example={"one": "the one", "other": "the other"},
    at=0.0,
    unit="points",
    effect=20.0,
    more_words=["more right"],
    less_words=["fewer right"],
)
def ahead(est: Estimate, one: str, other: str) -> str:
    """A model's share of right answers less another's."""
    return says(
        est,
        at=0.0,
        worth=1.0,
        more=f"{one} gets {{x}} of a hundred more right than {other} (at least {{low}})",
        same=f"between {one} and {other} this test shows no difference ({{estimate}})",
        less=f"{one} gets fewer right than {other}: {{x}} of a hundred (at most {{high}})",
    )


def compared(a: Estimate, b: Estimate, one: str, other: str) -> str:
    """Two shares of right answers, the larger one first."""
    if a.value < b.value:
        a, b, one, other = b, a, other, one
    return ahead(apart(a, b), one, other)


def recall_table(kept: Kept, names: Sequence[str]) -> Table:
    """Bytes that a sequence keeps, and right answers by the number of pairs."""
    found, pairs = models_of(kept), kept["pairs"]
    rows = [
        [KINDS[name], size(bytes_of(found[name])), *(percent(right(found[name], n).value) for n in pairs)]
        for name in names
        if name in found
    ]
    return (
        rows,
        ["tokens are mixed by", "a sequence", *(f"{n} pairs" for n in pairs)],
        "lr" + "r" * len(pairs),
    )


def unlearned(kept: Kept) -> list[str]:
    """Models that fail the shortest test, for want of training or of room: of their memory nothing follows."""
    fewest = min(kept["pairs"])
    return [name for name, row in models_of(kept).items() if right(row, fewest).value < LEARNED]


def learned_story(kept: Kept) -> str:
    """The four rules at equal bytes, and the widths, by intervals."""
    found, most = models_of(kept), max(kept["pairs"])
    shown = {name: right(row, most) for name, row in found.items()}
    fades, corrects, both = "a state that fades and adds", "one that corrects", "one that does both"
    pairs = [
        ("gated-8", "delta-8", fades, corrects),
        ("gated-8", "gated_delta-8", fades, both),
        ("gated_delta-8", "delta-8", both, corrects),
        ("gated_delta-16", "gated-16", f"{both} ($D = 16$)", f"{fades} ($D = 16$)"),
        ("gated_delta-16", "gated_delta-8", f"{both} ($D = 16$)", "the same with $D = 8$"),
    ]
    bad = unlearned(kept)
    sound = set(found) - set(bad)
    words = [compared(shown[a], shown[b], x, y) for a, b, x, y in pairs if {a, b} <= sound]
    if {"gated_delta-16", "window"} <= sound:
        kept_by = [size(bytes_of(found[name])) for name in ("gated_delta-16", "window")]
        reach = 4 * (kept["window"] - 1)
        words.append(
            f"a window of {kept['window']} tokens, its own among them, reaches at most {reach} back through four "
            f"layers and keeps {kept_by[1]}; a state with $D = 16$ keeps {kept_by[0]}: "
            f"{compared(shown['gated_delta-16'], shown['window'], 'the state', 'the window')}"
        )
    told = ";\n".join(f"- {one}" for one in words)
    text = f"With {most} pairs\n\n{told}." if words else ""  # not measured
    if "gated-8" in found:
        matrices = 4 * state(MODELS[0])
        rest = bytes_of(found["gated-8"]) - matrices
        whole = size(matrices + rest)
        text += f"\n\nOf {whole} {size(matrices)} are states, {size(rest)} the convolutions' last tokens."
    if bad:
        few, left = min(kept["pairs"]), "; ".join(f"*{KINDS[name]}*" for name in bad)
        text += (
            f"\n\nLess than {percent(LEARNED)} of {few} pairs: {left}. Whether the steps were too few to find the "
            "task or the memory too small even for these, this test does not tell, so they are compared with nobody."
        )
    return (
        f"{text}\n\n"
        "The state that adds, divided, is compared with nobody: its keys and its division differ as well. Here every "
        "key is told once, as in the first of the five ways above. And it is one training each: the intervals are "
        "those of the test; another seed, or more steps, may order the rules otherwise. What correcting is for, a key "
        "that is told again, this task does not ask, so its worth cannot be read here; nor was any cause of a "
        "difference between the rules isolated."
    ).lstrip()


def hybrid_title(kept: Kept) -> str:
    found, most = models_of(kept), max(kept["pairs"])
    names = ("hybrid-8", "gated_delta-8")
    if set(names) & set(unlearned(kept)):  # not measured
        return f"{most} pairs: a model failed the shortest test, so these two are not compared"
    one, other = (right(found[name], most) for name in names)
    return f"{most} pairs: {compared(one, other, 'the hybrid', 'states alone')}"


def hybrid_story(kept: Kept) -> str:
    found, most = models_of(kept), max(kept["pairs"])
    bad, hybrid = unlearned(kept), found["hybrid-8"]
    text = (
        f"The hybrid keeps {size(hybrid['grows'])} of keys and values for a sequence of this test and "
        f"{size(hybrid['fixed'])} of states"
    )
    if "full" in found:
        text += f", {bytes_of(found['full']) / bytes_of(hybrid):.1f} times less than four layers of attention"
    for name, words in (("gated_delta-8", "four layers of states"), ("full", "four of attention")):
        if name in found and not {name, "hybrid-8"} & set(bad):
            text += f"; {compared(right(hybrid, most), right(found[name], most), 'the hybrid', words)}"
    return (
        f"{text}.\n\n"
        "What the three layers of states add beside attention, this does not show: a control with attention alone on "
        "top, and the states taken out, was not trained. The short convolution puts a key next to its value, and "
        "then one layer of attention to everything can look it up: the task may need no state at all."
    )


# what a token costs -------------------------------------------------------------------------------
WAYS = ("full", "window", "linear", "hybrid")
SAID = {"full": "full", "window": "window of 512", "linear": "states", "hybrid": "three to one"}


def timed(kind: str) -> ModelConfig:
    """The model that benchmarks/linear_decode.py times under this name."""
    share = {"linear": 8, "hybrid": 3}.get(kind, 0)
    layers = tuple(i for i in range(8) if share == 8 or i % 4 < share)
    linear = LinearLayers(layers, "gated_delta", 8, 64, 64) if layers else None
    return ModelConfig(
        kind, 1024, 8, 512, 8, 8, 64, 1536, 16_640, window=512 if kind == "window" else None, linear=linear
    )


def step_bytes(kind: str, context: int) -> float:
    """Weights, keys and values read by a step of batch 1, and states read and written. [B]"""
    config = timed(kind)
    states = 2 * cost.state_bytes(config, dtype="fp32")
    return cost.weight_bytes(config, "fp32") + cost.kv_bytes(config, context, dtype="fp32") + states


def held_bytes(kind: str, context: int) -> float:
    """Keys, values and states of one sequence. [B]"""
    config = timed(kind)
    return cost.kv_bytes(config, context, dtype="fp32") + cost.state_bytes(config, dtype="fp32")


def seconds_of(row: Kept, kind: str) -> Timing:
    return Timing(tuple(row["seconds"][kind]["samples"]))


def gain_of(row: Kept, kind: str) -> tuple[Estimate, float]:
    """How many times as fast as full attention a step is: measured, and by the bytes."""
    context = row["context"]
    won = Estimate.ratio(seconds_of(row, "full"), seconds_of(row, kind))
    return won, step_bytes("full", context) / step_bytes(kind, context)


def decode_table(kept: Kept) -> Table:
    """A step of full attention, and how many times as fast the others are; in brackets by the bytes."""
    rows = []
    for row in kept["rows"]:
        cells = [f"{row['context']:,}", milliseconds(seconds_of(row, "full").median)]
        for kind in WAYS[1:]:
            won, said = gain_of(row, kind)
            cells.append(f"{won.value:.2f} × ({said:.2f})")
        rows.append(cells)
    return rows, ["tokens before", *(SAID[kind] for kind in WAYS)], "rrrrr"


def decode_figure(kept: Kept) -> go.Figure:
    rows = kept["rows"]
    contexts = [row["context"] for row in rows]
    flat = seconds_of(rows[-1], "linear").median / seconds_of(rows[0], "linear").median
    long = seconds_of(rows[-1], "full").median / seconds_of(rows[0], "full").median
    fig = figure(
        f"{contexts[-1] // contexts[0]} times the context: a step takes {long:.1f} times as long with full attention, "
        f"{flat:.2f} times with states",
        x="tokens before the step",
        y="decode step (ms)",
        log_x=True,
        log_y=True,
        height=420,
    )
    shown = []
    for kind, color in zip(WAYS, (palette.orange, palette.grey, palette.blue, palette.green), strict=True):
        times = [seconds_of(row, kind) for row in rows]
        y = [1e3 * t.median for t in times]
        shown += y
        fig.add_scatter(
            x=contexts, y=y, mode="lines+markers", line_color=color, name=SAID[kind], showlegend=True
        )
    log_axis(fig, "x", contexts)
    log_axis(fig, "y", [tick for tick in (5, 10, 20, 50, 100, 200) if min(shown) / 2 < tick < 2 * max(shown)])
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    return fig


@sentence(
    example={"context": 512, "what": "states"}, more_words=["with states is"], less_words=["takes longer"]
)
def faster(est: Estimate, context: int, what: str) -> str:
    """Full attention's step over another's."""
    at = f"Behind {context:,} tokens a step with {what} "
    return says(
        est,
        more=at + "is {x} times as fast as one with full attention ({low} to {high}, n = {n})",
        same=at + "takes as long as one with full attention, as far as this run can show ({estimate})",
        less=at + "takes longer than one with full attention: {x} times as fast ({low} to {high}, n = {n})",
    )


@sentence(
    example={"what": "states", "first": 512, "last": 16_384},
    more_words=["times as long"],
    less_words=["takes less time"],
)
def lengthens(est: Estimate, what: str, first: int, last: int) -> str:
    """A step behind the longest context over one behind the shortest."""
    at = f"behind {last:,} tokens a step with {what} "
    return says(
        est,
        more=at + f"takes {{x}} times as long as behind {first:,} ({{low}} to {{high}}, n = {{n}})",
        same=at + f"takes as long as behind {first:,}, as far as this run can show ({{estimate}})",
        less=at + f"takes less time than behind {first:,}: {{x}} of it ({{low}} to {{high}}, n = {{n}})",
    )


def longer(kept: Kept, kind: str, what: str) -> str:
    first, last = kept["rows"][0], kept["rows"][-1]
    ratio = Estimate.ratio(seconds_of(last, kind), seconds_of(first, kind))
    return lengthens(ratio, what, first["context"], last["context"])


def signed(kept: Kept, kind: str) -> str:
    """By how much the bytes miss a gain at every context."""
    found = [said / won.value - 1 for won, said in (gain_of(row, kind) for row in kept["rows"])]
    return ", ".join(f"{100 * share:+.0f} %".replace("-", "−") for share in found)


def decode_story(kept: Kept) -> str:
    rows = kept["rows"]
    words: list[str] = []
    low = (
        "A layer of states starts many small operators where attention starts one; how much of the miss that is, "
        "is not told apart here."
    )
    high = (
        "Attention writes and reads its scores as well; how much of the miss that is, is not told apart here."
    )
    for row in (rows[0], rows[-1]):
        won, said = gain_of(row, "linear")
        why = "As above." if any(low in text for text in words) else low
        words.append(
            f"{faster(won, row['context'], 'states')}. By the bytes: {miss(said, won, why_low=high, why_high=why)}"
        )
    last = rows[-1]
    won, said = gain_of(last, "window")
    words.append(
        "The window, which has no layer of states, behind as many tokens, by the bytes: "
        + miss(said, won, why_low=high, why_high="So states alone are not to blame.")
    )
    states, window = longer(kept, "linear", "states"), longer(kept, "window", "a window")
    words.append(
        f"The bytes of both are the same behind any of these contexts: {states}; {window}. What counts beside bytes "
        "was not looked for."
    )
    words.append(
        "<details><summary>Every miss, and what a sequence holds</summary>\n\n"
        f"By how much the bytes miss a gain, from the shortest context to the longest: {signed(kept, 'window')} "
        f"(window), {signed(kept, 'linear')} (states), {signed(kept, 'hybrid')} (three to one). No cause is told "
        "apart here."
    )
    held = ", ".join(f"{size(held_bytes(kind, last['context']))} ({SAID[kind]})" for kind in WAYS)
    words.append(f"What a sequence holds behind {last['context']:,} tokens: {held}.\n\n</details>")
    return "\n\n".join(words)


# where states lose --------------------------------------------------------------------------------
def prompt_flops(tokens: int) -> tuple[float, float]:
    """FLOPs of one layer of the timed models over a prompt: attention under a causal mask, and states by chunks."""
    full, linear = timed("full"), timed("linear")
    attention = 4 * full.head_dim * full.num_heads * cost.causal_pairs(tokens)
    return float(attention), tokens * cost.state_flops(linear, cost.linear.CHUNK) / linear.num_layers


@sentence(example={"tokens": 256}, more_words=["times as long"], less_words=["less time"])
def chunks_over_attention(est: Estimate, tokens: int) -> str:
    """A prompt through states over one through attention."""
    at = f"A prompt of {tokens:,} tokens takes "
    return says(
        est,
        more=at + "{x} times as long through states as through attention ({low} to {high}, {n} rounds)",
        same=at + "the same time both ways, as far as this run can show ({estimate})",
        less=at + "less time through states, {x} of attention's ({low} to {high}, {n} rounds)",
    )


@sentence(more_words=["times what"], less_words=["less than the FLOPs"])
def over_flops(est: Estimate) -> str:
    """A measured ratio over the one that FLOPs give."""
    return says(
        est,
        more="measured is {x} times what the FLOPs say ({low} to {high})",
        same="and that is what was measured, as far as this run can show ({estimate})",
        less="measured is less than the FLOPs say: {x} of it ({low} to {high})",
    )


def prompts_story(times: Mapping[int, Mapping[str, Timing]]) -> str:
    words = []
    for tokens, some in times.items():
        ratio, flops = Estimate.ratio(some["states"], some["attention"]), prompt_flops(tokens)
        said = flops[1] / flops[0]
        words.append(
            f"{chunks_over_attention(ratio, tokens)}. By FLOPs it would be {said:.3g} of attention's; "
            f"{over_flops(ratio.scaled(1 / said, '×'))}."
        )
    words.append(
        "States are many small products, chunk after chunk, attention is one operator; how much of a miss that is, is "
        "not told apart."
    )
    return "\n\n".join(words)


def snapshots_table() -> Table:
    """What a prefix cache keeps so that a prompt can be cut anywhere, or at the end of every so many tokens."""
    config, tokens = timed("linear"), 8192
    attention = cost.kv_bytes(timed("full"), tokens, dtype="fp32")
    rows = [["keys and values of attention", "anywhere", size(attention), "1 ×"]]
    for every in (16, 256, 2048):
        kept = tokens // every * cost.state_bytes(config, dtype="fp32")
        rows.append(
            [
                f"a state for every {every:,} tokens",
                f"at {every:,}, {2 * every:,}, …",
                size(kept),
                f"{kept / attention:.2g} ×",
            ]
        )
    return rows, ["kept", "can be cut", f"{tokens:,} tokens", "over keys and values"], "llrr"


# recap --------------------------------------------------------------------------------------------
def takeaway(dim: int) -> str:
    return (
        f"**Takeaway.** Adding, {dim} × {dim} numbers hold {half_full(dim)} random pairs at an error of a half, about "
        f"as many as would fit in them word for word ({dim // 2}). What a state saves it saves by not growing; what "
        "it may forget is decided when it is written, before anybody knows the question."
    )


def recap(dim: int, half: float, recall: Kept | None, decode: Kept | None, sparse: Kept | None) -> str:
    from lumen.pages import ch14_sparse

    lines = [
        f"- **A state is a sum.** One matrix a head, written by $k^\\top v$ and read by $q$: an error of a half at "
        f"{half:.0f} random pairs for $D = {dim}$, about as many as a cache of the same size holds.",
        "- **Two forms, one rule.** Token by token for a step, by chunks for a prompt; padding neither writes nor "
        "fades.",
    ]
    if recall is not None:
        found, most = models_of(recall), max(recall["pairs"])
        shown = [
            f"{spelled(right(found[name], most))} {words}"
            for name, words in (("linear-8", "by adding, divided"), ("gated-8", "by fading and adding"),
                                ("delta-8", "by correcting"), ("gated_delta-8", "by fading and correcting"),
                                ("hybrid-8", "with one layer of attention in four"))
            if name in found and name not in unlearned(recall)
        ]  # fmt: skip
        if shown:
            lines.append(f"- **Trained on recall,** one seed: of {most} pairs {', '.join(shown)}.")
    if decode is not None:
        last = decode["rows"][-1]
        lines.append(
            f"- **A state does not grow:** {size(held_bytes('linear', last['context']))} instead of "
            f"{size(held_bytes('full', last['context']))} behind {last['context']:,} tokens. "
            f"{faster(gain_of(last, 'linear')[0], last['context'], 'states')}; {longer(decode, 'linear', 'states')}."
        )
    if sparse is not None:
        lines.append(ch14_sparse.recap_line(sparse))
    return "\n".join(lines)


PRODUCTION = [
    (
        "vllm",
        "states lie in pages beside keys and values: a page of keys is made so large that a state fits in it, and "
        "prefixes are shared at the ends of such pages",
        "`--enable-prefix-caching`, `--mamba-ssm-cache-dtype`",
        "design/hybrid_kv_cache_manager/",
    ),
    (
        "sglang",
        "two pools, one for states and one for keys; a radix tree whose nodes may hold a state",
        "`--mamba-full-memory-ratio`, `--max-mamba-cache-size`, `--mamba-scheduler-strategy`",
        "basic_usage/qwen3",
    ),
    (
        "tensorrt-llm",
        "DSA for models that were trained with it, RocketKV for those that were not",
        "`sparse_attention_config`",
        "features/sparse-attention.html",
    ),
    (
        "llama.cpp",
        "states of a prompt are kept at a few points, to go back to",
        "`--ctx-checkpoints`",
        "tools/server/README.md",
    ),
]
