"""What chapter 04 shows: a curve with and without a cache, what stays the same, bytes, copies, masks, windows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent
from lumen.config import CONFIGS
from lumen.explore.explorers.kv_stepper import totals
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Measured, Timing

Table = tuple[list[list[Any]], list[str], str]
Curves = Sequence[Sequence[float]]  # runs of one answer: seconds of each of its tokens


def tiny(error: float) -> str:
    """An error to one digit; 0 where the bits are the same."""
    return f"{error:.0e}" if error else "0"


def middle(runs: Curves) -> list[float]:
    """The median over the runs, token by token. [s]"""
    return [statistics.median(times) for times in zip(*runs, strict=True)]


def late(runs: Curves, count: int = 8) -> float:
    """Mean of the last tokens of the median run. [s]"""
    return statistics.mean(middle(runs)[-count:])


# the same answer twice ----------------------------------------------------------------------------
def early(runs: Curves) -> float:
    """Mean of tokens 2 to 5 of the median run. [s]"""
    return statistics.mean(middle(runs)[1:5])


def opening_figure(slow: Curves) -> go.Figure:
    """Time of each token of the answer without a cache."""
    title = f"Without a cache the last tokens take {late(slow) / early(slow):.1f} times as long as the first"
    return _curves(title, [(slow, palette.orange, "no cache")])


def both_figure(slow: Curves, fast: Curves) -> go.Figure:
    """The same, with a cache beside it."""
    title = f"Without a cache the last tokens take {late(slow) / late(fast):.1f} times as long as with one"
    return _curves(title, [(slow, palette.orange, "no cache"), (fast, palette.blue, "cache")])


def _curves(title: str, curves: Sequence[tuple[Curves, str, str]]) -> go.Figure:
    n = list(range(1, len(curves[0][0][0]) + 1))
    fig = figure(title, x="token of the answer", y="time for this token (ms)")
    for runs, color, name in curves:
        times = [1e3 * t for t in middle(runs)]
        fig.add_scatter(x=n, y=times, mode="lines", line_color=color)
        label_line(fig, n[-1], max(times[-8:]), name, color, anchor="right", shift=14)
    fig.update_yaxes(rangemode="tozero")
    return fig


def opening(slow: Curves, prompt: int) -> str:
    new = len(slow[0])
    return (
        f"Without a cache tokens 2 to 5 took {milliseconds(early(slow))} each and the last eight "
        f"{milliseconds(late(slow))} (medians of {len(slow)} runs). "
        f"With a cache the text was the same. The first step ran {prompt} tokens through the model. The last one "
        f"without a cache ran {prompt + new - 1}, and all but one of them had been run before."
    )


# seven tokens -------------------------------------------------------------------------------------
def change_figure(changes: Mapping[str, Sequence[float]], words: Sequence[str]) -> go.Figure:
    """How much each vector of six tokens changed when a seventh came."""
    worst = max(max(row) for row in changes.values())
    fig = figure(
        f"Only one column is new: the largest change in the other six is {tiny(worst)}",
        x="token",
        y="vector",
        height=290,
    )
    fig.add_heatmap(
        z=[[0] * 6 + [1]] * 3,
        x=list(words),
        y=["Q", "K", "V"],
        text=[[tiny(c) for c in changes[name]] + ["new"] for name in "QKV"],
        texttemplate="%{text}",
        textfont={"size": 13, "color": "white"},
        colorscale=[[0, "#0b5f94"], [1, "#a84300"]],
        showscale=False,
        xgap=3,
        ygap=3,
        hoverinfo="skip",
    )
    fig.update_yaxes(autorange="reversed")
    return fig


def without_mask(encoder: Mapping[str, float]) -> str:
    return (
        f"Now the old keys change by {percent(encoder['K'])} of their largest value and the old values by "
        f"{percent(encoder['V'])}, because one token was added at the end. Only the first layer, which reads the "
        "tokens "
        "themselves, keeps its keys; in all others an encoder whose input grows has to compute them again."
    )


# equal to whom ------------------------------------------------------------------------------------
def errors_table(errors: Mapping[str, float]) -> Table:
    rows = [[name, tiny(error)] for name, error in errors.items()]
    return rows, ["who", "relative error of the logits, against no cache"], "ll"


# the whole answer ---------------------------------------------------------------------------------
def time_ratio(slow: Curves, fast: Curves) -> Estimate:
    """Time of the whole answer without a cache over the time with one, run by run."""
    return Estimate.of([sum(a) / sum(b) for a, b in zip(slow, fast, strict=True)], unit="×")


def answer_title(work: float, ratio: Estimate) -> str:
    return f"{work:.0f} times less work was {ratio.value:.1f} times less time"


@sentence(example={"work": 23.0}, at="work", more_words=["more"], less_words=["less"])
def saved(ratio: Estimate, work: float) -> str:
    """Time saved against work saved."""
    return says(
        ratio,
        at=work,
        more=f"The clock saves more than the count of rows, {{estimate}} against {work:.1f} ×: the rows that are "
        "skipped cost more than those that are kept.",
        same=f"This run cannot tell what the clock saves from the count of rows: {{estimate}} against {work:.1f} ×.",
        less=f"The clock saves less than the count of rows, {{estimate}} against {work:.1f} ×: the rows that were "
        "skipped were cheap.",
    )


def answer_story(ratio: Estimate, work: float, many: Measured, one: Measured, chip: Any, config: Any) -> str:
    """`many`: a pass over 32 rows, about the mean of the steps without a cache; `one`: a pass over one row."""
    weights = cost.weight_bytes(config, "fp32")
    return (
        f"{saved(ratio, work)} What rows cost, alone: a pass over {many.name.context} rows takes "
        f"{milliseconds(many.seconds)}, a pass over one row {milliseconds(one.seconds)}: {many.name.context} times the "
        f"rows, {many.seconds / one.seconds:.1f} times the time. Both read all weights, {weights / 1e9:.2f} GB, which "
        f"at {chip.bandwidth / 1e9:.1f} GB/s is {milliseconds(weights / chip.bandwidth)}; what stands above that is "
        "taken apart in [chapter 2](02_roofline.ipynb). On the roofline a step without a cache stands to the *right* "
        "of one with a cache: it does more arithmetic for the same weights."
    )


# the n² law ---------------------------------------------------------------------------------------
def grown(runs: Curves) -> float:
    """Time of the whole answer over the time of its first half, at the median run."""
    times = middle(runs)
    return sum(times) / sum(times[: len(times) // 2])


def law_figure(slow: Curves, fast: Curves, prompt: int) -> go.Figure:
    """Time since the start, on logarithmic axes, beside the rows that were counted."""
    new = len(slow[0])
    n = list(range(1, new + 1))
    sums: dict[str, list[float]] = {}
    for name, runs in (("slow", slow), ("fast", fast)):
        at, sums[name] = 0.0, []
        for seconds in middle(runs):
            at += seconds
            sums[name].append(at)
    rows = [totals(prompt, i).without for i in n]
    scaled = [r * sums["slow"][-1] / rows[-1] for r in rows]
    fig = figure(
        f"Twice the answer: {grown(slow):.1f} times the time without a cache, {grown(fast):.1f} times with one",
        x="tokens of the answer",
        y="time since the start (s)",
        log_x=True,
        log_y=True,
    )
    fig.add_scatter(x=n, y=sums["slow"], mode="lines", line_color=palette.orange)
    fig.add_scatter(x=n, y=sums["fast"], mode="lines", line_color=palette.blue)
    fig.add_scatter(x=n, y=scaled, mode="lines", line={"color": palette.grey, "dash": "dot"})
    log_axis(fig, "y", nice_ticks(min(scaled[0], sums["fast"][0]), sums["slow"][-1]))
    label_line(fig, new, sums["slow"][-1], "no cache", palette.orange, shift=14)
    label_line(fig, new, sums["fast"][-1], "cache", palette.blue, shift=-24)
    label_line(fig, 2, scaled[1], "rows counted, scaled", palette.grey, anchor="left", shift=-14)
    log_axis(fig, "x", [1, 2, 5, 10, 20, 40])
    fig.update_xaxes(range=[-0.03, math.log10(new) + 0.03])
    return fig


@sentence(example={"rows": 2.9}, at="rows", more_words=["faster"], less_words=["slower"])
def law(growth: Estimate, rows: float) -> str:
    """Growth of the time, from half of the answer to all of it, against the growth of the rows."""
    return says(
        growth,
        at=rows,
        more=f"The time grows faster than the rows: {{estimate}} against {rows:.1f} ×. Rows are not all that grows.",
        same=f"This run cannot tell the time from the law: {{estimate}} against {rows:.1f} × the rows.",
        less=f"The time grows slower than the rows: {{estimate}} against {rows:.1f} ×. Each step also holds a part "
        "that does not depend on its rows, the one that the pass over a single row showed.",
    )


def law_story(slow: Curves, prompt: int) -> str:
    new = len(slow[0])
    half = new // 2
    rows = totals(prompt, new).without / totals(prompt, half).without
    growth = Estimate.of([sum(run) / sum(run[:half]) for run in slow], unit="×")
    return f"From {half} to {new} tokens. {law(growth, rows)}"


def saving_table() -> Table:
    prompts, answers = [1, 128, 2048], [1, 32, 512]
    rows: list[list[Any]] = [[f"{p:,}"] + [f"{totals(p, a).ratio:.1f}" for a in answers] for p in prompts]
    return rows, ["tokens in the prompt", *[f"answer of {a}" for a in answers]], "rrrr"


def saving_story() -> str:
    return (
        f"For 512 tokens the cache saves **{totals(1, 512).ratio:.1f}×** behind a single token and "
        f"**{totals(2048, 512).ratio:.1f}×** behind 2,048. For one token it saves nothing: "
        f"{totals(2048, 1).ratio:.0f}×, whatever the prompt."
    )


# bytes --------------------------------------------------------------------------------------------
def kappa_table() -> Table:
    rows = []
    for name, kind in (
        ("smollm2-135m", "fp32"),
        ("llama-2-7b", "fp16"),
        ("llama-3-8b", "bf16"),
        ("llama-3-70b", "bf16"),
    ):
        c = CONFIGS[name]
        kappa, full = cost.kv_bytes_per_token(c, kind), cost.kv_bytes(c, 4096, dtype=kind)
        shape = f"{c.num_layers} · {c.num_kv_heads} · {c.head_dim}, {kind}"
        rows.append([name, f"{kappa / 2**10:.0f}", f"{full / 2**30:.2f}", shape])
    return (
        rows,
        ["model", "κ (KiB)", "4,096 tokens (GiB)", "layers · KV heads · head width, format"],
        "lrrl",
    )


def interview() -> str:
    big = CONFIGS["llama-3-70b"]
    each, everyone = cost.kv_bytes(big, 8192), cost.kv_bytes(big, 8192, 64)
    w = cost.weight_storage(big, "bf16")
    return (
        "<details><summary>The answer</summary>\n\n"
        f"{each / 1e9:.2f} GB a user, **{everyone / 1e9:.0f} GB** ({everyone / 2**30:.0f} GiB) for all, beside the "
        f"{w / 1e9:.0f} GB of weights. Together {(everyone + w) / 1e9:.0f} GB: "
        f"{math.ceil((everyone + w) / 80e9)} cards of 80 GB before a single activation is stored."
        "\n\n</details>"
    )


def crossing() -> float:
    """Users at which Llama-2-7B's caches of 4,096 tokens outweigh its weights, 16 bits."""
    return cost.overtaking_batch(CONFIGS["llama-2-7b"], 4096, "fp16")


