"""What a server says about its speculative decoding, as the difference of two readings of `/metrics`.

The series end alike everywhere (`vllm:spec_decode_num_drafts_total`, `lumen:spec_decode_num_drafts_total`), so the
part before the colon is ignored. Engines and replicas behind one address are added up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import httpx

MAX_BYTES = 16 * 2**20  # of an answer of /metrics

_LINE = re.compile(
    r"^(?:\w+:)?spec_decode_(num_\w+?)(?:_total)?(?:\{(.*)\})? (\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?: \d+)?$",
    re.MULTILINE,
)
_POSITION = re.compile(r'position="(\d+)"')


def read(metrics: str) -> dict[str, float]:
    """Counters by name; those of a position as `num_accepted_tokens_per_pos 2`. Empty without speculation."""
    found: dict[str, float] = {}
    for name, labels, value in _LINE.findall(metrics):
        at = _POSITION.search(labels)
        key = f"{name} {at[1]}" if at else name
        if math.isfinite(number := float(value)):
            found[key] = found.get(key, 0.0) + number
    return found


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """vLLM's `spec_decode_…` keys over the run; empty if nothing was drafted.

    Acceptance length is 1 + accepted / drafts: the tokens of a pass, the bonus token included.
    """
    grown = {key: value - before.get(key, 0.0) for key, value in after.items()}
    drafts, drafted, accepted = (
        grown.get(key, 0.0) for key in ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    )
    if drafts <= 0 or drafted <= 0:
        return {}
    positions = sorted(
        (int(key.split()[1]), value)
        for key, value in grown.items()
        if key.startswith("num_accepted_tokens_per_pos ")
    )
    return {
        "spec_decode_acceptance_rate": 100 * accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(drafted),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [value / drafts for _, value in positions],
    }


async def fetch(session: httpx.AsyncClient, base_url: str) -> dict[str, float]:
    """The counters now; empty if the server has no `/metrics` or no speculation."""
    try:
        async with session.stream("GET", base_url + "/metrics", timeout=5.0) as answer:
            if answer.status_code != 200:
                return {}
            raw = bytearray()
            async for part in answer.aiter_bytes():
                raw += part
                if len(raw) > MAX_BYTES:
                    return {}
    except httpx.HTTPError:
        return {}
    return read(raw.decode("utf-8", errors="replace"))
