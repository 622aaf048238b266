"""Prediction against measurement: the two figures in which a chapter answers what it asked."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from lumen.bench.estimate import Estimate
from lumen.bench.numbers import percent
from lumen.explore.figures.theme import figure, label_line, log_axis, nice_ticks, palette
from lumen.explore.prose.guesses import Guess

Value = float | Sequence[float] | Estimate
YOURS = "your guess"  # static/plotly-render.js writes the same name


def _samples(name: str, value: Value, *, log: bool) -> list[float]:
    """A number, raw samples of it, or an estimate's ends and middle, as a list of floats that the axis can show."""
    if isinstance(value, Estimate):
        samples = [value.low, value.value, value.high] if value.low < value.high else [value.value]
    elif not isinstance(value, (int, float)):
        samples = [float(v) for v in getattr(value, "samples", value)]
    else:
        samples = [float(value)]
    if not samples or not all(math.isfinite(v) and (v > 0 or not log) for v in samples):
        kind = "finite numbers above zero, for a logarithmic axis" if log else "finite numbers"
        raise ValueError(f"{name} needs {kind}, got {samples}")
    return samples


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def reveal(
    *,
    model: Value,
    measured: Value | None = None,
    bound: Value | None = None,
    unit: str,
    title: str,
    guess: Guess | float | None = None,
    what: str = "",
    log: bool = True,
    within: tuple[float, float] | None = None,
    names: tuple[str, str] = ("model", "measured"),
) -> go.Figure:
    """The reader's guess, the model's prediction and the measurement on one axis; whiskers show the whole spread.

    `guess` is what `guess(...)` returned, or a number; without a number yet there is no such row, and the book's page
    adds it when the reader has filled the box. `measured` is a number, raw samples, anything with `.samples` (a
    `lumen.bench.Timing`), whose median is the dot, or an `Estimate`, whose interval the whiskers are; `model` likewise.
    `title` states the finding, `what` names the quantity on the axis, `unit` its unit ("" for none). Above-zero values
    unless `log=False`. `within` are the ends of a quantity that has them, (0, 100) for a share in percent: the axis
    shows all of it, so that near looks near. `names` are those of the two rows: ("formula", "simulated") where no clock
    ran. `bound` stands in place of `measured` where the second row is what a data sheet allows, which nobody measured.
    Returns the figure: put it on the cell's last line. ValueError without `what` and `unit`, for `within` on a
    logarithmic axis, and for a value that it does not hold.

    >>> reveal(guess=10, model=109.1, measured=[9.1, 9.4, 9.9], unit="times", title="The clock gains less")
    """
    second = measured if bound is None else bound
    if second is None or not (measured is None or bound is None):
        raise ValueError("a Reveal ends with what was measured or with a bound: give one of the two")
    rows = [
        (names[0], _samples("model", model, log=log), palette.blue, "diamond"),
        (
            names[1],
            _samples("measured" if bound is None else "bound", second, log=log),
            palette.orange,
            "circle",
        ),
    ]
    said = guess.value if isinstance(guess, Guess) else guess
    if said is not None and not (isinstance(guess, Guess) and log and said <= 0):
        rows.insert(0, (YOURS, _samples("guess", said, log=log), palette.grey, "circle-open"))
    if within and log:
        raise ValueError("a logarithmic axis has no ends: give log=False where the quantity lies within two")
    axis = f"{what} ({unit})" if what and unit else what or unit
    words = textwrap.wrap(axis, 36)  # a phone's width
    height = 260 + 18 * (len(words) - 1)
    fig = figure(title, x="<br>".join(words), y="source of the number", height=height, log_x=log)
    everything = [v for _, samples, _, _ in rows for v in samples]
    ends = list(within) if within else _room(min(everything), max(everything), log)
    if within:
        shown = [v for name, samples, _, _ in rows for v in samples if name != YOURS]
        if min(shown) < ends[0] or max(shown) > ends[1]:
            raise ValueError(f"the axis is to end at {ends[0]:g} and {ends[1]:g}, and there are {shown}")
        ends = [min(ends[0], *everything), max(ends[1], *everything)]  # a guess beyond the ends is shown, too
    for name, samples, color, symbol in rows:
        mid = statistics.median(samples)
        place = ((math.log10(mid) if log else mid) - ends[0]) / (ends[1] - ends[0])  # 0 left, 1 right
        spread = {
            "array": [max(samples) - mid],
            "arrayminus": [mid - min(samples)],
            "thickness": 2,
            "width": 7,
        }
        fig.add_scatter(
            x=[mid],
            y=[name],
            mode="markers+text",
            marker={"color": color, "size": 13, "symbol": symbol, "line": {"width": 2.5, "color": color}},
            error_x=spread | {"color": color, "type": "data"} if len(samples) > 1 else None,
            text=[f"{_number(mid)} {unit}".rstrip()],
            textposition="top right" if place < 0.3 else "top left" if place > 0.7 else "top center",
            hovertemplate=f"{name}: %{{x:.4g}} {unit}<extra></extra>",
            cliponaxis=False if within else None,  # a dot on the end of the axis is a whole dot
        )
    fig.update_xaxes(range=ends)
    if log:
        log_axis(fig, "x", nice_ticks(10 ** ends[0], 10 ** ends[1]))
    fig.update_yaxes(title_text=None, type="category", range=[len(rows) - 0.4, -0.8])
    if within:  # room for a dot on the left end
        fig.update_yaxes(ticks="outside", ticklen=9, tickcolor="rgba(0,0,0,0)")
    if rows[0][0] != YOURS:  # the page's script adds the reader's row
        meta = {"guess": guess.id if isinstance(guess, Guess) else "", "unit": unit}
        fig.update_layout(meta=meta | ({"whole": True} if within else {}))
    return fig


