"""The prompt-order lab: put the parts of a prompt in another order and watch what a prefix cache still finds.

Nothing is run through a model. The parts are tokenised, and `lumen.cache.HashPrefix` counts.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.cache.pool import BlockPool
from lumen.cache.prefix import HashPrefix
from lumen.explore.labs.lab import ink, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT

Encode = Callable[[str], list[int]]
BLOCK = 16
WRITE, READ = 1.25, 0.1  # what a provider charged in August 2024: times the price of a plain prompt token


@dataclass(frozen=True)
class Part:
    """A piece of the prompt. `texts[i]` stands in request i; one text stands in all. `changes` says how often."""

    name: str
    changes: str
    texts: tuple[str, ...]

    def text(self, request: int) -> str:
        return self.texts[request] if len(self.texts) > 1 else self.texts[0]


_RULES = """You answer for the night trains of a small railway. Be brief and friendly, and never promise what
the timetable does not say. A ticket may be changed until the evening before departure. Dogs travel in the last
coach and pay half. Bicycles need a place of their own, which costs nine and is sold out in summer. Children
under six travel for nothing when they share a bed. If a train is late by more than an hour, offer tea first and
a form second. If a passenger is angry, apologise once and then help. Never discuss other railways. When you do
not know something, say so and give the number of the station, which is staffed from five in the morning until
midnight. Answer in the passenger's language."""
_TOOLS = """Tools. timetable(from, to, day): departures with their platforms. seats(train, day): beds and seats that are
left, by coach. change(ticket, day): moves a ticket and returns the difference in price. late(train): minutes of delay
now. call(station): the telephone number and the hours of a station."""
_TICKETS = tuple(
    f"The passenger's booking. Ticket {number}, {name}, from {start} to {end}, bed {bed} in coach {coach}, booked in "
    "March and paid by card. One bag, no bicycle. Breakfast ordered. Wishes to be woken half an hour before arrival."
    for number, name, start, end, bed, coach in (
        (4711, "Ada Quist", "Rome", "Oslo", 12, 3),
        (4712, "Ben Okoro", "Paris", "Nice", 7, 5),
    )
)
_QUESTIONS = (
    "When do we arrive?", "Can I take my dog?", "Is there a bed near the door?",
    "My train is late. What now?", "May I travel a day later?", "Where is my coach?",
)  # fmt: skip
PARTS = (
    Part("clock", "every request", tuple(f"It is 09:{minute:02}:17." for minute in (3, 4, 9, 12, 15, 21))),
    Part("booking", "with the passenger", tuple(_TICKETS[i] for i in (0, 1, 0, 1, 0, 1))),
    Part("rules", "never", (_RULES,)),
    Part("tools", "never", (_TOOLS,)),
    Part("question", "every request", _QUESTIONS),
)
STATIC_FIRST = ("rules", "tools", "booking", "clock", "question")


