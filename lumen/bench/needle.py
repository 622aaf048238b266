"""What a cache that keeps less forgets: one sentence hidden in a long text, and asked for at its end.

    user       … text … The pass number of Oslo is 48173. … text … What is the pass number of Oslo?
    assistant  The pass number of Oslo is                                           48173 is the answer

A cell of the grid is a length of the prompt and a depth of the sentence in it, 0 at the beginning and 1 at the end.
Every kind of cache is asked for the same needles. The answer's beginning is given, so that what is measured is memory
and not manners. Kamradt 2023, Needle in a Haystack; Hsieh et al. 2024, RULER (single needle, a number).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lumen.bench.estimate import Estimate, wilson
from lumen.bench.quality import MakeCache
from lumen.decode.batch import pad
from lumen.inputs import real, whole, wholes

if TYPE_CHECKING:
    from lumen.cache.base import Cache
    from lumen.io.tokenizer import TextTokenizer
    from lumen.models.decoder import Decoder

PLACES = (
    "Oslo",
    "Lisbon",
    "Vienna",
    "Madrid",
    "Dublin",
    "Athens",
    "Prague",
    "Warsaw",
    "Cairo",
    "Tokyo",
    "Seoul",
)
INTRODUCTION = "Read the text and answer the question at its end.\n\n"


@dataclass(frozen=True)
class Needle:
    """A prompt in two parts, context and question, and the answer: token ids. The sentence is context[slice(*at)]."""

    context: tuple[int, ...]
    question: tuple[int, ...]
    answer: tuple[int, ...]
    at: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Cell:
    """What was found again at one length [tokens of the prompt] and depth. `logprobs`: of the right answers [nats]."""

    length: int
    depth: float
    right: tuple[bool, ...]
    logprobs: tuple[float, ...]

    @property
    def found(self) -> Estimate:
        """The share of right answers, with Wilson's interval."""
        return wilson(sum(self.right), len(self.right))


def needles(
    tokenizer: TextTokenizer,
    hay: Sequence[int],
    length: int,
    depth: float,
    count: int,
    seed: int = 0,
    digits: int = 5,
) -> list[Needle]:
    """`count` prompts of exactly `length` tokens, from other stretches of the text `hay` each; the same for one seed.

    The answer is a number of `digits` digits. ValueError where the question leaves no room in `length`, or the text is
    too short.
    """
    length, depth, count = (
        whole(length, "length", 1),
        real(depth, "depth", 0.0, 1.0),
        whole(count, "count", 1),
    )
    digits = whole(digits, "digits", 1, 15)
    hay, dice = wholes(hay, "hay"), random.Random(f"{seed} {length} {depth}")
    encode = partial(tokenizer.encode, add_special=False)
    head, tail = tokenizer.chat_text([{"role": "user", "content": "TEXT"}]).split("TEXT")
    made = []
    for _ in range(count):
        place, number = dice.choice(PLACES), dice.randrange(10 ** (digits - 1), 10**digits)
        before, needle = encode(head + INTRODUCTION), encode(f"\nThe pass number of {place} is {number}.\n")
        question = encode(f"\n\nWhat is the pass number of {place}?{tail}The pass number of {place} is")
        room = length - len(before) - len(needle) - len(question)
        if not 0 <= room < len(hay):
            raise ValueError(
                f"A prompt of {length} tokens leaves {room} for the text around needle and question, and the text has "
                f"{len(hay)}; take a length between {length - room} and {length - room + len(hay) - 1}."
            )
        start, cut = dice.randrange(len(hay) - room), round(depth * room)
        text = hay[start : start + room]
        context, at = (*before, *text[:cut], *needle, *text[cut:]), len(before) + cut
        made.append(Needle(context, tuple(question), tuple(encode(f" {number}")), (at, at + len(needle))))
    return made


@torch.inference_mode()
def ask(
    model: Decoder, asked: Sequence[Needle], make: MakeCache, *, question_seen: bool = True, batch: int = 8
) -> list[tuple[bool, float]]:
    """For each needle: whether the greedy answer is right, token by token, and the log-probability of the right one.

    `question_seen`: the cache is told that the prompt has ended behind the question; otherwise before it, so that what
    it keeps of the context is chosen without knowing what will be asked, as where many questions share a document.
    """
    found: list[tuple[bool, float]] = []
    batch = whole(batch, "batch", 1)
    for group in (asked[at : at + batch] for at in range(0, len(asked), batch)):
        longest = max(len(n.context) + len(n.question) + len(n.answer) for n in group)
        cache = make(model, len(group), longest)
        if question_seen:
            hidden = feed(model, cache, [n.context + n.question for n in group])
            cache.prompt_ended()
        else:
            feed(model, cache, [n.context for n in group])
            cache.prompt_ended()
            hidden = feed(model, cache, [n.question for n in group])
        found += answered(model, group, cache, hidden)
    return found


@torch.inference_mode()
def feed(model: Decoder, cache: Cache, rows: Sequence[Sequence[int]]) -> Tensor:
    """The next tokens of each row, however many; returns the last hidden state of each (B, D)."""
    tokens, pos = pad(rows, device=cache.lengths.device)
    pos = torch.where(pos >= 0, pos + cache.lengths[:, None], -1)
    hidden = model.hidden(tokens, pos, cache)
    return hidden[torch.arange(len(rows), device=hidden.device), pos.argmax(1)]


@torch.inference_mode()
def answered(
    model: Decoder, group: Sequence[Needle], cache: Cache, hidden: Tensor
) -> list[tuple[bool, float]]:
    """What `ask` says, of a cache that has read context and question of each needle, down to `hidden` (B, D).

    ValueError for answers of different lengths.
    """
    if len({len(n.answer) for n in group}) > 1:
        raise ValueError(
            f"Needles that are asked together have answers of equally many tokens, got "
            f"{[len(n.answer) for n in group]}; ask them with batch=1."
        )
    answers, _ = pad([n.answer for n in group], device=hidden.device)
    right = torch.ones(len(group), dtype=torch.bool, device=hidden.device)
    total = torch.zeros(len(group), dtype=torch.float64, device=hidden.device)
    for place, token in enumerate(answers.unbind(1)):
        said = model.head(hidden).double().log_softmax(-1)
        right &= said.argmax(-1) == token
        total += said.gather(1, token[:, None])[:, 0]
        if place + 1 < answers.shape[1]:
            hidden = model.hidden(token[:, None], None, cache)[:, -1]
    return list(zip(right.tolist(), total.tolist(), strict=True))


def grid(
    model: Decoder,
    tokenizer: TextTokenizer,
    hay: Sequence[int],
    make: MakeCache,
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    count: int,
    question_seen: bool = True,
    seed: int = 0,
    batch: int = 8,
    digits: int = 5,
) -> list[Cell]:
    """`count` needles in each cell of lengths × depths. Needles of one length run together, whatever their depth."""
    cells = []
    for length in lengths:
        each = [needles(tokenizer, hay, length, depth, count, seed, digits) for depth in depths]
        asked = [needle for part in each for needle in part]
        answers = ask(model, asked, make, question_seen=question_seen, batch=batch)
        for i, depth in enumerate(depths):
            right, logprobs = zip(*answers[i * count : (i + 1) * count], strict=True)
            cells.append(Cell(length, depth, right, logprobs))
    return cells
