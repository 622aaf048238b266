"""What the reader looks at and plays with. Needs no torch to import.

    prose       what a cell says in words: Markdown, tables, the reader's guess, what a chapter was measured on
    figures     still pictures in the house style (plotly), and a prediction beside its measurement
    explorers   pictures that move without a kernel: JavaScript in the page (static/), its sums checked against Python
    labs        widgets with a kernel behind them: the reader's own prompt, run by the model

`sphinx_ext` brings all of it to the book's pages. Chapters import the names below from `lumen.explore`; everything is
looked up on first use, so that the import costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Roofline": "explorers.roofline",
    "KVStepper": "explorers.kv_stepper",
    "CacheSize": "explorers.cache_size",
    "PagedStepper": "explorers.paged",
    "RadixTree": "explorers.radix",
    "Threshold": "explorers.threshold",
    "QueueLoad": "explorers.queue_load",
    "Knee": "explorers.knee",
    "TileStepper": "explorers.tile_stepper",
    "CacheShape": "explorers.cache_shape",
    "Eviction": "explorers.eviction",
    "StateMemory": "explorers.state_memory",
    "waterfall": "figures.waterfall",
    "Timelines": "explorers.timelines",
    "prompt_order_lab": "labs.prompt_order",
    "published_misses": "figures.published",
    "published_rows": "figures.published",
    "published_table": "figures.published",
    "Rows": "explorers.rows",
    "Quiz": "explorers.quiz",
    "JSWidget": "explorers.widget",
    "figure": "figures.theme",
    "setup_plotly": "figures.theme",
    "label_line": "figures.theme",
    "palette": "figures.theme",
    "markdown": "prose.show",
    "table": "prose.show",
    "callout": "prose.show",
    "guess": "prose.guesses",
    "reveal": "figures.overlay",
    "provenance": "prose.last_cell",
    "predicted_vs_measured": "figures.overlay",
    "generate_lab": "labs.generate",
    "cache_reads_lab": "labs.reads",
    "matmul_lab": "labs.matmul",
    "tiles_lab": "labs.tiles",
    "convert_lab": "labs.convert",
    "attention_lab": "labs.attention",
    "phone_book_lab": "labs.phone_book",
    "samples_lab": "labs.samples",
    "semantic_lab": "labs.semantic",
    "stall_lab": "labs.stall",
    "batch_lab": "labs.batch",
    "budget_lab": "labs.budget",
    "load_lab": "labs.load",
}
_ROOMS = ("explorers", "figures", "labs", "prose")

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS})
