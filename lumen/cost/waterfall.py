"""A measured step taken apart: the floor no program beats, what each kind of operator adds to it, what is left.

The parts are forecasts from operators that were timed alone; the last one, signed, is what they do not explain.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Literal

from lumen.cost.predict import CacheKind, Prediction, predict_decode, predict_prefill
from lumen.hardware import Chip

if TYPE_CHECKING:
    from lumen.config import ModelConfig

Phase = Literal["decode", "prefill"]


def waterfall(
    config: ModelConfig,
    chip: Chip,
    phase: Phase,
    measured_seconds: float,
    batch: int = 1,
    context: int = 1,
    dtype: object = "fp32",
    *,
    cache: CacheKind = "static",
) -> list[tuple[str, float]]:
    """Parts of a measured decode step or prefill, in seconds, that add up to `measured_seconds`.

    `context` is what the new token of a decode step sees, itself included, or the length of a prefill's prompt.
    The parts, in this order, those of zero left out:

    "floor"            bytes at the chip's bandwidth or FLOPs at its peak, whichever takes longer, part by part
    "matrix products"  what they take above the floor when they are timed alone
    "attention"        the same for attention; below zero when its keys and values come from a cache
    "other operators"  norms, RoPE, additions, activation functions, writing the cache
    "operator starts"  the fixed time of every operator; on a GPU only what the work does not hide
    "residual"         what was measured and not forecast; below zero when the forecast is too slow

    A datasheet knows the floor only, so the rest of it is residual.
    """
    if phase not in ("decode", "prefill"):
        raise ValueError(f'The phase is "decode" or "prefill", not {phase!r}.')
    if not (math.isfinite(measured_seconds) and measured_seconds > 0):
        raise ValueError(f"A measured time is a number of seconds above 0, got {measured_seconds}.")
    bare = dataclasses.replace(chip, achieved={}, overhead_s=0.0, cold_overhead=())
    floor, forecast = (_predicted(config, c, phase, batch, context, dtype, cache) for c in (bare, chip))

    def above(*names: str) -> float:
        return sum(forecast.parts.get(name, 0.0) - floor.parts.get(name, 0.0) for name in names)

    work = sum(forecast.parts.values()) - forecast.parts["overhead"]
    parts = [
        ("floor", floor.seconds),
        ("matrix products", above("projections", "mlp", "head")),
        ("attention", above("attention")),
        ("other operators", above("elementwise", "cache")),
        ("operator starts", forecast.seconds - work),
    ]
    parts.append(("residual", measured_seconds - math.fsum(seconds for _, seconds in parts)))
    negligible = 1e-12 * measured_seconds
    return [(label, seconds) for label, seconds in parts if abs(seconds) > negligible]


def _predicted(
    config: ModelConfig, chip: Chip, phase: Phase, batch: int, context: int, dtype: object, cache: CacheKind
) -> Prediction:
    predict = predict_decode if phase == "decode" else predict_prefill
    return predict(config, chip, context, batch, dtype, cache=cache)
