"""The options of `lumen load`: their limits, what those mean that are more than a number, and a sentence when they
mean nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lumen.arguments import MAX_SEED, Number, Whole, path, place, text
from lumen.loadgen.malformed import parsed
from lumen.loadgen.schedule import MAX_LENGTH
from lumen.loadgen.statistics import check_slo

TOKENIZER = "smollm2-135m"
LENGTH, SIGMA = Number(1, MAX_LENGTH), Number(0, 10)
REQUESTS = Whole(1, 10**6)


def add_options(add: Callable[..., Any]) -> None:
    """All options, through `add`, which is a parser's `add_argument`."""
    add("--base-url", type=text, default="http://127.0.0.1:8000", help="by default %(default)s")
    add("--api", choices=("completions", "chat"), default="completions")
    add("--endpoint", type=text, default="", help="another path than /v1/completions or /v1/chat/completions")
    add("--model", type=text, default="", help="by default the first that the server lists")
    add("--header", type=text, nargs="*", default=[], metavar="KEY=VALUE")
    add(
        "--timeout",
        type=Number(0, 7 * 86400, above=True),
        default=600.0,
        help="longest silence of the server (s)",
    )
    # how much, and when
    add("--num-prompts", type=REQUESTS, default=None, help="by default 100, or all lines of the trace")
    add(
        "--request-rate",
        type=Number(0, 1e9, above=True, endless=True),
        default=math.inf,
        help="per second; inf sends all at once",
    )
    add(
        "--burstiness",
        type=Number(1e-3, 1e6, endless=True),
        default=1.0,
        help="shape of the gaps: 1 Poisson, below 1 bursts",
    )
    add("--max-concurrency", "--users", type=REQUESTS, default=None, help="at rate inf this is a closed loop")
    add("--trace", type=path, help="JSONL of arrival (s), input_len, output_len")
    add("--trace-speed", type=Number(0, 1e9, above=True), default=1.0, help="2 replays twice as fast")
    add(
        "--num-warmups",
        type=Whole(0, 10**6),
        default=0,
        help="requests that are sent before and forgotten; by default none",
    )
    add(
        "--seed",
        type=Whole(0, MAX_SEED - 2),
        default=0,
        help="of lengths, prompts and arrivals; by default %(default)s",
    )
    # what is asked
    add(
        "--input-len",
        type=LENGTH,
        default=256,
        help="mean length of the prompts (tokens); by default %(default)s",
    )
    add(
        "--output-len",
        type=LENGTH,
        default=64,
        help="mean length of the answers (tokens); by default %(default)s",
    )
    add("--input-sigma", type=SIGMA, default=0.0, help="log-normal spread of the prompts; 0 keeps them equal")
    add("--output-sigma", type=SIGMA, default=0.0, help="the same for the answers")
    add(
        "--prefix-len",
        type=Whole(0, MAX_LENGTH),
        default=0,
        help="tokens that all prompts have in common, on top",
    )
    add("--prompt-file", type=path, help="text to cut prompts from; by default Shakespeare's plays")
    add(
        "--tokenizer",
        type=place,
        default=TOKENIZER,
        help="counts prompt tokens: smollm2-135m, a folder or a .gguf file",
    )
    add("--stop-at-eos", action="store_true", help="by default ignore_eos is sent: answers have their length")
    add("--extra-body", type=text, default="{}", help="JSON that every request carries; it has the last word")
    # what is reported
    add("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits on ttft, tpot, e2el")
    add("--percentile-metrics", default="ttft,tpot,itl,e2el", help="by default %(default)s")
    add("--metric-percentiles", default="99", help="a comma between them; by default %(default)s")
    add("--save-result", action="store_true")
    add("--save-detailed", action="store_true", help="with the numbers of every request")
    add("--result-dir", type=path, default=Path("."))
    add("--result-filename", type=text, default="")
    add("--label", type=text, default=None)
    add("--metadata", type=text, nargs="*", default=[], metavar="KEY=VALUE")


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """["ttft:500", "tpot:50"] -> limits in milliseconds."""
    slo: dict[str, float] = {}
    for pair in pairs:
        name, colon, limit = pair.partition(":")
        try:
            slo[name] = float(limit)
        except ValueError as error:
            raise ValueError(
                f"A goodput limit looks like ttft:500, in milliseconds, got {pair!r}."
            ) from error
        if not colon:
            raise ValueError(f"A goodput limit looks like ttft:500, in milliseconds, got {pair!r}.")
    check_slo(slo)
    return slo


def parse_extra_body(given_text: str, stop_at_eos: bool) -> dict[str, Any]:
    """What every request carries; `ignore_eos` unless answers may end where the model ends them."""
    given = parsed(given_text, "--extra-body")
    if not isinstance(given, dict):
        raise ValueError(f"--extra-body must be a JSON object, got {given_text!r}.")
    return {**({} if stop_at_eos else {"ignore_eos": True}), **given}


def parse_pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """["a=b", …] -> {"a": "b", …}."""
    pairs = [item.partition("=") for item in given]
    for name, equals, _ in pairs:
        if not equals or not name.strip():
            raise ValueError(f"{option} takes KEY=VALUE, got {name!r}.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def parse_numbers(given: str, option: str, low: float, high: float) -> list[float]:
    """ "50,99" -> [50.0, 99.0]."""
    try:
        found = [float(part) for part in given.split(",")]
    except ValueError as error:
        raise ValueError(f"{option} takes numbers separated by commas, got {given!r}.") from error
    if not all(low <= value <= high for value in found):
        raise ValueError(f"{option} lie between {low:g} and {high:g}, got {given!r}.")
    return found
