"""Chapter 11: the tiles that a causal mask leaves, and the time that it saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lumen.bench import Estimate, miss, says, sentence
from lumen.pages.ch11_operators import Table, Times

if TYPE_CHECKING:
    from lumen.bench import Timing


CPU_KERNEL = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/FlashAttentionKernel.cpp"
)


def tiles_left(tokens: int, block_q: int, block_k: int) -> tuple[int, int]:
    """Tiles that a causal mask leaves, each that the diagonal touches counted whole; and all tiles."""
    rows = -(-tokens // block_q)
    left = sum(-(-min(block_q * (i + 1), tokens) // block_k) for i in range(rows))
    return left, rows * -(-tokens // block_k)


def causal_shares(took: Mapping[str, Timing]) -> tuple[Estimate, Estimate]:
    """Time with the mask over time without: on all cores, and on one."""
    every, one = (Estimate.ratio(took["causal" + on], took["all" + on]) for on in ("", ", one core"))
    return every, one


def causal_table(times: Times, block_q: int, block_k: int, cores: int) -> Table:
    """Share of the tiles, and of the time of torch's operator, by length."""
    rows = []
    for tokens, took in times.items():
        left, tiles = tiles_left(tokens, block_q, block_k)
        every, one = causal_shares(took)
        value, low, high = every.texts()
        row = [f"{tokens:,}", f"{left} of {tiles}", f"{left / tiles:.3f}", f"{value} ({low} to {high})"]
        rows.append(row if cores == 1 else [*row, one.texts()[0]])
    if cores == 1:
        return rows, ["tokens", "tiles left", "share", "measured"], "rrrr"
    return rows, ["tokens", "tiles left", "share", f"{cores} cores", "one core"], "rrrrr"


@sentence(more_words=["longer"], less_words=["saves"])
def causal_over_all(est: Estimate) -> str:
    """The one operator with a causal mask over the one without."""
    return says(
        est,
        more="the mask makes it {size} longer",
        same="the mask changes nothing that this run can show",
        less="the mask saves {size} of the time",
    )


@sentence(more_words=["larger"], less_words=["smaller"])
def cores_over_one(est: Estimate) -> str:
    """The mask's share of the time on all cores, over its share on one."""
    return says(
        est,
        more="on all cores the share is {size} larger than on one ({estimate}), as it would be if one core got the "
        "longer rows; what else the cores share is not told apart",
        same="that rows of unlike length keep a core waiting does not show: the share on all cores over that on one "
        "is {estimate}",
        less="on all cores the share is {size} smaller than on one ({estimate}), which does not show that rows of "
        "unlike length keep a core waiting",
    )


def causal_story(counts: Any, times: Times, tokens: int, block_q: int, block_k: int, cores: int) -> str:
    """The count, the clock at `tokens`, the length where the two are furthest apart, and one core as a control."""
    shares = {n: left / tiles for n in times for left, tiles in [tiles_left(n, block_q, block_k)]}
    found = {n: causal_shares(took)[0] for n, took in times.items()}
    worst = max(times, key=lambda n: abs(shares[n] / found[n].value - 1))
    took = times[tokens]
    every, one = (
        [a / b for a, b in zip(took["causal" + on].samples, took["all" + on].samples, strict=True)]
        for on in ("", ", one core")
    )
    control = (
        f" A control at {tokens:,}: {cores_over_one(Estimate.ratio(every, one))}."  # not measured
        if cores > 1
        else ""
    )
    return (
        f"At {tokens:,} tokens the loop computed {counts.tiles} of {counts.tiles + counts.skipped} tiles and skipped "
        f"{counts.skipped}. torch's operator for CPUs has [tiles of that size]({CPU_KERNEL}) from 768 queries on and "
        f"computes in full each that the diagonal touches. With `is_causal=True` {causal_over_all(found[tokens])}. "
        f"Its share of the time and the share of the tiles are furthest apart at {worst:,} tokens: "
        + miss(
            shares[worst],
            found[worst],
            why_low="Masking, and what a row of tiles costs besides its tiles, come on top; not told apart.",
            why_high="Another version of torch may have other tiles; not told apart here.",
        )
        + control
    )
