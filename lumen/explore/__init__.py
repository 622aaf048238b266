"""What the reader looks at and plays with: figures, explorers, live labs. Needs no torch to import.

Everything is looked up on first use, so `import lumen.explore` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Roofline": "roofline",
    "KVStepper": "kv_stepper",
    "CacheSize": "cache_size",
    "PagedStepper": "paged",
    "RadixTree": "radix",
    "Threshold": "threshold",
    "QueueLoad": "queue_load",
    "Knee": "knee",
    "waterfall": "step_waterfall",
    "Timelines": "timelines",
    "prompt_order_lab": "prompt_order",
    "published_misses": "published",
    "published_rows": "published",
    "published_table": "published",
    "Rows": "rows",
    "Quiz": "quiz",
    "JSWidget": "widget",
    "figure": "theme",
    "setup_plotly": "theme",
    "label_line": "theme",
    "palette": "theme",
    "markdown": "show",
    "table": "show",
    "callout": "show",
    "guess": "guesses",
    "reveal": "overlay",
    "provenance": "last_cell",
    "predicted_vs_measured": "overlay",
    "generate_lab": "live",
    "cache_reads_lab": "live",
    "matmul_lab": "matmul",
    "samples_lab": "samples",
    "semantic_lab": "semantic",
    "stall_lab": "stall",
    "batch_lab": "batch",
    "budget_lab": "budget",
    "load_lab": "load",
}
_MODULES = {
    "batch",
    "budget",
    "cache_size",
    "guesses",
    "knee",
    "kv_stepper",
    "live",
    "load",
    "matmul",
    "overlay",
    "prompt_order",
    "published",
    "queue_load",
    "quiz",
    "radix",
    "roofline",
    "rows",
    "samples",
    "semantic",
    "show",
    "stall",
    "theme",
    "threshold",
    "timelines",
    "widget",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})
