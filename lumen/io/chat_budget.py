"""What one rendering of a chat template may spend: steps of work and characters of text, counted before they are spent.

Counted, not timed, so that the same template is refused on every machine and no verdict depends on how busy it is.
"""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterator, KeysView, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

MOST_BITS = 16_384  # of a whole number
MOST_SOURCE = 1_000_000  # characters of a template

_CONTAINERS = (list, tuple, dict, set, frozenset, KeysView, ValuesView, ItemsView)
_FIELDS = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")


@dataclass(frozen=True)
class Limits:
    """`steps`: nodes of the template evaluated and values looked at, about 0.2 µs each, so some seconds at most.
    `characters`: of all strings that are built on the way, 256 MB at the very most."""

    steps: int = 10_000_000
    characters: int = 64_000_000


USUAL = Limits()


class OverBudget(ValueError):
    """The template asks for more than its limits, or for a number of more than MOST_BITS."""


class Budget:
    """Counts `steps` and `characters` of one rendering. Every method raises OverBudget."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = self.characters = 0

    def work(self, steps: int) -> None:
        """`steps` more values are about to be looked at."""
        self.steps += steps
        if self.steps > self.limits.steps:
            raise OverBudget(f"it takes more than {self.limits.steps:,} steps")

    def text(self, characters: int) -> None:
        """Strings of this length are about to be built or read."""
        self.characters += characters
        if self.characters > self.limits.characters:
            raise OverBudget(f"it builds more than {self.limits.characters:,} characters")

    def shallow(self, value: Any) -> None:
        """`value` is about to be looked at, but not into what it holds."""
        if isinstance(value, str | bytes):
            self.text(len(value))
        elif isinstance(value, (*_CONTAINERS, range)):
            self.work(len(value))

    def deep(self, value: Any) -> tuple[int, int]:
        """`value` is about to be written out, compared or hashed with all that it holds: `(values, levels)`.

        A list may hold one other a thousand times, and that one another: short to store, endless to print.
        """
        if isinstance(value, str | bytes):
            self.text(len(value))
            return 1, 0
        if not isinstance(value, _CONTAINERS):
            return 1, 0
        values, level, row = 0, 0, [value]
        while row:
            inner = []
            for item in row:
                if isinstance(item, str | bytes):
                    self.text(len(item))
                elif isinstance(item, _CONTAINERS):
                    self.work(2 + len(item))
                    values += len(item)
                    inner += [*item.keys(), *item.values()] if isinstance(item, dict) else list(item)
            row, level = inner, level + 1
        return values, level

    def counted(self, items: Iterator[Any], each: int = 0) -> Iterator[Any]:
        """`items`, a step and `each` characters at a time."""
        for item in items:
            self.work(1)
            self.text(each)
            yield item

    def replaced(self, text: Any, old: Any, new: Any) -> None:
        """`text.replace(old, new)` is about to be built, of strings or of bytes."""
        self.text(len(text) + text.count(old) * len(new))

    def percent(self, form: str | bytes, values: Any) -> None:
        """`form % values` is about to be built: every width, and as often as there are fields all of the values."""
        before = self.characters
        self.deep(values)
        given = self.characters - before
        if isinstance(form, bytes):
            form = form.decode("latin-1")
        numbers = [value for value in _listed(values) if isinstance(value, int)]
        for field in _FIELDS.finditer(form):
            stars = sum(abs(n) for n in numbers) if "*" in field.groups() else 0
            widths = sum(int(n[:12]) for n in field.groups() if n and n != "*")
            self.text(len(field[0]) + given + stars + widths)
        self.text(len(form))


def whole_number(value: Any) -> Any:
    """`value`, unless it is a number with more than MOST_BITS."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise OverBudget(f"it counts with numbers of more than {MOST_BITS:,} bits")
    return value


def _listed(values: Any) -> Sequence[Any]:
    if isinstance(values, dict):
        return list(values.values())
    return values if isinstance(values, list | tuple) else [values]
