"""A number that the reader commits to before the measurement: a box on the page, a widget where a kernel runs.

The stored page needs no kernel: `static/guess.js` remembers what was typed in the reader's own browser and shows it
beside the answer. Nothing is sent anywhere.
"""

from __future__ import annotations

import html
import math
import re
from typing import Any

from IPython.display import HTML, display

from lumen.explore.prose.boxes import BOX, SOFT, is_static

EXAMPLES = "Write a number, for example 39.4, 39,4 or 1e3."
_typed: dict[str, str] = {}  # by id: running the cell again must not lose what was typed into this kernel


def number(text: str, unit: str = "") -> float | None:
    """The number in `text`, or None. A comma is a decimal comma unless three digits follow it, as in 1,024.

    The unit may stand behind it, and "1e3" is a number. The twin of `number` in static/kit.js.
    """
    rest = text.strip().replace("−", "-")
    if unit and rest.lower().endswith(unit.lower()):
        rest = rest[: -len(unit)].strip()
    rest = re.sub(r"[\s_](?=\d{3}(?!\d))", "", rest)
    if re.fullmatch(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?(e[-+]?\d+)?", rest, re.I):
        rest = rest.replace(",", "")
    elif rest.count(",") == 1 and "." not in rest:
        rest = rest.replace(",", ".")
    if not re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", rest, re.I):
        return None
    value = float(rest)
    return value if math.isfinite(value) else None


class Guess:
    """What the reader expects. `value` is a float, or None until a number was given; `reveal` takes it as it is."""

    def __init__(self, id: str, question: str, unit: str = "", what: str = "") -> None:
        for name, given in (("id", id), ("question", question)):
            if not given.strip():
                raise ValueError(
                    f"a guess needs its {name}: the page remembers it by id, and asks the question"
                )
        self.id, self.question, self.unit, self.what = id, question, unit, what

    @property
    def value(self) -> float | None:
        return number(_typed.get(self.id, ""), self.unit)

    @value.setter
    def value(self, given: float | None) -> None:
        _typed[self.id] = "" if given is None else f"{float(given):g}"

    def __repr__(self) -> str:
        said = "no number yet" if self.value is None else f"{self.value:g} {self.unit}".rstrip()
        return f"<guess {self.id}: {said}>"

    def html(self) -> str:
        """The box of the stored page: a labelled field that needs no kernel."""
        said = {"guess": self.id, "unit": self.unit, "what": self.what}
        data = "".join(f' data-{key}="{html.escape(value)}"' for key, value in said.items() if value)
        field = f"guess-{html.escape(self.id)}"
        return (
            f'<div class="lumen-guess" style="{BOX}"{data}>'
            f'<label for="{field}">{html.escape(self.question)}</label>'
            f'<p class="entry">Your guess: <input id="{field}" type="text" inputmode="decimal" autocomplete="off" '
            f'size="8" aria-describedby="{field}-said"> {html.escape(self.unit)}</p>'
            f'<p class="said" id="{field}-said" role="status"></p>'
            f'<p class="needs-kernel" style="{SOFT}">Run this cell to hand your number to the notebook.</p></div>'
        )

    def _show_widget(self, widgets: Any) -> None:
        box = widgets.Text(value=_typed.get(self.id, ""), placeholder="39.4", layout={"width": "9em"})
        note = widgets.Label("")

        def keep(_: Any = None) -> None:
            _typed[self.id] = box.value
            note.value = EXAMPLES if box.value.strip() and self.value is None else ""

        box.observe(keep, "value")
        question = widgets.HTML(html.escape(self.question))
        entry = widgets.HBox([widgets.Label("Your guess:"), box, widgets.Label(self.unit), note])
        display(widgets.VBox([question, entry]))

    def show(self) -> None:
        """Display the question: the stored box for the book, a widget in a kernel, a sentence without ipywidgets."""
        if is_static():
            display(HTML(self.html()))
            return
        try:
            import ipywidgets
        except ImportError:
            print(f"{self.question}\nWrite your number into a cell, for example: my_guess.value = 39.4")
        else:
            self._show_widget(ipywidgets)


def guess(id: str, question: str, *, unit: str = "", what: str = "") -> Guess:
    """Ask the reader for a number before the next cell measures it; for a cell tagged `predict`.

    `id` is unique in the chapter ("01-rows"), `question` names the quantity, `unit` stands behind the field, and
    `what` is the quantity in a few words, for a page whose one Reveal answers several guesses.

    >>> my_guess = guess("01-rows", "16 rows against 1: how many times as long?", unit="×")
    >>> reveal(guess=my_guess, model=1.3, measured=[1.2, 1.4], unit="×", title="Hardly longer")
    """
    asked = Guess(id, question, unit, what)
    asked.show()
    return asked
