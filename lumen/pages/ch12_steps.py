"""Chapter 12, what fewer bytes buy: published decode steps beside their forecasts, and attention alone as a control."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent, size
from lumen.config import ModelConfig
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.pages.ch12_bytes import NEW, Table
from lumen.pages.comparing import capital, faster
from lumen.parts import Latent

if TYPE_CHECKING:
    import plotly.graph_objects as go

Kept = Mapping[str, Any]  # the published measurement `fewer_kv_heads`
HEADS = ("mha", "gqa4", "mqa")


def shape(kept: Kept, name: str) -> ModelConfig:
    """The configuration that a published step was measured with."""
    (row,) = (row for row in kept["steps"] if row["name"] == name)
    fields = dict(row["config"])
    if fields.get("latent"):
        fields["latent"] = Latent(**fields["latent"])
    return ModelConfig(**fields)


def _step(kept: Kept, name: str, context: int) -> Mapping[str, Any]:
    (row,) = (row for row in kept["steps"] if row["name"] == name)
    (one,) = (step for step in row["steps"] if step["context"] == context)
    found: Mapping[str, Any] = one
    return found


def step_of(kept: Kept, name: str, context: int) -> tuple[Estimate, float]:
    """A published decode step and its forecast. [s]"""
    one = _step(kept, name, context)
    return Estimate(one["measured_s"], one["low_s"], one["high_s"], one["n"], "s"), one["predicted_s"]


def gain_of(kept: Kept, name: str, context: int) -> tuple[Estimate, float]:
    """How many times as fast a variant's step is as that of all heads: measured in turns, and forecast."""
    said = step_of(kept, "mha", context)[1] / step_of(kept, name, context)[1]
    return Estimate(**_step(kept, name, context)["gain"]), said


def contexts_of(kept: Kept) -> list[int]:
    return [step["context"] for step in kept["steps"][0]["steps"]]


def gain_cell(est: Estimate) -> str:
    """A gain in a table: "≈ 1" where the interval holds both faster and slower."""
    return "≈ 1" if est.low < 1 < est.high else f"{est.value:.2f}"


def steps_table(kept: Kept, names: Sequence[str] = HEADS) -> Table:
    """Bytes of a token, and a step at every context: all heads as a time, the others as how many times as fast.

    In brackets how many times fewer bytes they read.
    """
    contexts, rows = contexts_of(kept), []
    for name in names:
        cells = []
        for context in contexts:
            if name == "mha":  # not measured
                cells.append(milliseconds(step_of(kept, name, context)[0].value))
            else:
                won, fewer = gain_of(kept, name, context)[0], bytes_gain(kept, name, context)[2]
                cells.append(f"{gain_cell(won)} × ({fewer:.2f})")
        rows.append([f"`{name}`", size(cost.kv_bytes_per_token(shape(kept, name), "fp32")), *cells])
    return rows, ["variant", "a token", *(f"at {c:,}" for c in contexts)], "lr" + "r" * len(contexts)


@sentence(more_words=["as fast"], less_words=["slower"])
def gain_words(est: Estimate) -> str:
    """A gain in a title."""
    return says(est, more="{x} times as fast", same="no difference to see", less="{size} slower")


def steps_figure(kept: Kept) -> go.Figure:
    """Times against context: dots measured, lines forecast."""
    contexts = contexts_of(kept)
    short, long = (gain_words(gain_of(kept, "mqa", contexts[i])[0]) for i in (0, -1))
    fig = figure(
        f"One stored head for sixteen: {short} at {contexts[0]:,} tokens, {long} at {contexts[-1]:,}",
        x="tokens of context",
        y="decode step (ms)",
        log_x=True,
        log_y=True,
        height=420,
    )
    shown = []
    for name, color in zip(HEADS, (palette.orange, palette.green, palette.blue), strict=True):
        pairs = [step_of(kept, name, context) for context in contexts]
        y = [1e3 * m.value for m, _ in pairs]
        lines = [1e3 * p for _, p in pairs]
        shown += y + lines
        fig.add_scatter(
            x=contexts, y=lines, mode="lines", line={"color": color, "dash": "dot"}, hoverinfo="skip"
        )
        fig.add_scatter(
            x=contexts, y=y, mode="markers", marker={"color": color, "size": 10},
            error_y={
                "array": [1e3 * (m.high - m.value) for m, _ in pairs],
                "arrayminus": [1e3 * (m.value - m.low) for m, _ in pairs],
            },
        )  # fmt: skip
        below = name == "mha"  # its forecast passes above
        label_line(fig, contexts[-1], y[-1], f"{name} ", color, anchor="right", shift=-14 if below else 14)
    log_axis(fig, "x", contexts)
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def share_of(config: ModelConfig, context: int) -> float:
    """The cache's part of the bytes that a step reads."""
    held = cost.kv_bytes(config, context, dtype="fp32")
    return held / (held + cost.weight_bytes(config, "fp32"))