def _room(low: float, high: float, log: bool) -> list[float]:
    """Axis ends with space for the labels of the outermost points; in decades when the axis is logarithmic."""
    a, b = (math.log10(low), math.log10(high)) if log else (low, high)
    pad = max(0.18 * (b - a), 0.15 if log else 0.05 * max(abs(a), abs(b), 1e-12))
    return [a - pad, b + pad]


def predicted_vs_measured(
    points: Mapping[str, Sequence[tuple[float, Value]]], *, unit: str, title: str, band: float = 0.25
) -> go.Figure:
    """Predictions against measurements on log-log axes, with the line of equality and a band of ± `band` around it.

    `points` maps a name (three at most are told apart at a glance) to pairs (predicted, measured); `measured`
    may be raw samples, whose median is the dot and whose spread the whiskers.

    >>> predicted_vs_measured({"decode": [(7.1, [7.9, 8.0, 8.4])]}, unit="ms", title="Within 25 %")
    """
    if not any(points.values()):
        raise ValueError("there is nothing to compare: points needs at least one (predicted, measured) pair")
    if not 0 < band < 1:
        raise ValueError(f"band is a share between 0 and 1, got {band}")
    fig = figure(title, x=f"predicted ({unit})", y=f"measured ({unit})", height=440, log_x=True, log_y=True)
    pairs = {
        name: [(_samples(name, p, log=True)[0], _samples(name, m, log=True)) for p, m in some]
        for name, some in points.items()
    }
    values = [v for some in pairs.values() for p, m in some for v in (p, *m)]
    low, high = min(values) / 1.6, max(values) * 1.6
    edge = [low, high, high, low]
    fig.add_scatter(
        x=edge,
        y=[low * (1 + band), high * (1 + band), high * (1 - band), low * (1 - band)],
        fill="toself",
        mode="none",
        fillcolor="rgba(128,136,144,.18)",
        hoverinfo="skip",
        name=f"± {percent(band)}",
    )
    fig.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": palette.grey, "dash": "dot"},
        hoverinfo="skip",
    )
    symbols = ("circle", "diamond", "square", "triangle-up", "x", "cross")
    colors = (palette.blue, palette.orange, palette.green, palette.purple, palette.ochre, palette.grey)
    for i, (name, some) in enumerate(pairs.items()):
        mids = [statistics.median(m) for _, m in some]
        fig.add_scatter(
            x=[p for p, _ in some],
            y=mids,
            error_y={
                "array": [max(m) - mid for (_, m), mid in zip(some, mids, strict=True)],
                "arrayminus": [mid - min(m) for (_, m), mid in zip(some, mids, strict=True)],
                "thickness": 1.5,
                "width": 4,
            },
            mode="markers",
            marker={"color": colors[i % 6], "size": 9, "symbol": symbols[i % 6]},
            name=name,
            showlegend=len(pairs) > 1,
            hovertemplate=f"{name}: predicted %{{x:.3g}}, measured %{{y:.3g}} {unit}<extra></extra>",
        )
    fig.update_layout(showlegend=len(pairs) > 1)
    fig.data[0].showlegend = fig.data[1].showlegend = False
    ends, ticks = [math.log10(low), math.log10(high)], nice_ticks(low, high)
    for axis, update in (("x", fig.update_xaxes), ("y", fig.update_yaxes)):
        update(range=ends)
        log_axis(fig, axis, ticks)
    label_line(fig, high / 1.1, low * 1.1, f"dotted: equal, grey: ± {percent(band)}", anchor="right", shift=6)
    return fig
