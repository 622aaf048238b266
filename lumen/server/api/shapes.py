"""The two shapes of an answer: chat messages and plain completions, whole or in pieces.

A shape turns deltas of one choice into the entry of `choices`. It keeps what the next piece needs to know: has the
role been said, was the prompt echoed, where does the text stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ...io.tokenizer import TextTokenizer
from ...serve.request import Delta
from .logprobs import CompletionLogprobs, chat_logprobs
from .options import Options


class Shape(Protocol):
    """One per HTTP request. `whole` and `piece` give the entry of `choices` for choice number `index`."""

    prefix: str  # of the answer's id
    kind: str  # `object` of a whole answer
    piece_kind: str  # `object` of an event

    def whole(self, index: int, delta: Delta) -> dict[str, Any]: ...
    def piece(self, index: int, delta: Delta) -> list[dict[str, Any]]: ...


class ChatShape:
    """`message` in a whole answer, `delta` in a piece; the first piece of a choice says the role."""

    prefix, kind, piece_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: TextTokenizer, options: Options):
        self._tokenizer, self._options = tokenizer, options
        self._begun: set[int] = set()

    def whole(self, index: int, delta: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return {"index": index, "message": message, **self._rest(delta)}

    def piece(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """The role has a piece of its own, sent together with the first token and not before: a client that takes
        the first piece for the first token then still measures the right time."""
        found = []
        if index not in self._begun:
            self._begun.add(index)
            opening = {"role": "assistant", "content": ""}
            found.append({"index": index, "delta": opening, "logprobs": None, "finish_reason": None})
        content = {"content": delta.text}
        found.append({"index": index, "delta": content, **self._rest(delta)})
        return found

    def _rest(self, delta: Delta) -> dict[str, Any]:
        wanted = self._options.logprobs is not None
        logprobs = chat_logprobs(self._tokenizer, delta.logprobs) if wanted else None
        return {"logprobs": logprobs, **_end(delta, self._options)}


class CompletionShape:
    """`text` in both; the first piece of a choice holds the prompt if it is to be echoed."""

    prefix, kind, piece_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, tokenizer: TextTokenizer, options: Options, prompts: Sequence[str | list[int]]):
        self._tokenizer, self._options, self._prompts = tokenizer, options, prompts
        self._begun: set[int] = set()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def whole(self, index: int, delta: Delta) -> dict[str, Any]:
        return self.piece(index, delta)[0]

    def piece(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        text = delta.text
        if self._options.echo and index not in self._begun:
            prompt = self._prompts[index // self._options.n]
            text = (prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)) + text
        self._begun.add(index)
        return [
            {
                "index": index,
                "text": text,
                "logprobs": self._likely(index, delta),
                **_end(delta, self._options),
            }
        ]

    def _likely(self, index: int, delta: Delta) -> dict[str, Any] | None:
        if self._options.logprobs is None:
            return None
        if index not in self._logprobs:
            self._logprobs[index] = CompletionLogprobs(self._tokenizer, self._options.skip_special)
        return self._logprobs[index].piece(delta.logprobs)


def _end(delta: Delta, options: Options) -> dict[str, Any]:
    """`stop_reason` is vLLM's: the stop string or the id out of `stop_token_ids`, null for the model's own end."""
    why = delta.stop_reason
    own = isinstance(why, int) and why not in options.stop_ids
    return {"finish_reason": delta.finish_reason, "stop_reason": None if own else why}