def bytes_gain(kept: Kept, name: str, context: int) -> tuple[float, float, float]:
    """How many times fewer bytes a step reads: if the matrices alone were smaller, the cache alone, and with both."""
    own, whole = shape(kept, name), shape(kept, "mha")
    (weights, cache), (less, smaller) = (
        (cost.weight_bytes(m, "fp32"), cost.kv_read_bytes(m, context, dtype="fp32")) for m in (whole, own)
    )
    read = weights + cache
    return read / (less + cache), read / (weights + smaller), read / (less + smaller)


def steps_story(kept: Kept) -> str:
    """What four heads for sixteen gain at both ends, and where the formula lets a gain end."""
    contexts, config = contexts_of(kept), shape(kept, "mha")
    words = []
    for context in (contexts[0], contexts[-1]):
        held = f"At {context:,} tokens the cache is {percent(share_of(config, context))} of the bytes of a step; "
        words.append(held + faster(gain_of(kept, "gqa4", context)[0], "`gqa4`", "`mha`"))
    most = 1 / (1 - share_of(config, contexts[-1]))
    level = cost.weight_bytes(NEW) / cost.kv_bytes_per_token(NEW)
    return (
        f"{words[0]}. {words[1]}. By the formula a smaller cache alone gains {most:.2f} × there at most: with none at "
        f"all the weights are left to read. Cache and weights weigh the same where $B\\,T = W / \\kappa$: in "
        f"Llama-3-8B at {level:,.0f} tokens, those of all users together ($W$ without the table of embeddings, of "
        f"which a step reads one row a user)."
    )


# forecast and clock -------------------------------------------------------------------------------
def misses(kept: Kept, names: Sequence[str] = HEADS) -> list[float]:
    """Measured over forecast, of every step of these variants."""
    pairs = [step_of(kept, name, context) for name in names for context in contexts_of(kept)]
    return [taken.value / said for taken, said in pairs]


def misses_story(kept: Kept) -> str:
    """What bytes alone and the cost model say of one gain, and how far the model's steps are off, whichever way."""
    found, last = misses(kept), contexts_of(kept)[-1]
    far = statistics.median(max(factor, 1 / factor) for factor in found)
    own = {name: step_of(kept, name, last) for name in ("mha", "gqa4")}
    each = " and ".join(f"{taken.value / said:.2f} for `{name}`" for name, (taken, said) in own.items())
    won, said = gain_of(kept, "gqa4", last)
    untold = (
        f"Two steps stand behind it, measured over forecast {each}, and their ratio holds both misses. "
        f"{ASKED if 'attention' in kept else UNTOLD}"
    )
    fewer = bytes_gain(kept, "gqa4", last)[2]
    return (
        f"The gain of `gqa4` at {last:,} tokens, by bytes: {miss(fewer, won, LEFT_OUT)} The course's cost model (the "
        f"lines of the figure) has more in it: caches are read at a rate of their own, measured alone, and every "
        f"operator takes a time to start. It says: {miss(said, won, why_low=untold, why_high=untold)} Of the "
        f"{len(found)} steps above the clock took {min(found):.2f} to {max(found):.2f} times what it forecasts, half "
        f"of them off by a factor of more than {far:.2f}."
    )


LEFT_OUT = (
    "Bytes take no account of how fast each kind is read, nor of what else a step does; which of these it is, this "
    "comparison does not tell."
)


ASKED = "Which part of the forecast fails, the next lines ask."
UNTOLD = (
    "Which part of the forecast fails, the rate at which caches are read or arithmetic at the chip's peak, is not "
    "explained here: no run of this course has told the two apart."
)


def alone_of(kept: Kept, name: str) -> dict[str, Any]:
    """Attention of one layer alone: seconds from memory, in pieces, in pieces that stay in the caches; and FLOPs."""
    (row,) = (row for row in kept["attention"] if row["name"] == name)
    kinds = {kind: Estimate(**row[kind]) for kind in ("whole", "pieces", "kept", "memory_over_caches")}
    return {**kinds, "flops": row["flops"], "context": row["context"]}


def alone_table(kept: Kept) -> Table:
    """The operator beside what the cost model says of it, by stored heads."""
    rows = []
    for name in HEADS:
        config, found = shape(kept, name), alone_of(kept, name)
        said = _step(kept, name, found["context"])["predicted_attention_s"] / config.num_layers
        times = (found[kind].value for kind in ("whole", "pieces", "kept"))
        rows.append([f"{config.num_kv_heads}", *map(milliseconds, times), milliseconds(said)])
    headers = [
        "stored heads",
        "at once, from memory",
        "in pieces, from memory",
        "in pieces, in the caches",
        "forecast",
    ]
    return rows, headers, "rrrrr"


