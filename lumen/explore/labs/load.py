"""The load lab: offer a running server as many requests a second as you like, and see every one of them wait."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from IPython.display import display

from lumen.explore.labs.lab import ink, on_press, show_recorded, why_static
from lumen.explore.prose.boxes import milliseconds, numbers
from lumen.loadgen import Record, arrivals, percentile, samples, summarize
from lumen.loadgen.prompts import from_text

MOST = 64  # requests of a run; more would be pixels
LONGEST = 120.0  # seconds that a run may send for


class LoadLab:
    """Runs open loops against `url`; widget and recorded page both show `report()`."""

    def __init__(self, url: str, tokenizer: Any, text: str):
        self.url, self.tokenizer, self.text = url, tokenizer, text
        self.records: Sequence[Record] = ()
        self.seconds = 0.0

    def run(self, rate: float, count: int, prompt: int, answer: int) -> Sequence[Record]:
        """`count` requests at `rate` a second on average, each of `prompt` and `answer` tokens."""
        from lumen.loadgen.client import Target, first_model
        from lumen.loadgen.run import run

        if not rate > 0 or not 1 <= count <= MOST or count / rate > LONGEST:
            raise ValueError(
                f"A run sends 1 to {MOST} requests at a rate above 0, within {LONGEST:.0f} seconds; {count} at "
                f"{rate:g} a second do not fit. Send fewer, or faster."
            )
        lens = [prompt] * count, [answer] * count
        asked = from_text(self.text, *lens, self.tokenizer.encode, self.tokenizer.decode, seed=count)
        target = Target(self.url, extra_body={"temperature": 0, "ignore_eos": True})

        async def go() -> tuple[list[Record], float]:
            async with target.session() as session:
                target.model = await first_model(session, target)
            return await run(target, asked, arrivals(count, rate, seed=count))

        self.records, self.seconds = in_a_thread(go)
        return self.records

    def report(self) -> str:
        """The last run as HTML: a bar for the wait of every request, then the usual numbers."""
        good = [record for record in self.records if record.ok and record.arrivals]
        if not good:
            return "<b>Every request failed. Is the server still running? Run its cell again.</b>"
        waits = samples(good, "ttft", intended=True)
        summary = summarize(self.records, duration=self.seconds)
        heights = [max(1, round(100 * wait / max(waits))) for wait in waits]
        style = f"flex:1 1 0;background:{ink.blue}"
        bars = "".join(f'<i style="{style};height:{height}%"></i>' for height in heights)
        words = f"Time to first token of {len(waits)} requests in the order they came, up to {milliseconds(max(waits))}"
        chart = (
            f'<div role="img" aria-label="{words}" style="display:flex;align-items:flex-end;gap:1px;height:110px;'
            f'margin:8px 0">{bars}</div><p style="font-size:14px;opacity:.8">{words}</p>'
        )
        return chart + numbers(
            [
                ("first to last request", f"{milliseconds(waits[0])} → {milliseconds(waits[-1])}"),
                ("TTFT p50", milliseconds(percentile(waits, 50))),
                ("TTFT p90", milliseconds(percentile(waits, 90))),
                ("TPOT p50", milliseconds(percentile(samples(good, "tpot"), 50))),
                ("throughput", f"{summary['request_throughput']:.2f} requests/s"),
                ("tokens", f"{summary['output_throughput']:.0f} a second"),
            ]
        )

    def widget(self, rate: float, count: int, prompt: int, answer: int) -> Any:
        """The live front. Its parts are attributes, so that a test can press them."""
        import ipywidgets as w

        wide, style = w.Layout(width="auto"), {"description_width": "11em"}
        self.rate = w.FloatSlider(
            value=rate, min=0.25, max=20, step=0.25, description="Requests a second", layout=wide, style=style
        )
        self.count, self.prompt, self.answer = (
            w.IntSlider(value=value, min=low, max=high, description=name, layout=wide, style=style)
            for name, value, low, high in (
                ("Requests", count, 4, MOST),
                ("Tokens of prompt", prompt, 4, 512),
                ("Tokens of answer", answer, 2, 128),
            )
        )  # fmt: skip
        self.button = w.Button(
            description="Send", button_style="primary", tooltip="Send the requests to the server"
        )
        self.out = w.HTML()
        on_press(self.button, self.out, self._pressed, "Sending…")
        return w.VBox([self.rate, self.count, self.prompt, self.answer, self.button, self.out])

    def _pressed(self) -> str:
        self.run(self.rate.value, self.count.value, self.prompt.value, self.answer.value)
        return self.report()


def in_a_thread(go: Callable[[], Any]) -> Any:
    """The result of the coroutine that `go` makes. A notebook's own event loop is busy, so it runs beside it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(go())).result()


def load_lab(
    url: str,
    tokenizer: Any,
    text: str,
    *,
    rate: float = 2.0,
    count: int = 16,
    prompt: int = 64,
    answer: int = 16,
) -> LoadLab:
    """Show the lab for the server at `url` and return it; prompts are cut from `text`.

    >>> load_lab(url, tokenizer, lumen.assets.shakespeare()[0]);  # end with a semicolon
    """
    lab = LoadLab(url, tokenizer, text)
    sentence = why_static()
    if sentence is None:
        display(lab.widget(rate, count, prompt, answer))
    else:
        lab.run(rate, count, prompt, answer)
        said = (
            f"{count} requests at {rate:.3g} a second, {prompt} tokens of prompt and {answer} of answer each"
        )
        show_recorded(sentence, f'<p style="opacity:.75">{html.escape(said)}</p>' + lab.report())
    return lab