def crossing_answer(users: float) -> str:
    c = CONFIGS["llama-2-7b"]
    w, one, kappa = (
        cost.weight_storage(c, "fp16"),
        cost.kv_bytes(c, 4096, 1),
        cost.kv_bytes_per_token(c, "fp16"),
    )
    return (
        f"**{math.ceil(users)} users.** A token leaves 2 · {c.num_layers} · {c.num_kv_heads} · {c.head_dim} · 2 bytes "
        f"behind, κ = {kappa / 2**10:.0f} KiB, and a chat of 4,096 tokens {one / 1e9:.1f} GB. The {w / 1e9:.1f} GB of "
        f"weights are {w / one:.1f} chats."
    )


def crossing_figure() -> go.Figure:
    llama, users = CONFIGS["llama-2-7b"], [1, 2, 4, 8, 16, 32]
    fig = figure(
        f"Llama-2-7B at 4,096 tokens: from {math.ceil(crossing())} users on, the cache outweighs the weights",
        x="users in the batch",
        y="GB, held and read in every step",
        log_x=True,
        log_y=True,
    )
    w = cost.weight_storage(llama, "fp16") / 1e9
    held = [cost.kv_bytes(llama, 4096, i) / 1e9 for i in users]
    fig.add_scatter(x=users, y=[w] * len(users), mode="lines", line_color=palette.grey)
    fig.add_scatter(x=users, y=held, mode="lines", line_color=palette.blue)
    fig.add_scatter(x=users, y=[w + c for c in held], mode="lines", line_color=palette.orange)
    label_line(fig, 31, w, "weights", palette.grey, anchor="right", shift=-13)
    label_line(fig, 2, held[1], "cache", palette.blue, anchor="left", shift=-14)
    label_line(fig, 16, w + held[4], "both", palette.orange, anchor="right", shift=13)
    log_axis(fig, "x", users)
    log_axis(fig, "y", [2, 5, 10, 20, 50])
    return fig


