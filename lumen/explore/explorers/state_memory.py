"""The state explorer: pairs written one by one into a matrix of fixed size, and what it answers to each of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lumen.explore.explorers.widget import JSWidget
from lumen.explore.prose.writes import WRITES

WIDTHS, MOST = (4, 8, 16, 24, 32), 40  # key widths, pairs
DECAY = 0.95  # what a write leaves of the state in the rules that fade

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Answer:
    """What the state gives back for one key: squared distance to the value that was told last, and whether that value
    is the nearest of all that were ever told."""

    error: float
    right: bool


def walk(keys: Rows, values: Rows, width: int, pairs: int, rule: str, changed: bool = False) -> list[Answer]:
    """Write the first `pairs` rows, cut to `width` numbers and brought to length 1, and ask for each of their keys.

    With `changed` the first key is told once more at the end, with the value that comes behind the others. The twin of
    `walk` in state_memory.js. ValueError for a rule that there is not, and for more pairs than there are rows.
    """
    if rule not in WRITES:
        raise ValueError(f"a state is written by {', '.join(WRITES)}, not {rule!r}")
    if not 1 <= pairs + changed <= min(len(keys), len(values)):
        raise ValueError(f"there are {min(len(keys), len(values))} rows to draw {pairs + changed} pairs from")
    k, v = ([_unit(row[:width]) for row in rows[: pairs + changed]] for rows in (keys, values))
    if changed:
        k[pairs] = k[0]
    decay = DECAY if rule.startswith("gated") else 1.0
    state = [[0.0] * width for _ in range(width)]
    for key, value in zip(k, v, strict=True):
        state = [[decay * x for x in row] for row in state]
        found = _read(key, state) if "delta" in rule else [0.0] * width
        for row, x in zip(state, key, strict=True):
            for j in range(width):
                row[j] += x * (value[j] - found[j])
    answers = []
    for i in range(pairs):
        told = pairs if changed and i == 0 else i
        found = _read(k[i], state)
        far = [sum((x - y) ** 2 for x, y in zip(found, value, strict=True)) for value in v]
        answers.append(Answer(far[told], far[told] == min(far)))
    return answers


def _read(key: Sequence[float], state: Rows) -> list[float]:
    return [sum(x * row[j] for x, row in zip(key, state, strict=True)) for j in range(len(state[0]))]


def _unit(row: Sequence[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


class StateMemory(JSWidget):
    """Write pairs into a state, and see how far off it answers for each of them. Random keys and values, by `seed`.

    >>> StateMemory(width=16, pairs=8, rule="delta")
    """

    module = "state_memory.js"
    label = "state explorer"

    def __init__(
        self,
        width: int = 16,
        pairs: int = 4,
        rule: str = "linear",
        *,
        seed: int = 0,
        title: str = "What does the state still know?",
        lead: str = "A bar for each pair, the first one told on the left: squared error of the answer, the value's own "
        f"length being 1. Where writes fade, each leaves {DECAY} of the state.",
    ) -> None:
        if width not in WIDTHS:
            raise ValueError(f"width is one of {', '.join(map(str, WIDTHS))}; got {width}")
        if not 1 <= pairs <= MOST:
            raise ValueError(f"pairs are from 1 to {MOST}, so that every bar can be seen; got {pairs}")
        if rule not in WRITES:
            raise ValueError(f"rule is one of {', '.join(WRITES)}; got {rule!r}")
        draw = random.Random(seed)
        rows = [
            [[round(draw.gauss(0, 1), 1) for _ in range(max(WIDTHS))] for _ in range(MOST + 1)] for _ in "kv"
        ]
        super().__init__(
            title=title, lead=lead, width=width, pairs=pairs, rule=rule, most=MOST, widths=list(WIDTHS), decay=DECAY,
            rules=[[name, text] for name, text in WRITES.items()], keys=rows[0], values=rows[1],
        )  # fmt: skip
