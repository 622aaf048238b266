"""The house style of every figure: one plotly template, one renderer, a few helpers that keep text legible.

The palette is colour-blind safe (after Okabe and Ito), darkened until each colour has 4.5:1 against white; in
dark mode the book's script swaps each for its brighter twin (`BRIGHT`). Nothing here needs the network or
torch.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer
from plotly.io.json import to_json_plotly
from plotly.offline import get_plotlyjs_version

from lumen.bench.numbers import percent

palette = SimpleNamespace(
    blue="#0072b2", orange="#bf4e00", green="#007f5c", purple="#a14b86", ochre="#866500", grey="#69727d"
)
COLORS = tuple(vars(palette).values())
BRIGHT = ("#5ab4ee", "#f58a4b", "#2fc49b", "#e394c8", "#d9ad33", "#a6b0bb")  # the same hues on a dark page

INK = "#5c646d"  # readable on white (6:1) and still on a dark notebook (3:1 at least); the book picks its own
GRID = "rgba(128,136,144,.22)"
MIME = "application/vnd.plotly.v1+json"
CONFIG = {"displayModeBar": False, "displaylogo": False, "responsive": True, "showSendToCloud": False}
TITLE_COLUMNS = 64  # characters of a title that fit beside each other in a notebook


def _template() -> go.layout.Template:
    """The stock template adds 6.7 kB to every stored figure; this one well under 1 kB."""
    axis = {
        "automargin": True,
        "gridcolor": GRID,
        "linecolor": GRID,
        "zeroline": False,
        "title": {"standoff": 8},
    }
    return go.layout.Template(
        layout={
            "colorway": list(COLORS),
            "font": {"color": INK, "family": "system-ui, sans-serif", "size": 13},
            "hoverlabel": {"font": {"size": 13}},
            "hovermode": "closest",
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": -0.24, "yanchor": "top"},
            "margin": {"b": 48, "l": 56, "r": 16, "t": 48},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "title": {
                "font": {"size": 16, "weight": 600},
                "x": 0,
                "xanchor": "left",
                "xref": "container",
                "yanchor": "top",
                "yref": "container",
                "pad": {"l": 8},
            },
            "xaxis": axis,
            "yaxis": axis,
        }
    )


def _plain(value: Any) -> Any:
    """Arrays as short lists and floats with six digits: small, readable, and the same bytes on every machine."""
    if isinstance(value, Mapping):
        if "bdata" in value and "dtype" in value:
            array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
            shape = [int(n) for n in str(value["shape"]).split(",")] if "shape" in value else [-1]
            return _plain(array.reshape(shape).tolist())
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


class LumenRenderer(MimetypeRenderer):
    """One stored output for everybody: JSON for JupyterLab, VS Code and the book, HTML for Colab.

    Both parts are reproducible: the same figure always gives the same bytes, so nbval may compare them. The
    HTML part fetches plotly.js only where none is loaded; the book reads the JSON part and fetches nothing.
    """

    def to_mimebundle(self, fig_dict: dict) -> dict:
        fig = _plain(json.loads(to_json_plotly({**fig_dict, "config": CONFIG})))
        body = json.dumps(fig, separators=(",", ":"), sort_keys=True).replace("<", "\\u003c")
        uid = "p" + hashlib.sha256(body.encode()).hexdigest()[:12]
        height = int(fig.get("layout", {}).get("height") or 400)
        page = (
            f'<div id="{uid}" style="height:{height}px"></div>\n<script type="module">\n'
            f'if (!window.Plotly) await import("https://cdn.plot.ly/plotly-{get_plotlyjs_version()}.min.js");\n'
            f"const fig = {body};\n"
            'const dark = document.documentElement.getAttribute("theme") === "dark";\n'
            'if (dark) fig.layout.font = { color: "#d5dbe1" };\n'
            f'Plotly.newPlot("{uid}", fig.data, fig.layout, fig.config);\n</script>'
        )
        return {MIME: fig, "text/html": page}


def setup_plotly() -> None:
    """Make the house template and renderer the defaults. Safe to call twice."""
    pio.templates["lumen"] = _template()
    pio.templates.default = "lumen"
    pio.renderers["lumen"] = LumenRenderer()
    pio.renderers.default = "lumen"


def wrap(text: str, columns: int = TITLE_COLUMNS) -> str:
    """Break a long title into lines; the book's script breaks it again to the width of the reader's screen."""
    return "<br>".join(textwrap.wrap(text, columns, break_long_words=False)) or text


def figure(
    title: str, x: str, y: str, height: int = 400, *, log_x: bool = False, log_y: bool = False
) -> go.Figure:
    """An empty figure in the house style. `title` states the finding; `x` and `y` carry their units.

    >>> fig = figure("Decode is bound by bandwidth", x="batch", y="time per step (ms)", log_x=True)
    """
    for name, value in (("title", title), ("x", x), ("y", y)):
        if not value.strip():
            raise ValueError(
                f"a figure needs {name}: the title states the finding, the axes name quantity and unit"
            )
        if value.count("$") > 1:
            raise ValueError(f"plotly would set what stands between two dollar signs as a formula: {value!r}")
    setup_plotly()
    text = wrap(title)
    drop = (
        20 if "<br>" in text else 8
    )  # plotly hangs one line from its top, several from the baseline of the first
    fig = go.Figure()
    fig.update_layout(
        template="lumen",
        height=height,
        title={"text": text, "y": 1 - drop / height},
        margin_t=44 + 21 * text.count("<br>"),
        showlegend=False,
    )
    fig.update_xaxes(title_text=x)
    fig.update_yaxes(title_text=y)
    if log_x:
        log_axis(fig, "x")
    if log_y:
        log_axis(fig, "y")
    return fig


def nice_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round values between `low` and `high` for a logarithmic axis: 1, 2, 5 in each decade, or decades, or fewer.

    Where not two of them lie between, steps of 1, 2 or 5 of the size that fits.
    """
    if not 0 < low <= high:
        raise ValueError(f"a logarithmic axis runs from above zero upwards, not from {low} to {high}")
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**e for e in decades for digit in (1, 2, 5) if low <= digit * 10.0**e <= high]
    if len(ticks) < 2:
        e = math.floor(math.log10((high - low) / 3)) if high > low else 0
        for step in (digit * 10.0**e for digit in (5, 2, 1)):
            steps = range(math.ceil(low / step), math.floor(high / step) + 1)
            if len(steps) > 2:
                return [float(f"{n * step:.6g}") for n in steps[:: math.ceil(len(steps) / most)]]
    if len(ticks) > most:
        ticks = [t for t in ticks if f"{t:e}".startswith("1")]
    return ticks[:: math.ceil(len(ticks) / most)] if ticks else [low, high]