@sentence(example={"heads": 4}, more_words=["as long"], less_words=["sooner"])
def memory_words(est: Estimate, heads: int) -> str:
    """The same products on keys from memory over those on keys that stay in the processor's caches."""
    return says(
        est,
        more=f"with {heads} stored, keys from memory take {{x}} times as long as keys in the caches "
        "({low} to {high}, n = {n})",
        same=f"with {heads} stored, it makes no difference to see where the keys lie ({{estimate}}): the products take "
        "the time",
        less=f"with {heads} stored, keys from memory are done {{size}} sooner than keys in the caches ({{estimate}}), "
        "so this control failed",
    )


def replaced_step(kept: Kept, name: str) -> float:
    """The forecast of a step with the operator's measured time in the place of its own forecast. [s]"""
    found, config = alone_of(kept, name), shape(kept, name)
    step = _step(kept, name, found["context"])
    rest = step["predicted_s"] - step["predicted_attention_s"]
    return float(rest + config.num_layers * found["whole"].value)


def alone_story(kept: Kept) -> str:
    """The control: whether keys come from memory or not, and what the forecast becomes with the operator measured."""
    last = contexts_of(kept)[-1]
    words = [
        memory_words(alone_of(kept, name)["memory_over_caches"], shape(kept, name).num_kv_heads)
        for name in HEADS
    ]
    rates = " and ".join(
        f"{alone_of(kept, name)['flops'] / alone_of(kept, name)['kept'].value / 1e9:,.0f}"
        for name in ("mha", "mqa")
    )
    why = "So attention alone does not explain it; what is left lies in the rest of the step."
    won = gain_of(kept, "gqa4", last)[0]
    told = miss(replaced_step(kept, "mha") / replaced_step(kept, "gqa4"), won, why_low=why, why_high=why)
    left = " and ".join(
        f"{step_of(kept, name, last)[0].value / replaced_step(kept, name):.2f} for `{name}`"
        for name in ("mha", "gqa4")
    )
    return (
        f"The control takes the operator out of the step: one layer's attention over {last:,} keys, once on keys "
        f"that come from memory, once as many products on keys that lie in the processor's own caches, both in "
        f"pieces. "
        f"{capital('; '.join(words))}. On keys in the caches it computes {rates} GFLOP/s, with all heads stored and "
        "with one. With the operator's measured time in the place of its forecast the gain of `gqa4` becomes: "
        f"{told} Measured "
        f"over forecast the two steps are then {left}: a ratio hides what both have in common."
    )


# where they lose ----------------------------------------------------------------------------------
def short_story(kept: Kept) -> str:
    """The shortest context: what the cache is there, and what the gain is made of."""
    context = contexts_of(kept)[0]
    matrices, cache, both = bytes_gain(kept, "gqa4", context)
    return (
        f"**Short contexts, few users.** At {context:,} tokens a quarter of the cache is worth {cache:.2f} ×, "
        f"by bytes. Fewer heads also need smaller matrices to make them, at every context; here these alone are worth "
        f"{matrices:.2f} ×. Both together: {miss(both, gain_of(kept, 'gqa4', context)[0], LEFT_OUT)}"
    )


def layers_read(kept: Kept) -> str:
    """What sharing among layers does to a step: bytes held are halved, bytes read are not."""
    context = contexts_of(kept)[-1]
    own, whole = shape(kept, "cla2"), shape(kept, "mha")
    held = cost.kv_bytes(own, context) / cost.kv_bytes(whole, context)
    read = cost.kv_read_bytes(own, context) / cost.kv_read_bytes(whole, context)
    words = "; ".join(
        faster(gain_of(kept, one, context)[0] if other == "mha" else _over(kept, one, other, context), f"`{one}`",
               f"`{other}`")
        for one, other in (("cla2", "mha"), ("gqa4-cla2", "gqa4"))
    )  # fmt: skip
    return (
        f"And the step? The upper layer still goes through what its neighbour stored: `cla2`, the shape of "
        f"[above](#what-fewer-bytes-buy) with layers in pairs and measured in turns with the others, "
        f"holds {percent(held)} of the bytes that `mha` holds, "
        f"and a step reads {percent(read)} of them. At {context:,} tokens: {words}."
    )


def _over(kept: Kept, one: str, other: str, context: int) -> Estimate:
    """How many times as fast `one` is as `other`, with the widest interval that their times allow; n counts rounds."""
    a, b = step_of(kept, one, context)[0], step_of(kept, other, context)[0]
    return Estimate(b.value / a.value, b.low / a.high, b.high / a.low, gain_of(kept, one, context)[0].n, "×")
