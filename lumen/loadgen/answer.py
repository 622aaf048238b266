"""What the events of one streamed answer mean: which brought text, how many tokens, whether it ended well.

No network and no clock here: events and times are fed in, so every awkward stream can be tested by hand.

- The first event of a chat often carries only the role. It is no token, and TTFT does not end with it.
- An event may bring several tokens (speculation, a busy server, a slow reader). Only `usage` or log-probabilities
  say how many, so ITL has a gap per event, and TPOT divides by the tokens.
- An event with empty text brought nothing that a user sees (half a character, a special token).
- The event with the finish reason ends the answer; the usage event and `[DONE]` come after the end.
- An answer without text is known when it ends. Unless the server counts a token in it, it has none, and no TTFT.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from lumen.loadgen.malformed import BadStream, count, field, message_of, parsed, typed
from lumen.loadgen.record import Record

_TEXT = {  # where a delta brings what a user sees
    "content": (str, list),
    "reasoning_content": (str,),
    "reasoning": (str,),
    "refusal": (str,),
    "tool_calls": (list,),
    "function_call": (dict,),
}


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
        self.usage: dict[str, int] = {}
        self.finish_reason: str | None = None
        self.end = 0.0
        self.done = False
        self._logged = 0  # tokens counted by their log-probabilities

    def feed(self, data: str, now: float) -> None:
        """Take the data of one event that arrived at `now`. BadStream if it is an error, or no part of an answer."""
        if self.done:
            return
        if data.strip() == "[DONE]":
            self.done = True
            return
        event = typed(parsed(data), dict, what="an event")
        if event.get("error") or event.get("object") == "error":
            raise BadStream(message_of(event))
        if (usage := field(event, "usage", dict, what="usage")) is not None:
            names = ("prompt_tokens", "completion_tokens")
            self.usage |= {name: found for name in names if (found := count(usage, name))}
        for choice in field(event, "choices", list, what="choices") or ():
            self._choice(typed(choice, dict, what="a choice"), now)

    def _choice(self, choice: dict[str, Any], now: float) -> None:
        delta = field(choice, "delta", dict, what="a delta") or {}
        parts = [field(choice, "text", str, what="a choice's text")]
        parts += [
            field(delta, name, *_TEXT[name], what=f"a delta's {name}") for name in delta if name in _TEXT
        ]
        text = "".join(part if isinstance(part, str) else json.dumps(part) for part in parts if part)
        reason = field(choice, "finish_reason", str, what="a finish reason")
        if logged := field(choice, "logprobs", dict, what="logprobs"):
            tokens = [field(logged, name, list, what=f"logprobs' {name}") for name in ("content", "tokens")]
            self._logged += len(tokens[0] or tokens[1] or ())
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

    @property
    def text(self) -> str:
        """The answer. Halves of a UTF-16 pair that came in two events are joined; one alone becomes U+FFFD."""
        return "".join(self.pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

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
        text = self.text
        tokens = self.usage.get("completion_tokens") or self._logged
        if not tokens and text:
            tokens = (count_tokens(text) if count_tokens is not None else 0) or len(self.arrivals)
        return Record(
            intended=intended,
            start=start,
            arrivals=tuple(self.arrivals) if tokens else (),
            end=self.end if end is None else end,
            prompt_len=self.usage.get("prompt_tokens") or prompt_len,
            output_len=tokens,
            text=text,
            error=error,
        )
