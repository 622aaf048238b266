"""The picture of chapter 12: which query head reads whose keys and values, and what a token leaves in the cache."""

from __future__ import annotations

import html
from dataclasses import dataclass

from lumen.explore.labs.lab import ink

WIDTH, TOP, LOW, BASE = 232, 62, 150, 208  # px: a panel, queries, what is stored, the line below


@dataclass(frozen=True)
class Panel:
    """One way to store: its name, in words, key/value heads (0: a latent of `rank` numbers), and the head's width."""

    name: str
    says: str
    kv_heads: int
    rank: int = 0


PANELS = (
    Panel("MHA", "each reads its own", 8),
    Panel("GQA", "four read one", 2),
    Panel("MQA", "all read one", 1),
)
LATENT = Panel("MLA", "each reads its own view of one", 0, 128)


def numbers(panel: Panel, dim: int) -> int:
    """What a token leaves in one layer: keys and values of each stored head, or the latent."""
    return panel.rank or 2 * panel.kv_heads * dim


def _at(place: int, count: int) -> float:
    return WIDTH * (place + 0.5) / count


def _text(x: float, y: float, words: str, weight: int = 400, soft: bool = False) -> str:
    faint = ' opacity=".85"' if soft else ""
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="middle" font-weight="{weight}" fill="currentColor"{faint}>'
        f"{html.escape(words)}</text>"
    )


def _queries(heads: int) -> list[str]:
    marks = []
    for i in range(heads):
        marks.append(f'<circle cx="{_at(i, heads):.1f}" cy="{TOP}" r="13" fill="{ink.orange}"/>')
        marks.append(
            f'<text x="{_at(i, heads):.1f}" y="{TOP + 4.5}" text-anchor="middle" font-weight="600" '
            f'fill="var(--pst-color-background,#fff)">{i}</text>'
        )
    return marks


def _line(x: float, u: float, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="M{x:.1f} {TOP + 14}L{u:.1f} {LOW - 14}" stroke="currentColor" stroke-width="2" '
        f'opacity=".7" fill="none"{dash}/>'
    )


def _box(x: float, wide: float, words: str) -> str:
    return (
        f'<rect x="{x - wide / 2:.1f}" y="{LOW - 14}" width="{wide:.1f}" height="28" rx="5" fill="none" '
        f'stroke="{ink.blue}" stroke-width="2.5"/>' + _text(x, LOW + 5, words, 600)
    )


def _panel(panel: Panel, heads: int, dim: int) -> str:
    stored = panel.kv_heads or 1
    wide = min(34.0, WIDTH / stored - 6) if panel.kv_heads else 150.0
    marks = [_text(WIDTH / 2, 18, panel.name, 600), _text(WIDTH / 2, 37, panel.says, soft=True)]
    for i in range(heads):
        marks.append(_line(_at(i, heads), _at(i * stored // heads, stored), dashed=not panel.kv_heads))
    words = "kv" if panel.kv_heads else "one latent"
    marks += [_box(_at(i, stored), wide, words) for i in range(stored)]
    said = f"{numbers(panel, dim)} numbers a token and layer"
    marks += [*_queries(heads), _text(WIDTH / 2, BASE - 18, said)]
    return f'<svg viewBox="0 0 {WIDTH} {BASE}" aria-hidden="true">{"".join(marks)}</svg>'


def picture(heads: int, dim: int, panels: tuple[Panel, ...] = PANELS) -> str:
    """The HTML of the picture: panels side by side, below each other on a phone. Its title is counted.

    ValueError for key/value heads that do not divide the query heads.
    """
    for panel in panels:
        if panel.kv_heads and heads % panel.kv_heads:
            raise ValueError(f"{heads} query heads cannot share {panel.kv_heads} evenly.")
    counts = [numbers(panel, dim) for panel in panels]
    *others, last = dict.fromkeys(map(str, counts))  # what two panels share is said once
    some = f"{', '.join(others)} or {last}" if others else last
    heading = f"{heads} heads ask; a token leaves {some} numbers in a layer's cache"
    told = "; ".join(f"{p.name}, {p.says}: {n}" for p, n in zip(panels, counts, strict=True))
    drawn = "".join(_panel(panel, heads, dim) for panel in panels)
    style = (
        "<style>.lumen-heads svg{flex:1 1 212px;max-width:250px;min-width:0;height:auto;"
        "font:14px system-ui,sans-serif}.lumen-heads .panels{display:flex;flex-wrap:wrap;gap:12px 20px}</style>"
    )
    return (
        f'{style}<div class="lumen-heads" style="margin:8px 0 16px"><p style="font-size:16px;font-weight:600;'
        f'margin:0 0 8px">{html.escape(heading)}</p><div class="panels" role="img" '
        f'aria-label="{html.escape(f"{heading}. {told}.")}">{drawn}</div></div>'
    )
