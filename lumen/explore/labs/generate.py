"""The generate lab: your own prompt, the text as it appears, and its speed beside the floor, bytes over bandwidth.

A lab is a widget only where a kernel answers. In notebooks that are run for the book (LUMEN_BOOK=1) it shows
a sentence and a recorded run instead, so no widget state is ever stored. Its numbers are timings: tag the
cell `nbval-ignore-output`.
"""

from __future__ import annotations

import time
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers, text_block

__all__ = ["GenerateLab", "generate_lab"]

REDRAW_S = 0.05  # the page is redrawn at most this often, so that drawing does not slow what is timed


class GenerateLab:
    """Runs one generation and keeps its numbers; the widget and the recorded page both show `run`'s result.

    `chip` predicts the time per token; None measures this machine on the first run, which takes some seconds
    once.
    """

    def __init__(self, model: Any, tokenizer: Any, chip: Any = None):
        self.model, self.tokenizer, self.chip = model, tokenizer, chip
        self.completion: Any = None

    def predicted_tpot(self, context: int) -> float:
        """Seconds a token at best: bytes of weights and cache that a step reads, over the memory's bandwidth."""
        from lumen import cost, hardware

        if self.chip is None:
            self.chip = hardware.measure(progress=False)
        dtype = next(self.model.parameters()).dtype
        step = cost.step_bytes(self.model.config, 1, context, dtype)
        return (step.weights + step.cache_read + step.cache_write) / self.chip.bandwidth

    def run(
        self, prompt: str, limit: int, temperature: float, chat: bool = False, on_text: Any = None
    ) -> Any:
        """Generate; `on_text(text so far)` is called now and then. Returns the Completion, with its times."""
        from lumen.decode import generate
        from lumen.sampling import SamplingParams

        ids = self.tokenizer.encode(prompt)
        if chat:
            ids = self.tokenizer.apply_chat([{"role": "user", "content": prompt}], add_generation_prompt=True)
        shown, drawn = "", 0.0

        def on_token(row: int, token: int, text: str) -> None:
            nonlocal shown, drawn
            shown += text
            if on_text is not None and time.perf_counter() - drawn > REDRAW_S:
                on_text(shown)
                drawn = time.perf_counter()

        params = SamplingParams(temperature=temperature)
        self.completion = generate(
            self.model, [ids], limit, params, tokenizer=self.tokenizer, on_token=on_token
        )[0]
        return self.completion

    def report(self) -> str:
        """The last run's numbers as HTML."""
        done = self.completion
        context = done.num_prompt_tokens + len(done.tokens) // 2  # the context half-way through the answer
        rate = f"{1 / done.tpot:.3g}" if done.tpot else "–"
        return numbers(
            [
                (f"time to first token, {done.num_prompt_tokens} in the prompt", milliseconds(done.ttft)),
                ("time per token after it", milliseconds(done.tpot)),
                ("bytes over bandwidth, a floor", milliseconds(self.predicted_tpot(context))),
                ("tokens per second", rate),
            ]
        )

    def widget(self, prompt: str, limit: int, temperature: float, chat: bool) -> Any:
        """The live front. Its parts are attributes (`button`, `text`, …), so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "9em"}
        self.prompt = w.Textarea(value=prompt, description="Prompt", rows=3, layout=wide, style=style)
        self.limit = w.IntSlider(
            value=limit, min=1, max=256, description="Tokens at most", layout=wide, style=style
        )
        self.temperature = w.FloatSlider(
            value=temperature, min=0, max=1.5, step=0.1, description="Temperature", layout=wide, style=style
        )
        self.chat = w.Checkbox(value=chat, description="as a chat message", indent=False)
        self.button = w.Button(
            description="Generate", button_style="primary", tooltip="Generate with this prompt"
        )
        self.text, self.numbers = w.HTML(), w.HTML()
        on_press(self.button, self.numbers, self._pressed, "Generating…")
        return w.VBox(
            [
                self.prompt,
                self.limit,
                self.temperature,
                w.HBox([self.button, self.chat]),
                self.text,
                self.numbers,
            ]
        )

    def _pressed(self) -> str:
        prompt = self.prompt.value
        self.text.value = text_block(prompt, "")

        def show(text: str) -> None:
            self.text.value = text_block(prompt, self._gap + text)

        done = self.run(prompt, self.limit.value, self.temperature.value, self.chat.value, show)
        show(done.text)
        return self.report()

    @property
    def _gap(self) -> str:
        return "\n\n" if self.chat.value else ""


def generate_lab(
    model: Any,
    tokenizer: Any,
    *,
    prompt: str = "Explain in two sentences why reading memory can be slower than arithmetic.",
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    chat: bool | None = None,
    chip: Any = None,
) -> GenerateLab:
    """Show the lab and return it. `chat` wraps the prompt in the model's chat template (default: if it has one).

    >>> lab = generate_lab(model, tokenizer)
    """
    if chat is None:
        chat = bool(getattr(tokenizer, "chat_template", None))
    lab = GenerateLab(model, tokenizer, chip)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(prompt, max_new_tokens, temperature, chat))
    else:
        done = lab.run(prompt, max_new_tokens, temperature, chat)
        show_recorded(sentence, text_block(prompt, ("\n\n" if chat else "") + done.text) + lab.report())
    return lab