def count(
    encode: Encode, parts: Sequence[Part], order: Sequence[str], requests: int = 6, block: int = BLOCK
) -> list[tuple[int, int]]:
    """(tokens found, tokens of the prompt) of each request, with the parts in this order and room for everything.

    Each part is tokenised by itself, so that a neighbour never changes its tokens.
    """
    by_name = {part.name: part for part in parts}
    if sorted(order) != sorted(by_name):
        raise ValueError(
            f"order must name each of {', '.join(by_name)} once, got {', '.join(order) or 'nothing'}"
        )
    prompts = [
        [token for name in order for token in encode(by_name[name].text(i) + "\n\n")] for i in range(requests)
    ]
    pool = BlockPool(sum(len(p) // block + 1 for p in prompts) or 1, block)
    prefix, found = HashPrefix(pool), []
    for prompt in prompts:
        blocks = prefix.match(prompt)
        found.append((len(blocks) * block, len(prompt)))
        blocks += pool.allocate(-(-len(prompt) // block) - len(blocks))
        prefix.insert(prompt, blocks)
        pool.release(blocks)
    return found


def price(found: Sequence[tuple[int, int]], write: float = WRITE, read: float = READ) -> float:
    """Price of these prompts, in units of the same prompts without caching: found tokens are read, others written."""
    total = sum(length for _, length in found)
    return sum(read * held + write * (length - held) for held, length in found) / total


class PromptOrderLab:
    """Holds the order; `view()` draws what each request finds."""

    def __init__(self, encode: Encode, parts: Sequence[Part] = PARTS, order: Sequence[str] = ()):
        self.encode, self.parts = encode, parts
        self.order = list(order) or [part.name for part in parts]

    def move(self, place: int, by: int) -> None:
        """Swap the part at `place` with the one `by` places on; nothing happens at the ends."""
        other = place + by
        if 0 <= other < len(self.order):
            self.order[place], self.order[other] = self.order[other], self.order[place]

    def view(self) -> str:
        """One bar a request: found on the left, run on the right."""
        found = count(self.encode, self.parts, self.order)
        longest = max(length for _, length in found)
        held, total = sum(h for h, _ in found), sum(length for _, length in found)
        bars = "".join(
            f'<div style="display:grid;grid-template-columns:1.2em 1fr 9em;gap:8px;align-items:center">'
            f'<span style="{SOFT}">{i}</span><span style="display:flex;height:13px">'
            f'<span style="background:{ink.blue};width:{100 * h / longest:.1f}%"></span>'
            f'<span style="background:{ink.orange};width:{100 * (length - h) / longest:.1f}%"></span></span>'
            f"<span>{h} of {length} found</span></div>"
            for i, (h, length) in enumerate(found, 1)
        )
        return (
            f"<p><b>{html.escape(' → '.join(self.order))}</b>: {100 * held / total:.0f} % of all prompt tokens are "
            f"found. At {WRITE} for writing and {READ} for reading the prompts cost {price(found):.2f} of what they "
            f'cost without caching.</p><div style="font-size:14px;line-height:1.6">{bars}</div>'
            f'<p style="{SOFT}">Blue: found. Orange: run. Six requests, two passengers in turn, blocks of {BLOCK}.</p>'
        )

    def widget(self) -> Any:
        """The live front. `ups` and `downs` are its buttons, from the first part to the last."""
        import ipywidgets as w

        self.labels = [w.HTML() for _ in self.order]
        self.ups, self.downs, rows = [], [], []
        for place, label in enumerate(self.labels):
            up, down = (
                w.Button(
                    description=sign, tooltip=f"Move part {place + 1} {way}", layout=w.Layout(width="44px")
                )
                for sign, way in (("↑", "up"), ("↓", "down"))
            )
            up.on_click(lambda _, at=place: self._moved(at, -1))
            down.on_click(lambda _, at=place: self._moved(at, 1))
            self.ups.append(up)
            self.downs.append(down)
            rows.append(w.HBox([up, down, label]))
        self.out = w.HTML()
        self._draw()
        return w.VBox([*rows, self.out])

    def _moved(self, place: int, by: int) -> None:
        self.move(place, by)
        self._draw()

    def _draw(self) -> None:
        changes = {part.name: part.changes for part in self.parts}
        for label, name in zip(self.labels, self.order, strict=True):
            label.value = f"<b>{html.escape(name)}</b> (changes: {html.escape(changes[name])})"
        self.ups[0].disabled = self.downs[-1].disabled = True
        self.out.value = self.view()


def prompt_order_lab(
    tokenizer: Any, parts: Sequence[Part] = PARTS, *, recorded: Sequence[Sequence[str]] = ((), STATIC_FIRST)
) -> PromptOrderLab:
    """Show the lab and return it. On the static page stand the orders of `recorded`; () is the order of `parts`.

    >>> prompt_order_lab(tokenizer);  # end with a semicolon
    """
    lab = PromptOrderLab(tokenizer.encode, parts)
    sentence = why_static()
    if sentence is None:
        display(lab.widget())
    else:
        views = (PromptOrderLab(tokenizer.encode, parts, order).view() for order in recorded)
        show_recorded(sentence, "<hr>".join(views))
    return lab
