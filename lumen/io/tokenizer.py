"""Text to token ids and back: the one interface, and its two kinds.

`Tokenizer` wraps the `tokenizers` library: byte-level BPE, where each of the 256 bytes is written as one
printable character (Radford et al. 2019, section 2.2), so that every text has an encoding and a token is
just a run of bytes. `CharTokenizer` gives each character its own id. Decoding always goes through
`token_bytes`, which is what makes the streaming decoder exact.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property

import tokenizers

from .chat import Message, render
from .stream import StreamDecoder

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TextTokenizer(ABC):
    """What a tokenizer offers. `vocab_size` is one more than its largest id. `eos_ids` is a set: chat models stop on
    several ids, and 0 may be one."""

    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    eos_id: int | None = None  # the one that the model's files name first
    bos_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    chat_template: str | None = None
    _strip_first_space = False

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of `text`. Special tokens written in the text become their ids."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for; often no whole character.

        An id without a token has none: models pad their vocabulary to a round size, and what they say of the padding
        leaves no text, as in transformers. ValueError for a negative id.
        """

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are no UTF-8 become replacement signs."""
        kept = (i for i in ids if not (skip_special and int(i) in self.special_ids))
        text = b"".join(self.token_bytes(int(i)) for i in kept).decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self._strip_first_space else text

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        """A decoder for ids that come one at a time; its pieces joined are `decode` of all of them."""
        skipped = self.special_ids if skip_special else frozenset()
        return StreamDecoder(self.token_bytes, skipped.__contains__, self._strip_first_space)

    def chat_text(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """The prompt that the chat template makes of `messages`, as text. Raises ChatTemplateError."""
        named = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        special = {name: self.token_bytes(i).decode() for name, i in named.items() if i is not None}
        return render(
            self.chat_template, messages, add_generation_prompt=add_generation_prompt, special=special
        )

    def apply_chat(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """The prompt as ids. No begin-of-text token is added: a template that wants one writes it."""
        return self._encode_raw(self.chat_text(messages, add_generation_prompt))

    def _encode_raw(self, text: str) -> list[int]:
        return self.encode(text)


class Tokenizer(TextTokenizer):
    """A tokenizer of the `tokenizers` library. `add_bos`: does plain text start with the begin-of-text id?"""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
    ):
        self.backend = backend
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        ends = tuple(eos_ids)
        self.eos_ids = frozenset(ends)
        self.eos_id = ends[0] if ends else None
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self.chat_template = chat_template
        self._added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in self._added.items() if token.special)
        decoder = backend.decoder.__getstate__().decode() if backend.decoder else ""
        self._sentencepiece = "\u2581" in decoder
        strips = '"Strip"' in decoder or ('"Metaspace"' in decoder and '"never"' not in decoder)
        self._strip_first_space = self._sentencepiece and strips

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, after the begin-of-text id if the model wants one. Raises ValueError."""
        ids = self._encode_raw(text)
        return [self.bos_id, *ids] if self.add_bos and self.bos_id is not None else ids

    def _encode_raw(self, text: str) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"The text holds half a character at position {error.start} (a lone surrogate)."
            ) from error
        return self.backend.encode(text, add_special_tokens=False).ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(_not_negative(token_id), b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        spell = _sentencepiece_bytes if self._sentencepiece else _byte_level_bytes
        table = {i: spell(token) for token, i in self.backend.get_vocab(with_added_tokens=False).items()}
        return table | {i: token.content.encode() for i, token in self._added.items()}


class CharTokenizer(TextTokenizer):
    """One id per character, in the order of `characters`. No special tokens, no end token, no chat."""

    def __init__(self, characters: str):
        self.characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}
        if len(self._ids) != len(characters) or not characters:
            raise ValueError("A character vocabulary lists each character once and has at least one.")
        self.vocab_size = len(characters)

    def encode(self, text: str) -> list[int]:
        """One id per character. ValueError names a character that the model never saw."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ValueError(
                f"The model knows {self.vocab_size} characters and {error.args[0]!r} is not among them; "
                f"it knows {self.characters!r}."
            ) from None

    def token_bytes(self, token_id: int) -> bytes:
        return self.characters[_not_negative(token_id) : token_id + 1].encode()


def _not_negative(token_id: int) -> int:
    if token_id < 0:
        raise ValueError(f"There is no token {token_id}; ids begin at 0.")
    return token_id


def _byte_alphabet() -> dict[str, int]:
    """Printable Latin-1 characters stand for their own byte; the others get U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:  # a token that was added as plain text
        return token.encode()


def _sentencepiece_bytes(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("\u2581", " ").encode()
