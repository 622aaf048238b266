"""The cache-reads lab: which rows of K and V each step computes and reads, and how heads weigh them."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from lumen.bench.numbers import percent
from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT

MOST_PROMPT = 40  # rows that can still be looked at
ROW = "display:grid;grid-template-columns:1.4em minmax(3.6em,7em) repeat({heads},1fr);gap:6px;align-items:center"
SINK = 0.5  # a head that puts more than this on the first row reads little else


@dataclass
class Step:
    """One forward: `computed` new rows, `read` old ones, and `weights[layer]` (H, S) of its last query."""

    computed: int
    read: int
    weights: list[Any]


def record(model: Any, ids: list[int], steps: int) -> tuple[list[int], list[Step]]:
    """Greedy generation of `steps` tokens with every attention weight of the last query kept. Returns all
    ids, and steps."""
    import torch

    from lumen.cache import DynamicCache, Traits

    weighed: list[Any] = []

    class Recording(DynamicCache):
        """A dynamic cache that also writes down how its rows were weighed."""

        traits = Traits(weighs=True)

        def weigh(self, layer: int, weights: Any, pos: Any) -> None:
            weighed.append(weights[0, :, -1].float().cpu())

    cache = Recording.for_model(model, 1)
    all_ids, new, done = list(ids), list(ids), []
    with torch.inference_mode():
        for _ in range(steps):
            held = int(cache.lengths[0])
            logits = model.head(
                model.hidden(torch.tensor([new], device=cache.lengths.device), None, cache)[:, -1]
            )
            done.append(Step(len(new), held, list(weighed)))
            weighed.clear()
            new = [int(logits.argmax())]
            all_ids += new
    return all_ids, done


def chosen(step: Step) -> dict[str, tuple[int, int]]:
    """Heads of this step's last query that do what heads do, found by their weights: name -> (layer, head), none twice.

    A word is a row that is neither the first nor one of the last two; below four rows there is none, and no head.
    """
    import torch

    weights = torch.stack(step.weights)  # (layers, heads, rows)
    if weights.shape[-1] < 4:
        return {}
    word = weights[..., 1:-2].amax(-1)
    scores = {
        "the first row and a word": torch.minimum(weights[..., 0], word),
        "one word": word,
        "the row before": weights[..., -2],
    }
    found: dict[str, tuple[int, int]] = {}
    for name, score in scores.items():
        best = (divmod(i, weights.shape[1]) for i in score.flatten().argsort(descending=True).tolist())
        found[name] = next(place for place in best if place not in found.values())
    return found


class CacheReadsLab:
    """Holds one recorded generation; `view(step)` draws a step of it as HTML."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.ids: list[int] = []
        self.steps: list[Step] = []

    def run(self, prompt: str, steps: int) -> None:
        """Record `steps` passes over the prompt. Raises ValueError with the limit when it is empty or too long."""
        ids = self.tokenizer.encode(prompt)
        if not 1 <= len(ids) <= MOST_PROMPT:
            raise ValueError(
                f"the prompt has {len(ids)} tokens; this lab shows 1 to {MOST_PROMPT}, so shorten or fill it"
            )
        self.ids, self.steps = record(self.model, ids, steps)

    def view(self, step: int, layer: int | None = None, head: int | None = None) -> str:
        """Step `step` (from 1): a line for each row of the cache, a column of bars for each head that it shows.

        These are the head that is asked for, if one is, and those that `chosen` finds.
        """
        now = self.steps[step - 1]
        heads = chosen(now)
        if layer is not None and head is not None:
            heads = {"yours": (layer, head), **heads}
        seen = now.read + now.computed
        row = ROW.format(heads=len(heads))
        names = "".join(
            f'<span style="{SOFT}"><b>{name}</b><br>layer {at}, head {of}</span>'
            for name, (at, of) in heads.items()
        )
        shares = [now.weights[at][of].tolist() for at, of in heads.values()]
        lines = "".join(
            self._line(row, i, [of_head[i] for of_head in shares], i >= now.read) for i in range(seen)
        )
        rows = "row" if now.computed == 1 else "rows"
        last, made = (html.escape(repr(self.tokenizer.decode([self.ids[i]]))) for i in (seen - 1, seen))
        every = [float(share) for weights in now.weights for share in weights[:, 0]]
        return (
            f"<p><b>Step {step}</b> computes {now.computed} K/V {rows} (orange), reads {now.read} from the cache "
            f"(blue), and yields {made}. Bars: where the query of {last} puts its attention. "
            f"{sum(share > SINK for share in every)} of {len(every)} heads put more than half of it on row 0.</p>"
            f'<div style="font-size:14px;line-height:1.35"><div style="{row};align-items:end">'
            f"<span></span><span></span>{names}</div>{lines}</div>"
        )

    def _line(self, row: str, index: int, shares: list[float], fresh: bool) -> str:
        color, word = (ink.orange, "computed") if fresh else (ink.blue, "read")
        text = html.escape(repr(self.tokenizer.decode([self.ids[index]], skip_special=False))[1:-1])
        bars = "".join(
            f'<span style="display:flex;gap:4px;align-items:center;white-space:nowrap">'
            f'<span style="background:{color};height:12px;border-radius:3px;width:{60 * share:.1f}%"></span>'
            f"{percent(share) if share >= 0.005 else ''}</span>"
            for share in shares
        )
        return (
            f'<div style="{row}" title="{word}"><span style="{SOFT};text-align:right">{index}</span>'
            f'<code style="overflow:hidden;text-overflow:ellipsis;white-space:pre">{text}</code>{bars}</div>'
        )

    def widget(self, prompt: str, steps: int, step: int, layer: int, head: int) -> Any:
        """The live front; its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        config, wide, style = self.model.config, w.Layout(width="auto"), {"description_width": "9em"}

        def slider(name: str, value: int, low: int, high: int) -> Any:
            return w.IntSlider(value=value, min=low, max=high, description=name, layout=wide, style=style)

        self.prompt = w.Text(value=prompt, description="Prompt", layout=wide, style=style)
        self.count = slider("Tokens to make", steps, 1, 16)
        self.button = w.Button(
            description="Run", button_style="primary", tooltip="Run the model on this prompt"
        )
        self.step = slider("Step", step, 1, steps)
        self.layer = slider("Layer", layer, 0, config.num_layers - 1)
        self.head = slider("Head", head, 0, config.num_heads - 1)
        self.rows = w.HTML()
        on_press(self.button, self.rows, self._pressed)
        for control in (self.step, self.layer, self.head):
            control.observe(self._draw, "value")
        return w.VBox([self.prompt, self.count, self.button, self.step, self.layer, self.head, self.rows])

    def _pressed(self) -> str:
        self.steps = []  # if the run is refused, no control may draw an old one over the sentence
        self.run(self.prompt.value, self.count.value)
        self.step.max = len(self.steps)
        return self._drawn()

    def _drawn(self) -> str:
        return self.view(min(self.step.value, len(self.steps)), self.layer.value, self.head.value)

    def _draw(self, _: Any) -> None:
        if self.steps:
            self.rows.value = self._drawn()


def cache_reads_lab(
    model: Any,
    tokenizer: Any,
    *,
    prompt: str = "The cat sat on the mat because it",
    steps: int = 4,
    step: int = 2,
    layer: int = 0,
    head: int = 0,
) -> CacheReadsLab:
    """Show the lab and return it: `layer` and `head` are where its sliders start.

    On the static page stands step `step` of a recorded run, with the heads that `chosen` finds in it.

    >>> lab = cache_reads_lab(model, tokenizer, prompt="To be, or not to")
    """
    config = model.config
    if not (0 <= layer < config.num_layers and 0 <= head < config.num_heads and 1 <= step <= steps <= 16):
        raise ValueError(
            f"{config.name} has layers 0 to {config.num_layers - 1} and heads 0 to {config.num_heads - 1}; "
            f"step lies between 1 and steps, and steps is 16 at most"
        )
    lab = CacheReadsLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(prompt, steps, step, layer, head))
    else:
        lab.run(prompt, steps)
        show_recorded(sentence, lab.view(step))
    return lab
