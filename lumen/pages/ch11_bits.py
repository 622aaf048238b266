"""Chapter 11: keys in eight bits, with and without their mean."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lumen.explore.figures.theme import figure, log_axis, nice_ticks, palette

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _gains(errors: Mapping[str, Sequence[float]], name: str) -> float:
    """How many times smaller the error of the middle layer is than with keys as they are."""
    pairs = zip(errors["as they are"], errors[name], strict=True)
    return statistics.median(a / b for a, b in pairs)


def bits_figure(errors: Mapping[str, Sequence[float]]) -> go.Figure:
    """Error of a layer's attention with keys in a byte: as they are, smoothed, and with the first token's in full."""
    fig = figure(
        f"Smoothing divides the error by {_gains(errors, 'smoothed'):.1f}; by "
        f"{_gains(errors, 'smoothed, first exact'):.1f} with the first key unrounded",
        x="layer of SmolLM2",
        y="relative error of its attention (%)",
        log_y=True,
        height=400,
    )
    shown = []
    colors = {
        "as they are": palette.orange,
        "first exact": palette.grey,
        "smoothed": palette.blue,
        "smoothed, first exact": palette.green,
    }
    for name, color in colors.items():
        y = [100 * e for e in errors[name]]
        shown += y
        fig.add_scatter(
            x=list(range(1, len(y) + 1)),
            y=y,
            mode="lines+markers",
            line_color=color,
            name=name,
            showlegend=True,
        )
    fig.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.28})
    log_axis(fig, "y", nice_ticks(min(shown), max(shown)))
    return fig


def bits_story(
    excerpts: Sequence[Mapping[str, Sequence[float]]], ranges: Sequence[tuple[float, float]]
) -> str:
    """The first excerpt's errors with its controls, and the range over all excerpts.

    `ranges`: of the first, by layer, a key's largest number over that of the smoothed key, first token and rest.
    """
    errors = excerpts[0]
    first, rest = (statistics.median(side) for side in zip(*ranges, strict=True))
    worse = sum(b > a for a, b in zip(errors["as they are"], errors["smoothed"], strict=True))

    def factor(name: str) -> str:
        return f"{_gains(errors, name):.1f}"

    def over_all(name: str) -> str:
        found = [_gains(one, name) for one in excerpts]
        return f"{min(found):.1f} to {max(found):.1f}"

    return (
        f"In this text the keys' largest numbers, but for the first token's, are {rest:.1f} times smaller without the "
        f"mean, so their steps are as much finer. The error is divided by {factor('smoothed')} (median over the "
        f"layers; in {worse} of {len(ranges)} it rises). One key is suspect: the first token's, the "
        "[sink](../book/glossary.md#term-attention-sink). By the subtraction its largest number becomes "
        f"{1 / first:.1f} times what it was, and so does its step. Three controls: with that one key unrounded the "
        f"factor is {factor('smoothed, first exact')}; with the second key unrounded in its place, "
        f"{factor('smoothed, second exact')}; with the first unrounded and nothing subtracted, "
        f"{factor('first exact')}.\n\n"
        f"Over {len(excerpts)} excerpts: smoothed {over_all('smoothed')}, with the first key unrounded "
        f"{over_all('smoothed, first exact')}, with the second {over_all('smoothed, second exact')}."
    )
