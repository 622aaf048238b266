"""How a request wants to be answered: the fields that both generating endpoints share, checked one by one.

Ranges and defaults are those of OpenAI's API reference; fields that it lacks (top_k, min_p, stop_token_ids,
cache_salt and so on) are named as vLLM names them, and typical_p as transformers does. What is not read here, in
`protocol` or in `service` is the matter of `known`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...sampling import SamplingParams
from .errors import BadRequest
from .fields import Fields, shown, token_ids

MOST_STOPS, LONGEST_STOP, MOST_BIASES, MOST_CHOICES = 4, 1000, 1024, 128
MOST_WORDS, LONGEST_WORD = 256, 100
INT64 = 2**63 - 1


@dataclass(frozen=True)
class ModelCard:
    """What the protocol must know of the model. `max_len` counts prompt and answer together, in tokens."""

    id: str
    vocab_size: int
    max_len: int
    eos_ids: frozenset[int]
    most_sequences: int  # that one request may open: n times its prompts


@dataclass(frozen=True)
class Options:
    """How to answer, alike for both endpoints. `max_tokens` None: what is left of the context."""

    params: SamplingParams
    max_tokens: int | None
    min_tokens: int
    n: int
    stop: tuple[str, ...]
    eos_ids: frozenset[int]  # the model's own, unless they are to be ignored, and `stop_ids`
    stop_ids: frozenset[int]
    logprobs: int | None
    keep_stop: bool
    skip_special: bool
    priority: int
    salt: str | None
    allowed_ids: frozenset[int] | None  # None: every token
    bad_words: tuple[str, ...]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool = False


def read_options(fields: Fields, card: ModelCard, limit: int | None, logprobs: int | None) -> Options:
    _plain_text(fields.get("response_format"))
    stream = fields.flag("stream", False)
    usage = _stream_options(fields.get("stream_options"), stream)
    min_tokens = fields.integer("min_tokens", 0, 0, INT64)
    if limit is not None and min_tokens > limit:
        raise BadRequest(f"min_tokens is {min_tokens} and max_tokens {limit}; lower it.", param="min_tokens")
    stop_ids = frozenset(
        token_ids(fields.get("stop_token_ids") or [], "stop_token_ids", card.vocab_size, 128)
    )
    return Options(
        params=_sampling(fields, card),
        max_tokens=limit,
        min_tokens=min_tokens,
        n=fields.integer("n", 1, 1, min(MOST_CHOICES, card.most_sequences)),
        stop=_stops(fields.get("stop")),
        eos_ids=stop_ids if fields.flag("ignore_eos", False) else stop_ids | card.eos_ids,
        stop_ids=stop_ids,
        logprobs=logprobs,
        keep_stop=fields.flag("include_stop_str_in_output", False),
        skip_special=fields.flag("skip_special_tokens", True),
        priority=fields.integer("priority", 0, -1000, 1000),
        salt=fields.text("cache_salt", 1024),
        allowed_ids=_allowed(fields.get("allowed_token_ids"), card.vocab_size),
        bad_words=_words(fields.get("bad_words")),
        stream=stream,
        include_usage=usage[0],
        continuous_usage=usage[1],
    )


def _sampling(fields: Fields, card: ModelCard) -> SamplingParams:
    try:
        return SamplingParams(
            temperature=fields.number("temperature", 1.0, 0, 2),
            top_k=max(0, min(fields.integer("top_k", 0, -1, INT64), card.vocab_size)),  # -1 is "off" in vLLM
            top_p=fields.number("top_p", 1.0, 0, 1),
            min_p=fields.number("min_p", 0.0, 0, 1),
            typical_p=fields.number("typical_p", 1.0, 0, 1),
            repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 2),
            presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
            frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
            logit_bias=_biases(fields.get("logit_bias"), card.vocab_size),
            seed=fields.integer("seed", None, -(2**63), INT64),
        )
    except ValueError as error:  # a temperature of 1e-300: all else has a narrower range here
        raise BadRequest(str(error), param="temperature") from None


def _biases(value: Any, vocab: int) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MOST_BIASES:
        raise BadRequest(
            f"logit_bias must be an object of at most {MOST_BIASES} entries from token id to bias.",
            param="logit_bias",
        )
    found = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab):
            raise BadRequest(
                f"logit_bias must name token ids from 0 to {vocab - 1}, {shown(key)} is none.",
                param="logit_bias",
            )
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise BadRequest(
                f"logit_bias of token {int(key)} must be a number from -100 to 100, not {shown(bias)}.",
                param="logit_bias",
            )
        found[int(key)] = float(bias)
    return found


def _allowed(value: Any, vocab: int) -> frozenset[int] | None:
    if value is None:
        return None
    if value == []:
        raise BadRequest(
            "allowed_token_ids is empty, so that no token could come; name one.", param="allowed_token_ids"
        )
    return frozenset(token_ids(value, "allowed_token_ids", vocab))


def _words(value: Any) -> tuple[str, ...]:
    words = [] if value is None else value
    if (
        not isinstance(words, list)
        or len(words) > MOST_WORDS
        or not all(isinstance(word, str) and word.strip() and len(word) <= LONGEST_WORD for word in words)
    ):
        raise BadRequest(
            f"bad_words must be a list of at most {MOST_WORDS} words, each of 1 to {LONGEST_WORD} characters that "
            "are not all blanks.",
            param="bad_words",
        )
    return tuple(dict.fromkeys(words))


def _stops(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if (
        not isinstance(stops, list)
        or len(stops) > MOST_STOPS
        or not all(isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP for stop in stops)
    ):
        raise BadRequest(
            f"stop must be a string or a list of at most {MOST_STOPS}, each of 1 to {LONGEST_STOP} characters.",
            param="stop",
        )
    return tuple(dict.fromkeys(stops))


def _plain_text(value: Any) -> None:
    """`response_format` may only be text. Any other format is a promise that this server cannot keep yet."""
    if value is None or value == {"type": "text"}:
        return
    if not isinstance(value, dict) or value.get("type") in (None, "text"):
        raise BadRequest('response_format must be {"type": "text"}.', param="response_format")
    raise BadRequest(
        f"response_format {shown(value['type'])} needs constrained decoding, which this server does not do yet; "
        'leave it out or ask for {"type": "text"}.',
        param="response_format",
    )


def _stream_options(value: Any, stream: bool) -> tuple[bool, bool]:
    """(include_usage, continuous_usage_stats)."""
    if value is None:
        return False, False
    if not isinstance(value, dict):
        raise BadRequest(f"stream_options must be an object, not {shown(value)}.", param="stream_options")
    if not stream:
        raise BadRequest("stream_options needs stream: true beside it.", param="stream_options")
    options = Fields(value)
    usage = options.flag("include_usage", False)
    continuous = options.flag("continuous_usage_stats", False)
    if continuous and not usage:
        raise BadRequest(
            "continuous_usage_stats needs include_usage: true beside it.", param="stream_options"
        )
    if options.flag("include_obfuscation", False):
        raise BadRequest(
            "This server does not pad its events against listeners; leave include_obfuscation out.",
            param="stream_options",
        )
    if names := options.unread():
        raise BadRequest(
            f"stream_options has no {shown(names[0])}; it takes include_usage and continuous_usage_stats.",
            param="stream_options",
        )
    return usage, continuous
