"""GPUs that nobody here has, met on paper: what others measured, and what the cost model says of it unseen.

`data/published.yml` holds the measurements, each with its source, its date and what its authors left unsaid.
A prediction takes the datasheet and the model's shape and nothing else; nothing was fitted. So it is a bound:
the ratio measured / bound is at least 1 when both are right, and how far above 1 is what the bound leaves out.

>>> from lumen.cost.published import misses, published
>>> row = misses([m for m in published() if m.id == "gpt-fast-7b-bf16"])[0]
>>> f"{1e3 * row.measured:.2f} ms, bound {1e3 * row.bound:.2f} ms"
'9.53 ms, bound 6.51 ms'
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from lumen.config import CONFIGS, ModelConfig
from lumen.cost.memory import kv_bytes
from lumen.cost.predict import predict_decode, predict_prefill
from lumen.cost.shapes import weight_bytes
from lumen.formats import bytes_per_value
from lumen.hardware.chip import Chip
from lumen.hardware.chips import CHIPS

PHASES = ("decode", "prefill", "answer")
UNITS = ("ms", "s", "tokens/s", "tokens/s/chip")
KINDS = ("documentation", "repo readme", "blog", "pull request", "issue thread", "paper")
THIRD = 1 / 3  # a miss of more than that has to say what the bound leaves out

_SOURCE = {"key", "name", "title", "url", "date", "kind", "version", "varied", "unsaid", "entries"}
_REQUIRED = {"id", "chip", "phase", "weights", "kv", "compute", "value", "unit", "place"}
_ENTRY = _REQUIRED | {
    "chips", "split", "model", "shape", "batch", "prompt", "output", "context", "leaves_out",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a measurement stands, and what its authors varied and did not say. `name` is short, for a table."""

    key: str
    name: str
    title: str
    url: str
    date: str
    kind: str
    version: str
    varied: str
    unsaid: str


@dataclass(frozen=True)
class Measurement:
    """One published number. `config` is a `ModelConfig`; formats are names or bytes a value.

    phase "decode": one step of `batch` users who see `context` keys; "prefill": `batch` prompts of `prompt`
    tokens; "answer": a prefill and `output` - 1 steps of a batch that starts and ends together. `value` stands
    as published, in `unit`. `leaves_out` says in words what the bound has no term for.
    """

    id: str
    chip: str
    chips: int
    split: str
    model: str
    config: ModelConfig
    phase: str
    batch: int
    prompt: int
    output: int
    context: int
    weights: object
    kv: object
    compute: str
    value: float
    unit: str
    place: str
    leaves_out: tuple[str, ...]
    source: Source

    @property
    def seconds(self) -> float:
        """Seconds of one step: a decode step, a prefill, or an answer's time divided by its tokens. [s]"""
        if self.unit in ("ms", "s"):
            whole = self.value / (1000 if self.unit == "ms" else 1)
            return whole / self.output if self.phase == "answer" else whole
        rate = self.value * (self.chips if self.unit == "tokens/s/chip" else 1)
        tokens = self.batch * (self.prompt if self.phase == "prefill" else 1)
        return tokens / rate

    def together(self) -> Chip:
        """The chips as one: rates and memory added up, as if talking took no time."""
        one = CHIPS[self.chip]
        return replace(
            one,
            flops={dtype: rate * self.chips for dtype, rate in one.flops.items()},
            bandwidth=one.bandwidth * self.chips,
            memory=one.memory * self.chips,
        )

    def bound(self) -> float:
        """What the cost model says, from datasheet and shape alone, in the same unit as `seconds`. [s]"""
        chip, weights, kv = self.together(), self.weights, self.kv

        def step(context: int) -> float:
            return predict_decode(
                self.config, chip, context, self.batch, self.compute, weight_dtype=weights, kv_dtype=kv
            ).seconds

        if self.phase == "decode":
            return step(self.context)
        seconds = predict_prefill(
            self.config, chip, self.prompt, self.batch, self.compute, weight_dtype=weights, kv_dtype=kv
        ).seconds
        if self.phase == "answer":
            # the cache grows by one position a step, so that the step in the middle is the mean
            middle = self.prompt + self.output // 2
            seconds = (seconds + (self.output - 1) * step(middle)) / self.output
        return seconds


