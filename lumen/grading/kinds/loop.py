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
NOTHING = "No token is wanted, so there is nothing to run the model for."
ONE = "Only some of the stop ids are looked at. Any of them ends the answer."
LAST = "The test for the length comes before the one for a stop id, so the last token is never looked at."
LATER = "It goes on after the stop id, and the rest is cut off afterwards. Look at each token as it comes up."
SKIPPED = "The stop id is left out, and then it goes on. A stop id ends the answer."
BEFORE = "Stop ids count in what is generated, not in the prompt."


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


def _ranked(rank: int, at: int) -> Callable[[list[int]], set[int]]:
    """Three stop ids; the one that comes up, token `at`, is the smallest (0), the middle (1) or the largest (2)."""

    def stops(said: list[int]) -> set[int]:
        never = [i for i in range(1, 23) if i not in said]
        below, above = [i for i in never if i < said[at]], [i for i in never if i > said[at]]
        return {said[at], *below[len(below) - rank :], *above[: 2 - rank]}

    return stops


TURNS = (
    Turn("six tokens, no stop id", 6),
    Turn("a prompt of one token", 3, prompt=(4,)),
    Turn("one token of answer", 1, lambda said: _others(said, 1)),
    Turn("no token at all, n = 0", 0, lambda said: _others(said, 1), slip=NONE),
    Turn("a stop id comes up", 7, lambda said: {said[3]}),
    Turn("the last token there is room for is a stop id", 4, lambda said: {said[3]}, slip=LAST),
    *(
        Turn(f"one of three stop ids comes up, the {name}", 7, _ranked(rank, at), slip=ONE)
        for rank, at, name in ((0, 3, "smallest"), (1, 3, "middle one"), (2, 4, "largest"))
    ),
    Turn("two stop ids come up, one after the other", 7, lambda said: {said[2], said[4]}, slip=ONE),
    Turn(
        "the first token is a stop id",
        7,
        lambda said: {said[0]},
        slip="Nothing was said: the answer is empty.",
    ),
    Turn("id 0 comes up, and is no stop id", 6, _others, zero=2, slip="Here 0 is a token like any other."),
    Turn("id 0 is one of the stop ids", 7, lambda said: {0, *_others(said)}, zero=2, slip=ZERO),
    Turn("the prompt holds a stop id", 2, lambda said: {22}, prompt=(7, 22, 12), slip=BEFORE),
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
    said: list[int] = field(default_factory=lambda: [6, 14, 8, 13, 21, 10, 1, 15])
    rows: None = None
    first: None = None

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

    @property
    def first(self) -> int:
        """Tokens of the first pass."""
        return self.handed.shapes[0][-1] if self.handed.shapes else 0


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
                probe.equal(got, want, slip=self._slip(turn, model, got, want, stop_ids))
                probe.at_most("forward passes", model.passes, passes, self._wasted(turn, model, want, passes))
                if model.rows is not None:
                    probe.at_most("rows through the model", model.rows, most, ROWS)

    @staticmethod
    def _wasted(turn: Turn, model: Any, want: list[int], passes: int) -> str:
        """What the passes too many were for."""
        if not passes:
            return NOTHING
        if model.first is not None and model.first < len(model.prompt):
            return PIECES
        return LATER if len(want) < turn.n and model.passes > passes + 1 else PASS

    @staticmethod
    def _slip(turn: Turn, model: Any, got: Any, want: list[int], stop_ids: set[int]) -> str:
        if got is None:
            return ""  # the comparison has a sentence of its own
        said = list(got) if isinstance(got, (list, tuple)) else []
        if any(hasattr(token, "shape") for token in said):
            return TENSORS
        if said == [*model.prompt, *want] != want:
            return PROMPT
        if len(want) < turn.n and said == model.said[: len(want) + 1]:
            return LAST if len(want) == turn.n - 1 > 0 else STOP
        if len(want) < turn.n and said == [token for token in model.said[: turn.n] if token not in stop_ids]:
            return SKIPPED
        again = model.rows is not None and model.rows > len(model.prompt) + model.passes - 1
        return TWICE if again and said != model.said[: len(said)] else turn.slip
