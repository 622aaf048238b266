"""Whose control tokens: those of a chat template count, those that somebody spelled in a message are text.

A template writes `<|im_end|>` and the tokenizer makes one token of it, wherever in the text it stands, and so in the
middle of a message that spells it: such a message can end its own turn and open another. Engines mostly let it (book,
chapter 10).

Here the template renders twice. The second time every sign that control tokens are spelled with is replaced, in what
strangers wrote, by a mark that nothing else uses: control tokens in that text are the template's own. If those of the
first text are the same, its ids stand as they are. If not, the template's own are written by names that nobody can
guess, in a copy of the tokenizer that knows control tokens by these names only; all else is text, encoded in its
place.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import tokenizers

from .chat import ChatTemplateError, Prompt

_PRIVATE = range(0xF0000, 0xFFFFE)  # Unicode's plane 15 for private use
_CHOICES = frozenset(
    ("role", "type")
)  # names from a fixed list: templates compare them, and spell tokens with them


class Span(NamedTuple):
    """A control token in a text: characters `start` to `end`, with the spaces that the token takes along."""

    start: int
    end: int
    id: int


class Controls:
    """The control tokens of a `tokenizers.Tokenizer`, and text in which only some of them count."""

    def __init__(self, backend: tokenizers.Tokenizer, ids: Iterable[int]):
        self._backend, self._ids = backend, frozenset(ids)

    def plain(self, text: str, add_special: bool = False) -> list[int]:
        """The ids of `text` in which nothing is a control token; with `add_special`, the ids that belong around it."""
        ids = self._unguessable.encode(text, add_special_tokens=False).ids
        before, after = self._around if add_special else ([], [])
        return [*before, *ids, *after]

    def chat_ids(self, chat: Prompt) -> list[int]:
        """The ids of a rendered chat in which the template's control tokens count and no others."""
        text = chat.text()
        found = self._backend.encode(text, add_special_tokens=False)
        signs = self._signs(chat)
        if not signs or not self._names:
            return found.ids
        spans = self._spans(found)
        marks = _marks(signs, chat)
        back = str.maketrans({chr(mark): sign for sign, mark in marks.items()})
        table = str.maketrans(marks)
        marked = _rendered(chat, _marked(chat.given, lambda text: text.translate(table)))
        own = self._spans(self._backend.encode(marked, add_special_tokens=False))
        if marked.translate(back) != text:  # the template looks into what it was given, so mark less
            quiet, own = [span.id for span in own], spans
            if [span.id for span in spans] != quiet:
                marked = _rendered(chat, _marked(chat.given, lambda text: self._break(text, table)))
                own = self._spans(self._backend.encode(marked, add_special_tokens=False))
                if marked.translate(back) != text or [span.id for span in own] != quiet:
                    raise _refusal(self._names[next(span.id for span in spans)])
        return found.ids if own == spans else self._mixed(text, own)

    def _mixed(self, text: str, own: list[Span]) -> list[int]:
        """The ids of `text` in which the control tokens at `own` count and no others."""
        pieces, at = [], 0
        for start, end, token in own:
            taken, name = text[start:end], self._names[token]
            inside = name if name in taken else taken.strip()
            before, _, after = taken.partition(inside)
            pieces += [text[at:start], before, self._aliases[token], after]
            at = end
        return self._unguessable.encode("".join([*pieces, text[at:]]), add_special_tokens=False).ids

    def _spans(self, found: tokenizers.Encoding) -> list[Span]:
        pairs = zip(found.ids, found.offsets, strict=True)
        return [Span(*span, token) for token, span in pairs if token in self._names]

    def _break(self, text: str, table: dict[int, int]) -> str:
        """`text` with marks in the control tokens that it spells in one piece."""
        for name in self._names.values():
            text = text.replace(name, name.translate(table))
        return text

    def _signs(self, chat: Prompt) -> list[str]:
        """Characters in what strangers wrote that a control token could be spelled with."""
        written = _characters(chat.given)
        normalizer = self._backend.normalizer
        plain = normalizer.normalize_str if normalizer is not None else str
        return sorted(
            c for c in written if c in self._spelling or (c > "\x7f" and self._spelling & set(plain(c)))
        )

    @cached_property
    def _spelling(self) -> frozenset[str]:
        """The signs in the names of control tokens; of a name without any, all its characters.

        Letters are left out: templates spell tokens with roles (`'<|' + role + '|>'`) and compare names.
        """
        found: set[str] = set()
        for name in self._names.values():
            signs = {c for c in name if not (c.isalnum() or c.isspace() or c == "_")}
            found |= signs or set(name)
        return frozenset(found)

    @cached_property
    def _names(self) -> dict[int, str]:
        """The control tokens by id: the special ones, but for what stands for unknown text."""
        unknown = getattr(self._backend.model, "unk_token", None)
        if isinstance(self._backend.model, tokenizers.models.Unigram):
            state = json.loads(self._backend.model.__getstate__())
            unknown = None if state["unk_id"] is None else state["vocab"][state["unk_id"]][0]
        added = self._backend.get_added_tokens_decoder()
        return {i: added[i].content for i in sorted(self._ids) if added[i].content != unknown}

    @cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The ids that the post-processor puts before and after a text."""
        ids, alone = (self._backend.encode("a", add_special_tokens=add).ids for add in (True, False))
        at = next(i for i in range(len(ids)) if ids[i : i + len(alone)] == alone)
        return ids[:at], ids[at + len(alone) :]

    @cached_property
    def _aliases(self) -> dict[int, str]:
        return {i: secrets.token_hex(16) for i in self._names}

    @cached_property
    def _unguessable(self) -> tokenizers.Tokenizer:
        """The same tokenizer, in which control tokens are spelled by their aliases. Made when first needed."""
        state = json.loads(self._backend.to_str())
        alias = {name: self._aliases[i] for i, name in self._names.items()}
        state["post_processor"] = None
        for token in state["added_tokens"]:
            token["content"] = alias.get(token["content"], token["content"])
        model = state["model"]
        vocab = model["vocab"]
        if isinstance(vocab, dict):
            model["vocab"] = {alias.get(name, name): i for name, i in vocab.items()}
        else:
            model["vocab"] = [[alias.get(name, name), score] for name, score in vocab]
        if "merges" in model:  # none may make what has another name now
            pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
            model["merges"] = [pair for pair in pairs if not alias.keys() & {*pair, "".join(pair)}]
        return tokenizers.Tokenizer.from_str(json.dumps(state))


def _marks(signs: list[str], chat: Prompt) -> dict[str, int]:
    """A private-use character for each sign, none of which stands anywhere in the chat."""
    taken = _characters(chat.given) | set(chat.template)
    free = (code for code in _PRIVATE if chr(code) not in taken)
    return dict(zip(signs, free, strict=False))


def _characters(given: dict[str, Any]) -> set[str]:
    found: set[str] = set()

    def note(text: str) -> str:
        found.update(text)
        return text

    _marked(given, note)
    return found


def _marked(value: Any, mark: Callable[[str], str], name: str = "") -> Any:
    """`value` with `mark` of every text in it; names that a template can ask for stay as they are."""
    if isinstance(value, str):
        return value if name in _CHOICES and value.isidentifier() else mark(value)
    if isinstance(value, dict):
        return {
            key if key.isidentifier() else mark(key): _marked(inner, mark, key)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_marked(inner, mark) for inner in value]
    return value


def _rendered(chat: Prompt, given: dict[str, Any]) -> str:
    try:
        return chat.text(given)
    except ChatTemplateError as error:
        raise ChatTemplateError(
            f"The messages hold signs that control tokens are spelled with, and the template acts on them ({error}); "
            "take them out, or encode with parse_special=True if the messages are your own."
        ) from error


def _refusal(name: str) -> ChatTemplateError:
    return ChatTemplateError(
        f"A message spells a control token such as {name!r}, and the template works on it, so that it cannot be told "
        "whose it is; take it out, or encode with parse_special=True if the messages are your own."
    )
