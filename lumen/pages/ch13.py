"""What chapter 13 shows: needles, weights, bytes, perplexities, channels, rules, and kinds of cache at equal bytes."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, NoEvidence, load_evidence, says, sentence, wilson
from lumen.bench.numbers import percent, size
from lumen.cache.quant_format import QUANT_FORMATS, SCALE_BYTES, WHOLE_BLOCKS, QuantFormat
from lumen.config import CONFIGS
from lumen.explore.figures.theme import figure, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.explore.prose.show import table_markdown
from lumen.hardware import CHIPS
from lumen.serve.kv_cache import PLAIN, Quantized, users_per_gib

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing
    from lumen.bench.quality import Losses

Table = tuple[list[list[Any]], list[str], str]
Answers = Mapping[
    tuple[str, float], Sequence[str]
]  # (rule, share of the keys) -> what was said of each number
Right = Mapping[tuple[str, float], Sequence[bool]]  # and whether it was the number
MODEL, BIG, MISTRAL = CONFIGS["smollm2-135m"], CONFIGS["llama-3-8b"], CONFIGS["mistral-7b"]
H100 = CHIPS["H100 SXM"]
LENGTH, FIFTH, GROUP, PAGE = 2048, 0.2, 32, 16  # tokens of a user; a share; KIVI's block; Quest's page
PLAIN_BITS = 16
TARGET = 0.5  # what the course allows 8 bits: percent of perplexity
NAMES = {
    "full": "everything",
    "newest": "the newest",
    "newest, half": "the newest, half as many",
    "sinks": "the first 4 and the newest",
    "random": "at random",
    "key norm": "short keys",
    "h2o": "H2O",
    "h2o, mean": "H2O's mean",
    "snapkv": "SnapKV",
    "snapkv, wide": "SnapKV, pooled over 13",
    "told": "told where the number is",
    "window": "window with 4 sinks",
    "quest": "Quest",
    "int8": "8 bits",
    "int4": "4 bits by token",
    "int4, rotated": "4 bits by token, rotated",
    "kivi": "4 bits, KIVI",
    "kivi-2": "2 bits, KIVI",
    "2 bits by token": "2 bits by token",
}
NOT_PUBLISHED = (
    "These numbers come from a published measurement, `smaller_cache`, which this copy of the course does not have: "
    "`python benchmarks/smaller_cache.py` makes it."
)


def named(kind: str) -> str:
    return NAMES.get(kind, kind)


def published() -> Mapping[str, Any] | None:
    """The published measurement, None where this copy has none."""
    try:
        data: Mapping[str, Any] = load_evidence("smaller_cache")["data"]
    except NoEvidence:
        return None
    return data


# one sentence -------------------------------------------------------------------------------------
def quoted(text: str) -> str:
    """A sentence of a prompt as a quotation."""
    return "> " + " ".join(text.split())


def opening_table(said: Mapping[str, tuple[int, str]]) -> Table:
    """By what was kept: how many keys of each head, and what the model says then."""
    most = max(keys for keys, _ in said.values())
    rows = [
        [name, f"{keys:,}", percent(keys / most), f"“{' '.join(answer.split())}”"]
        for name, (keys, answer) in said.items()
    ]
    return rows, ["cache", "keys a head", "bytes", "the pass number is"], "lrrl"


def opening_story(said: Mapping[str, tuple[int, str]], number: str) -> str:
    right = [
        name
        for name, (_, answer) in said.items()
        if right_answers({("", 1.0): [answer]}, [number])["", 1.0][0]
    ]
    return f"The number is {number}. Right with: {', '.join(right) if right else 'none of them'}."


# a missing key ------------------------------------------------------------------------------------
def places_figure(first: Sequence[float], newest: Sequence[float], near: int) -> go.Figure:
    """The weight on the first token and on the newest `near`, by layer; the rest is what lies between."""
    rest = [1 - a - b for a, b in zip(first, newest, strict=True)]
    fig = figure(
        f"In half of the layers the first token gets more than {percent(statistics.median(first))} of the weight",
        x="layer of SmolLM2",
        y="share of the attention (%)",
        height=400,
    )
    layers = list(range(1, len(first) + 1))
    for some, words, color in (
        (first, "the first token", palette.orange),
        (newest, f"the newest {near}", palette.blue),
        (rest, "all that lies between", palette.green),
    ):
        fig.add_scatter(
            x=layers,
            y=[100 * x for x in some],
            mode="lines+markers",
            line_color=color,
            name=words,
            showlegend=True,
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    fig.update_yaxes(range=[0, 100])
    return fig


Heaviest = tuple[int, str, float]  # the key that a layer reads most: its position, its token, its share
MUCH = 0.1


def places_story(
    first: Sequence[float],
    newest: Sequence[float],
    near: int,
    lengths: Sequence[float],
    most: Sequence[Heaviest],
) -> str:
    """`lengths`: by layer, how long the first token's value is, over the median of the others'. Why so much weight lies
    there is told behind the window's prediction."""
    rest = statistics.median(1 - a - b for a, b in zip(first, newest, strict=True))
    return (
        f"The first token's value is short: in the median layer {percent(statistics.median(lengths))} of the others' "
        f"length.{elsewhere(most)} What remains for all that lies between the first token and the newest {near} is "
        f"{percent(rest)}, in the median layer. In there is the pass "
        "number."
    )


