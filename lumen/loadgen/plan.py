"""What `lumen load` will send, made before the run from its options: when, how long, and which words."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any

from lumen.loadgen import prompts
from lumen.loadgen.client import Prompt
from lumen.loadgen.schedule import arrivals, check_times, lengths


def plan(
    options: argparse.Namespace,
) -> tuple[list[float] | None, tuple[list[int], list[int]], list[str | None]]:
    """The schedule (None: closed loop), prompt and answer lengths, and texts that the trace brings itself."""
    count, seed = options.num_prompts, options.seed
    if options.trace is not None:
        if not math.isinf(options.request_rate):
            raise ValueError("A trace brings its own times: give --trace or --request-rate, not both.")
        times, rows = prompts.read_trace(options.trace, options.trace_speed)
        times, rows = times[:count], rows[:count]
        lens = [row["input_len"] for row in rows], [row["output_len"] for row in rows]
        return times, lens, [row["prompt"] for row in rows]
    count = count or 100
    wanted = (
        lengths(count, options.input_len, options.input_sigma, seed + 1),
        lengths(count, options.output_len, options.output_sigma, seed + 2),
    )
    times = arrivals(count, options.request_rate, options.burstiness, seed)
    check_times(times[-1:])
    closed = options.max_concurrency is not None and math.isinf(options.request_rate)
    return None if closed else times, wanted, [None] * count


def made_prompts(
    options: argparse.Namespace,
    lens: tuple[list[int], list[int]],
    texts: Sequence[str | None],
    tokenizer: Any,
) -> list[Prompt]:
    """The prompts: cut from a text to the lengths that were drawn, or the texts that the trace brought."""
    asked, answers = lens
    if all(texts):
        counted = zip(texts, answers, strict=True)
        return [Prompt(text or "", len(tokenizer.encode(text)), answer) for text, answer in counted]
    if options.prompt_file is not None:
        source = prompts.text_of(options.prompt_file)
    else:
        from lumen import assets

        source = assets.shakespeare()[0]
    made = prompts.from_text(
        source, [max(1, n) for n in asked], answers, tokenizer.encode, tokenizer.decode,
        seed=options.seed, prefix_len=options.prefix_len,
    )  # fmt: skip
    return [
        prompt if text is None else Prompt(text, len(tokenizer.encode(text)), prompt.output_len)
        for prompt, text in zip(made, texts, strict=True)
    ]