def crossing_story() -> str:
    llama = CONFIGS["llama-2-7b"]
    w, one = cost.weight_storage(llama, "fp16"), cost.kv_bytes(llama, 4096, 1)
    return (
        f"One user moves {(w + one) / 1e9:.1f} GB a step, six move {(w + 6 * one) / 1e9:.1f}: "
        f"{(w + 6 * one) / (w + one):.1f} times the bytes for six times the tokens. Below "
        f"{math.ceil(crossing())} users most bytes of a "
        "step are shared, from there on most are somebody's own."
    )


# two ways to keep it ------------------------------------------------------------------------------
def copy_ratio(steps: Mapping[str, Timing]) -> Estimate:
    return Estimate.ratio(steps["dynamic"], steps["static"])


def copy_title(ratio: Estimate) -> str:
    return f"At 4,096 tokens a dynamic step takes {ratio.value:.2f} times a static one"


def copy_table(steps: Mapping[int, Mapping[str, Timing]], kappa: float, bandwidth: float) -> Table:
    """What the copy adds to a step: by the clock, and by its bytes."""
    rows = []
    for n, taken in steps.items():
        extra = Estimate.difference(taken["dynamic"], taken["static"]).scaled(1e3, "ms")
        ratio = copy_ratio(taken)
        moved = 2 * n * kappa
        rows.append(
            [
                f"{n:,}",
                f"{extra.value:+.1f} ({extra.low:.1f} to {extra.high:.1f})",
                f"{1e3 * moved / bandwidth:.1f}",
                f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})",
            ]
        )
    headers = ["context", "the copy, by the clock (ms)", "by its bytes (ms)", "dynamic / static"]
    return rows, headers, "rrrr"