def elsewhere(most: Sequence[Heaviest]) -> str:
    """Layers whose most read key, with a tenth of the weight at least, is none of the first four."""
    others = [(at, token) for at, token, weight in most if at >= 4 and weight >= MUCH]
    if not others:
        return ""
    (at, token), layers = Counter(others).most_common(1)[0]
    plural = "s" if layers > 1 else ""
    return (
        f" Not every layer reads the front most: in {layers} layer{plural} the most read key is that of "
        f"“{token.strip()}”, token {at + 1}."
    )


# bytes --------------------------------------------------------------------------------------------
def bits_of(form: QuantFormat) -> float:
    """Bits that one stored number takes, scales included."""
    return 8 * form.bytes_per_token(MODEL, GROUP) / (cost.kv_bytes_per_token(MODEL, "bf16") / 2)


def bytes_table() -> Table:
    """Every kind's bytes for a number, a token and a user; users that a GiB holds."""
    plain = cost.kv_bytes_per_token(MODEL, "bf16")
    fit = users_per_gib(PLAIN, MODEL, "bf16", LENGTH, PLAIN.block_size)
    rows = [["16 bits", "16", f"{plain / 2**10:.1f} KiB", "100 %", f"{fit}"]]
    for name in ("int8", "int4", "kivi", "kivi-2"):
        form = QUANT_FORMATS[name]
        kind = Quantized(form)
        fit = users_per_gib(kind, MODEL, "bf16", LENGTH, kind.block_size)
        token = form.bytes_per_token(MODEL, GROUP)
        rows.append(
            [
                named(name),
                f"{bits_of(form):.3g}",
                f"{token / 2**10:.1f} KiB",
                percent(token / plain),
                f"{fit}",
            ]
        )
    kept = math.ceil(FIFTH * LENGTH)
    fit = int(2**30 // (kept * plain))
    rows.append(["a fifth of the keys", "16", f"{FIFTH * plain / 2**10:.1f} KiB", percent(FIFTH), f"{fit}"])
    return rows, ["kept", "bits a number", "a token", "bytes", f"users of {LENGTH:,} in a GiB"], "lrrrr"


def bytes_story() -> str:
    form = QUANT_FORMATS["kivi-2"]
    open_ = form.open_bytes(MODEL, "bf16", GROUP)
    return (
        f"Two bits are {bits_of(form):.3g} with their scales ({2 * SCALE_BYTES} bytes for every {GROUP} numbers): "
        f"every key in {percent(bits_of(form) / PLAIN_BITS)} of the bytes, or {percent(FIFTH)} of the keys whole. "
        f"KIVI, [explained below](#whose-step), keeps its last {WHOLE_BLOCKS} blocks of {GROUP} tokens whole, "
        f"{size(open_)} a user here, so fewer of its users fit than the column of bytes says. A fifth of the keys is "
        "what stays of a prompt that has been read; while one is read, all of it is held."
    )


# fewer bits ---------------------------------------------------------------------------------------
def rise(ratio: Estimate) -> Estimate:
    """A ratio of perplexities as a rise in percent."""
    low, value, high = (100 * (x - 1) for x in (ratio.low, ratio.value, ratio.high))
    return Estimate(value, low, high, ratio.n, "%")


@sentence(
    example={"name": "8 bits"}, at=0.0, unit="%", effect=5.0, more_words=["rises"], less_words=["falls"]
)
def perplexity_change(est: Estimate, name: str) -> str:
    """The rise of the perplexity [%] with fewer bits, over the full cache's."""
    return says(
        est,
        at=0.0,
        worth=0.0,
        more=f"{name}: the perplexity rises by {{x}} % ({{low}} to {{high}}, {{n}} stretches)",
        same=f"{name}: no difference that these stretches show ({{estimate}})",
        less=f"{name}: the perplexity falls, {{x}} % ({{low}} to {{high}}, {{n}} stretches)",
    )


@sentence(at=TARGET, unit="%", effect=1.0, more_words=["missed"], less_words=["kept"])
def target(est: Estimate) -> str:
    """What the published run says of the course's target for 8 bits."""
    return says(
        est,
        at=TARGET,
        worth=0.0,
        more=f"The course's target, {TARGET} % at most, is missed: {{estimate}} in the published run",
        same=f"The published run leaves the course's target open, {TARGET} % at most: {{estimate}}",
        less=f"The course's target, {TARGET} % at most, is kept: {{estimate}} in the published run",
    )


def eight_bits(kept: Mapping[str, Any]) -> Estimate:
    """The rise with 8 bits in the published run."""
    return rise(next(estimate(row["ratio"]) for row in kept["perplexity"] if row["kind"] == "int8"))


def rise_title(ratio: Estimate) -> str:
    low, high = (percent(x - 1, 1, signed=True) for x in (ratio.low, ratio.high))
    return f"Eight bits change the perplexity by {low} to {high}"


def eight_story(found: Mapping[str, Losses], kept: Mapping[str, Any] | None) -> str:
    full = found["full"]
    eight, four = (rise(found[name].over(full)) for name in ("int8", "int4"))
    judged = f" {target(eight_bits(kept))}." if kept is not None else ""  # not measured
    return (
        f"The full cache's perplexity is {full.perplexity().value:.3g}. {perplexity_change(eight, '8 bits')}.{judged} "
        f"{perplexity_change(four, '4 bits by token')}. A step is a 127th of the largest number with 8 bits, a 15th of "
        "the range with 4, and a third of it with 2. The next section is about those."
    )


def channels_figure(keys: Sequence[float], values: Sequence[float]) -> go.Figure:
    """By layer: the largest channel over the median one, of keys and of values."""
    most = statistics.median(keys)
    fig = figure(
        f"The largest channel of a head's keys is {most:.0f} times the median one, of its values "
        f"{statistics.median(values):.1f} times",
        x="layer of SmolLM2",
        y="largest channel / median one",
        log_y=True,
        height=380,
    )
    layers = list(range(1, len(keys) + 1))
    for some, words, color in ((keys, "keys", palette.orange), (values, "values", palette.blue)):
        fig.add_scatter(
            x=layers, y=list(some), mode="lines+markers", line_color=color, name=words, showlegend=True
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "y", nice_ticks(min(*keys, *values), max(*keys, *values)))
    return fig


def errors_table(errors: Mapping[tuple[str, str], Sequence[float]]) -> Table:
    """(keys', values' scales) -> relative error of every layer's attention; the median over layers."""
    middle = {pair: statistics.median(each) for pair, each in errors.items()}
    keys, values = (list(dict.fromkeys(side)) for side in zip(*errors, strict=True))
    rows = [[f"keys {k}", *(percent(middle[k, v], 1) for v in values)] for k in keys]
    return rows, ["2 bits", *(f"values {v}" for v in values)], "l" + "r" * len(values)


def two_bits_story(errors: Mapping[tuple[str, str], Sequence[float]], found: Mapping[str, Losses]) -> str:
    """Attention's error both ways, and what the model's perplexity says of it."""
    pairs = {pair: statistics.median(each) for pair, each in errors.items()}
    best = min(pairs, key=lambda pair: pairs[pair])
    token = pairs["by token", "by token"]
    worse = sum(a > b for a, b in zip(errors["by token", "by token"], errors[best], strict=True))
    lines = "; ".join(
        perplexity_change(rise(found[kind].over(found["full"])), named(kind))
        for kind in ("kivi-2", "2 bits by token")
    )
    return (
        f"The smallest error has keys {best[0]} and values {best[1]}: {percent(pairs[best])} where scales by token for "
        f"both make {percent(token)}. It is smaller in {worse} of {len(errors[best])} layers. Over the four passages, "
        f"where KIVI also has its newest tokens whole, 32 at most, {lines}."
    )


@sentence(effect=0.5, more_words=["costs"], less_words=["saves"])
def rotated_over_plain(est: Estimate) -> str:
    """Perplexity at 4 bits by token, with a rotation over without."""
    return says(
        est,
        worth=0.0,
        more="over the same scales without it the rotation costs: {x} times the perplexity ({low} to {high})",
        same="over the same scales without it the rotation makes no difference that this run can show ({estimate})",
        less="over the same scales without it the rotation saves: {x} times the perplexity ({low} to {high})",
    )


# the window ---------------------------------------------------------------------------------------
@sentence(example={"name": "without them"}, effect=1.0, more_words=["rises"], less_words=["falls"])
def window_over_full(est: Estimate, name: str) -> str:
    """Perplexity behind the window over that of the full cache."""
    return says(
        est,
        more=f"{name} the perplexity rises to {{x}} times the full cache's ({{low}} to {{high}}, {{n}} stretches)",
        same=f"{name} there is no difference to the full cache that these stretches show ({{estimate}})",
        less=f"{name} the perplexity falls to {{x}} times the full cache's ({{low}} to {{high}}, {{n}} stretches)",
    )


READ = 32  # tokens of a step


def window_title(ratio: Estimate, tokens: int) -> str:
    return f"As up to {tokens} tokens go, {ratio.value:.1f} times the perplexity"


def window_story(ratios: Mapping[str, Estimate], newest: int) -> str:
    """`ratios`: perplexity of each kind over the full cache's, behind the window."""
    kept = {
        "the newest": "nothing",
        "first 4 and newest": "the first four tokens",
        "first one and newest": "the first token",
        "four others and newest": "tokens 41 to 44 (control)",
        "a line break first": "the first token, a line break now (control)",
    }
    rows = [[name, f"{ratios[kind].value:.2f} ({ratios[kind].low:.2f} to {ratios[kind].high:.2f})"]
            for kind, name in kept.items()]  # fmt: skip
    shown = table_markdown(rows, ["kept beside the newest", "perplexity, full cache = 1"], "lr")
    return (
        f"One text, read {READ} tokens at a time; all of them keep {newest} keys between two steps.\n\n{shown}\n\n"
        f"{window_over_full(ratios['the newest'], 'Without the first tokens')}; "
        f"{window_over_full(ratios['first one and newest'], 'with the first one kept')}."
    )


def window_figure(kinds: Mapping[str, Sequence[float]], stretch: int, newest: int) -> go.Figure:
    """Perplexity stretch by stretch, over that of the full cache, of kinds that hold equally many keys."""
    full = kinds["everything"]
    shown = {
        "the newest": palette.orange,
        "four others and newest": palette.grey,
        "first 4 and newest": palette.blue,
    }
    ratios = {name: [math.exp(a - b) for a, b in zip(kinds[name], full, strict=True)] for name in shown}
    behind = newest // stretch
    without, with_four = (
        math.exp(statistics.fmean(map(math.log, ratios[name][behind:])))
        for name in ("the newest", "first 4 and newest")
    )
    fig = figure(
        f"Behind token {newest}: {without:.1f} times the perplexity without the first tokens, {with_four:.2f} with "
        "four",
        x="tokens of the text",
        y="perplexity, full cache = 1",
        log_y=True,
        height=400,
    )
    places = [stretch * (i + 0.5) for i in range(len(full))]
    for name, color in shown.items():
        fig.add_scatter(
            x=places, y=ratios[name], mode="lines+markers", line_color=color, name=name, showlegend=True
        )
    fig.add_vline(x=newest, line={"color": palette.grey, "dash": "dot"})
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    everything = [x for some in ratios.values() for x in some]
    log_axis(fig, "y", nice_ticks(min(0.9, *everything), max(everything)))
    return fig


def sinks_published() -> str:
    """What the longer published run says, or nothing."""
    try:
        found = load_evidence("window_sinks")
    except NoEvidence:
        return ""
    from lumen.bench.quality import Losses

    setting, rows = found["data"]["setting"], {row["kind"]: row["nats"] for row in found["data"]["rows"]}
    stretches, far = len(rows["full"][0]), setting["newest"] + setting["sinks"]
    each = setting["length"] // stretches
    behind = [i for i in range(stretches) if i * each >= far]
    losses = {
        kind: Losses(tuple(text[i] for text in nats for i in behind), each) for kind, nats in rows.items()
    }
    ratio = {kind: some.over(losses["full"]) for kind, some in losses.items()}
    return (
        f"\n\nThe published run has {setting['texts']} texts of {setting['length']:,} tokens and windows of {far}. "
        f"Behind the window, over the full cache: {ratio['window']} without the first tokens, "
        f"{ratio['window and sinks']} with four of them. Distances counted inside the cache, as StreamingLLM does for "
        f"texts longer than a model knows: {ratio['window and sinks, inside']}, and without the first tokens "
        f"{ratio['window, inside']}."
    )


def reach(layers: int, newest: int) -> int:
    """The furthest token that a window of `newest` lets a query hear of, itself counted: each layer adds a window less
    one."""
    return layers * (newest - 1) + 1


def reach_story() -> str:
    window = MISTRAL.window
    assert window is not None
    most = reach(MISTRAL.num_layers, window)
    return f"Mistral 7B was trained so, with a window of {window:,} in {MISTRAL.num_layers} layers: {most:,} tokens."


# rules --------------------------------------------------------------------------------------------
def rules_table() -> Table:
    rows = [
        ["newest", "$i$", "nothing"],
        ["sinks", "$\\infty$ for the first four, else $i$", "nothing"],
        ["random", "a number drawn once", "nothing"],
        ["short keys", "$-\\lVert k_i \\rVert$", "the key"],
        ["H2O", "$\\sum_q w_{qi}$; the newest half of the budget stays", "every query so far"],
        [
            "SnapKV",
            "$\\max_{j \\approx i} \\sum_{q \\in \\text{last 32}} w_{qj}$; the last 32 stay",
            "the prompt's last 32 queries",
        ],
    ]
    return rows, ["rule", "worth of key $i$", "looks at"], "lll"


def digits(answer: str, number: str) -> int:
    """How many digits of the number an answer begins with."""
    said = answer.strip()
    return next(
        (i for i, (a, b) in enumerate(zip(said.ljust(len(number)), number, strict=False)) if a != b),
        len(number),
    )


def right_answers(said: Answers, numbers: Sequence[str]) -> dict[tuple[str, float], list[bool]]:
    """Whether each answer is its number, the whole of it and no longer one."""
    return {
        key: [
            re.split(r"\D", text.strip(), maxsplit=1)[0] == n for text, n in zip(texts, numbers, strict=True)
        ]
        for key, texts in said.items()
    }


def found_title(right: Sequence[bool], of: str) -> str:
    return f"{of}, half of the keys: {sum(right)} of {len(right)} numbers"


def found_table(said: Answers, numbers: Sequence[str]) -> Table:
    """By rule and share of the keys: numbers found, and the digits that an answer begins with, on average."""
    right = right_answers(said, numbers)
    shares = sorted({share for name, share in said if share < 1}, reverse=True)
    rows = []
    for name in dict.fromkeys(name for name, share in said if share < 1):
        cells = []
        for share in shares:
            begun = [digits(text, number) for text, number in zip(said[name, share], numbers, strict=True)]
            cells += [f"{sum(right[name, share])} of {len(numbers)}", f"{statistics.fmean(begun):.1f}"]
        rows.append([named(name), *cells])
    heads = [h for share in shares for h in (f"{percent(share)} of the keys: found", "digits")]
    return rows, ["rule", *heads], "l" + "r" * len(heads)


def found_story(
    said: Answers, numbers: Sequence[str], stayed: Mapping[tuple[str, float], float], inside: int
) -> str:
    """`stayed`: the share of the sentences' keys that was kept; `inside`: how many numbers stand in the newest half."""
    right = {key: sum(some) for key, some in right_answers(said, numbers).items()}
    whole, half = len(numbers), 0.5
    first = (
        f"The full cache finds {right['full', 1.0]} of {whole}. In the newest half stand {inside}, and it finds "
        f"{right['newest', half]}. Told where the number is, a cache with {percent(FIFTH)} of the keys finds "
        f"{right['told', FIFTH]}. How much of the sentence was kept, on average over layers and heads, with half of "
        f"the keys: by chance {percent(stayed['random', half])}, by H2O {percent(stayed['h2o', half])}, by SnapKV "
        f"{percent(stayed['snapkv', half])}. H2O spends half of its budget on the newest keys: those alone find "
        f"{right['newest, half', half]}, with the heavy hitters beside them {right['h2o', half]}."
    )
    bits = (
        f"Beside them all keys in fewer bits. KIVI's four, {percent(bits_of(QUANT_FORMATS['kivi']) / PLAIN_BITS)} "
        "of the "
        f"bytes: {right['kivi', 1.0]} of {whole}. Its two, {percent(bits_of(QUANT_FORMATS['kivi-2']) / PLAIN_BITS)}: "
        f"{right['kivi-2', 1.0]}."
    )
    return "\n\n".join((first, _neighbours(said, numbers, right), bits))


def _neighbours(said: Answers, numbers: Sequence[str], right: Mapping[tuple[str, float], int]) -> str:
    """An answer of SnapKV that begins well, if there is one, and the control: a wider kernel."""
    begun = [
        f"With {percent(FIFTH)} of the keys SnapKV answers “{' '.join(text.split())}” where prompt {i} hides {number}. "
        for i, (text, number) in enumerate(zip(said["snapkv", FIFTH], numbers, strict=True), 1)
        if 1 < digits(text, number) < len(number)
    ]
    return (
        f"{begun[0] if begun else ''}Of what its queries read SnapKV keeps three neighbours on each side. **Control:** "
        f"with six on each side, a pool of 13, it finds {right['snapkv, wide', FIFTH]} of {len(numbers)} where it "
        f"found {right['snapkv', FIFTH]}. Six were chosen after a pilot run had shown which digits are lost: they fit "
        "these numbers, and nobody knows how long the next answer is."
    )


# pages --------------------------------------------------------------------------------------------
def quest_share(share: float, page: int = PAGE) -> float:
    """What a step reads, over all keys and values: chosen pages, and two vectors of bounds for each page."""
    return share + 1 / page


def quest_story(weights: Mapping[str, Sequence[float]], kept: Mapping[str, Any] | None) -> str:
    """`weights`: by layer, the last query's attention on pages chosen by bound, the best pages, and the newest ones."""
    bound, best, newest = (statistics.median(weights[name]) for name in ("bound", "best", "newest"))
    found = [
        f"{spelled(est)} with {percent(part)} of the pages"
        for part in (FIFTH, 0.5)
        if kept is not None and (est := needles_of(kept, "quest", part))
    ]
    told = "" if not found else f" Needles found in the published run: {'; '.join(found)}."  # not measured
    return (
        f"With a page in {round(1 / FIFTH)} the chosen pages hold {percent(bound)} of the last query's attention in "
        f"the median layer; the best so many pages would hold {percent(best)}, the newest {percent(newest)}. Read are "
        f"{percent(quest_share(FIFTH))} of the bytes, held are all of them and {percent(1 / PAGE)} more.{told} The "
        "weight caught in the median layer does not say how many needles are found; what else it takes is not shown."
    )


# the same bytes -----------------------------------------------------------------------------------
FORGETS = {
    "full": "nothing",
    "int8": "a little of every key",
    "int4": "a little of every key",
    "int4, rotated": "a little of every key",
    "kivi": "a little of every key",
    "kivi-2": "much of every key",
    "window": "all that is old, for good",
    "random": "anything",
    "key norm": "what has long keys",
    "h2o": "what was read little so far",
    "snapkv": "what the last queries did not ask for",
    "snapkv, wide": "what the last queries did not ask for",
    "quest": "nothing; a step skips pages",
}
"""The kinds of the table. Twins of these stay out: scales by token at two bits, H2O's mean, windows without a ring."""


def estimate(fields: Mapping[str, Any]) -> Estimate:
    """An estimate as it lies in a file."""
    return Estimate(fields["value"], fields["low"], fields["high"], fields["n"], fields.get("unit", ""))


def needles_of(
    kept: Mapping[str, Any], kind: str, share: float, seen: bool = True, lengths: Sequence[int] | None = None
) -> Estimate | None:
    """The share of needles found over all lengths (or `lengths`), with Wilson's interval."""
    right = [
        bool(hit)
        for row in kept["needles"]
        if (row["kind"], row["share"], row["question_seen"]) == (kind, share, seen)
        and (lengths is None or row["length"] in lengths)
        for hit in row["right"]
    ]
    return wilson(sum(right), len(right)) if right else None


def common_lengths(kept: Mapping[str, Any]) -> list[int]:
    """Lengths at which every kind was asked: some read their prompts alone and were asked at fewer."""
    by_kind: dict[str, set[int]] = {}
    for row in kept["needles"]:
        if row["question_seen"]:
            by_kind.setdefault(row["kind"], set()).add(row["length"])
    return sorted(set.intersection(*by_kind.values()))


def long_share(row: Mapping[str, Any]) -> float:
    """The share of the bytes that a kind holds of a long prompt: no whole blocks, nothing that came later."""
    held: float = row["bytes"]["held"]
    form = QUANT_FORMATS.get(row["kind"])
    if form is not None:
        return min(held, bits_of(form) / PLAIN_BITS)
    return min(held, row["share"]) if row["kind"].startswith("snapkv") else held


def equal_rows(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of perplexity to be compared: spellings in bits, and rules and windows at a fifth of the keys."""
    rows = [row for row in kept["perplexity"] if row["share"] in (1.0, FIFTH) and row["kind"] in FORGETS]
    return sorted(rows, key=lambda row: (row["kind"] != "full", estimate(row["ratio"]).value))


def tight(cell: str) -> str:
    """A cell that breaks at no blank."""
    return cell.replace(" ", "\N{NO-BREAK SPACE}")


def interval(est: Estimate, shown: Callable[[float], str]) -> str:
    return f"{shown(est.value)} ({shown(est.low)} to {shown(est.high)})"


def spelled(est: Estimate) -> str:
    """A share with its interval, the sign written once: 20 % (8 to 42)."""
    low, high = (percent(x).removesuffix(" %") for x in (est.low, est.high))
    return f"{percent(est.value)} ({low} to {high})"


def times(ratio: float) -> str:
    """A ratio of perplexities, near 1 with three decimals."""
    return f"{ratio:.3f}" if ratio < 2 else f"{ratio:.3g}"


def equal_table(kept: Mapping[str, Any]) -> Table:
    """One row a kind: bytes held (and read, where that is less), perplexity, needles, and what it forgets."""
    lengths, rows = common_lengths(kept), []
    for row in equal_rows(kept):
        kind, share, held, read = row["kind"], row["share"], row["bytes"]["held"], row["bytes"]["read"]
        found = needles_of(kept, kind, share, lengths=lengths)
        moved = tight(percent(held)) + (f", read {tight(percent(read))}" if read < held - 0.01 else "")
        if long_share(row) < held - 0.02:
            moved += f"; long {tight(percent(long_share(row)))}"
        ratio = "1" if kind == "full" else tight(interval(estimate(row["ratio"]), times))
        rows.append(
            [
                named(kind),
                moved,
                ratio,
                tight(spelled(found)) if found else "–",
                FORGETS[kind],
            ]
        )
    return rows, ["kind", "bytes", "perplexity, full = 1", "needles found", "what it forgets"], "lrrrl"


@sentence(example={"a": "H2O", "b": "SnapKV"}, effect=1.0, more_words=["higher"], less_words=["lower"])
def one_over_other(est: Estimate, a: str, b: str) -> str:
    """Perplexity of one kind over another's on the same stretches."""
    return says(
        est,
        worth=0.0,
        more=f"By perplexity {a} is worse than {b}, {{x}} times as high, so higher ({{low}} to {{high}})",
        same=f"By perplexity nothing that this run can show lies between {a} and {b} ({{estimate}})",
        less=f"By perplexity {a} is better than {b}, {{x}} times as high, so lower ({{low}} to {{high}})",
    )


def paired(kept: Mapping[str, Any], a: str, b: str) -> Estimate | None:
    """Perplexity of one kind over another's, stretch by stretch; None where one of them was not run."""
    from lumen.bench.quality import Losses

    found = {
        row["kind"]: Losses(tuple(row["losses"]), kept["setting"]["stretch"]) for row in equal_rows(kept)
    }
    return found[a].over(found[b]) if {a, b} <= found.keys() else None


def equal_story(kept: Mapping[str, Any]) -> str:
    lengths, sizes = common_lengths(kept), kept["setting"]
    near = [row for row in equal_rows(kept) if long_share(row) <= 1 / 3]
    hits = {row["kind"]: needles_of(kept, row["kind"], row["share"], lengths=lengths) for row in near}
    whole = [f"“{named(kind)}”" for kind, found in hits.items() if found and found.value == 1.0]
    asked = " and ".join(f"{n:,}" for n in lengths)
    parts = [
        f"Perplexity over {sizes['passages']} passages from the last twentieth of each play, {sizes['prompt']} tokens "
        f"read and {sizes['scored']} predicted one by one, where the bytes are counted, too; needles in prompts of "
        f"{asked} tokens at {len(sizes['depths'])} depths, the question in sight, all rules with {percent(FIFTH)} of "
        "the keys. Intervals are of 95 %; – was not asked. “Long” is the share of a long prompt: SnapKV chooses once, "
        "and what comes after the prompt is held beside it; of KIVI's the newest blocks are whole, which is much of so "
        "short a text. Quest reads its first two layers whole. SnapKV pooled over 13 was tuned on such numbers, with "
        "the question in sight.",
    ]
    first, second = (row["kind"] for row in near[:2])
    compared = paired(kept, second, first)
    if compared:
        parts.append(
            "Of those that hold at most a third of a long prompt's bytes take the first two of the table. "
            f"{one_over_other(compared, named(second), named(first))}. Every needle was found by "
            f"{', '.join(whole) or 'none of them'}."
        )
    rules, turned = paired(kept, "h2o", "snapkv, wide"), paired(kept, "int4, rotated", "int4")
    pair = hits.get("h2o"), hits.get("snapkv, wide")
    if rules and pair[0] and pair[1]:
        parts.append(
            f"Two measures of one pair. {one_over_other(rules, 'H2O', 'SnapKV, pooled over 13')}; of the needles "
            f"they find {spelled(pair[0])} and {spelled(pair[1])}."
        )
    four = next((estimate(row["ratio"]) for row in near if row["kind"] == "int4"), None)
    if four and (found := hits.get("int4")):
        parts[-1] += (
            f" Two measures of one kind. {perplexity_change(rise(four), named('int4'))}; needles found: "
            f"{spelled(found)}."
        )
    if turned:
        parts.append(f"In 4 bits, {rotated_over_plain(turned)}.")
    return "\n\n".join(parts)


def equal_figure(kept: Mapping[str, Any]) -> go.Figure:
    """Needles by kind, the kinds in the table's order: the second measure along the first."""
    lengths = common_lengths(kept)
    asked = [
        (named(row["kind"]), found)
        for row in equal_rows(kept)
        if (found := needles_of(kept, row["kind"], row["share"], lengths=lengths))
    ]
    every = sum(found.value == 1.0 for _, found in asked)
    fig = figure(
        f"{every} of {len(asked)} kinds find every needle; on top stands the lowest perplexity",
        x="needles found (%)",
        y="kind of cache",
        height=460,
    )
    fig.add_scatter(
        x=[100 * found.value for _, found in asked],
        y=[name for name, _ in asked],
        mode="markers",
        marker={"color": palette.blue, "size": 10},
        error_x={
            "array": [100 * (found.high - found.value) for _, found in asked],
            "arrayminus": [100 * (found.value - found.low) for _, found in asked],
            "color": palette.blue,
        },
    )
    fig.update_xaxes(range=[-4, 104])
    fig.update_yaxes(autorange="reversed", type="category")
    return fig


def grid_figure(kept: Mapping[str, Any], kinds: Sequence[str], share: float = FIFTH) -> go.Figure:
    """Needles found by depth, over all lengths, of some kinds at one share."""
    depths = kept["setting"]["depths"]
    each = len(depths)
    shown: dict[str, list[float]] = {}
    for kind in kinds:
        hits: list[list[bool]] = [[] for _ in depths]
        for row in kept["needles"]:
            if row["kind"] != kind or row["share"] != share or not row["question_seen"]:
                continue
            count = len(row["right"]) // each
            for i in range(each):  # needles of one depth stand together
                hits[i] += row["right"][i * count : (i + 1) * count]
        if any(hits):
            shown[kind] = [100 * statistics.fmean(h) if h else 0.0 for h in hits]
    top = max(shown, key=lambda kind: sum(shown[kind]))
    tuned = ", tuned on such numbers," if top == "snapkv, wide" else ""  # not measured
    fig = figure(
        f"With {percent(share)} of the keys, the question in sight: “{named(top)}”{tuned} finds "
        f"{statistics.fmean(shown[top]):.0f} %",
        x="depth of the number (0 start, 1 end)",
        y="numbers found (%)",
        height=400,
    )
    colors = (palette.orange, palette.blue, palette.green, palette.purple, palette.grey)
    for (kind, y), color in zip(shown.items(), colors, strict=False):
        fig.add_scatter(
            x=list(depths), y=y, mode="lines+markers", line_color=color, name=named(kind), showlegend=True
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    fig.update_yaxes(range=[-4, 104])
    return fig


def unseen_table(kept: Mapping[str, Any]) -> Table:
    """Rules with the question in sight and without, at the published shares, beside kvpress's scores."""
    theirs = kept["published"]["kept"]
    shares = [float(share) for share in theirs]
    ours = [s for s in (0.5, 0.1) if s in shares]
    scores = {float(share): row for share, row in theirs.items()}
    rows = []
    for kind in (*scores[ours[0]], "snapkv, wide"):
        cells = []
        for share in ours:
            seen, unseen = (needles_of(kept, kind, share, s) for s in (True, False))
            cells.append(" / ".join(tight(percent(e.value)) if e else "–" for e in (seen, unseen)))
            cells.append(f"{scores[share].get(kind, '–')}")
        rows.append([named(kind), *cells])
    heads = [h for s in ours for h in (f"{percent(s)} kept: in sight / not", "kvpress")]
    return rows, ["rule", *heads], "l" + "r" * len(heads)


def order_story(kept: Mapping[str, Any]) -> str:
    """What kvpress's columns are, and how many of its pairs of rules our needles order by more than their interval."""
    verdicts = [verdict for row in kept["ranking"] for *_, verdict in row["pairs"]]
    wide = [
        f"with {percent(share)} of the keys {spelled(seen)} in sight, {spelled(unseen)} not"
        for share in (0.5, 0.1)
        if (seen := needles_of(kept, "snapkv, wide", share))
        and (unseen := needles_of(kept, "snapkv, wide", share, False))
    ]
    tuned = ""
    if wide:
        tuned = f" SnapKV, pooled over 13, was tuned with the question in sight: {'; '.join(wide)}."
    return (
        f"kvpress's columns are scores of 100: {kept['published']['source']}. Of {len(verdicts)} pairs of rules that "
        f"it ranks, the likelihood of our right answers, question not seen, orders {verdicts.count('agrees')} the "
        "same way by "
        "more than its interval, "
        f"{verdicts.count('reversed')} the other way; it leaves the others open. The two runs differ in model, tasks, "
        f"length and in how SnapKV pools, and nothing here tells which of these turns a pair.{tuned}"
    )


# where it loses -----------------------------------------------------------------------------------
CONTEXTS = (512, 8192, 131072)


def step_table() -> Table:
    """Bytes of a decode step of Llama-3.1-8B, which has Llama-3-8B's shape: the cache's part, and how much
    less moves with a fifth of the cache."""
    rows = []
    weights = cost.weight_bytes(BIG, "bf16")
    for users in (1, 16):
        for context in CONTEXTS:
            held = users * cost.kv_bytes(BIG, context, dtype="bf16")
            gain = (weights + held) / (weights + FIFTH * held)
            rows.append([f"{users}", f"{context:,}", percent(held / (weights + held)), f"{gain:.2f} ×"])
    return rows, ["users", "context", "cache, of the bytes", "a step at best"], "rrrr"


@sentence(example={"context": 512}, more_words=["longer"], less_words=["sooner"])
def codes_over_plain(est: Estimate, context: int) -> str:
    """A decode step that reads 8-bit codes over one that reads plain numbers."""
    return says(
        est,
        more=f"A step with {context:,} tokens in the cache takes {{size}} longer with codes ({{estimate}})",
        same=f"A step with {context:,} tokens in the cache takes as long with codes, as far as this run can show "
        "({estimate})",
        less=f"A step with {context:,} tokens in the cache is done {{size}} sooner with codes ({{estimate}})",
    )


def codes_story(times: Mapping[str, Timing], context: int) -> str:
    ratio = Estimate.ratio(times["8 bits"], times["plain"])
    return (
        "In here every step makes numbers of all codes, writes them to memory and reads them again; a kernel that "
        f"makes them in registers reads only the codes. {codes_over_plain(ratio, context)}: "
        f"{milliseconds(times['plain'].median)} plain, {milliseconds(times['8 bits'].median)} in 8 bits."
    )


# recap --------------------------------------------------------------------------------------------
def takeaway(right: Right) -> str:
    found = {key: sum(some) for key, some in right.items()}
    whole = len(right["full", 1.0])
    four, two = (percent(bits_of(QUANT_FORMATS[name]) / PLAIN_BITS) for name in ("kivi", "kivi-2"))
    return (
        f"**Takeaway.** Of {whole} numbers, with a fifth of the keys: H2O finds {found['h2o', FIFTH]}, SnapKV "
        f"{found['snapkv', FIFTH]}, SnapKV pooled over 13, which was tuned on such numbers with the question in sight, "
        f"{found['snapkv, wide', FIFTH]}, a rule that is told where to look {found['told', FIFTH]}. Every key in four "
        f"bits, {four} of a long prompt's bytes, forecasts nothing and finds {found['kivi', 1.0]}; in two bits, {two}, "
        f"{found['kivi-2', 1.0]}."
    )


def recap(
    found: Mapping[str, Losses], ratios: Mapping[str, Estimate], right: Right, kept: Mapping[str, Any] | None
) -> str:
    full = found["full"]
    two = QUANT_FORMATS["kivi-2"]
    half, fifth = (
        {name: f"{sum(some)} of {len(some)}" for (name, s), some in right.items() if s == share}
        for share in (0.5, FIFTH)
    )
    change = {name: rise(found[name].over(full)) for name in ("int8", "kivi-2", "2 bits by token")}
    lines = [
        f"- **Bytes:** 8 bits take {percent(bits_of(QUANT_FORMATS['int8']) / PLAIN_BITS)} of 16, KIVI's two "
        f"{percent(bits_of(two) / PLAIN_BITS)}; a budget of keys takes its share.",
        f"- **Scales:** keys by channel, values by token. {perplexity_change(change['int8'], '8 bits')}; "
        f"{perplexity_change(change['kivi-2'], '2 bits so')}; "
        f"{perplexity_change(change['2 bits by token'], '2 bits by token')}.",
        f"- **A window:** {ratios['the newest']} the full cache's perplexity without the first token, "
        f"{ratios['first one and newest']} with it.",
        f"- **Rules forecast:** H2O found {half['h2o']} numbers with half of the keys, SnapKV {half['snapkv']}; with a "
        f"fifth SnapKV {fifth['snapkv']}, and {fifth['snapkv, wide']} with a pool that was tuned on such numbers, the "
        "question in sight.",
        f"- **Pages:** Quest forgets nothing, and in a layer that selects it reads {percent(quest_share(FIFTH))}.",
    ]
    quest = needles_of(kept, "quest", FIFTH) if kept is not None else None
    if quest:
        lines[-1] += f" With a fifth of the pages it found {spelled(quest)} of the needles."
    return "\n".join(lines)


PRODUCTION = [
    (
        "vllm",
        "8-bit floats, scales from the checkpoint or 1; 8-bit integers, a scale for each token and head; TurboQuant",
        "`--kv-cache-dtype fp8`, `int8_per_token_head`, `turboquant_4bit_nc`",
        "features/quantization/quantized_kvcache/",
    ),
    (
        "sglang",
        "8- and 4-bit floats, if the attention kernel reads them",
        "`--kv-cache-dtype fp8_e4m3`, `fp8_e5m2`, `fp4_e2m1`",
        "advanced_features/quantized_kv_cache",
    ),
    (
        "tensorrt-llm",
        "8- and 4-bit floats; a window for each layer",
        "`KvCacheConfig(dtype=…, max_attention_window=…)`",
        "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
    ),
    (
        "llama.cpp",
        "keys and values each in a format of their own, 32 numbers a scale",
        "`--cache-type-k q8_0`, `--cache-type-v q4_0`",
        "tools/server/README.md",
    ),
    (
        "kvpress",
        "dozens of rules on Hugging Face models, each one `score`; a board of their results",
        "`SnapKVPress(compression_ratio=0.8)`",
        "README.md",
    ),
]
