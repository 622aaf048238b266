"""The samples lab: several answers to one prompt over shared blocks, and what separate rows would have taken."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT, numbers, text_block


@dataclass(frozen=True)
class Samples:
    """What one run gave. Blocks at the end; `copies` were made on write; `separate` counts rows that share nothing."""

    prompt_tokens: int
    texts: list[str]
    shared: int
    separate: int
    copies: int


class SamplesLab:
    """Draws the samples and keeps the last run's numbers; the widget and the recorded page both show `report()`."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.samples: Samples | None = None

    def run(self, prompt: str, rows: int, tokens: int, block_size: int, temperature: float = 0.8) -> Samples:
        """`rows` samples of `tokens` tokens behind one prompt that is run once."""
        import torch

        from lumen.cache import BlockStore
        from lumen.sampling import SamplingParams, distribution, draw, generators

        ids = self.tokenizer.encode(prompt)
        room = self.model.config.max_positions
        if not ids or len(ids) + tokens > room:
            raise ValueError(
                f"The prompt has {len(ids)} tokens. With {tokens} more it must fill between 1 and {room} positions; "
                "write more, or less."
            )
        each = -(-(len(ids) + tokens) // block_size)  # blocks of a row that shares nothing
        store = BlockStore.for_model(self.model, rows * each, block_size)
        params = [SamplingParams(temperature=temperature, seed=seed) for seed in range(rows)]
        streams, out, device = generators(params), [], store.device
        with torch.inference_mode(), store.rows(1) as cache:
            hidden = self.model.hidden(torch.tensor([ids], device=device), None, cache)[:, -1]
            cache.select([0] * rows)
            hidden, before = hidden.expand(rows, -1), cache.tables[0][-1]
            for step in range(tokens):
                token = draw(distribution(self.model.head(hidden), params), streams)
                out.append(token)
                hidden = self.model.hidden(token[:, None], None, cache)[:, -1]
                if step == 0:
                    last = (len(ids) - 1) // block_size
                    copies = sum(table[last] != before for table in cache.tables)
            shared = store.pool.num_blocks - store.pool.num_free
            store.audit()
        texts = [self.tokenizer.decode(row) for row in torch.stack(out, 1).tolist()]
        self.samples = Samples(len(ids), texts, shared, rows * each, copies)
        return self.samples

    def report(self) -> str:
        """The last run as HTML: the texts, then the blocks."""
        done = self.samples
        assert done is not None
        texts = "".join(
            f'<div style="margin:6px 0"><span style="{SOFT}">{i}</span>{text_block("", text)}</div>'
            for i, text in enumerate(done.texts, 1)
        )
        return texts + numbers(
            [
                (f"prompt of {done.prompt_tokens} tokens, run", "once"),
                ("blocks, shared", str(done.shared)),
                ("blocks, separate rows", str(done.separate)),
                ("copies on write", str(done.copies)),
            ]
        )

    def widget(self, prompt: str, rows: int, tokens: int, block_size: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}
        self.prompt = w.Textarea(value=prompt, description="Prompt", rows=3, layout=wide, style=style)
        self.rows = w.IntSlider(value=rows, min=1, max=8, description="Samples", layout=wide, style=style)
        self.tokens = w.IntSlider(
            value=tokens, min=1, max=64, description="Tokens each", layout=wide, style=style
        )
        self.size = w.SelectionSlider(
            value=block_size, options=[1, 2, 4, 8, 16, 32, 64, 128], description="Block size",
            layout=wide, style=style,
        )  # fmt: skip
        self.button = w.Button(description="Draw", button_style="primary", tooltip="Draw the samples")
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Drawing…")
        return w.VBox([self.prompt, self.rows, self.tokens, self.size, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.prompt.value, self.rows.value, self.tokens.value, self.size.value)
        return self.report()


def samples_lab(
    model: Any,
    tokenizer: Any,
    *,
    prompt: str = "The letter in the bottle begins with",
    rows: int = 4,
    tokens: int = 16,
    block_size: int = 16,
) -> SamplesLab:
    """Show the lab and return it.

    >>> samples_lab(model, tokenizer);  # end with a semicolon
    """
    lab = SamplesLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(prompt, rows, tokens, block_size))
    else:
        lab.run(prompt, rows, tokens, block_size)
        show_recorded(sentence, f'<p style="opacity:.75">{html.escape(prompt)} …</p>' + lab.report())
    return lab