@dataclass(frozen=True)
class Miss:
    """A measurement beside its bound, both in seconds of a step."""

    measurement: Measurement
    measured: float
    bound: float

    @property
    def ratio(self) -> float:
        """measured / bound; at least 1 when the measurement and the bound are right."""
        return self.measured / self.bound

    @property
    def signed(self) -> float:
        """The prediction's miss as a share of the measurement: -0.4 is 40 % too short."""
        return self.bound / self.measured - 1

    def __str__(self) -> str:
        m = self.measurement
        return (
            f"{m.model} on {m.chips} × {m.chip}, {m.phase}, batch {m.batch}: "
            f"{1e3 * self.measured:.3g} ms measured, {1e3 * self.bound:.3g} ms bound, {self.ratio:.2f} times"
        )


@cache
def published() -> tuple[Measurement, ...]:
    """All published measurements, checked. Raises `ValueError`, a sentence, when the file is damaged."""
    import yaml

    return parse(yaml.safe_load(files("lumen.cost").joinpath("data/published.yml").read_text("utf-8")))


def misses(measurements: Sequence[Measurement] | None = None) -> list[Miss]:
    """Every measurement beside what the cost model says of it, in the file's order."""
    return [Miss(m, m.seconds, m.bound()) for m in (published() if measurements is None else measurements)]


def summary(rows: Sequence[Miss] | None = None) -> list[tuple[str, str, int, float, float, float]]:
    """By chip and phase: (chip, phase, n, median, least, most) of measured / bound; the nearest chip first."""
    rows = misses() if rows is None else rows
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        groups.setdefault((row.measurement.chip, row.measurement.phase), []).append(row.ratio)
    table = [(*key, len(r), statistics.median(r), min(r), max(r)) for key, r in groups.items()]
    return sorted(table, key=lambda line: (line[3], line[0], line[1]))


def parse(raw: Mapping[str, Any]) -> tuple[Measurement, ...]:
    """The measurements of a parsed file. Raises `ValueError`, a sentence that names the entry and the fault."""
    reasons, shapes = dict(raw["reasons"]), {k: _shape(k, s) for k, s in raw["shapes"].items()}
    found: list[Measurement] = []
    for row in raw["sources"]:
        source = _source(row)
        for entry in row["entries"]:
            found.append(_measurement(entry, source, reasons, shapes))
    names = [m.id for m in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"published.yml: {name} stands there twice.")
    return tuple(found)


def _source(row: Mapping[str, Any]) -> Source:
    name = row.get("key", "a source without a key")
    if set(row) != _SOURCE:
        odd = ", ".join(sorted(set(row) ^ _SOURCE))
        raise ValueError(
            f"published.yml: source {name} needs exactly {', '.join(sorted(_SOURCE))}; see {odd}."
        )
    if not str(row["url"]).startswith("https://"):
        raise ValueError(f"published.yml: source {name}: its url is no https address: {row['url']!r}.")
    if not re.fullmatch(r"20\d\d(-[01]\d(-[0-3]\d)?)?", str(row["date"])):
        raise ValueError(
            f"published.yml: source {name}: a date is 2024, 2024-05 or 2024-05-31, not {row['date']!r}."
        )
    if row["kind"] not in KINDS:
        raise ValueError(
            f"published.yml: source {name}: kind is one of {', '.join(KINDS)}, not {row['kind']!r}."
        )
    return Source(**{key: str(row[key]) for key in _SOURCE - {"entries"}})


