"""The roofline explorer: a chip's roof, a model's prefill and decode on it, moved by sliders in the browser.

Python hands over sizes and rates; `predict` here and in roofline.js are the same sums over `lumen.cost`,
checked against one golden file. Activations are left out on both sides, so the times are bounds, drawn hollow; what was
measured is drawn filled, below them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lumen import cost
from lumen.config import CONFIGS, ModelConfig
from lumen.explore.explorers.widget import JSWidget
from lumen.hardware import CHIPS, Chip

# label, bytes a weight, bytes a cached value, formats the arithmetic may run in (the chip's fastest is taken)
HALF = ("bf16", "fp16", "fp32")
FORMATS: dict[str, tuple[str, float, float, tuple[str, ...]]] = {
    "fp32": ("32 bits", 4.0, 4.0, ("fp32",)),
    "bf16": ("16 bits", 2.0, 2.0, HALF),
    "q8_0": ("8.5 bits", cost.bytes_per_value("q8_0"), 2.0, HALF),
    "q4_0": ("4.5 bits", cost.bytes_per_value("q4_0"), 2.0, HALF),
}
DEFAULT_CHIPS = ("H100 SXM", "H200 SXM", "A100 80GB SXM", "MI300X", "RTX 4090", "L4", "T4")
DEFAULT_MODELS = ("llama-3-8b", "llama-3-70b", "llama-2-7b", "mistral-7b", "smollm2-135m")
BATCHES = tuple(2**i for i in range(11))
CONTEXTS = tuple(2**i for i in range(5, 18))


def model_numbers(config: ModelConfig) -> dict[str, Any]:
    """What the browser needs of a model: FLOPs a row, a head row and a (query, key) pair; values read and kept."""
    flops = cost.flops_per_token(config)
    return {
        "name": config.name,
        "parameters": cost.parameters(config).total,
        "linear_flops": flops.linear,
        "head_flops": flops.head,
        "pair_flops": 4 * config.num_heads * config.head_dim * config.num_layers,
        "step_values": cost.weight_bytes(config, 1.0, 0),
        "row_values": cost.weight_bytes(config, 1.0, 1) - cost.weight_bytes(config, 1.0, 0),
        "kv_values": cost.kv_bytes_per_token(config, 1.0),
        "positions": config.max_positions,
        "window": config.window,
    }


def chip_numbers(chip: Chip) -> dict[str, Any]:
    """What the browser needs of a chip: FLOP/s by format, B/s, B, and a label with its memory as sold."""
    kind = "" if chip.kind == "datasheet" else f", {chip.kind}"
    return {
        "name": chip.name,
        "label": f"{chip.name} ({chip.memory / 1e9:.0f} GB{kind})",
        "flops": dict(chip.flops),
        "bandwidth": chip.bandwidth,
        "memory": chip.memory,
    }


def predict(
    config: ModelConfig,
    chip: Chip,
    phase: str,
    batch: int,
    context: int,
    weight: float,
    kv: float,
    math: Sequence[str],
) -> dict[str, Any]:
    """One forward on the roofline: FLOP, B, FLOP/B, s, tokens/s and which limit binds. The twin of roofline.js.

    `phase`: "decode", one token a sequence that sees `context` keys, or "prefill", `context` tokens a
    sequence. `weight` and `kv` are bytes a value; `math` the formats the arithmetic may run in, of which the
    fastest counts.
    """
    if phase not in ("decode", "prefill"):
        raise ValueError(f"phase is 'decode' or 'prefill', not {phase!r}")
    if phase == "decode":
        rows, flops = batch, cost.step_flops(config, batch, context).total
        step = cost.step_bytes(config, batch, context, weight_dtype=weight, kv_dtype=kv)
        moved = step.weights + step.cache_read + step.cache_write
    else:
        rows, flops = batch * context, cost.prefill_flops(config, context, batch).total
        moved = cost.weight_bytes(config, weight, rows) + cost.kv_bytes_per_token(config, kv) * rows
    compute = flops / max(chip.flops.get(name, 0) for name in math)
    memory = moved / chip.bandwidth
    seconds = max(compute, memory)
    return {
        "flops": flops,
        "bytes": moved,
        "intensity": cost.intensity(flops, moved),
        "seconds": seconds,
        "tokens_per_s": rows / seconds,
        "bound": "memory" if memory > compute else "compute",
    }


def chosen(
    items: Sequence[Any] | None, defaults: Sequence[str], table: dict[str, Any], what: str
) -> list[Any]:
    """Names looked up in `table`, objects taken as they are; the defaults when nothing is asked for."""
    found = []
    for item in items if items is not None else defaults:
        if isinstance(item, str) and item not in table:
            raise ValueError(f"no {what} is called {item!r}; there are: {', '.join(table)}")
        found.append(table[item] if isinstance(item, str) else item)
    if not found:
        raise ValueError(f"the explorer needs at least one {what}")
    return found


def closest(values: Sequence[int], wanted: int) -> int:
    return min(values, key=lambda v: abs(v - wanted))


class Roofline(JSWidget):
    """A roofline with sliders for batch and context, switches for phase and precision, a choice of chips and models.

    `measured` are times to draw under the roof: dicts of chip, model, format, phase, batch, context (values of the
    controls) and seconds. They show while the controls stand at their chip, model, format and context.

    >>> Roofline(chips=["H100 SXM", "L4"], models=["llama-3-8b"], batch=1, context=2048)
    """

    module = "roofline.js"
    label = "roofline explorer"

    def __init__(
        self,
        chips: Sequence[str | Chip] | None = None,
        models: Sequence[str | ModelConfig] | None = None,
        *,
        formats: Sequence[str] = ("fp32", "bf16", "q8_0", "q4_0"),
        batch: int = 1,
        context: int = 2048,
        format: str = "bf16",
        phase: str = "decode",
        measured: Sequence[Mapping[str, Any]] = (),
        title: str = "Where on the roofline?",
        lead: str = "Hollow points take the least time that the two clocks allow. Move the batch: decode climbs "
        "towards the ridge.",
    ) -> None:
        machines = chosen(chips, DEFAULT_CHIPS, CHIPS, "chip")
        shapes = chosen(models, DEFAULT_MODELS, CONFIGS, "model")
        for name in (*formats, format):
            if name not in FORMATS or name not in formats:
                raise ValueError(f"no format {name!r} here; choose formats from: {', '.join(FORMATS)}")
            for chip in machines:
                if not any(math in chip.flops for math in FORMATS[name][3]):
                    raise ValueError(f"no rate is known for {name} on {chip.name}: leave one of the two out")
        taken = [dict(one) for one in measured]
        for one in taken:
            known = {"chip": [c.name for c in machines], "model": [m.name for m in shapes], "format": list(formats),
                     "phase": ["decode", "prefill"], "batch": list(BATCHES), "context": list(CONTEXTS)}  # fmt: skip
            if set(one) != {*known, "seconds"}:
                raise ValueError(f"a measurement has {', '.join(known)} and seconds, got {', '.join(one)}")
            for key, values in known.items():
                if one[key] not in values:
                    raise ValueError(
                        f"a measurement's {key} {one[key]!r} is not among this explorer's controls"
                    )
            if not (math.isfinite(one["seconds"]) and one["seconds"] > 0):
                raise ValueError(f"a measurement takes seconds above zero, got {one['seconds']}")
        super().__init__(
            title=title,
            lead=lead,
            measured=taken,
            chips=[chip_numbers(c) for c in machines],
            models=[model_numbers(m) for m in shapes],
            formats=[
                {
                    "name": n,
                    "label": FORMATS[n][0],
                    "weight": FORMATS[n][1],
                    "kv": FORMATS[n][2],
                    "math": list(FORMATS[n][3]),
                }
                for n in formats
            ],
            batches=list(BATCHES),
            contexts=list(CONTEXTS),
            chip=machines[0].name,
            model=shapes[0].name,
            batch=closest(BATCHES, batch),
            context=closest(CONTEXTS, context),
            format=format,
            phase=phase,
        )
