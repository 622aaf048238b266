"""predict: several numbers by name, each with its own verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import compare, run
from ..probe import Probe
from ..verdict import Wrong
from .number import Number


@dataclass(frozen=True)
class Numbers:
    """predict: a dict with one number for each name, or a function that returns it."""

    numbers: Mapping[str, Number]

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        got = run.value_of(answer, probe.steps)
        keys = ", ".join(map(repr, self.numbers))
        if not isinstance(got, Mapping):
            raise Wrong("the answer", compare.describe(got), f"a dict with the keys {keys}")
        missing, extra = set(self.numbers) - set(got), set(got) - set(self.numbers)
        if missing or extra:
            raise Wrong("the answer", f"the keys {', '.join(map(repr, got))}", f"a dict with the keys {keys}")
        for name, number in self.numbers.items():
            with probe.case(name):
                number(got[name], probe)
        return None
