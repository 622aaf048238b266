"""The semantic lab: two questions, their cosine, what a threshold says, and what the second look says and why."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT, numbers
from lumen.semantic.check import check
from lumen.semantic.encoder import Encoder, unit

STORED, ASKED = "How do I delete a file?", "How do I not delete a file?"
RECORDED = (
    (STORED, ASKED),
    (STORED, "What's the command for deleting a file?"),
    ("Is Saturn bigger than Jupiter?", "Is Jupiter bigger than Saturn?"),
    ("How do I fix a dripping tap?", "How do I repair a dripping tap?"),
    ("What does insulin do in the body?", "Which organ makes insulin?"),
    (STORED, "Why does bread rise?"),
)
REASONS = {
    "": "nothing differs that its rules know",
    "negation": "negation: a no on one side only",
    "number": "number: other numbers",
    "roles": "roles: the same words, two of them exchanged",
    "edit": "edit: all the same but for one word of the subject",
}


@dataclass(frozen=True)
class Compared:
    """Two questions, their cosine, whether it is near enough, and the rule that refuses. `hit` needs both."""

    stored: str
    asked: str
    cosine: float
    near: bool
    rule: str

    @property
    def hit(self) -> bool:
        return self.near and not self.rule


class SemanticLab:
    """Compares two questions; the widget and the recorded page both show `view`."""

    def __init__(self, encoder: Encoder, threshold: float):
        self.encoder, self.threshold = encoder, threshold

    def compare(self, stored: str, asked: str) -> Compared:
        """Both verdicts, whichever would have come first. Raises ValueError for an empty question."""
        if not stored.strip() or not asked.strip():
            raise ValueError("Two questions are compared, and one of them is empty: type both.")
        one, other = unit(self.encoder.encode([stored, asked]), self.encoder.width)
        cosine = float(one @ other)
        return Compared(stored, asked, cosine, cosine >= self.threshold, check(asked, stored))

    def view(self, stored: str, asked: str) -> str:
        """The comparison as HTML."""
        done = self.compare(stored, asked)
        ends = "The stored answer is served." if done.hit else "A miss: the model is asked."
        edge = (
            "solid" if done.hit else "dotted"
        )  # no colour: blue and orange mean right and wrong in this chapter
        return (
            f'<p style="margin:6px 0"><span style="{SOFT}">stored</span> {html.escape(stored)}<br>'
            f'<span style="{SOFT}">asked</span> {html.escape(asked)}</p>'
            + numbers(
                [
                    ("cosine", f"{done.cosine:.3f}"),
                    (f"threshold {self.threshold:.2f}", "near enough" if done.near else "too far"),
                    ("second look", "refused" if done.rule else "may hit"),
                ]
            )
            + f'<p style="margin:6px 0"><span style="{SOFT}">{html.escape(REASONS[done.rule])}</span><br>'
            f'<b style="border-left:4px {edge} {ink.grey};padding-left:8px">{ends}</b></p>'
        )

    def widget(self, stored: str, asked: str) -> Any:
        """The live front. Its parts are attributes, so that a test can use them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "6em"}
        self.stored = w.Text(value=stored, description="Stored", layout=wide, style=style)
        self.asked = w.Text(value=asked, description="Asked", layout=wide, style=style)
        self.cut = w.FloatSlider(
            value=self.threshold, min=0, max=1, step=0.01, description="Threshold", layout=wide, style=style
        )
        self.button = w.Button(
            description="Compare", button_style="primary", tooltip="Compare the two questions"
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed)(None)
        return w.VBox([self.stored, self.asked, self.cut, self.button, self.out])

    def _pressed(self) -> str:
        self.threshold = self.cut.value
        return self.view(self.stored.value, self.asked.value)


def semantic_lab(
    encoder: Encoder, *, threshold: float = 0.8, recorded: Sequence[tuple[str, str]] = RECORDED
) -> SemanticLab:
    """Show the lab and return it. On the static page stand the comparisons of `recorded`.

    >>> lab = semantic_lab(MiniLM(), threshold=0.8)
    """
    lab = SemanticLab(encoder, threshold)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(*recorded[0]))
    else:
        show_recorded(sentence, "<hr>".join(lab.view(*pair) for pair in recorded))
    return lab
