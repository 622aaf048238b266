"""Labelled pairs of questions, written for this course, to choose a threshold with and to report with.

One line of `data/*.tsv` is `kind <tab> stored <tab> asked`: may the answer to `stored` be given to `asked`?

    paraphrase  yes: the same question in other words
    retyped     yes: the same question in nearly the same words
    opposite    no: a negation or an antonym turns the answer around
    entity      no: another person, place, product or thing
    number      no: another number, date or unit
    roles       no: the same words, but who does what to whom has changed
    cousin      no: another question about the same thing, in other words
    unrelated   no: another question
    context     no: `asked` can only be understood with the conversation before it

`pairs.tsv` was written pair by pair and is split into two halves, "tune" and "report", which share no question.
`third.tsv` was put together by a program from wordings and names (benchmarks/third_set.py): another construction,
committed before the checker that stands beside it was written.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

SAME = ("paraphrase", "retyped")
KINDS = (*SAME, "opposite", "entity", "number", "roles", "cousin", "unrelated", "context")
HALVES = ("tune", "report")
SETS = (*HALVES, "third")
FILE = Path(__file__).parent / "data" / "pairs.tsv"
THIRD = FILE.with_name("third.tsv")


@dataclass(frozen=True)
class Pair:
    kind: str
    stored: str
    asked: str
    half: str

    @property
    def same(self) -> bool:
        """Whether a cache should answer `asked` with the answer to `stored`."""
        return self.kind in SAME


def load_pairs(half: str | None = None, file: Path = FILE) -> list[Pair]:
    """The pairs of one half, "tune" or "report", of both (None), or of the "third" set; in the order of their file.

    Each kind is halved by itself: its pairs are sorted by a sha256 of their text and dealt out in turn. The
    split depends on nothing else, so it is the same on every machine and in any order of the file.
    """
    if half is not None and half not in SETS:
        raise ValueError(f"The sets of pairs are {SETS}, got {half!r}.")
    if half == "third":
        file = THIRD if file == FILE else file
    rows = [_row(line, number) for number, line in enumerate(file.read_text("utf-8").splitlines(), 1) if line]
    if half == "third":
        return [Pair(*row, half) for row in rows]
    by_kind: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for row in rows:
        by_kind[row[0]].append(row)
    half_of = {
        row: HALVES[place % 2]
        for group in by_kind.values()
        for place, row in enumerate(sorted(group, key=_hash))
    }
    pairs = [Pair(*row, half_of[row]) for row in rows]
    return [pair for pair in pairs if half in (None, pair.half)]


def _row(line: str, number: int) -> tuple[str, str, str]:
    parts = line.split("\t")
    if len(parts) != 3 or parts[0] not in KINDS or not all(part.strip() for part in parts):
        raise ValueError(
            f"Line {number} of the pairs is not `kind, stored, asked` with tabs between and a kind out of "
            f"{', '.join(KINDS)}: {line[:80]!r}."
        )
    return parts[0], parts[1], parts[2]


def _hash(row: tuple[str, str, str]) -> str:
    return hashlib.sha256("\n".join(row).encode()).hexdigest()
