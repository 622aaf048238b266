"""build, debug: a decoding loop of the reader, `loop(model, prompt, n, stop_ids)`: at most n tokens, up to a stop id.

The cases are the same for every loop; what speaks differs: `Script` calls a function of the tokens, `Llama` is a model
whose passes and rows are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..counters import CountedCalls, CountedModel
from ..probe import Probe
from .tiny import tiny_llama

PASS = "The last token needs no pass of its own: nobody asks what comes after it."
PIECES = "All tokens of the prompt are there at the start: one pass takes them all."
TWICE = (
    "The cache holds the earlier tokens already. Given again, they stand in it twice: give it what is new."
)
ROWS = "The tokens are right, but some went through the model twice: with a cache each pass gets what is new."
ZERO = "Id 0 is taken for 'nothing' somewhere. Compare with `in`, never with the token's truth."
TENSORS = "The tokens are tensors, and a tensor is never `in` a set of numbers: take `int(...)` of each."
PROMPT = "The prompt came back with the answer. Return the answer alone."
STOP = "The stop id ends the answer and is not part of it."
NONE = "The test for the length comes after a token is appended, and 0 is never met."
ONE = "Only one of the stop ids is looked at. Any of them ends the answer."


@dataclass(frozen=True)
class Turn:
    """One call. `stops` makes the stop ids from what the model would say without any; `zero`: that token is id 0."""

    name: str
    n: int
    stops: Callable[[list[int]], set[int]] = lambda said: set()
    prompt: tuple[int, ...] = (7, 3, 12, 5, 9)
    zero: int | None = None
    slip: str = ""


def _others(said: list[int], count: int = 2) -> set[int]:
    """Ids around those that are said: the smallest and the largest that never come up."""
    never = [i for i in range(1, 23) if i not in said]
    return {never[0], never[-1]} if count == 2 else {never[0]}


TURNS = (
    Turn("six tokens, no stop id", 6),
    Turn("a prompt of one token", 3, prompt=(4,)),
    Turn("one token of answer", 1, lambda said: _others(said, 1)),
    Turn("no token at all, n = 0", 0, lambda said: _others(said, 1), slip=NONE),
    Turn("a stop id comes up", 7, lambda said: {said[3]}),
    Turn("one of three stop ids comes up", 7, lambda said: {said[3], *_others(said)}, slip=ONE),
    Turn("two stop ids come up, one after the other", 7, lambda said: {said[2], said[4]}, slip=ONE),
    Turn(
        "the first token is a stop id",
        7,
        lambda said: {said[0]},
        slip="Nothing was said: the answer is empty.",
    ),
    Turn("id 0 comes up, and is no stop id", 6, _others, zero=2, slip="Here 0 is a token like any other."),
    Turn("id 0 is one of the stop ids", 7, lambda said: {0, *_others(said)}, zero=2, slip=ZERO),
    Turn("the prompt holds a stop id", 2, lambda said: {22}, prompt=(7, 22, 12)),
)


def up_to(said: list[int], n: int, stop_ids: set[int]) -> list[int]:
    """The reference: what is said, n tokens at most, up to a stop id."""
    ends = [i for i, token in enumerate(said[:n]) if token in stop_ids]
    return said[: ends[0]] if ends else said[:n]


@dataclass
class Script:
    """A forward pass as a function, `step(tokens) -> next token`. Counts its calls."""

    prompt: Sequence[int]
    zero: int | None
    said: list[int] = field(default_factory=lambda: [5, 14, 8, 3, 2, 6, 1, 9])
    rows: None = None

    def __post_init__(self) -> None:
        if self.zero is not None:
            self.said = [0 if i == self.zero else token for i, token in enumerate(self.said)]
        held = len(self.prompt)
        self.handed = CountedCalls(lambda tokens: self.said[len(tokens) - held], limit=len(self.said))

    @property
    def passes(self) -> int:
        return self.handed.calls


class Llama:
    """A model with `forward`, `hidden` and `head`. Counts its passes and the rows that went through it."""

    def __init__(self, prompt: Sequence[int], zero: int | None):
        named = _says(None, tuple(prompt))[zero] if zero is not None else None
        self.prompt = [{0: named, named: 0}.get(token, token) for token in prompt] if named else list(prompt)
        self.said = list(_says(named, tuple(self.prompt)))
        self.handed = CountedModel(tiny_llama(23, named), limit=len(self.said) + 4)

    @property
    def passes(self) -> int:
        return self.handed.passes

    @property
    def rows(self) -> int:
        return self.handed.rows


@cache
def _says(named: int | None, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What the model says next, eight times, without a cache and without an end."""
    import torch

    tokens, model = list(prompt), tiny_llama(23, named)
    for _ in range(8):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tuple(tokens[len(prompt) :])


@dataclass(frozen=True)
class Loop:
    """The answer, tried on every turn: the right tokens, one pass for each that comes up, no row twice."""

    speaker: Callable[[Sequence[int], int | None], Any]
    turns: Sequence[Turn] = TURNS

    def __call__(self, answer: Any, probe: Probe) -> None:
        for turn in self.turns:
            model = self.speaker(turn.prompt, turn.zero)
            stop_ids = turn.stops(model.said)
            want = up_to(model.said, turn.n, stop_ids)
            passes = len(want) + (len(want) < turn.n)
            most = len(turn.prompt) + passes - 1 if passes else 0
            with probe.case(turn.name):
                got = probe.call(answer, model.handed, list(model.prompt), turn.n, stop_ids)
                probe.equal(got, want, slip=self._slip(turn, model, got, want, most))
                pieces = passes and model.passes - passes == len(turn.prompt) - 1 > 0
                probe.at_most("forward passes", model.passes, passes, PIECES if pieces else PASS)
                if model.rows is not None:
                    probe.at_most("rows through the model", model.rows, most, ROWS)

    @staticmethod
    def _slip(turn: Turn, model: Any, got: Any, want: list[int], most: int) -> str:
        said = list(got) if isinstance(got, (list, tuple)) else []
        if any(hasattr(token, "shape") for token in said):
            return TENSORS
        if said == [*model.prompt, *want] != want:
            return PROMPT
        if len(want) < turn.n and said == model.said[: len(want) + 1]:
            return STOP
        other = said != model.said[: len(said)]
        return TWICE if other and model.rows is not None and most and model.rows > most else turn.slip
