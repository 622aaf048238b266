"""The pictures of chapter 14: pairs written into a matrix and asked for, and which keys a query reads."""

from __future__ import annotations

import html
import math
import random
from collections.abc import Mapping, Sequence

from lumen.explore.labs.lab import ink

CELL, WIDE, SEED = 17, 5, 3  # px; numbers of a key and of a value; draw of the pairs
Vector = Sequence[float]
Matrix = Sequence[Vector]


def _unit(draw: random.Random) -> list[float]:
    row = [draw.gauss(0, 1) for _ in range(WIDE)]
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def outer(key: Vector, value: Vector) -> list[list[float]]:
    """What one pair writes: a row for each number of the key."""
    return [[x * y for y in value] for x in key]


def added(parts: Sequence[Matrix]) -> list[list[float]]:
    return [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*parts, strict=True)]


def asked(key: Vector, state: Matrix) -> list[float]:
    """key S: the answer to one key."""
    return [sum(x * row[j] for x, row in zip(key, state, strict=True)) for j in range(len(state[0]))]


def off(answer: Vector, value: Vector) -> float:
    return sum((x - y) ** 2 for x, y in zip(answer, value, strict=True))


def pairs_of(count: int) -> list[tuple[list[float], list[float]]]:
    """The drawn pairs (key, value), each of length 1."""
    draw = random.Random(SEED)
    return [(_unit(draw), _unit(draw)) for _ in range(count)]


# drawing ------------------------------------------------------------------------------------------
def _cells(matrix: Matrix, x: float, y: float) -> str:
    """Squares: the stronger, the larger the number; blue above zero, orange and hollow below."""
    marks = []
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            side = (CELL - 3) * min(1.0, math.sqrt(abs(value)))
            at = f'x="{x + j * CELL + (CELL - side) / 2:.1f}" y="{y + i * CELL + (CELL - side) / 2:.1f}"'
            hue = f'fill="none" stroke="{ink.orange}" stroke-width="2"'
            if value > 0:
                hue = f'fill="{ink.blue}"'
            marks.append(f'<rect {at} width="{side:.1f}" height="{side:.1f}" {hue}/>')
    wide, tall = len(matrix[0]) * CELL, len(matrix) * CELL
    return (
        f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" fill="none" stroke="currentColor" opacity=".35"/>'
        + "".join(marks)
    )


def _text(x: float, y: float, words: str, weight: int = 400, anchor: str = "middle") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" fill="currentColor">'
        f"{html.escape(words)}</text>"
    )


def _column(vector: Vector) -> list[list[float]]:
    return [[x] for x in vector]


def _svg(marks: Sequence[str], wide: float, tall: float) -> str:
    return (
        f'<svg viewBox="0 0 {wide:.0f} {tall:.0f}" style="flex:1 1 {wide * 0.8:.0f}px;max-width:{wide:.0f}px" '
        f'aria-hidden="true">{"".join(marks)}</svg>'
    )


def _told(name: int, key: Vector, value: Vector) -> str:
    """One pair: the key as a column, the value as a row, their product."""
    left, top, side = 30, 50, WIDE * CELL
    marks = [
        _text(left + side / 2, 14, f"pair {name}", 600),
        _cells([value], left, top - CELL - 6), _text(left + side + 14, top - 14, "v"),
        _cells(_column(key), left - CELL - 6, top), _text(left - CELL + 2, top + side + 16, "k"),
        _cells(outer(key, value), left, top),
    ]  # fmt: skip
    return _svg(marks, left + side + 22, top + side + 22)


def _answer(key: Vector, value: Vector, state: Matrix, name: int) -> str:
    left, top, side = 30, 50, WIDE * CELL
    right = left + side + 26
    marks = [
        _text(left + side / 2, 14, "the state", 600),
        _text(left + side / 2, 32, "sum of all"),
        _cells(_column(key), left - CELL - 6, top), _text(left - CELL + 2, top + side + 16, f"k{name}"),
        _cells(state, left, top),
        _text(right, top + 14, f"k{name} asks, S answers", anchor="start"),
        _cells([asked(key, state)], right, top + 22),
        _text(right, top + 62, f"v{name} was told", anchor="start"),
        _cells([value], right, top + 70),
    ]  # fmt: skip
    return _svg(marks, right + 172, top + side + 22)


def picture(count: int = 3, name: int = 2) -> str:
    """The HTML of the first picture: `count` pairs, their sum, the answer for pair `name`; its title is computed."""
    pairs = pairs_of(count)
    state = added([outer(*pair) for pair in pairs])
    key, value = pairs[name - 1]
    error = off(asked(key, state), value)
    heading = (
        f"{count} pairs in {WIDE * WIDE} numbers. Asked for pair {name}, the state is off by "
        f"{math.sqrt(error):.2f} of the value's length"
    )
    drawn = "".join(_told(i + 1, *pair) for i, pair in enumerate(pairs)) + _answer(key, value, state, name)
    says = "Each pair is written as the product of a column, its key, and a row, its value; the state is their sum."
    return _framed(heading, says, drawn)


def _framed(heading: str, told: str, drawn: str) -> str:
    style = (
        "<style>.lumen-state svg{min-width:0;height:auto;font:14px system-ui,sans-serif}"
        ".lumen-state .panels{display:flex;flex-wrap:wrap;gap:14px 22px;align-items:flex-start}</style>"
    )
    return (
        f'{style}<div class="lumen-state" style="margin:8px 0 16px"><p style="font-size:16px;font-weight:600;'
        f'margin:0 0 8px">{html.escape(heading)}</p><div class="panels" role="img" '
        f'aria-label="{html.escape(f"{heading}. {told}")}">{drawn}</div></div>'
    )


# which keys are read ------------------------------------------------------------------------------
def _map(name: str, says: str, seen: Sequence[Sequence[bool]]) -> str:
    """One method: queries down, keys to the right, a filled cell where a key is read."""
    size = len(seen)
    cell = 150 / size
    path = []
    for i, row in enumerate(seen):
        j = 0
        while j < size:
            run = j
            while run < size and row[run]:
                run += 1
            if run > j:
                path.append(
                    f"M{j * cell:.2f} {42 + i * cell:.2f}h{(run - j) * cell:.2f}v{cell:.2f}h{(j - run) * cell:.2f}z"
                )
            j = run + 1
    read = sum(map(sum, seen))
    shown = f"{read / (size * (size + 1) / 2):.0%}".replace("%", " %")
    marks = [
        _text(0, 14, name, 600, "start"), _text(0, 32, says, anchor="start"),
        '<rect x="0" y="42" width="150" height="150" fill="none" stroke="currentColor" opacity=".35"/>',
        f'<path d="{"".join(path)}" fill="{ink.blue}" shape-rendering="crispEdges"/>',
        _text(0, 210, f"{shown} of the pairs", anchor="start"),
    ]  # fmt: skip
    return _svg(marks, 160, 218)


def maps(methods: Mapping[str, tuple[str, Sequence[Sequence[bool]]]]) -> str:
    """The HTML of the second picture: name -> (what decides, T x T of what is read). Below each the share it reads."""
    size = len(next(iter(methods.values()))[1])
    heading = f"{size} tokens: which keys (to the right) a query (downwards) reads"
    drawn = "".join(_map(name, says, seen) for name, (says, seen) in methods.items())
    return _framed(heading, "; ".join(f"{name}: {says}" for name, (says, _) in methods.items()) + ".", drawn)
