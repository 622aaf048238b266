"""The picture of chapter 07: questions as points around the stored ones, and the two gates before an old answer.

Distances on the map are true: a question's angle to either stored one, in degrees, is its distance on paper. Angles
obey the triangle inequality, so a flat triangle with these three sides always exists.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lumen.explore.figures.theme import BRIGHT, palette
from lumen.semantic.check import check

WIDTH, EDGE, LANE, TOP = 340, 6, 60, 44  # px; a panel is as wide as a phone's column
NEAR, LOOK = 112, 214  # px, where the two gates stand
RADIUS = 10  # px, of a question's disc
COLUMNS = 24  # characters of a line below a ring


@dataclass(frozen=True)
class Way:
    """One question on its way: its nearest stored text, their cosine, the rule that refuses it, and the truth."""

    asked: str
    stored: int
    cosine: float
    near: bool
    rule: str
    same: bool
    x: float  # degrees from the first stored text towards the second
    y: float  # degrees, upwards

    @property
    def hit(self) -> bool:
        return self.near and not self.rule

    @property
    def said(self) -> str:
        if self.hit:
            return "right hit" if self.same else "false hit"
        return f"miss: {self.rule}" if self.near else "miss"

    @property
    def kind(self) -> str:
        return "miss" if not self.hit else "right" if self.same else "wrong"


def _angle(a: np.ndarray, b: np.ndarray) -> float:
    return math.degrees(math.acos(max(-1.0, min(1.0, float(a @ b)))))


def ways(
    stored: Sequence[str], asked: Sequence[tuple[str, bool]], vectors: np.ndarray, threshold: float
) -> list[Way]:
    """The way of each question (its text, and whether a stored answer fits it) past two stored ones.

    `vectors` (2 + len(asked), width) are of length 1, the stored ones first. Every second point stands below the line.
    """
    if len(stored) != 2 or len(vectors) != 2 + len(asked):
        raise ValueError(
            f"The map has two stored texts and a vector for each text, got {len(stored)} stored texts and "
            f"{len(vectors)} vectors."
        )
    apart = _angle(vectors[0], vectors[1])
    found = []
    for place, ((text, same), vector) in enumerate(zip(asked, vectors[2:], strict=True)):
        first, second = (_angle(vector, vectors[i]) for i in (0, 1))
        x = (first**2 - second**2 + apart**2) / (2 * apart)
        y = math.sqrt(max(0.0, first**2 - x**2)) * (-1 if place % 2 else 1)
        nearest = int(second < first)
        cosine = float(vector @ vectors[nearest])
        rule = check(text, stored[nearest])
        found.append(Way(text, nearest, cosine, cosine >= threshold, rule, same, x, y))
    return found


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    marks = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marks}>{html.escape(words)}</text>'


def _disc(x: float, y: float, number: int, kind: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" class="disc {kind}"/>' + _text(
        x, y + 4.5, str(number), f"number {kind}", "middle"
    )


def _panel(height: float, marks: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" aria-hidden="true">{"".join(marks)}</svg>'


def _map(stored: Sequence[str], found: Sequence[Way], apart: float, threshold: float) -> str:
    """Two stored texts, a ring around each where the cosine is `threshold`, and the questions at their true angles."""
    reach = math.degrees(math.acos(threshold))
    px = (WIDTH - 2 * EDGE) / (apart + 2 * reach)
    highest, lowest = max(reach, *(w.y for w in found)), min(-reach, *(w.y for w in found))

    def place(x: float, y: float) -> tuple[float, float]:
        return EDGE + (x + reach) * px, TOP + (highest - y) * px

    marks = [_text(WIDTH / 2, 18, "1 · Texts become points; which is nearest?", "head", "middle")]
    low, lines = TOP + (highest - lowest) * px, 0
    for i, name in enumerate(stored):
        x, y = place(i * apart, 0.0)
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{reach * px:.1f}" class="ring"/>')
        marks.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="kept"/>')
        words = textwrap.wrap(name, COLUMNS)
        lines = max(lines, len(words))
        marks += [_text(x, low + 20 + 16 * row, line, "", "middle") for row, line in enumerate(words)]
    for number, way in enumerate(found, 1):
        x, y = place(way.x, way.y)
        u, v = place(way.stored * apart, 0.0)
        long = math.hypot(x - u, y - v)
        part = max(0.0, 1 - RADIUS / long) if long else 0.0  # the line ends where the disc begins
        marks.append(
            f'<path d="M{u:.1f} {v:.1f}L{u + part * (x - u):.1f} {v + part * (y - v):.1f}" class="link"/>'
        )
        marks.append(_disc(x, y, number, way.kind))
    low += 16 * lines + 26
    marks.append(_text(WIDTH / 2, low, f"● stored · in the ring: cosine ≥ {threshold:.2f}", "soft", "middle"))
    return _panel(low + 8, marks)


def _gates(found: Sequence[Way], threshold: float) -> str:
    """A lane for each question: through the threshold, through the second look, to the answer; or to a stop."""
    marks = [
        _text(WIDTH / 2, 18, "2 · Two gates stand before the old answer", "head", "middle"),
        _text(NEAR, TOP, f"cosine ≥ {threshold:.2f}?", "soft", "middle"),
        _text(LOOK, TOP, "second look", "soft", "middle"),
    ]
    for row, way in enumerate(found):
        top = TOP + 12 + row * LANE
        y = top + 36
        end = NEAR if not way.near else LOOK if way.rule else WIDTH - 92
        ends = {
            True: f'<path d="M{end} {y - 6}l9 6l-9 6z" class="tip {way.kind}"/>',
            False: f'<path d="M{end - 6} {y - 6}l12 12m0 -12l-12 12" class="stop"/>',
        }
        marks += [
            _disc(EDGE + 12, top + 12, row + 1, way.kind),
            _text(EDGE + 30, top + 17, way.asked),
            f'<path d="M{NEAR} {y - 11}v22M{LOOK} {y - 11}v22" class="gate"/>',
            _text(EDGE + 30, y + 5, f"{way.cosine:.2f}".replace("-", "−")),
            f'<path d="M{EDGE + 66} {y}H{end}" class="lane {way.kind}"/>',
            ends[way.hit],
            _text(end + 13, y + 5, way.said, f"said {way.kind}"),
        ]
    return _panel(TOP + 12 + len(found) * LANE + 6, marks)


def _style() -> str:
    light = {name: getattr(palette, name) for name in ("green", "orange", "grey")}
    dark = dict(zip(vars(palette), BRIGHT, strict=True))

    def variables(colors: dict[str, str], on: str) -> str:
        return f"--right:{colors['green']};--wrong:{colors['orange']};--miss:{colors['grey']};--on:{on};"

    own = ".lumen-gates"
    rules = {
        "": variables(light, "#fff") + "margin:8px 0 16px",
        " .gates-title": "font-size:16px;font-weight:600;line-height:1.3;margin:0 0 8px",
        " .panels": "display:flex;flex-wrap:wrap;align-items:flex-start;gap:12px 24px",
        " svg": "flex:1 1 300px;max-width:420px;min-width:0;height:auto;font:13px system-ui,sans-serif",
        " text": "fill:currentColor",
        f" .head,{own} .said": "font-weight:600",
        " .soft": "opacity:.85",
        " .number": "font-weight:600;fill:var(--on)",
        " .number.miss": "fill:currentColor",
        " .disc": "stroke-width:2",
        " .ring": "fill:#80889018;stroke:currentColor;stroke-dasharray:5 4;opacity:.8",
        " .kept": "fill:currentColor",
        f" .link,{own} .gate": "stroke:currentColor;fill:none",
        " .link": "opacity:.6",
        " .gate": "stroke-width:3",
        " .lane": "fill:none;stroke-width:2.5",
        " .stop": "fill:none;stroke:currentColor;stroke-width:2.5",
    }
    for kind in ("right", "wrong", "miss"):
        rules[f" .{kind}.disc,{own} .{kind}.lane"] = f"stroke:var(--{kind})"
        rules[f" .{kind}.tip,{own} .{kind}.disc"] = f"fill:var(--{kind})" if kind != "miss" else "fill:none"
        if kind != "miss":
            rules[f" .said.{kind}"] = f"fill:var(--{kind})"
    night = ('html[data-theme="dark"] ', 'html[theme="dark"] ', '[data-jp-theme-light="false"] ')
    css = "".join(f"{own}{name}{{{rule}}}" for name, rule in rules.items())
    return f"<style>{css}{','.join(n + own for n in night)}{{{variables(dark, '#14181d')}}}</style>"


def title(found: Sequence[Way]) -> str:
    """What the picture shows, counted."""
    near, hits = sum(w.near for w in found), [w for w in found if w.hit]
    return (
        f"{near} of {len(found)} questions are near enough, the second look stops {near - len(hits)}; "
        f"false hits: {sum(not w.same for w in hits)} of {len(hits)}"
    )


def picture(
    stored: Sequence[str], asked: Sequence[tuple[str, bool]], vectors: np.ndarray, threshold: float
) -> str:
    """The HTML of the picture; two panels that stand below each other on a phone."""
    found = ways(stored, asked, vectors, threshold)
    told = "; ".join(
        f"{i}, “{w.asked}”, has a cosine of {w.cosine:.2f} to “{stored[w.stored]}”: {w.said}"
        for i, w in enumerate(found, 1)
    )
    apart = _angle(vectors[0], vectors[1])
    heading = title(found)
    return (
        f'{_style()}<div class="lumen-gates"><p class="gates-title">{html.escape(heading)}</p>'
        f'<div class="panels" role="img" aria-label="{html.escape(f"{heading}. Question {told}.")}">'
        f"{_map(stored, found, apart, threshold)}{_gates(found, threshold)}</div></div>"
    )