@sentence(
    example={"expected": 80.0}, at=0.0, unit="ms", effect=90.0, more_words=["longer"], less_words=["shorter"]
)
def copied(extra: Estimate, expected: float) -> str:
    """What the copy adds to a step, beside its bytes over the bandwidth, `expected`. [ms]"""
    share = ""
    if extra.low <= expected <= extra.high:
        share = f"predicted {expected:.3g} ms, measured {extra}; this run cannot tell the two apart."
    elif extra.value > 0:
        share = miss(
            expected,
            extra,
            why_low="The bytes leave out, among other things, what handing out fresh memory takes; nothing here "
            "measures that alone.",
            why_high="The chip's caches may serve a part of the copy, or the bandwidth was measured too low; nothing "
            "here tells the two apart.",
        )
    return says(
        extra,
        at=0.0,
        worth=0.0,
        more=f"It makes the step longer; by its bytes at the measured bandwidth: {share}",
        same=f"By its bytes at the measured bandwidth that is {expected:.3g} ms; this run cannot tell a dynamic step "
        "from a static one ({estimate}).",
        less=f"By its bytes at the measured bandwidth that is {expected:.3g} ms, and yet the dynamic step was the "
        "shorter one ({estimate}): something else differs between the two.",
    )


def copy_story(steps: Mapping[str, Timing], kappa: float, bandwidth: float, context: int = 4096) -> str:
    extra = Estimate.difference(steps["dynamic"], steps["static"]).scaled(1e3, "ms")
    expected = 2e3 * context * kappa / bandwidth
    written, stored = kappa * context * (context + 1) / 2 / 1e9, kappa * context / 1e9
    return (
        f"At {context:,} tokens the copy reads and writes {2 * context * kappa / 1e6:.0f} MB. "
        f"{copied(extra, expected)}\n\nGrowing one token at a time from nothing to {context:,}, "
        f"the copies "
        f"*write* {written:,.0f} GB to store {stored:.2f} GB. It is the n² law again, moved from arithmetic to memory."
    )


