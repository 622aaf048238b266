"""What the events of one streamed answer mean: which brought text, how many tokens, whether it ended well.

No network and no clock here: events and times are fed in, so every awkward stream can be tested by hand.

- The first event of a chat often carries only the role. It is no token, and TTFT does not end with it.
- An event may bring several tokens (speculation, a busy server, a slow reader). Only `usage` or log-probabilities
  say how many, so ITL has a gap per event, and TPOT divides by the tokens.
- An event with empty text brought nothing that a user sees (half a character, a special token).
- The event with the finish reason ends the answer; the usage event and `[DONE]` come after the end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lumen.loadgen.record import Record

_TEXT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")


class BadStream(ValueError):
    """The server sent an error, or something that is no answer."""


def message_of(body: Any) -> str:
    """The sentence inside an error body, whatever its shape."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        return str(error.get("message") or error.get("detail") or error)
    return str(error)


class StreamedAnswer:
    """Collects the events of one answer.

    >>> answer = StreamedAnswer()
    >>> answer.feed('{"choices": [{"text": "Hi", "finish_reason": "stop"}]}', now=0.25)
    >>> answer.record(intended=0.0, start=0.0).ttft
    0.25
    """

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.pieces: list[str] = []
        self.usage: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.end = 0.0
        self.done = False
        self._logged = 0  # tokens counted by their log-probabilities

    def feed(self, data: str, now: float) -> None:
        """Take the data of one event that arrived at `now`. BadStream if it holds an error."""
        if self.done:
            return
        if data.strip() == "[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
        except ValueError as error:
            raise BadStream(f"an event is no JSON: {data[:80]!r}") from error
        if not isinstance(event, dict):
            raise BadStream(f"an event is no JSON object: {data[:80]!r}")
        if event.get("error"):
            raise BadStream(message_of(event))
        if isinstance(event.get("usage"), dict):
            self.usage = event["usage"]
        for choice in event.get("choices") or []:
            self._choice(choice, now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta") or {}
        parts = [choice.get("text"), *(delta.get(name) for name in _TEXT)]
        text = "".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)
        reason = choice.get("finish_reason")
        logged = choice.get("logprobs") or {}
        self._logged += len(logged.get("content") or logged.get("tokens") or [])
        if text or (reason and not self.arrivals):  # an answer without any text is known when it ends
            self.pieces.append(text)
            self.arrivals.append(now)
        if text or reason:
            self.end = now
        self.finish_reason = reason or self.finish_reason

    def check(self) -> None:
        """BadStream if the connection ended before the answer did."""
        if self.finish_reason is None and not (self.done and self.arrivals):
            got = f"{len(self.arrivals)} events with text" if self.arrivals else "no text"
            raise BadStream(f"the stream ended before the answer did, after {got}")

    def record(
        self,
        intended: float,
        start: float,
        *,
        prompt_len: int = 0,
        count_tokens: Callable[[str], int] | None = None,
        error: str = "",
        end: float | None = None,
    ) -> Record:
        """The record of this request. Tokens are counted by the server's `usage`, else by log-probabilities,
        else by `count_tokens`, else by events; a failed request has the tokens it can prove."""
        text = "".join(self.pieces)
        tokens = self.usage.get("completion_tokens") or self._logged
        if not tokens and self.arrivals:
            tokens = count_tokens(text) if count_tokens is not None and text else len(self.arrivals)
        return Record(
            intended=intended,
            start=start,
            arrivals=tuple(self.arrivals),
            end=self.end if end is None else end,
            prompt_len=int(self.usage.get("prompt_tokens") or prompt_len),
            output_len=int(tokens or 0),
            text=text,
            error=error,
        )
