"""Requests of every shape, for hypothesis: what a stranger's bytes may be, from almost right to nothing at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from lumen.server.api.known import HARMLESS, OF_CHAT, REFUSED

from .test_malformed import NASTY, PARTS, VALID

FIELDS = sorted(
    {name for bodies in VALID.values() for body in bodies for name in body}
    | {"allowed_token_ids", "bad_words", "typical_p", "best_of", "top_logprobs", "add_generation_prompt", "tokens"}
    | HARMLESS | REFUSED.keys() | OF_CHAT.keys()
)  # fmt: skip
anything = st.text(st.characters(exclude_categories=()), max_size=8)  # half surrogate pairs among them
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.integers(-(10**40), 10**40), st.floats(), anything,
    st.sampled_from(NASTY),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(anything, inside, max_size=3),
    max_leaves=6,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "x"]) | leaves, "content": values},
        optional={name: values for name in ("name", "tool_calls", "tool_call_id", "refusal", "audio")},
    ),
    max_size=4,
)
calls = st.lists(
    st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": anything, "arguments": values})}),
    max_size=2,
)
close = {  # values near those that a field takes: deeper than the first check
    "messages": messages | st.just(PARTS), "tool_calls": calls, "logit_bias": st.dictionaries(
        st.integers(-1, 260).map(str) | anything, st.floats() | st.integers(-101, 101), max_size=5),
    "stop": st.lists(anything, max_size=5) | anything, "prompt": st.lists(st.integers(-1, 259), max_size=9)
    | st.lists(anything, max_size=4) | st.lists(st.lists(st.integers(0, 259), max_size=3), max_size=3) | anything,
    "allowed_token_ids": st.lists(st.integers(-1, 259), max_size=9), "bad_words": st.lists(anything, max_size=4),
    "stop_token_ids": st.lists(st.integers(-1, 259), max_size=9), "tokens": st.lists(st.integers(-1, 259), max_size=9),
    "max_tokens": st.integers(-1, 9), "min_tokens": st.integers(-1, 9), "n": st.integers(-1, 14),
    "stream_options": st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "x"]), leaves),
}  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn, path: str, dice: Random) -> dict:
    """A valid body with a few fields replaced, added, dropped."""
    body = dict(dice.choice(VALID[path]))
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        near = sorted(close.keys() & body.keys())
        name = dice.choice(near if near and dice.random() < 0.6 else FIELDS)
        body[name] = draw(close[name] if name in close and dice.random() < 0.8 else values)
    if dice.random() < 0.05:
        del body[dice.choice(sorted(body))]
    if dice.random() < 0.05:
        body[draw(anything)] = draw(values)
    return body


NUMBERS = [b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-0", b"0x1", b"01"]


@st.composite
def raws(draw: st.DrawFn, path: str, dice: Random) -> bytes:
    """The bytes of a body: as they should be, or in another encoding, cut, doubled, too deep, too long, or noise."""
    text = json.dumps(draw(bodies(path, dice)), ensure_ascii=dice.random() < 0.5)
    raw = text.encode(errors="surrogatepass")
    match dice.randrange(40):
        case 0:
            return raw[: dice.randrange(len(raw))]
        case 1:
            return text.encode(dice.choice(["utf-16", "utf-32", "utf-8-sig"]), errors="surrogatepass")
        case 2:
            return text.encode("latin-1", errors="replace")
        case 3:
            deep = dice.choice([60, 900, 5000])
            return raw[:-1] + b', "user": ' + b'{"a":' * deep + b"1" + b"}" * deep + b"}"
        case 4:  # a name twice
            return raw[:-1] + b", " + raw[1:]
        case 5 | 9 | 10:
            return raw + b" " * 30_000
        case 6:
            return draw(st.binary(max_size=60))
        case 7:
            at = dice.randrange(len(raw))
            return raw[:at] + draw(st.binary(min_size=1, max_size=3)) + raw[at:]
        case 8:
            return raw[:-1] + b', "top_p": ' + dice.choice(NUMBERS) + b"}"
    return raw


@dataclass(frozen=True)
class Shapeless:
    """`parts` None: with a content-length; else the body is chunked at these places."""

    method: str
    path: str
    headers: dict[str, str]
    raw: bytes
    cuts: tuple[int, ...] | None


KINDS = [
    "", "text/plain", "application/json; charset=utf-16", "application/ld+json", "multipart/form-data", "\xff/é",
    "application/x-www-form-urlencoded", "application/json;;=;charset", "APPLICATION/JSON",
]  # fmt: skip
PATHS = [
    "/v1/models",
    "/v1/models/tiny",
    "/v1/nothing",
    "/health",
    "/",
    "/v1/completions/",
    "/tokenize?n=2",
    "/metrics",
]


@st.composite
def shapeless(draw: st.DrawFn) -> Shapeless:
    dice = draw(
        st.randoms(use_true_random=True)
    )  # seeded by hypothesis, and fair: most requests are nearly right
    path = dice.choice(list(VALID))
    raw = draw(raws(path, dice))
    headers = {"content-type": dice.choice(KINDS) if dice.random() < 0.06 else "application/json"}
    if dice.random() < 0.03:
        headers["content-encoding"] = dice.choice(["gzip", "identity", "br, gzip"])
    cuts = None if dice.random() < 0.5 else tuple(sorted(dice.randrange(len(raw) + 1) for _ in range(3)))
    path = dice.choice(PATHS) if dice.random() < 0.05 else path
    method = dice.choice(["GET", "PUT", "HEAD", "OPTIONS"]) if dice.random() < 0.06 else "POST"
    return Shapeless(method, path, headers, raw, cuts)