def static_story(nbytes: int, kappa: float, used: int = 100) -> str:
    slots = nbytes / kappa
    return (
        f"The static cache pays in another coin. `StaticCache(…, capacity=2048)` takes {nbytes / 2**20:.1f} MiB "
        f"from the "
        f"first token on: κ times {slots:,.0f} slots, one more than asked for, because padding is written into "
        f"the last "
        f"one, where nobody reads. An answer that ends after {used} tokens has used {percent(used / 2048)} of it. "
        "The paged "
        "cache of the next chapter avoids both prices."
    )


# masks --------------------------------------------------------------------------------------------
def chunk_table(chunked: Mapping[tuple[str, int], float], sizes: Sequence[int]) -> Table:
    rows: list[list[Any]] = [
        [name, *[tiny(chunked[name, size]) for size in reversed(sizes)]]
        for name in ("by position", "top left")
    ]
    names = {33: "all 33 in one go", 1: "one by one", 16: "chunks of 16"}
    return rows, ["mask", *[names[size] for size in reversed(sizes)]], "lrrr"


def padding_table(padding: Mapping[str, float]) -> Table:
    return (
        [[name, tiny(error)] for name, error in padding.items()],
        ["padding", "error against each prompt alone"],
        "ll",
    )


# windows ------------------------------------------------------------------------------------------
def moved_story(moved: Sequence[float], least: float) -> str:
    return (
        f"Not one key. The 255 characters that both windows share have keys that differ by {percent(moved[0])} in the "
        f"first layer and {percent(moved[-1])} in the last (relative norm); the least changed key of all, by "
        f"{percent(least, 1)}. "
        "A key is made from *character plus position*, and the position is another one now."
    )


