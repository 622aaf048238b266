"""Chapter 12, two ways to read a latent: what each computes, when it is cheaper, what a byte asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lumen import cost
from lumen.bench import Estimate, miss, says, sentence
from lumen.bench.numbers import percent
from lumen.config import ModelConfig
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.boxes import milliseconds
from lumen.hardware import CHIPS
from lumen.models.counts import expand_flops, pair_flops
from lumen.pages.ch12_bytes import NEW, OLD, V3, Table
from lumen.pages.ch12_steps import Kept, contexts_of, gain_of, shape, step_of
from lumen.pages.comparing import faster

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from lumen.bench import Timing

H100 = CHIPS["H100 SXM"]


def symbols() -> Table:
    """DeepSeek-V3's latent and the key beside it."""
    latent = V3.latent
    assert latent is not None
    rows = [
        ["$r$", f"{latent.rank}", "numbers of the latent, for all heads"],
        ["$D_R$", f"{latent.rope}", "numbers of the key that carries the position, for all heads"],
        ["$H$", f"{V3.num_heads}", "heads"],
        ["$D$", f"{V3.head_dim}", "width of a head's key without position, and of its value"],
        ["$r + D_R$", f"{V3.cache_dims.stored}", "numbers a token leaves in a layer"],
        [
            "$2\\,H\\,D$",
            f"{2 * V3.num_heads * V3.head_dim:,}",
            "a token with keys and values of every head",
        ],
    ]
    return rows, ["symbol", "DeepSeek-V3", "what it is"], "lrl"


def flops_a_key(config: ModelConfig, new: int) -> tuple[float, float]:
    """FLOPs of one layer for each key of a long context, `new` queries reading it: expanded, and absorbed."""
    return expand_flops(config) + new * pair_flops(config, False), float(new * pair_flops(config, True))


def even(config: ModelConfig) -> float:
    """The queries at which expanding costs as much as absorbing."""
    return expand_flops(config) / (pair_flops(config, True) - pair_flops(config, False))


def ways_figure() -> go.Figure:
    """Both ways against the queries that read the cache together, DeepSeek-V3's shape."""
    new = [2**i for i in range(13)]
    fig = figure(
        f"On a long context, absorbing computes less below {even(V3):.0f} queries, expanding above",
        x="new tokens that read the cache",
        y="MFLOP for each key, one layer",
        log_x=True,
        log_y=True,
        height=400,
    )
    shown = []
    for place, (name, color) in enumerate((("expanded", palette.orange), ("absorbed", palette.blue))):
        y = [flops_a_key(V3, n)[place] / 1e6 for n in new]
        shown += y
        fig.add_scatter(x=new, y=y, mode="lines", line_color=color)
        at, shift = ((2, 14), (3, -16))[place]  # above the flat line, below the rising one
        label_line(fig, new[at], y[at], name, color, anchor="left", shift=shift)
    log_axis(fig, "x", [1, 8, 64, 512, 4096])
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


# what a byte asks for -----------------------------------------------------------------------------
def intensity(config: ModelConfig) -> float:
    """FLOPs of a decode step's attention for each byte of the cache that it reads, at 16 bits."""
    return pair_flops(config, True) / (2 * config.cache_dims.stored)


def intensity_story() -> str:
    ridge = cost.ridge(H100, "bf16")
    return (
        f"An H100 can compute {ridge:.0f} FLOP while it reads a byte. In decode, Llama-2-7B's "
        f"heads ask it for {intensity(OLD):.0f} of each byte of the cache, Llama-3-8B's for {intensity(NEW):.0f}, "
        f"DeepSeek-V3's absorbed latents for {intensity(V3):.0f}, {percent(intensity(V3) / ridge)} of what it can do. "
        f"The bytes that were saved are paid for in arithmetic that was lying idle. That is with one query a user. "
        f"With two tokens of each at once, as in "
        f"[speculative decoding](../book/glossary.md#term-speculative-decoding), it is twice as much, and more than an "
        f"H100 computes in that time."
    )


def latents_lose(kept: Kept) -> str:
    """The published step on latents: its arithmetic, and the rate at which it would run if it took all the time."""
    first, last = contexts_of(kept)[0], contexts_of(kept)[-1]
    own, whole = shape(kept, "mla"), shape(kept, "mha")
    each, plain = (
        pair_flops(m, m is own) / (cost.kv_bytes_per_token(m, "fp32") / m.num_layers) for m in (own, whole)
    )
    held = cost.kv_bytes_per_token(whole, "fp32") / cost.kv_bytes_per_token(own, "fp32")
    more = step_of(kept, "mla", last)[0].value - step_of(kept, "mla", first)[0].value
    won, said = gain_of(kept, "mla", last)
    grows = ""
    if more > 0:
        rate = pair_flops(own, True) * own.num_layers * (last - first) / more
        grows = (
            f" From {first:,} to {last:,} tokens its step grows by {milliseconds(more)}: if arithmetic is all of that, "
            f"it runs at {rate / 1e9:.0f} GFLOP/s."
        )
    return (
        f"**And on this machine?** The shape [of above](#what-fewer-bytes-buy) with latents, `mla`, was measured "
        f"in turns with the others. It stores {held:.1f} times fewer bytes. In fp32 it "
        f"computes {each:.0f} FLOP for each byte that it reads, heads of "
        f"their own {plain:.1f}. At {first:,} tokens {faster(gain_of(kept, 'mla', first)[0], '`mla`', '`mha`')}. At "
        f"{last:,} tokens {faster(won, '`mla`', '`mha`')}; the cost model, with arithmetic "
        f"at the chip's peak, had said {said:.2f} ×.{grows}"
    )


# two ways, timed ----------------------------------------------------------------------------------
def forecast(new: int, held: int = 2048, heads: int = 16, dim: int = 64, rank: int = 256) -> float:
    """FLOPs of the absorbed way over those of the expanded one, by their products."""
    turned_in = 2 * new * heads * dim * rank * 2
    absorbed = turned_in + 2 * new * held * heads * rank * 2
    expanded = 2 * held * heads * dim * rank * 2 + 2 * new * held * heads * dim * 2
    return absorbed / expanded


@sentence(example={"new": 512}, more_words=["longer"], less_words=["sooner"])
def absorbed_over_expanded(est: Estimate, new: int) -> str:
    """The absorbed way over the expanded one."""
    asked = ("One new token" if new == 1 else f"{new} new tokens") + ": absorbed takes"
    return says(
        est,
        more=asked + " {size} longer than expanded ({estimate})",
        same=asked + " as long as expanded, as far as this run can show ({estimate})",
        less=asked + " {x} of the time, so it is done sooner ({low} to {high}, {n} rounds)",
    )


def ways_story(times: Mapping[int, Mapping[str, Timing]], said: Mapping[int, float]) -> str:
    words = []
    why = (
        "FLOPs leave out the softmax, the scores and their bytes, which both ways have, and the rate of each product; "
        "nothing here tells them apart."
    )
    for new, some in times.items():
        ratio = Estimate.ratio(some["absorbed"], some["expanded"])
        slow, fast = ("absorbed", "expanded") if said[new] > 1 else ("expanded", "absorbed")  # by forecast
        times_more, forecast_more = Estimate.ratio(some[slow], some[fast]), max(said[new], 1 / said[new])
        words.append(
            f"{absorbed_over_expanded(ratio, new)}. By FLOPs alone {slow} takes so many times as long as {fast}: "
            f"{miss(forecast_more, times_more, why)}"
        )
        why = "As above."
    return "\n\n".join(words)
