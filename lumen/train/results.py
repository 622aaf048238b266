"""What uptraining did to the loss: every validation window before and after, and two models compared window by window.

Windows are hard or easy for all models alike, so the difference of two models is known far better than the loss of
either. The interval is 1.96 standard errors of the mean of the pairs, which takes windows as independent; neighbours
in a play are not quite, so read one that barely leaves zero out as none.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..bench.estimate import Estimate
from ..files import write_atomic
from .loop import Recipe


@dataclass(frozen=True)
class Result:
    """One variant: the recipe, a digest of the model that was converted, cache numbers per token, and the losses.

    `before` and `after` hold the mean loss of each validation window, in nats per character; both in the fp16 that is
    shipped.
    """

    name: str
    recipe: Recipe
    base: str
    stored: int
    before: tuple[float, ...]
    after: tuple[float, ...]

    def write(self, file: Path) -> None:
        """Keep it as JSON; readers see the old file or the whole new one."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, file: Path) -> Result:
        """FileNotFoundError where there is none, ValueError for a file that holds no result."""
        text = file.read_text(encoding="utf-8")
        try:
            fields = json.loads(text)
            numbers = {key: tuple(map(float, fields[key])) for key in ("before", "after")}
            return cls(**(fields | numbers | {"recipe": Recipe(**fields["recipe"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{file} holds no result of uptraining ({error}); delete it and run the recipe again."
            ) from error


def average(losses: Sequence[float]) -> Estimate:
    """The mean loss of the windows and its interval. [nats]"""
    return _interval(list(losses))


def apart(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """How much more a loses than b, over the same windows. ValueError if those are not equally many. [nats]"""
    if len(a) != len(b):
        raise ValueError(f"Pairs need the same windows; there are {len(a)} losses and {len(b)}.")
    return _interval([x - y for x, y in zip(a, b, strict=True)])


def _interval(values: list[float]) -> Estimate:
    if len(values) < 2:
        raise ValueError(f"An interval needs two windows at least, got {len(values)}.")
    centre = statistics.fmean(values)
    reach = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(centre, centre - reach, centre + reach, len(values), "nats")