def policy_table(losses: Mapping[str, tuple[int, Sequence[float], float]], reference: str) -> Table:
    """policy -> (rows computed a character, loss of each passage, largest change of a logit)."""
    rows = []
    for name, (count, loss, change) in losses.items():
        gap = Estimate.of([a - b for a, b in zip(loss, losses[reference][1], strict=True)], unit="nats")
        spread = f"{gap.value:+.2f} ({gap.low:+.2f} to {gap.high:+.2f})"
        against = "–" if name == reference else spread
        rows.append([name, f"{statistics.mean(loss):.2f}", against, count, f"{change:.1f}"])
    headers = [
        "policy",
        "loss (nats a character)",
        "above recompute, by passage",
        "rows a character",
        "largest Δ logit",
    ]
    return rows, headers, "lrrrr"


@sentence(example={}, at=0.0, unit="nats", effect=0.3, more_words=["worse"], less_words=["better"])
def stale(gap: Estimate) -> str:
    """Loss of the stale cache less the loss of recomputing, by passage."""
    return says(
        gap,
        at=0.0,
        worth=0.02,
        more="The stale cache predicts worse text, by {estimate} at the median passage, and nothing crashed.",
        same="On these passages the loss does not tell the stale cache from recomputing ({estimate}); its logits do.",
        less="On these passages the stale cache even predicts the text better ({estimate}); its logits are others all "
        "the same.",
    )


@sentence(
    example={"sees": "128 to 191 characters"},
    at=0.0,
    unit="nats",
    effect=0.3,
    more_words=["worse"],
    less_words=["better"],
)
def halved(gap: Estimate, sees: str) -> str:
    """Loss of sliding by half less the loss of recomputing, by passage."""
    return says(
        gap,
        at=0.0,
        worth=0.02,
        more=f"Sliding by half, which sees {sees} here, is worse than recomputing, by {{estimate}}.",
        same=f"Sliding by half, which sees {sees} here, cannot be told from recomputing ({{estimate}}).",
        less=f"Sliding by half is better than recomputing ({{estimate}}): from {sees} this model predicts better "
        "than from all.",
    )


def policy_story(losses: Mapping[str, tuple[int, Sequence[float], float]], window: int, ahead: int) -> str:
    """What the table of policies shows, chosen by the intervals over the passages."""
    base, half = losses["recompute"][1], window // 2
    vocab = CONFIGS["gptlite"].vocab_size
    sees = f"{half} to {half + ahead - 1} characters"

    def gap(name: str) -> Estimate:
        return Estimate.of([a - b for a, b in zip(losses[name][1], base, strict=True)], unit="nats")

    return (
        f"{stale(gap('keep the old rows'))} Blind guessing among the {vocab} characters costs {math.log(vocab):.2f}. "
        f"{halved(gap('slide by half'), sees)} (Intervals are over {len(base)} "
        f"passages. From one slide to the next, sliding by half computes two rows a character: {half} again and {half} "
        f"to go on, for {half} new ones.)"
    )


def rope_story(learned: float, rope: float) -> str:
    return (
        f"With rotary positions the picture is another one. Move the same tokens 100 positions to the right: GPTlite's "
        f"logits change by {percent(learned)}, SmolLM2's by {100 * rope:.1g} %. RoPE turns queries and keys by an "
        f"angle that "
        "grows with the position, and a score depends on the difference of the angles only. So the keys of a "
        "RoPE model "
        "need not be renumbered when the beginning is dropped."
    )


# where it loses -----------------------------------------------------------------------------------
@sentence(example={"tokens": 512}, more_words=["longer"], less_words=["shorter"])
def one_token(ratio: Estimate, tokens: int) -> str:
    """A prompt with an answer of one token: time with a cache over the time without."""
    return says(
        ratio,
        more="with a cache {size} longer ({estimate}): filling it is not free",
        same="no difference that this run can show ({estimate})",
        less="with a cache {size} shorter ({estimate}); it skips no work here, so look for another difference",
    )


