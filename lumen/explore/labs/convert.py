"""The conversion lab: a small model with fewer heads, shared layers or latents; what it loses, and what it writes."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT, numbers

WAYS = ("heads, mean", "heads, first", "heads, random", "layers", "latent, plain", "latent")
SEEN, WINDOWS, CONTEXT, LETTERS = 16, 16, 256, 120  # windows for the moments, and judged; letters
RECORDED = (("heads, mean", 8), ("heads, mean", 4), ("heads, mean", 1), ("latent", 64), ("latent", 16))


@dataclass(frozen=True)
class Converted:
    """What one conversion gave: numbers a token leaves in all layers, loss in nats per character, and a text."""

    way: str
    size: int
    stored: int
    loss: float
    text: str


class ConvertLab:
    """Converts a gptlite and keeps every run, so that ways can be compared."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.runs: list[Converted] = []
        self._moments: Any = None

    def sizes(self, way: str) -> tuple[int, ...]:
        """What can be chosen: heads that are left, layers that read one cache, or the rank of the latent."""
        from lumen.models.to_latent import full_rank

        config = self.model.config
        if way.startswith("heads"):
            return tuple(n for n in range(1, config.num_kv_heads + 1) if config.num_kv_heads % n == 0)
        if way == "layers":
            return tuple(range(1, config.num_layers + 1))
        return tuple(range(1, full_rank(config) + 1))

    def converted(self, way: str, size: int) -> Any:
        """The model made again. ValueError with the choices for a way or a size that there is not."""
        from lumen.models import fewer_heads
        from lumen.models.cross_layer import neighbours, share_kv
        from lumen.models.to_latent import to_latent

        if way not in WAYS:
            raise ValueError(f"there is no way {way!r}; choose from: {', '.join(WAYS)}")
        if size not in self.sizes(way):
            allowed = self.sizes(way)
            some = ", ".join(map(str, allowed)) if len(allowed) < 12 else f"1 to {allowed[-1]}"
            raise ValueError(f"“{way}” goes with a size of {some}; got {size}")
        if way == "layers":
            return share_kv(self.model, neighbours(self.model.config.num_layers, size))
        if way.startswith("latent"):
            return to_latent(self.model, size, None if "plain" in way else self._seen())
        merge = {"mean": fewer_heads.mean, "first": fewer_heads.first, "random": fewer_heads.fresh(0)}
        return fewer_heads.fewer_kv_heads(self.model, size, merge[way.removeprefix("heads, ")])

    def run(self, way: str, size: int) -> Converted:
        """Convert, judge on unseen text, and let it write behind "ROMEO:"."""
        import torch

        from lumen import assets
        from lumen.decode import generate
        from lumen.sampling import SamplingParams
        from lumen.train.text import encode, window_losses

        with torch.inference_mode():
            model = self.converted(way, size)
            unseen = encode(assets.shakespeare()[1], self.tokenizer.characters)
            loss = float(window_losses(model, unseen, CONTEXT, WINDOWS).mean())
            ids = self.tokenizer.encode("ROMEO:")
            params = SamplingParams(temperature=0.7, seed=0)
            text = generate(model, [ids], LETTERS, params, tokenizer=self.tokenizer)[0].text
        config = model.config
        stored = len(config.storing_layers) * config.cache_dims.stored
        self.runs.append(Converted(way, size, stored, loss, text))
        return self.runs[-1]

    def _seen(self) -> Any:
        """Moments of what the model reads over some of the text it learned from, taken once."""
        if self._moments is None:
            from lumen import assets
            from lumen.models.to_latent import input_moments
            from lumen.train.ranks import spread
            from lumen.train.text import encode

            ids = encode(assets.shakespeare()[0], self.tokenizer.characters)
            self._moments = input_moments(self.model, spread(ids, CONTEXT, SEEN).split(8))
        return self._moments

    def report(self) -> str:
        """The last run as HTML, and the runs before in a line each."""
        done = self.runs[-1]
        before = "".join(
            f"<li>{html.escape(said(run))}: {run.loss:.2f} nats</li>" for run in self.runs[-6:-1]
        )
        items = [("numbers a token", f"{done.stored:,}"), ("loss", f"{done.loss:.2f} nats")]
        return numbers(items) + written(done) + f'<ul style="margin:12px 0 0;padding-left:20px">{before}</ul>'

    def widget(self, way: str, size: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}
        self.way = w.Dropdown(options=WAYS, value=way, description="Way", layout=wide, style=style)
        self.size = w.BoundedIntText(
            value=size, min=1, max=4096, description="Heads, layers, rank", layout=wide, style=style
        )
        self.button = w.Button(
            description="Run", button_style="primary", tooltip="Convert the model and judge it"
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Converting…")
        return w.VBox([self.way, self.size, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.way.value, self.size.value)
        return self.report()


def said(run: Converted) -> str:
    """The conversion in words: "4 heads, mean", "latent of 64", "3 layers share"."""
    if run.way.startswith("heads"):
        return f"{run.size} {'head' if run.size == 1 else 'heads'}, {run.way.removeprefix('heads, ')}"
    if run.way == "layers":
        return f"{run.size} layers read one cache"
    return f"latent of {run.size}" + (", plain" if "plain" in run.way else "")


def written(run: Converted) -> str:
    return f'<div style="{SOFT};white-space:pre-wrap;overflow-wrap:anywhere;margin:8px 0">{html.escape(run.text)}</div>'


def convert_lab(
    model: Any,
    tokenizer: Any,
    *,
    way: str = "heads, mean",
    size: int = 4,
    recorded: Sequence[tuple[str, int]] = RECORDED,
) -> ConvertLab:
    """Show the lab and return it. On the static page stand the recorded conversions and what each of them wrote.

    >>> lab = convert_lab(model, tokenizer, way="latent", size=64)
    """
    lab = ConvertLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(way, size))
    else:
        for one in recorded:
            lab.run(*one)
        shown = "".join(
            f'<div style="margin:12px 0"><b>{html.escape(said(run))}</b>: {run.stored:,} numbers a token, '
            f"{run.loss:.2f} nats{written(run)}</div>"
            for run in lab.runs
        )
        show_recorded(sentence.replace("the run", "the runs"), shown)
    return lab