def tick_label(value: float) -> str:
    """0.05, 20, 5k, 2M, 1,024: short enough to stand beside its neighbours on a phone."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            short = f"{value / size:g}"
            return short + letter if len(short.partition(".")[2]) < 2 else f"{value:,.0f}"
    return f"{value:g}"


def log_axis(
    fig: go.Figure, axis: str = "x", ticks: Sequence[float] | None = None, labels: Sequence[str] | None = None
) -> None:
    """Make one axis logarithmic, with a tick at each decade, or with exactly the `ticks` given.

    Give ticks whenever the data spans less than two decades (`nice_ticks(low, high)` finds some), or when the
    reader thinks in them: batch 1, 2, 4, 8.
    """
    if axis not in ("x", "y"):
        raise ValueError(f"axis must be 'x' or 'y', not {axis!r}")
    settings: dict[str, Any] = {"type": "log", "dtick": 1, "exponentformat": "SI"}
    if ticks is not None:
        if not all(t > 0 for t in ticks):
            raise ValueError("a logarithmic axis has no place for ticks that are zero or less")
        if labels is not None and len(labels) != len(ticks):
            raise ValueError(f"{len(ticks)} ticks need as many labels, got {len(labels)}")
        text = list(labels) if labels is not None else [tick_label(t) for t in ticks]
        settings = {"type": "log", "tickvals": list(ticks), "ticktext": text}
    (fig.update_xaxes if axis == "x" else fig.update_yaxes)(**settings)


def percent_axis(fig: go.Figure, axis: str = "y", step: float = 0.2) -> None:
    """Write the shares on one axis as the course does, "20 %", with a tick every `step` from −100 to 200 %."""
    ticks = [i * step for i in range(-round(1 / step), round(2 / step) + 1)]
    settings = {"tickvals": ticks, "ticktext": [percent(t) for t in ticks]}
    (fig.update_xaxes if axis == "x" else fig.update_yaxes)(**settings)


def label_line(
    fig: go.Figure,
    x: float,
    y: float,
    text: str,
    color: str | None = None,
    *,
    anchor: str = "right",
    shift: int = 11,
) -> None:
    """Write a line's name beside the data point (x, y), instead of in a legend. Knows about logarithmic axes.

    `anchor` says which end of the text stands at x ("left", "center", "right"); `shift` lifts it, in pixels.
    """
    at = []
    for value, axis in ((x, fig.layout.xaxis), (y, fig.layout.yaxis)):
        if axis.type == "log" and not value > 0:
            raise ValueError(
                f"cannot place {text!r} at {value} on a logarithmic axis: the coordinate must be above zero"
            )
        at.append(math.log10(value) if axis.type == "log" else value)
    if fig.layout.xaxis.type == "log":
        # Figures keep six digits: a logarithm may be rounded past the axis' end, and what stands there is not drawn.
        at[0] += {"left": 1e-3, "center": 0.0, "right": -1e-3}[anchor]
    font = {"size": 13} if color is None else {"size": 13, "color": color}
    fig.add_annotation(x=at[0], y=at[1], text=text, showarrow=False, xanchor=anchor, yshift=shift, font=font)
