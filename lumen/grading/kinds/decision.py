"""decide: a configuration under constraints, or a function of the load that returns one, graded by what it costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import compare, run
from ..compare import number
from ..probe import Probe
from ..verdict import NotStarted, Wrong


@dataclass(frozen=True)
class Constraint:
    """A quantity of the configuration with a bound: `value(config)` in `unit`, `at_most` or `at_least`."""

    name: str
    value: Callable[[dict[str, Any]], float]
    at_most: float = math.inf
    at_least: float = -math.inf
    unit: str = ""
    slip: str = ""

    def holds(self, config: dict[str, Any]) -> bool:
        return self.at_least <= self.value(config) <= self.at_most

    def line(self, config: dict[str, Any]) -> str:
        bound = (
            f"at most {number(self.at_most)}"
            if self.at_most < math.inf
            else f"at least {number(self.at_least)}"
        )
        verb = "holds" if self.holds(config) else "FAILS"
        return f"{self.name} {verb}: {number(self.value(config))}, {bound} {self.unit}".rstrip()


@dataclass(frozen=True)
class Decision:
    """decide: a configuration (a dict, or a function that returns one) under constraints, graded by what it costs.

    `choices` names every field and its allowed values; the best configuration is found by trying them all, so
    there is no key to go stale. RIGHT when every constraint holds and `cost(config)` is within the share
    `within` of the best. Use datasheet chips, not measured ones: the verdict must be the same everywhere.
    """

    choices: Mapping[str, Sequence[Any]]
    constraints: Sequence[Constraint]
    cost: Callable[[dict[str, Any]], float] | None = None
    unit: str = ""
    within: float = 0.0
    dearer: str = ""

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        return self.judge(run.value_of(answer, probe.steps))

    def judge(self, config: Any) -> str | None:
        """`Wrong`, or the line that ends the RIGHT verdict."""
        self._known(config)
        case = ", ".join(f"{name}={config[name]!r}" for name in self.choices)
        lines = "; ".join(one.line(config) for one in self.constraints)
        broken = [one for one in self.constraints if not one.holds(config)]
        if broken:
            raise Wrong(case, lines, "every constraint holds", broken[0].slip)
        if self.cost is None:
            return lines
        cost, best = self.cost(config), self._best(self.cost)
        if cost > best * (1 + self.within) * (1 + 1e-12):
            wanted = f"{number(best * (1 + self.within))} {self.unit} at most".replace("  ", " ")
            raise Wrong(case, f"{lines}; cost {number(cost)} {self.unit}".rstrip(), wanted, self.dearer)
        return f"{lines}; cost {number(cost)} {self.unit}".rstrip()

    def _known(self, config: Any) -> None:
        fields = ", ".join(self.choices)
        if not isinstance(config, Mapping):
            raise Wrong("the configuration", compare.describe(config), f"a dict with the fields {fields}")
        if set(config) != set(self.choices):
            raise Wrong(
                "the configuration", f"the fields {', '.join(map(str, config))}", f"the fields {fields}"
            )
        for name, allowed in self.choices.items():
            if config[name] not in allowed:
                some = (
                    f"{allowed[0]} to {allowed[-1]}"
                    if isinstance(allowed, range)
                    else ", ".join(map(repr, allowed))
                )
                raise Wrong("the configuration", f"{name}={config[name]!r}", f"one of {some}")

    def configs(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.choices.values()):
            yield dict(zip(self.choices, values, strict=True))

    def _best(self, cost: Callable[[dict[str, Any]], float]) -> float:
        costs = [cost(one) for one in self.configs() if all(limit.holds(one) for limit in self.constraints)]
        if not costs:
            raise ValueError("No configuration meets the constraints: the exercise has no answer.")
        return min(costs)

    def binding(self) -> set[str]:
        """The constraints that rule out some configuration all by themselves; the others are decoration."""
        found = set()
        for config in self.configs():
            broken = [limit.name for limit in self.constraints if not limit.holds(config)]
            found |= set(broken) if len(broken) == 1 else set()
        return found


@dataclass(frozen=True)
class Plan:
    """decide: a function of the load that returns a configuration, tried on several loads.

    `decide(*load)` makes the `Decision` for one load; `loads` are tuples in the order of `names`.
    """

    decide: Callable[..., Decision]
    names: Sequence[str]
    loads: Sequence[tuple[Any, ...]]

    def __call__(self, answer: Any, probe: Probe) -> str | None:
        if not callable(answer):
            given = f"a function of {' and '.join(self.names)}"
            raise Wrong(
                "the answer", compare.describe(answer), given, "The load changes; the answer follows it."
            )
        note = None
        for load in self.loads:
            told = ", ".join(
                f"{name} {compare.number(value)}" for name, value in zip(self.names, load, strict=True)
            )
            with probe.case(told):
                config = probe.call(answer, *load)
                if run.is_placeholder(config):
                    raise NotStarted("The answer still holds a placeholder.")
                try:
                    note = self.decide(*load).judge(config)
                except Wrong as wrong:
                    wrong.case = f"{told}: {wrong.case}"
                    raise
        return note

    def binding(self) -> set[str]:
        return set().union(*(self.decide(*load).binding() for load in self.loads))

    @property
    def constraints(self) -> Sequence[Constraint]:
        return self.decide(*self.loads[0]).constraints
