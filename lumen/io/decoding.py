"""Any decoder of the `tokenizers` library, one token at a time.

A tokenizer's decoder is a chain of stages over the list of all tokens: bytes spelled as characters, a sign for the
space before a word, a prefix for the middle of one, one space off the front. Each stage here
(`lumen.io.decoding_stage`) is the same thing for tokens that come one by one; it lets out what no later token can
change and holds the rest:

    "".join(feed(id) for id in ids) + finish()  ==  backend.decode(ids)      for every list of ids

What a stage does to one token is asked of the library's own stage. A kind that is not known here holds all text to
the end: late, and right.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers

from .decoding_stage import ByteFallback, ByteLevel, Each, First, Last, Replace, Stage, Strip, Whole

# What transformers does to a text when a tokenizer asks for `clean_up_tokenization_spaces`, in this order.
_CLEAN = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


class PieceDecoder:
    """Feed ids, print what comes back, `finish` at the end; one per answer. `token(id)`: None for ids without text."""

    def __init__(self, token: Callable[[int], str | None], stages: list[Stage]):
        self._token, self._stages = token, stages

    def feed(self, token_id: int) -> str:
        """The text that is certain after this token."""
        token = self._token(token_id)
        return "" if token is None else "".join(self._through([token], 0))

    def finish(self) -> str:
        """What is still held back."""
        out = ""
        for i, stage in enumerate(self._stages):
            out += "".join(self._through(stage.finish(), i + 1))
        return out

    def _through(self, pieces: Sequence[str], first: int) -> Sequence[str]:
        for stage in self._stages[first:]:
            pieces = [out for piece in pieces for out in stage.feed(piece)]
        return pieces


def clean(text: str) -> str:
    """`text` without the spaces that transformers takes away for `clean_up_tokenization_spaces`."""
    for old, new in _CLEAN:
        text = text.replace(old, new)
    return text


def stages(decoder: Any, cleans: bool) -> list[Stage]:
    """A decoder of the library (or None, which joins tokens by spaces) as fresh stages."""
    if decoder is None:
        found: list[Stage] = [First(lambda tokens: " ".join(tokens))]
    else:
        found, fused = [], False
        kinds = kinds_of(decoder)
        for i, kind in enumerate(kinds):
            stage = _stage(kind, fused)
            if stage is None:
                found.append(Whole(_library({"type": "Sequence", "decoders": kinds[i:]}), fused))
                break
            found.append(stage)
            fused = fused or kind["type"] in ("ByteLevel", "Fuse")
    return found + [Replace(old, new) for old, new in _CLEAN if cleans]


def kinds_of(decoder: Any) -> list[dict[str, Any]]:
    """The stages of a decoder as the JSON of a tokenizer.json, chains in chains laid flat."""
    state = json.loads(decoder.__getstate__())
    return _flat(state)


def _flat(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [kind for inner in state["decoders"] for kind in _flat(inner)]


def _library(kind: dict[str, Any]) -> Callable[[list[str]], str]:
    empty = {"type": "BPE", "vocab": {}, "merges": []}
    return tokenizers.Tokenizer.from_str(json.dumps({"model": empty, "decoder": kind})).decoder.decode


def _stage(kind: dict[str, Any], fused: bool) -> Stage | None:
    """`fused`: what comes in are parts of one text, and no longer tokens. None: not known."""
    match kind["type"]:
        case "Fuse":
            return Each(lambda pieces: "".join(pieces))
        case "Strip" if fused:
            return Strip(kind["content"], kind["start"], kind["stop"])
        case "Replace" if fused and kind["pattern"].get("String"):
            return Replace(kind["pattern"]["String"], kind["content"])
        case "ByteLevel" if not fused:
            return ByteLevel()
        case "ByteFallback" if not fused:
            return ByteFallback(_library(kind))
        case "Strip" | "Replace" if not fused:
            return Each(_library(kind))
        case "WordPiece" | "Metaspace" if not fused:
            return First(_library(kind))
        case "BPEDecoder" if not fused:
            return Last(_library(kind))
    return None
