"""The landing page: one measurement that a reader can play with, and the sentence that says what it shows."""

from __future__ import annotations

import statistics
from typing import Any

from lumen import bench
from lumen.bench import Estimate
from lumen.bench.names import Name
from lumen.explore.explorers.rows import Rows
from lumen.pages.ch01 import ROWS

EVIDENCE = "measurements"  # the store, as it was published
SHOWN = 8  # tokens in one pass, against one; chapter 1 lets readers predict 16


def _passes() -> tuple[dict[str, Any], dict[int, list[float]]]:
    """The published store, and seconds of a pass by the number of tokens in it: chapter 1's quantities."""
    found = bench.load_evidence(EVIDENCE)
    entries = found["data"]["quantities"]
    texts = {rows: str(Name("smollm2-135m", "prefill", context=rows)) for rows in ROWS}
    return found, {rows: entries[text]["samples"] for rows, text in texts.items() if text in entries}


def rows_explorer() -> Rows:
    """The explorer of the landing page, from the published measurement."""
    found, passes = _passes()
    one = {
        rows: (1e3 * statistics.median(samples), Estimate.ratio(samples, passes[1]).value)
        for rows, samples in passes.items()
    }
    return Rows(one, start=SHOWN, where=_where(found))


def _where(found: dict[str, Any]) -> str:
    if found["device"] != "cpu":
        return found["gpu"]
    return f"{found['threads']} cores of an {found['cpu']}"


@bench.sentence(example={"rows": 16}, at="rows")
def sharing(est: Estimate, rows: int) -> str:
    """What `rows` tokens in one pass cost, as a multiple of one token's pass."""
    return bench.says(
        est,
        at=rows,
        less=f"{rows} tokens in one pass are {rows} times the arithmetic, and take **{{x}} times** as long "
        "({low} to {high}, n = {n}).",
        same=f"{rows} tokens in one pass are {rows} times the arithmetic, and take {{x}} times as long "
        "({low} to {high}, n = {n}): no more and no less.",
        more=f"{rows} tokens in one pass are {rows} times the arithmetic, and take {{x}} times as long "
        "({low} to {high}, n = {n}): more than their share.",
    )


def finding() -> str:
    """The sentence under the explorer, from the published measurement."""
    found, passes = _passes()
    ratio = Estimate.ratio(passes[SHOWN], passes[1])
    return f"Measured on {_where(found)}, {found['date']}: {sharing(ratio, SHOWN)}"