def _measurement(
    row: Mapping[str, Any], source: Source, reasons: Mapping[str, str], shapes: Mapping[str, ModelConfig]
) -> Measurement:
    name = row.get("id", f"an entry of {source.key} without an id")

    def fault(text: str) -> ValueError:
        return ValueError(f"published.yml: {name}: {text}")

    if missing := _REQUIRED - set(row):
        raise fault(f"lacks {', '.join(sorted(missing))}.")
    if odd := set(row) - _ENTRY:
        raise fault(f"has {', '.join(sorted(odd))}, which nobody reads.")
    if ("model" in row) == ("shape" in row):
        raise fault("needs a model of CONFIGS or a shape of this file, and not both.")
    known = CONFIGS if "model" in row else shapes
    model = row.get("model", row.get("shape"))
    if model not in known:
        raise fault(f"there is no {'model' if 'model' in row else 'shape'} {model!r}.")
    if row["chip"] not in CHIPS:
        raise fault(f"there is no chip {row['chip']!r} in CHIPS.")
    if row["compute"] not in CHIPS[row["chip"]].flops:
        raise fault(f"{row['chip']} has no rate in {row['compute']}.")
    if row["phase"] not in PHASES or row["unit"] not in UNITS:
        raise fault(f"phase is one of {', '.join(PHASES)}, unit one of {', '.join(UNITS)}.")
    needs = {"decode": {"context"}, "prefill": {"prompt"}, "answer": {"prompt", "output"}}[row["phase"]]
    given = {"context", "prompt", "output"} & set(row)
    if needs != given:
        raise fault(f"a phase {row['phase']} has {' and '.join(sorted(needs))} and no other length.")
    counts = {key: row.get(key, 1) for key in ("chips", "batch", *needs)}
    for key, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise fault(f"{key} must be a positive integer, got {count!r}.")
    value = row["value"]
    if not isinstance(value, (int, float)) or not value > 0:
        raise fault(f"value must be a number above zero, got {value!r}.")
    if (counts["chips"] > 1) != (row.get("split") == "tensor"):
        raise fault("several chips say split: tensor, one chip says nothing.")
    for dtype in (row["weights"], row["kv"]):
        try:
            bytes_per_value(dtype)
        except ValueError as error:
            raise fault(str(error)) from error
    unknown = set(row.get("leaves_out", ())) - set(reasons)
    if unknown:
        raise fault(f"leaves_out names {', '.join(sorted(unknown))}, which reasons does not explain.")
    measurement = Measurement(
        id=name, chip=row["chip"], chips=counts["chips"], split=row.get("split", "one"),
        model=model, config=known[model], phase=row["phase"], batch=counts["batch"],
        prompt=row.get("prompt", 0), output=row.get("output", 0), context=row.get("context", 0),
        weights=row["weights"], kv=row["kv"], compute=row["compute"], value=float(value), unit=row["unit"],
        place=row["place"], leaves_out=tuple(reasons[key] for key in row.get("leaves_out", ())), source=source,
    )  # fmt: skip
    needed, sold = _bytes_held(measurement), measurement.together().memory
    if needed > sold * 2**30 / 1e9:  # "80 GB" of HBM are 80 GiB
        raise fault(
            f"weights and cache take {needed / 1e9:.0f} GB, the chips are sold with {sold / 1e9:.0f}."
        )
    return measurement


def _bytes_held(m: Measurement) -> float:
    longest = m.context if m.phase == "decode" else m.prompt + m.output
    return weight_bytes(m.config, m.weights) + kv_bytes(m.config, longest, m.batch, m.kv)


def _shape(name: str, row: Mapping[str, Any]) -> ModelConfig:
    """A `ModelConfig` from the few numbers that the cost model reads."""
    if not row.get("source"):
        raise ValueError(f"published.yml: shape {name} says not where it was read.")
    return ModelConfig(
        name, row["vocab"], row["layers"], row["width"], row["heads"], row["kv_heads"], row["head_dim"],
        row["mlp"], 8192, tied=False, mlp="gelu" if row.get("gelu") else "swiglu", source=row["source"],
    )  # fmt: skip
