"""The batch lab: a queue of requests served by the real engine under a policy of your choice, drawn slot by slot."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from IPython.display import display

from lumen.bench.numbers import percent
from lumen.cost.trace import lognormal_trace
from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import SOFT, milliseconds, numbers

if TYPE_CHECKING:
    from lumen.bench import Served

OPENINGS = (
    "The sky is blue because", "Once upon a time", "To make tea, first", "Water boils at", "The capital of France is",
    "A prime number is", "In the morning the old man", "My favourite book is",
)  # fmt: skip
BUDGET = 4096  # prompts are read whole
MEDIAN = 10  # tokens of an answer
COLORS = ("#0072b2", "#007f5c", "#a14b86", "#866500", "#bf4e00", "#69727d")


class BatchLab:
    """Serves a queue and keeps what happened; widget and recorded page both show `report()`."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model, self.tokenizer = model, tokenizer
        self.served: Served | None = None

    def run(self, policy: str, slots: int, requests: int, spread: float, seed: int = 0) -> Served:
        """`requests` wait at the door; their answers have a median of 10 tokens and a log-normal spread (0: alike)."""
        from lumen.bench import serve_queue
        from lumen.serve.engine import Engine
        from lumen.serve.request import Request
        from lumen.serve.scheduler import Limits

        lengths = lognormal_trace(requests, 96, 1, MEDIAN, spread, seed).output.tolist()
        limits = Limits(slots, BUDGET, policy, max_wait=0.0)  # type: ignore[arg-type]
        engine = Engine(self.model, num_blocks=8 * slots, prefix="none", limits=limits)
        prompts = [self.tokenizer.encode(text) for text in OPENINGS]
        queue = [Request(str(i), prompts[i % len(prompts)], length) for i, length in enumerate(lengths)]
        self.served = serve_queue(engine, queue)
        return self.served

    def report(self) -> str:
        """The last run as HTML: a row a slot, a colour a request, then the numbers."""
        done = self.served
        assert done is not None
        taken = {(slot, step): int(name) for slot, name, step in done.cells()}
        steps = len(done.steps)
        rows = []
        for slot in range(done.slots):
            pieces: list[tuple[int | None, int]] = []
            for step in range(steps):
                request = taken.get((slot, step))
                if pieces and pieces[-1][0] == request:
                    pieces[-1] = request, pieces[-1][1] + 1
                else:
                    pieces.append((request, 1))
            cells = "".join(
                f'<i style="flex:{length} 1 0;min-width:0;'
                + (
                    "border:1px dashed #8a939c88"
                    if who is None
                    else f"background:{COLORS[who % len(COLORS)]}"
                )
                + '"></i>'
                for who, length in pieces
            )
            rows.append(
                f'<div style="display:flex;gap:1px;height:16px;margin:3px 0" aria-hidden="true">{cells}</div>'
            )
        lengths = [len(answer) for answer in done.answers.values()]
        static = sum(max(lengths[i : i + done.slots]) for i in range(0, len(lengths), done.slots))
        used = percent(done.utilisation)
        words = f"{_count(done.slots, 'slot')} over {steps} steps, {used} of them used; dashed is idle"
        chart = (
            f'<p style="{SOFT};margin:8px 0 0">{words}</p><div style="margin:0 0 12px">{"".join(rows)}</div>'
        )
        return chart + numbers(
            [
                ("steps", f"{steps}"),
                ("steps of static batching", f"{static}"),
                ("tokens/s", f"{done.tokens_per_s:.0f}"),
                ("mean TTFT", milliseconds(done.mean_ttft)),
                ("time a step", milliseconds(done.seconds / steps)),
            ]
        )  # fmt: skip

    def widget(self, policy: str, slots: int, requests: int, spread: float) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        from lumen.serve.scheduler import POLICIES

        style = {"description_width": "11em"}
        self.policy = w.ToggleButtons(options=POLICIES, value=policy, description="Policy", style=style)
        self.slots = w.IntSlider(value=slots, min=1, max=16, description="Slots", style=style)
        self.requests = w.IntSlider(value=requests, min=1, max=48, description="Requests", style=style)
        self.spread = w.FloatSlider(
            value=spread, min=0, max=1.5, step=0.25, description="Spread of answers", style=style
        )
        self.button = w.Button(description="Serve", button_style="primary", tooltip="Serve the whole queue")
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Serving…")
        return w.VBox([self.policy, self.slots, self.requests, self.spread, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.policy.value, self.slots.value, self.requests.value, self.spread.value)
        return self.report()


def batch_lab(
    model: Any,
    tokenizer: Any,
    *,
    policy: str = "continuous",
    slots: int = 4,
    requests: int = 16,
    spread: float = 1.0,
) -> BatchLab:
    """Show the lab and return it.

    >>> batch_lab(model, tokenizer);  # end with a semicolon
    """
    lab = BatchLab(model, tokenizer)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(policy, slots, requests, spread))
    else:
        lab.run(policy, slots, requests, spread)
        said = (
            f"{_count(requests, 'request')}, {_count(slots, 'slot')}, {policy} batching; answers with a median of "
            f"{MEDIAN} tokens and a spread of σ = {spread:g}"
        )
        show_recorded(sentence, f'<p style="opacity:.75">{html.escape(said)}</p>' + lab.report())
    return lab


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' if number != 1 else ''}"
