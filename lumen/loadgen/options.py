"""Options of `lumen load` that are more than a number: what they mean, and a sentence when they mean nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lumen.loadgen.statistics import check_slo


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """["ttft:500", "tpot:50"] -> limits in milliseconds."""
    slo: dict[str, float] = {}
    for pair in pairs:
        name, colon, limit = pair.partition(":")
        try:
            slo[name] = float(limit)
        except ValueError as error:
            raise ValueError(
                f"A goodput limit looks like ttft:500, in milliseconds, got {pair!r}."
            ) from error
        if not colon:
            raise ValueError(f"A goodput limit looks like ttft:500, in milliseconds, got {pair!r}.")
    check_slo(slo)
    return slo


def parse_extra_body(text: str, stop_at_eos: bool) -> dict[str, Any]:
    """What every request carries; `ignore_eos` unless answers may end where the model ends them."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"--extra-body must be a JSON object, got {text}.")
    return {**({} if stop_at_eos else {"ignore_eos": True}), **given}


def parse_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """["a=b", …] -> {"a": "b", …}."""
    pairs = [item.partition("=") for item in given]
    for name, equals, _ in pairs:
        if not equals or not name.strip():
            raise ValueError(f"{option} takes KEY=VALUE, got {name!r}.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_numbers(text: str, option: str, low: float, high: float) -> list[float]:
    """ "50,99" -> [50.0, 99.0]."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} takes numbers separated by commas, got {text!r}.") from error
    if not all(low <= value <= high for value in found):
        raise ValueError(f"{option} lie between {low:g} and {high:g}, got {text}.")
    return found
