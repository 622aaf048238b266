"""What others measured on GPUs that nobody here has, beside what the cost model says of it unseen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import plotly.graph_objects as go

from lumen.cost.published import Miss, misses, summary
from lumen.explore.figures.theme import figure, log_axis, nice_ticks, palette
from lumen.explore.prose.show import markdown, stacked, table_markdown
from lumen.hardware import CHIPS

# A symbol for each family of chips: (how a chip's name begins), plotly's name, the sign in the key, the words.
FAMILIES = (
    (("A100",), "circle", "●", "A100"),
    (("H100", "H200"), "square", "■", "H100, H200"),
    (("B200",), "diamond", "◆", "B200"),
    (("L4", "RTX", "T4", "A10"), "triangle-up", "▲", "L40S, RTX"),
    (("MI",), "x", "✖", "AMD MI"),
    (("Apple",), "star", "★", "Apple"),
)
PHASES = {
    "decode": ("one decode step", palette.orange),
    "prefill": ("one prefill", palette.blue),
    "answer": ("a whole answer, per token", palette.green),
}


def finding(rows: Sequence[Miss]) -> str:
    """The figure's title: how far the bound is from the measurements, in words with numbers."""
    ratios = sorted(row.ratio for row in rows)
    faster = sum(ratio < 1 for ratio in ratios)
    floor = "none is faster than its bound" if not faster else f"{faster} are faster than their bound"
    middle, far = statistics.median(ratios), ratios[-1]
    return f"Of {len(ratios)} published times {floor}; the median is {middle:.1f} times it, the farthest {far:.1f}"


def family(chip: str) -> tuple[str, str, str]:
    """Symbol, sign and words of a chip's family. Raises `ValueError` for one that has none."""
    for starts, symbol, sign, words in FAMILIES:
        if chip.startswith(starts):
            return symbol, sign, words
    raise ValueError(
        f"{chip} has no symbol yet: add its family to FAMILIES in lumen/explore/figures/published.py."
    )


def published_misses(rows: Sequence[Miss] | None = None) -> go.Figure:
    """Predicted bound against measured time, log-log, with the diagonal; colour by phase, symbol by family of chips.

    On the diagonal the chip did what the datasheet allows; above it is what the bound leaves out. The pointer
    shows model, chip, batch, source and date. `rows` from `lumen.cost.published.misses`, all by default.
    """
    rows = misses() if rows is None else list(rows)
    if not rows:
        raise ValueError("A figure of misses needs at least one measurement.")
    fig = figure(finding(rows), x="least time after the cost model (ms)", y="measured (ms)", height=460)
    low = 1e3 * min(min(row.bound, row.measured) for row in rows) / 1.3
    high = 1e3 * max(max(row.bound, row.measured) for row in rows) * 1.3
    for factor, dash in ((1, "solid"), (2, "dot")):
        fig.add_scatter(
            x=[low, high / factor], y=[low * factor, high], mode="lines", showlegend=False, hoverinfo="skip",
            line={"color": palette.grey, "width": 1, "dash": dash},
        )  # fmt: skip
    for phase, (name, color) in PHASES.items():
        some = [row for row in rows if row.measurement.phase == phase]
        if not some:
            continue
        symbols = [family(row.measurement.chip)[0] for row in some]
        fig.add_scatter(
            x=[1e3 * row.bound for row in some], y=[1e3 * row.measured for row in some], mode="markers",
            name=name, legendgroup=phase, showlegend=False, text=[_hover(row) for row in some],
            hovertemplate="%{text}<extra></extra>",
            marker={"color": color, "size": 9, "opacity": 0.8, "symbol": symbols},
        )  # fmt: skip
        # the legend explains colours, the line below it symbols
        fig.add_scatter(
            x=[None],
            y=[None],
            mode="markers",
            name=name,
            legendgroup=phase,
            marker={"color": color, "size": 9},
        )
    key = dict.fromkeys(f"{sign} {words}" for _, sign, words in (family(r.measurement.chip) for r in rows))
    log_axis(fig, "x", nice_ticks(low, high))
    log_axis(fig, "y", nice_ticks(low, high))
    fig.update_layout(showlegend=True)
    fig.update_xaxes(showgrid=False)  # the two lines are what a point is read against
    fig.update_yaxes(showgrid=False)
    signs = list(key)
    text = "line: the bound<br>dotted: twice the bound<br>" + "<br>".join(
        "&nbsp; ".join(signs[i : i + 3]) for i in range(0, len(signs), 3)
    )
    fig.add_annotation(
        text=text, x=0.02, y=0.98, xref="paper", yref="paper", showarrow=False, align="left",
        xanchor="left", yanchor="top", font={"color": palette.grey, "size": 12},
    )  # fmt: skip
    return fig


def named(chip: str) -> str:
    """A chip's name for a table; one whose peak no data sheet prints says so."""
    return f"{chip} (peak estimated)" if CHIPS[chip].kind == "estimate" else chip


def published_table(rows: Sequence[Miss] | None = None) -> None:
    """Show a fold: by chip and phase, how many times the bound the measurements take, median and range."""
    lines = summary(misses() if rows is None else rows)
    cells = [
        [f"{named(chip)}, {phase} ({n})", f"{m:.1f}", f"{a:.1f} to {b:.1f}" if n > 1 else "–"]
        for chip, phase, n, m, a, b in lines
    ]
    shown = table_markdown(cells, ["chip, phase (how many)", "median", "range"], "lrr")
    markdown(
        f"<details><summary>measured / bound by chip and phase, nearest first</summary>\n\n{shown}\n\n</details>"
    )


def published_rows(rows: Sequence[Miss] | None = None) -> None:
    """Show a fold with every measurement: set-up, measured, how many times its bound, its source with the date."""
    lines = []
    for row in misses() if rows is None else rows:
        m = row.measurement
        chips = f"{m.chips} × {named(m.chip)}" if m.chips > 1 else named(m.chip)
        lengths = {"decode": f"context {m.context:,}", "prefill": f"prompt {m.prompt:,}"}.get(
            m.phase, f"{m.prompt:,} in, {m.output:,} out"
        )
        bits = m.weights if isinstance(m.weights, str) else f"{8 * float(str(m.weights)):.2g} bits"
        lines.append(
            [
                f"{chips}: {m.model}, {bits}",
                f"{m.phase}, batch {m.batch}, {lengths}",
                _ms(row.measured),
                f"{row.ratio:.2f}",
                f"[{m.source.name}, {m.source.date}]({m.source.url})",
            ]
        )
    heads = ["chip and model", "what", "measured", "measured / bound", "source"]
    cards = stacked(table_markdown(lines, heads, "llrrl"))
    summary = f"<summary>All {len(lines)} measurements, each with its source</summary>"
    markdown(f"<details>{summary}\n\n{cards}\n\n</details>")


def left_out(rows: Sequence[Miss] | None = None, beyond: float = 1 / 3) -> list[tuple[str, int]]:
    """What the bound has no term for where it is off by more than `beyond`: (reason, number of measurements)."""
    counts: dict[str, int] = {}
    for row in misses() if rows is None else rows:
        if abs(row.signed) > beyond:
            for reason in row.measurement.leaves_out:
                counts[reason] = counts.get(reason, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _hover(row: Miss) -> str:
    m = row.measurement
    return (
        f"{m.chips} × {m.chip}, {m.model}<br>{m.phase}, batch {m.batch}<br>"
        f"measured {_ms(row.measured)}, bound {_ms(row.bound)}: {row.ratio:.2f} times<br>"
        f"{m.source.title}, {m.source.date}"
    )
