"""The last cell of a chapter: what its numbers were measured on, and every quantity that it quoted from the store."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from IPython.display import display

from lumen import bench
from lumen.bench import Measured, NoEvidence
from lumen.bench.store import machine
from lumen.hardware import Chip, kept

MIME = "application/vnd.lumen.measured+json"
WIDTH = 76  # columns of the page
HOW = "lumen.bench: medians and 95 % intervals; device waited for, garbage collector off"


def provenance(
    session: object, evidence: Sequence[str] = (), *, chip: Chip | None = None, notes: Sequence[str] = ()
) -> None:
    """Show what this notebook ran on, how it was timed, which published files it read, and what it quoted.

    `evidence` are names of files in book/evidence, `chip` what `hardware.measure` gave (by default what it kept),
    `notes` further lines (seeds, what was compared). The same stands as JSON in the output, under the type
    "application/vnd.lumen.measured+json", where a test holds all notebooks against the store. No line is longer than
    76 columns.

    >>> provenance(session, evidence=["vs_hf"], chip=chip)
    """
    found = {name: _dated(name) for name in evidence}
    measured = bench.quoted()
    shown = text(session, measured, found, chip or kept(), notes)
    display({"text/plain": shown, MIME: record(session, measured, found)}, raw=True)


def text(
    session: object,
    measured: Sequence[Measured],
    evidence: dict[str, str | None],
    chip: Chip | None = None,
    notes: Sequence[str] = (),
) -> str:
    """What `provenance` shows. `evidence` maps names to dates, None for a file that is not here."""
    lines = _wrapped("", str(session))
    if chip is not None:
        of = f"{chip.name}, {chip.bandwidth / 1e9:.1f} GB/s read" + (f"; {chip.note}" if chip.note else "")
        lines += _wrapped("chip: ", of)
    lines += _wrapped("timed by ", HOW)
    for name, date in evidence.items():
        lines += _wrapped(
            "evidence: ", f"book/evidence/{name}.json, {date}" if date else f"{name} is not here"
        )
    for note in notes:
        lines += _wrapped("", note)
    if measured:
        lines += ["", "Quoted from the measurement store, the same on every page:", *_table(measured)]
    return "\n".join(lines)


def record(session: object, measured: Sequence[Measured], evidence: dict[str, str | None]) -> dict[str, Any]:
    """The same for programs. Times in seconds."""
    return {
        "session": str(session),
        "machine": machine(),
        "evidence": evidence,
        "quantities": {
            str(m.name): {
                "seconds": m.seconds,
                "low": m.estimate.low,
                "high": m.estimate.high,
                "n": m.estimate.n,
                "date": m.date,
            }
            for m in measured
        },
    }


def _table(measured: Sequence[Measured]) -> list[str]:
    """A line for each quantity, its name on a line of its own when both do not fit."""
    rows = [(m.name.short(), str(m.estimate), m.note) for m in measured]
    room = WIDTH - 4 - max(len(value) for _, value, _ in rows)
    width = max([len(name) for name, _, _ in rows if len(name) <= room], default=room)
    lines = []
    for name, value, note in rows:
        if len(name) <= room:
            lines.append(f"  {name:<{width}}  {value}")
        else:
            lines += [*_wrapped("  ", name), f"  {'':<{width}}  {value}"]
        lines += _wrapped("    doubtful: ", note) if note else []
    return lines


def _wrapped(label: str, words: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=label, subsequent_indent="    ", break_on_hyphens=False)


def _dated(name: str) -> str | None:
    try:
        return str(bench.load_evidence(name)["date"])
    except NoEvidence:
        return None
