"""Where the time of a step goes: the floor first, what each kind of operator adds, and last what nobody foresaw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from lumen.bench.numbers import percent
from lumen.explore.figures.theme import figure, palette

UNITS = {"s": 1.0, "ms": 1e3, "µs": 1e6}


def waterfall(
    parts: Sequence[tuple[str, float]], title: str, unit: str = "ms", until: float = 0.0
) -> go.Figure:
    """Parts of a measured time, in seconds, as bars that start where the last one ended, and their sum below.

    `parts` are those of `lumen.cost.waterfall`: (label, seconds) from the floor down. A part called "residual" is
    hatched and always signed, any other only when it takes time away. `title` states the finding; `unit` is "s", "ms"
    or "µs". The bars' room ends at `until` seconds at least, for figures that are compared. ValueError without parts,
    or for one that is no finite number.

    >>> waterfall([("floor", 0.016), ("operator starts", 0.006), ("residual", -0.001)], "Most of it is reading")
    """
    if unit not in UNITS:
        raise ValueError(f"unit is one of {', '.join(UNITS)}, not {unit!r}.")
    if not parts or not all(math.isfinite(seconds) for _, seconds in parts):
        raise ValueError(f"A waterfall needs parts of finite seconds, got {list(parts)}.")
    if len({name for name, _ in parts}) < len(parts) or any(name == "measured" for name, _ in parts):
        raise ValueError("Every part needs a name of its own, and none may be called 'measured'.")
    scale = UNITS[unit]
    total = scale * math.fsum(seconds for _, seconds in parts)
    bars, at = [], 0.0
    for name, seconds in parts:
        size = scale * seconds
        bars.append((name, at, size))
        at += size
    right = max(scale * until, *(max(start, start + size) for _, start, size in bars))
    left = min(0.0, min(start + size for _, start, size in bars))
    room = 0.42 * (right - left)  # for the longest bar's label, on a phone too
    fig = figure(title, x=f"time ({unit})", y="part of the time", height=92 + 46 * (len(bars) + 1))
    colors = {"floor": palette.grey, "residual": palette.orange}
    fig.add_bar(
        orientation="h",
        y=[name for name, _, _ in bars],
        base=[start for _, start, _ in bars],
        x=[size for _, _, size in bars],
        marker={
            "color": [colors.get(name, palette.blue) for name, _, _ in bars],
            "pattern": {"shape": ["/" if name == "residual" else "" for name, _, _ in bars]},
        },
        width=0.6,
        customdata=[_label(name, size, total, unit) for name, _, size in bars],
        hovertemplate="%{y}: %{customdata}<extra></extra>",
    )
    fig.add_bar(
        orientation="h", y=["measured"], x=[total], marker={"color": palette.green}, width=0.6,
        hovertemplate=f"measured: %{{x:.3g}} {unit}<extra></extra>",
    )  # fmt: skip
    for name, start, size in [*bars, ("measured", 0.0, total)]:
        text = f"{_number(total)} {unit}" if name == "measured" else _label(name, size, total, unit)
        fig.add_annotation(
            x=max(start, start + size),
            y=name,
            text=text,
            showarrow=False,
            xanchor="left",
            xshift=5,
            align="left",
        )
    for (name, start, size), (following, _, _) in zip(bars, [*bars[1:], ("measured", 0.0, 0.0)], strict=True):
        fig.add_scatter(
            x=[start + size] * 2, y=[name, following], mode="lines", hoverinfo="skip",
            line={"color": palette.grey, "width": 1, "dash": "dot"},
        )  # fmt: skip
    fig.update_layout(barmode="overlay", bargap=0.2)
    fig.update_xaxes(range=[left, right + room])
    fig.update_yaxes(
        title_text=None, type="category", autorange="reversed", ticks="outside", ticklen=5, tickcolor="rgba(0,0,0,0)",
        categoryorder="array", categoryarray=[*(name for name, _, _ in bars), "measured"],
    )  # fmt: skip
    return fig


def _number(value: float, sign: str = "", digits: int = 3) -> str:
    return format(value, f"{sign},.0f" if abs(value) >= 1000 else f"{sign}.{digits}g")


def _label(name: str, size: float, total: float, unit: str) -> str:
    """12.3 ms, and below it its share of the whole; signed where the sign is news."""
    sign = "+" if name == "residual" or size < 0 else ""
    share = f"<br>{percent(size / total, signed=bool(sign))}" if total > 0 else ""
    digits = 3 if abs(size) > 0.05 * total else 2
    return f"{_number(size, sign, digits)} {unit}{share}".replace("-", "\N{MINUS SIGN}")
