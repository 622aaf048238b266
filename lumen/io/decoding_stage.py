"""The stages of a decoder, each for tokens that come one by one; see `lumen.io.decoding`."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Protocol

from .byte_level import spelled

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Stage(Protocol):
    def feed(self, piece: str) -> Sequence[str]:
        """The pieces that are certain now."""

    def finish(self) -> Sequence[str]:
        """Those that were held."""


class Each:
    """One token after another, each by itself."""

    def __init__(self, decode: Callable[[list[str]], str]):
        self._decode = decode

    def feed(self, piece: str) -> Sequence[str]:
        return (self._decode([piece]),)

    def finish(self) -> Sequence[str]:
        return ()


class First(Each):
    """The first token is written in another way than those behind it."""

    _begun = False

    def feed(self, piece: str) -> Sequence[str]:
        if self._begun:
            return (self._decode(["a", piece])[1:],)
        self._begun = True
        return (self._decode([piece]),)


class Last(Each):
    """The last token is written in another way than those before it, so one is held."""

    _held: str | None = None

    def feed(self, piece: str) -> Sequence[str]:
        held, self._held = self._held, piece
        return () if held is None else (self._decode([held, "a"])[:-1],)

    def finish(self) -> Sequence[str]:
        return () if self._held is None else (self._decode([self._held]),)


class Whole:
    """A kind whose rule is not known here: everything is held."""

    def __init__(self, decode: Callable[[list[str]], str], fused: bool = False):
        self._decode, self._fused, self._held = decode, fused, list[str]()

    def feed(self, piece: str) -> Sequence[str]:
        self._held.append(piece)
        return ()

    def finish(self) -> Sequence[str]:
        held = ["".join(self._held)] if self._fused else self._held
        return (self._decode(held),) if self._held else ()


class ByteFallback(Whole):
    """Tokens <0x00> to <0xFF>. A run of them is text if all of it is UTF-8, else one sign a byte: so runs are held."""

    def feed(self, piece: str) -> Sequence[str]:
        if _BYTE_TOKEN.fullmatch(piece):
            self._held.append(piece)
            return ()
        done = [*self.finish(), piece]
        self._held = []
        return done


class ByteLevel:
    """Each byte of the text is written as one character; see `lumen.io.byte_level`."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, piece: str) -> Sequence[str]:
        return (self._utf8.decode(spelled(piece)),)

    def finish(self) -> Sequence[str]:
        return (self._utf8.decode(b"", final=True),)


class Strip:
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


class Replace:
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
