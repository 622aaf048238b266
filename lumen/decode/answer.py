"""One answer on its way: the tokens so far, the text that may be shown of them, and when it ends. No torch.

`generate` and the serving engine both read their tokens through this, so that an answer ends at the same token and
shows the same text wherever it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..io.stop import StopMatcher

if TYPE_CHECKING:
    from ..io.tokenizer import TextTokenizer


class Answer:
    """Ends at an id of `eos_ids`, at a `stop` string, or at exactly `limit` tokens.

    `tokens` leave the end-of-sequence token out. `text` is their decoding, cut before a stop string (after it with
    `keep_stop`); without a tokenizer it stays empty. `finish_reason` is None, then "stop" or "length"; `stop_reason`
    is the stop string or id that ended it.
    """

    def __init__(
        self,
        limit: int,
        eos_ids: Collection[int],
        tokenizer: TextTokenizer | None = None,
        stop: Sequence[str] = (),
        *,
        keep_stop: bool = False,
        skip_special: bool = True,
    ):
        if stop and tokenizer is None:
            raise ValueError("stop strings are found in text, so they need tokenizer=….")
        self.limit, self.eos_ids, self._keep_stop = limit, eos_ids, keep_stop
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_reason: str | int | None = None
        self._decoder = tokenizer.stream(skip_special) if tokenizer is not None else None
        self._matcher = StopMatcher(stop) if stop else None

    @property
    def done(self) -> bool:
        return self.finish_reason is not None

    def add(self, token: int) -> str:
        """Take one sampled token; returns the text that is certain now: no half character, no beginning of a stop."""
        if token in self.eos_ids:
            self.stop_reason = token
            text = self._rest("stop")
        else:
            self.tokens.append(token)
            text = self._checked(self._decoder.feed(token) if self._decoder else "")
            if not self.done and len(self.tokens) == self.limit:
                text += self._rest("length")
        self.text += text
        return text

    def _checked(self, text: str) -> str:
        """What of `text` may be shown; a stop string in it ends the answer."""
        if self._matcher is None:
            return text
        shown, hit = self._matcher.feed(text)
        if hit is not None:
            self.finish_reason, self.stop_reason = "stop", hit
        return shown + hit if hit is not None and self._keep_stop else shown

    def _rest(self, reason: str) -> str:
        """End the answer; returns what was held back in case more was to come. A stop may still be in it."""
        text = self._checked(self._decoder.finish() if self._decoder else "")
        if not self.done:
            self.finish_reason = reason
            text += self._matcher.finish() if self._matcher else ""
        return text
