"""The attention lab: your own text, and how much each of its tokens is read in a layer of your choice."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.bench.numbers import percent
from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT, numbers

LONGEST, NEWEST, HEAVIEST = 512, 8, 5  # tokens of a text, tokens that count as newest, others that are named
TEXT = (
    "Once upon a time a lighthouse keeper wrote the number of every ship into a book. One night a ship came that had "
    "no number. He gave it one, lit the lamp, and went on writing."
)


@dataclass(frozen=True)
class Read:
    """What one layer reads of a text, its query heads averaged.

    `weights`: of each token, the mean attention that it gets from the queries that can see it, its own left out.
    `first`, `newest`: the share of the attention of the second half's queries that goes to the first token, and to the
    `NEWEST` tokens up to themselves.
    """

    layer: int
    tokens: tuple[str, ...]
    weights: tuple[float, ...]
    first: float
    newest: float

    @property
    def heaviest(self) -> list[int]:
        """The tokens that are read most, the first left out."""
        some = range(1, len(self.tokens) - 1)
        return sorted(some, key=lambda i: -self.weights[i])[:HEAVIEST]


class AttentionLab:
    """Runs a model over a text and keeps what its layers read."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.seen: Read | None = None

    def run(self, text: str, layer: int) -> Read:
        """Layers count from 1. ValueError with the limit for a layer that there is not, or a text out of its limits."""
        import torch

        from lumen.attention.core import mask_for, weigh_with
        from lumen.models.observe import observe

        layers, ids = self.model.config.num_layers, self.tokenizer.encode(text, add_special=False)
        if not 1 <= layer <= layers:
            raise ValueError(f"The layers of {self.model.config.name} are 1 to {layers}; got {layer}.")
        if not 2 * NEWEST < len(ids) <= LONGEST:
            raise ValueError(
                f"A text has between {2 * NEWEST + 1} and {LONGEST} tokens here; this one has {len(ids)}. "
                "Write more, or less."
            )
        tokens = torch.tensor([ids], device=next(self.model.parameters()).device)
        one = observe(self.model, tokens, [layer - 1])[layer - 1]
        scale = self.model.config.query_scale
        _, weights = weigh_with(one.q, one.k, one.v, mask_for(one.pos, one.pos), scale)
        weights = weights[0].mean(0)  # (T, T)
        count = len(ids)
        others = torch.arange(count - 1, -1, -1, device=tokens.device).clamp(
            min=1
        )  # queries that see it later
        got = (weights - weights.diag().diag()).sum(0) / others
        late = weights[count // 2 :]
        near = sum(float(row[: i + 1][-NEWEST:].sum()) for i, row in enumerate(late, count // 2))
        self.seen = Read(
            layer,
            tuple(self.tokenizer.decode([i]) for i in ids),
            tuple(got.tolist()),
            float(late[:, 0].mean()),
            near / len(late),
        )
        return self.seen

    def report(self) -> str:
        """The last run as HTML."""
        done = self.seen
        assert done is not None
        named = ", ".join(f"“{done.tokens[i].strip() or '⏎'}”" for i in done.heaviest)
        items = [
            ("on the first token", percent(done.first)),
            (f"on the newest {NEWEST}", percent(done.newest)),
            ("read most of the others", named),
        ]
        return shaded(done.tokens, done.weights) + numbers(items)

    def recorded(self, text: str, layers: Sequence[int]) -> str:
        """Some layers over one text, one below the other."""
        parts = []
        for layer in layers:
            self.run(text, layer)
            parts.append(f'<p style="margin:14px 0 0;font-weight:600">Layer {layer}</p>{self.report()}')
        return "".join(parts)

    def widget(self, text: str, layer: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "6em"}
        self.text = w.Textarea(value=text, description="Text", rows=4, layout=wide, style=style)
        self.layer = w.IntSlider(
            value=layer,
            min=1,
            max=self.model.config.num_layers,
            description="Layer",
            layout=wide,
            style=style,
        )
        self.button = w.Button(
            description="Read", button_style="primary", tooltip="Run the model over this text"
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Reading…")
        return w.VBox([self.text, self.layer, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.text.value, self.layer.value)
        return self.report()


def shaded(tokens: Sequence[str], weights: Sequence[float]) -> str:
    """The text with each token's background as strong as the root of its weight, the last token left plain."""
    most = max(weights[:-1], default=0.0) or 1.0
    spans = "".join(
        f'{" " * token.startswith(" ")}<span title="{percent(weight, 1)}" style="border-radius:4px;padding:3px 2px;'
        f'background:color-mix(in srgb,{ink.orange} {45 * min(1.0, (weight / most) ** 0.5):.0f}%,transparent)">'
        f"{html.escape(token.strip() or '⏎')}</span>"
        for token, weight in zip(tokens, [*weights[:-1], 0.0], strict=True)
    )
    return (
        f'<p style="line-height:2;overflow-wrap:anywhere;margin:6px 0">{spans}</p><p style="{SOFT};margin:0 0 8px">'
        "The stronger the colour, the more the tokens behind it read it on average.</p>"
    )


def attention_lab(
    model: Any, tokenizer: Any, *, text: str = TEXT, layer: int = 12, recorded: Sequence[int] = (1, 12, 28)
) -> AttentionLab:
    """Show the lab and return it. On the static page stand recorded runs of some layers.

    >>> lab = attention_lab(model, tokenizer)
    """
    lab = AttentionLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(text, layer))
    else:
        show_recorded(sentence.replace("the run", "the runs"), lab.recorded(text, recorded))
    return lab
