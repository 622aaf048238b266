"""The KV stepper: which rows a decoder computes and which it reads, pass by pass, with a cache and without."""

from __future__ import annotations

from dataclasses import dataclass

from lumen.explore.explorers.widget import JSWidget


@dataclass(frozen=True)
class Work:
    """Token rows over the first passes of a generation; a row is one row of Q, of K and of V in every layer.

    `with_cache` and `without` are computed rows, the prompt's prefill included on both sides. `read` counts
    rows that were taken from the cache. `ratio` = without / with_cache.
    """

    with_cache: int
    without: int
    read: int
    ratio: float


def totals(prompt: int, answer: int) -> Work:
    """Work of `answer` passes behind a prompt. Pass 1 runs the prompt and yields token 1; pass t sees prompt
    + t - 1 rows.

    With a cache: P + n - 1. Without: Σ (P + t - 1) = n·P + n(n-1)/2. The twin of `totals` in kv_stepper.js.
    """
    if prompt < 1 or answer < 1:
        raise ValueError(f"a prompt and an answer have at least one token each, got {prompt} and {answer}")
    cached = prompt + answer - 1
    without = answer * prompt + answer * (answer - 1) // 2
    read = (answer - 1) * prompt + (answer - 1) * (answer - 2) // 2
    return Work(cached, without, read, without / cached)


class KVStepper(JSWidget):
    """Step through a generation. Sliders set both lengths (1 to 12), buttons go forth and back.

    >>> KVStepper(prompt=5, steps=6)
    """

    module = "kv_stepper.js"
    label = "KV cache stepper"

    def __init__(
        self,
        prompt: int = 5,
        steps: int = 6,
        *,
        title: str = "Computed or read?",
        lead: str = "One column a token, with its Q, K and V. Orange is computed in this pass, blue is read.",
    ) -> None:
        for name, value in (("prompt", prompt), ("steps", steps)):
            if not 1 <= value <= 12:
                raise ValueError(
                    f"{name} must lie between 1 and 12, so that every column can be seen; got {value}"
                )
        super().__init__(prompt=prompt, steps=steps, title=title, lead=lead)
