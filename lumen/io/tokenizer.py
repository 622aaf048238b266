"""Text to token ids and back: the one interface, and its two kinds.

`Tokenizer` wraps the `tokenizers` library, whose files hold every kind that models come with. `CharTokenizer` gives
each character its own id. Ids that come one at a time go through `stream`; its pieces joined are `decode` of all.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import tokenizers

from . import byte_level, decoding
from .chat import Message, Prompt, prompt
from .control import Controls
from .stream import StreamDecoder

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Stream(Protocol):
    """A decoder for ids that come one at a time."""

    def feed(self, token_id: int) -> str:
        """The text that is certain after this token."""

    def finish(self) -> str:
        """What is still held back."""


class TextTokenizer(ABC):
    """What a tokenizer offers. `vocab_size` is one more than its largest id. `eos_ids` is a set: chat models stop on
    several ids, and 0 may be one."""

    vocab_size: int
    eos_ids: frozenset[int] = frozenset()
    eos_id: int | None = None  # the one that the model's files name first
    bos_id: int | None = None
    special_ids: frozenset[int] = frozenset()
    chat_template: str | None = None

    @abstractmethod
    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """The ids of `text`.

        `add_special`: with the tokens that the model wants around a text, such as a first one. `parse_special`: a
        special token that is spelled in the text becomes its id; without it, it is text like any other.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for inside a text; often no whole character.

        An id without a token has none: models pad their vocabulary to a round size, and what they say of the padding
        leaves no text, as in transformers. ValueError for a negative id.
        """

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are no UTF-8 become replacement signs."""
        kept = (i for i in ids if not (skip_special and int(i) in self.special_ids))
        return b"".join(self.token_bytes(int(i)) for i in kept).decode("utf-8", errors="replace")

    def stream(self, skip_special: bool = True) -> Stream:
        """A decoder for ids that come one at a time; its pieces joined are `decode` of all of them."""
        skipped = self.special_ids if skip_special else frozenset()
        return StreamDecoder(self.token_bytes, skipped.__contains__)

    def chat_text(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the chat template makes of `messages`, as text; see `apply_chat`."""
        return self._prompt(messages, add_generation_prompt, tools, documents, extra).text()

    def apply_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        parse_special: bool = False,
    ) -> list[int]:
        """The prompt as ids. No begin-of-text token is added: a template that wants one writes it.

        `extra` are further names for the template (`chat_template_kwargs` of vLLM). A special token that somebody
        spelled in a message, tool or document is encoded as the text it is; only those that the template writes count
        (`sanitize_control_tokens` of transformers). With `parse_special` both count. Raises ChatTemplateError.
        """
        chat = self._prompt(messages, add_generation_prompt, tools, documents, extra)
        return self._chat_ids(chat, parse_special)

    def _prompt(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        extra: Mapping[str, Any] | None,
    ) -> Prompt:
        named = {"bos_token": self.bos_id, "eos_token": self.eos_id}
        special = {name: self._name(i) for name, i in named.items() if i is not None}
        return prompt(
            self.chat_template,
            messages,
            add_generation_prompt=add_generation_prompt,
            special=special,
            tools=tools,
            documents=documents,
            extra=extra,
        )

    def _name(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode()

    def _chat_ids(self, chat: Prompt, parse_special: bool) -> list[int]:
        return self.encode(chat.text(), add_special=False, parse_special=parse_special)


class Tokenizer(TextTokenizer):
    """A tokenizer of the `tokenizers` library; `backend` becomes this object's own.

    `add_bos`: plain text starts with the begin-of-text id, though the backend has no post-processor that says so.
    `cleans`: spaces before signs are taken out of decoded text (`clean_up_tokenization_spaces`).
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_ids: Iterable[int] = (),
        bos_id: int | None = None,
        add_bos: bool = False,
        chat_template: str | None = None,
        cleans: bool = False,
    ):
        # A file may carry the training's settings, which would cut and pad every prompt.
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        ends = tuple(eos_ids)
        self.eos_ids = frozenset(ends)
        self.eos_id = ends[0] if ends else None
        self.bos_id = bos_id
        around = backend.encode("", add_special_tokens=True).ids
        self._prepends = add_bos and bos_id is not None and around[:1] != [bos_id]
        self.add_bos = bos_id is not None and (self._prepends or around[:1] == [bos_id])
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self._kinds = [] if backend.decoder is None else decoding.kinds_of(backend.decoder)
        self._cleans = cleans
        self.controls = Controls(backend, self.special_ids)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """As in `TextTokenizer`. Raises ValueError."""
        _whole(text)
        if parse_special:
            ids = self.backend.encode(text, add_special_tokens=add_special).ids
        else:
            ids = self.controls.plain(text, add_special)
        return [self.bos_id, *ids] if add_special and self._prepends else ids  # type: ignore[list-item]

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `ids`, as transformers decodes them."""
        text = self.backend.decode([*map(_checked, ids)], skip_special_tokens=skip_special)
        return decoding.clean(text) if self._cleans else text

    def stream(self, skip_special: bool = True) -> Stream:
        """As in `TextTokenizer`."""
        if [kind["type"] for kind in self._kinds] == ["ByteLevel"] and not self._cleans:
            return super().stream(skip_special)
        skipped, name = self.special_ids if skip_special else frozenset(), self.backend.id_to_token
        stages = decoding.stages(self.backend.decoder, self._cleans)
        return decoding.PieceDecoder(lambda i: None if i in skipped else name(_checked(i)), stages)

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes.get(_checked(token_id), b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        kinds = {kind["type"] for kind in self._kinds}
        spell = byte_level.spelled if "ByteLevel" in kinds else self._inside
        return {i: spell(token) for token, i in self.backend.get_vocab(with_added_tokens=True).items()}

    def _inside(self, token: str) -> bytes:
        """What `token` adds to a text between two others."""
        if match := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(match[1], 16)])
        join = self.backend.decoder.decode if self.backend.decoder else " ".join
        text, end = join(["a", token, "a"]), join(["a", "a"])[1:]
        return text[1:].removesuffix(end).encode()

    def _name(self, token_id: int) -> str:
        return self.backend.id_to_token(token_id) or ""

    def _chat_ids(self, chat: Prompt, parse_special: bool) -> list[int]:
        if parse_special:
            return super()._chat_ids(chat, True)
        return self.controls.chat_ids(chat)


def _checked(token_id: int) -> int:
    if not 0 <= token_id < 2**32:
        raise ValueError(f"There is no token {token_id}; ids begin at 0.")
    return int(token_id)


def _whole(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The text holds half a character at position {error.start} (a lone surrogate)."
        ) from error


class CharTokenizer(TextTokenizer):
    """One id per character, in the order of `characters`. No special tokens, no end token, no chat."""

    def __init__(self, characters: str):
        self.characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}
        if len(self._ids) != len(characters) or not characters:
            raise ValueError("A character vocabulary lists each character once and has at least one.")
        self.vocab_size = len(characters)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """One id per character; there are no special ones. ValueError names a character that the model never saw."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ValueError(
                f"The model knows {self.vocab_size} characters and {error.args[0]!r} is not among them; "
                f"it knows {self.characters!r}."
            ) from None

    def token_bytes(self, token_id: int) -> bytes:
        return self.characters[_checked(token_id) : token_id + 1].encode()
