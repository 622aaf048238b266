"""Any decoder of the `tokenizers` library, one token at a time.

A tokenizer's decoder is a chain of stages over the list of all tokens: bytes spelled as characters, a sign for the
space before a word, a prefix for the middle of one, one space off the front. Each stage below is the same thing for
tokens that come one by one; it lets out what no later token can change and holds the rest:

    "".join(feed(id) for id in ids) + finish()  ==  backend.decode(ids)      for every list of ids

What a stage does to one token is asked of the library's own stage. A kind that is not known here holds all text to
the end: late, and right.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tokenizers

from .byte_level import spelled

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# What transformers does to a text when a tokenizer asks for `clean_up_tokenization_spaces`, in this order.
_CLEAN = (
    *((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'")),
    *((" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
)


class Stage(Protocol):
    def feed(self, piece: str) -> Sequence[str]:
        """The pieces that are certain now."""

    def finish(self) -> Sequence[str]:
        """Those that were held."""


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
        found: list[Stage] = [_First(lambda tokens: " ".join(tokens))]
    else:
        found, fused = [], False
        kinds = kinds_of(decoder)
        for i, kind in enumerate(kinds):
            stage = _stage(kind, fused)
            if stage is None:
                found.append(_Whole(_library({"type": "Sequence", "decoders": kinds[i:]}), fused))
                break
            found.append(stage)
            fused = fused or kind["type"] in ("ByteLevel", "Fuse")
    return found + [_Replace(old, new) for old, new in _CLEAN if cleans]


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
            return _Each(lambda pieces: "".join(pieces))
        case "Strip" if fused:
            return _Strip(kind["content"], kind["start"], kind["stop"])
        case "Replace" if fused and kind["pattern"].get("String"):
            return _Replace(kind["pattern"]["String"], kind["content"])
        case "ByteLevel" if not fused:
            return _ByteLevel()
        case "ByteFallback" if not fused:
            return _ByteFallback(_library(kind))
        case "Strip" | "Replace" if not fused:
            return _Each(_library(kind))
        case "WordPiece" | "Metaspace" if not fused:
            return _First(_library(kind))
        case "BPEDecoder" if not fused:
            return _Last(_library(kind))
    return None


class _Each:
    """One token after another, each by itself."""

    def __init__(self, decode: Callable[[list[str]], str]):
        self._decode = decode

    def feed(self, piece: str) -> Sequence[str]:
        return (self._decode([piece]),)

    def finish(self) -> Sequence[str]:
        return ()


class _First(_Each):
    """The first token is written in another way than those behind it."""

    _begun = False

    def feed(self, piece: str) -> Sequence[str]:
        if self._begun:
            return (self._decode(["a", piece])[1:],)
        self._begun = True
        return (self._decode([piece]),)


class _Last(_Each):
    """The last token is written in another way than those before it, so one is held."""

    _held: str | None = None

    def feed(self, piece: str) -> Sequence[str]:
        held, self._held = self._held, piece
        return () if held is None else (self._decode([held, "a"])[:-1],)

    def finish(self) -> Sequence[str]:
        return () if self._held is None else (self._decode([self._held]),)


class _Whole:
    """A kind whose rule is not known here: everything is held."""

    def __init__(self, decode: Callable[[list[str]], str], fused: bool = False):
        self._decode, self._fused, self._held = decode, fused, list[str]()

    def feed(self, piece: str) -> Sequence[str]:
        self._held.append(piece)
        return ()

    def finish(self) -> Sequence[str]:
        held = ["".join(self._held)] if self._fused else self._held
        return (self._decode(held),) if self._held else ()


class _ByteFallback(_Whole):
    """Tokens <0x00> to <0xFF>. A run of them is text if all of it is UTF-8, else one sign a byte: so runs are held."""

    def feed(self, piece: str) -> Sequence[str]:
        if _BYTE_TOKEN.fullmatch(piece):
            self._held.append(piece)
            return ()
        done = [*self.finish(), piece]
        self._held = []
        return done


class _ByteLevel:
    """Each byte of the text is written as one character; see `lumen.io.byte_level`."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, piece: str) -> Sequence[str]:
        return (self._utf8.decode(spelled(piece)),)

    def finish(self) -> Sequence[str]:
        return (self._utf8.decode(b"", final=True),)


class _Strip:
    """Up to `start` characters `sign` off the front of a text, up to `stop` off its end."""

    def __init__(self, sign: str, start: int, stop: int):
        self._sign, self._start, self._stop, self._held = sign, start, stop, ""

    def feed(self, piece: str) -> Sequence[str]:
        while self._start and piece:
            if piece[0] != self._sign:
                self._start = 0
                break
            piece, self._start = piece[1:], self._start - 1
        text = self._held + piece
        ends = min(self._stop, len(text) - len(text.rstrip(self._sign)))
        self._held = text[len(text) - ends :]
        return (text[: len(text) - ends],)

    def finish(self) -> Sequence[str]:
        return ()


class _Replace:
    """`str.replace` on a text that comes in parts: what could become `old` is held."""

    def __init__(self, old: str, new: str):
        self._old, self._new, self._held = old, new, ""

    def feed(self, piece: str) -> Sequence[str]:
        *done, rest = (self._held + piece).split(self._old)
        waits = max(n for n in range(len(self._old)) if rest.endswith(self._old[:n]))
        self._held = rest[len(rest) - waits :]
        return (self._new.join([*done, rest[: len(rest) - waits]]),)

    def finish(self) -> Sequence[str]:
        return (self._held,)