@sentence(example={}, more_words=["longer"], less_words=["shorter"])
def growing(ratio: Estimate) -> str:
    """A step on a dynamic cache over one on a static cache."""
    return says(
        ratio,
        more="a step takes {size} longer than with a static one ({estimate})",
        same="no difference from a static one that this run can show ({estimate})",
        less="a step takes {size} shorter than with a static one ({estimate}), copy and all",
    )


def losses_table(ratio: Estimate, copy: Estimate, tokens: int) -> Table:
    rows = [
        [f"{tokens} tokens in, one out", one_token(ratio, tokens)],
        ["dynamic cache at 4,096 tokens", growing(copy)],
        [
            "static cache for 2,048, 100 used",
            f"{percent(1 - 100 / 2048)} of the memory holds nothing (counted)",
        ],
    ]
    return rows, ["case", "what happens"], "ll"


# recap --------------------------------------------------------------------------------------------
def recap(
    worst: float,
    encoder: Mapping[str, float],
    kappa: float,
    work: float,
    ratio: Estimate,
    wrong: float,
    shift: tuple[float, float],
) -> str:
    """`wrong`: error of the top-left mask in chunks; `shift`: change of the first layer's keys, of RoPE's logits."""
    return (
        "- **K and V of old tokens stay as they are** in a causal model: the largest change when a token was added is "
        f"{tiny(worst)}; without the mask, {percent(encoder['K'])}. Old queries stay too, but nobody asks them again.\n"
        f"- **κ = 2 · layers · KV heads · head width · bytes**: {kappa:,.0f} bytes for SmolLM2 in fp32, "
        f"{cost.kv_bytes_per_token(CONFIGS['llama-3-8b']) / 2**10:.0f} KiB for Llama-3-8B in bf16. 64 users at 8,192 "
        f"tokens of Llama-3-70B are {cost.kv_bytes(CONFIGS['llama-3-70b'], 8192, 64) / 1e9:.0f} GB.\n"
        f"- **Work saved: {work:.0f}× on our answer, time saved: {ratio}.** For 512 tokens "
        f"{totals(1, 512).ratio:.1f}× of work behind one token, {totals(2048, 512).ratio:.1f}× behind 2,048; 1× for an "
        "answer of one token.\n"
        f"- **The mask comes from positions.** The top-left triangle is wrong by {percent(wrong)} in chunks of 16 "
        "and right "
        "one by one.\n"
        f"- **A cache holds the past at its positions.** With learned positions a window that slides keeps no key: the "
        f"first layer's moved by {percent(shift[0])}. With RoPE a shift of 100 changed the logits by "
        f"{100 * shift[1]:.1g} %."
    )


def takeaway(kappa: float) -> str:
    return (
        "**Takeaway.** Count bytes before you count FLOPs. The cache turns arithmetic into memory that must be held "
        f"and read: {kappa / 2**10:.0f} KiB a token here, and from {math.ceil(crossing())} users on (Llama-2-7B, "
        "4,096 tokens) it weighs more than the model."
    )


PRODUCTION = [
    (
        "vllm",
        "share of the whole card for weights, activations and pool",
        "`--gpu-memory-utilization`, `--max-model-len`, `--kv-cache-dtype`",
        "configuration/engine_args/",
    ),
    (
        "sglang",
        "share for weights and pool",
        "`--mem-fraction-static`, `--context-length`, `--kv-cache-dtype`",
        "advanced_features/server_arguments",
    ),
    (
        "tensorrt-llm",
        "share of what is *free* after loading",
        "`KvCacheConfig`: `free_gpu_memory_fraction`, `max_tokens`",
        "https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
    ),
    (
        "llama.cpp",
        "slots for a number of tokens; may drop the oldest and turn the kept keys",
        "`--ctx-size`, `--cache-type-k`, `--cache-type-v`, `--context-shift`",
        "tools/server/README.md",
    ),
    (
        "transformers",
        "grows by default, or reserved",
        '`DynamicCache`; `cache_implementation="static"`',
        "https://huggingface.co/docs/transformers/kv_cache",
    ),
]
