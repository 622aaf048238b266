"""What is asked: pieces of a text with a wanted number of tokens, or the lines of a trace.

Random pieces share no beginning, so a prefix cache finds nothing; `prefix_len` gives all of them one on purpose.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lumen.loadgen.client import Prompt
from lumen.loadgen.schedule import MAX_LENGTH, check_times

Encode = Callable[[str], Sequence[int]]
Decode = Callable[[Sequence[int]], str]

_CHARACTERS = 8  # enough text for a token: English has four to five characters a token
_TRIES = 20


def cut(text: str, tokens: int, encode: Encode, decode: Decode, dice: random.Random) -> str:
    """A random piece of `text` that has `tokens` tokens when it is encoded again; the nearest of 20 tries.

    Cutting between two ids may change the last token of the piece, so the count is checked, not assumed.
    """
    room = max(1, len(text) - _CHARACTERS * tokens)
    best, error = "", tokens + 1
    for _ in range(_TRIES):
        start = dice.randrange(room)
        start = text.find(" ", start) + 1 or start
        ids = list(encode(text[start : start + _CHARACTERS * tokens]))
        if not ids:
            continue
        while len(ids) < tokens:  # a short text is read again from its beginning
            ids += ids
        piece = decode(ids[:tokens])
        off = abs(len(encode(piece)) - tokens)
        if off < error:
            best, error = piece, off
        if off == 0:
            break
    return best


def from_text(
    text: str,
    input_lens: Sequence[int],
    output_lens: Sequence[int],
    encode: Encode,
    decode: Decode,
    *,
    seed: int = 0,
    prefix_len: int = 0,
) -> list[Prompt]:
    """A prompt per length, cut from random places of `text`; the same for the same seed.

    The first `prefix_len` tokens are the same in all prompts and come on top of the length.
    """
    if not text.strip():
        raise ValueError("The text to cut prompts from is empty.")
    if prefix_len < 0:
        raise ValueError(f"The common prefix must not be negative, got {prefix_len} tokens.")
    dice = random.Random(seed)
    prefix = cut(text, prefix_len, encode, decode, dice) + "\n" if prefix_len else ""
    prompts = []
    for asked, answer in zip(input_lens, output_lens, strict=True):
        piece = prefix + cut(text, asked, encode, decode, dice)
        prompts.append(Prompt(piece, len(encode(piece)), answer))
    return prompts


def is_text(text: str) -> bool:
    """Whether UTF-8 can say it: half of a UTF-16 pair, as "\\ud83d" in JSON, is no character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(path: Path) -> str:
    """The text in a file that the user named. ValueError, with the reason, if there is none to read."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"Cannot read {str(path)!r}: {why}.") from None


def read_trace(path: Path, speed: float = 1.0) -> tuple[list[float], list[dict[str, Any]]]:
    """Arrival times [s] and the lines of a JSONL trace, sorted by time and counted from the first.

    A line is {"arrival": seconds, "input_len": tokens, "output_len": tokens}, with an optional "prompt" text;
    {"timestamp": milliseconds, "input_length": …, "output_length": …}, as in the published traces of Mooncake,
    is understood too. `speed` 2 replays twice as fast. ValueError names the line that cannot be used.
    """
    if not 0 < speed < math.inf:
        raise ValueError(f"The speed of a replay must be above 0 and finite, got {speed}.")
    rows: list[tuple[float, dict[str, Any]]] = []
    for number, line in enumerate(text_of(path).split("\n"), 1):  # str.splitlines would cut at U+2028, too
        if not line.strip():
            continue
        where = f"Line {number} of {path.name}"
        try:
            row = json.loads(line)
            at = float(row["arrival"]) if "arrival" in row else float(row["timestamp"]) / 1000
            asked = _whole(row.get("input_len", row.get("input_length", 0)))
            answer = _whole(row["output_len"] if "output_len" in row else row["output_length"])
            text = row.get("prompt")
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ValueError(
                f"{where} is not a request: it needs arrival (s), input_len and output_len."
            ) from error
        if not (text is None or isinstance(text, str)) or (text and not is_text(text)):
            raise ValueError(f"{where} has a prompt that is no text: {line[:80]!r}")
        if not 0 <= at < math.inf:
            raise ValueError(f"{where} has a time that is negative or endless: {line[:80]!r}")
        if not (1 <= answer <= MAX_LENGTH and (0 if text else 1) <= asked <= MAX_LENGTH):
            raise ValueError(f"{where} has a length that is not from 1 to {MAX_LENGTH:,}: {line[:80]!r}")
        rows.append((at, {"input_len": asked, "output_len": answer, "prompt": text}))
    if not rows:
        raise ValueError(f"{path.name} holds no requests.")
    rows.sort(key=lambda row: row[0])
    times = [(at - rows[0][0]) / speed for at, _ in rows]
    check_times(times)
    return times, [row for _, row in rows]


def _whole(value: Any) -> int:
    """A JSON number without a fraction, as an int."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)
