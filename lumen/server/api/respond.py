"""From engine deltas to an HTTP answer, whole or streamed; the same for chat and completions."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from ...serve.request import Delta
from ..deltas import DeltaStream, joined
from .errors import ApiError, EngineFailed
from .options import Options
from .shapes import Shape
from .sse import DONE, event

log = logging.getLogger("lumen.server")


@dataclass
class Usage:
    """Tokens of one HTTP request. A prompt counts once, however many choices it has."""

    prompts: list[int]  # length of each prompt, in tokens
    per_prompt: int  # choices
    made: int = 0
    cached: dict[int, int] = field(default_factory=dict)  # by prompt

    def add(self, index: int, delta: Delta) -> None:
        self.made += delta.num_generated
        if index % self.per_prompt == 0:  # later choices may hit what the first one computed
            self.cached[index // self.per_prompt] = delta.num_cached_tokens

    def as_json(self) -> dict[str, Any]:
        total = sum(self.prompts)
        return {
            "prompt_tokens": total,
            "completion_tokens": self.made,
            "total_tokens": total + self.made,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
        }


class Reply:
    """One answer on its way: the envelope that every piece of it carries, and the count of its tokens."""

    def __init__(
        self, shape: Shape, options: Options, answers: DeltaStream, usage: Usage, model: str, version: str
    ):
        self._shape, self._options, self._answers, self._usage = shape, options, answers, usage
        self._envelope = {
            "id": answers.name,
            "object": shape.kind,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": version,
        }

    async def whole(self) -> dict[str, Any]:
        """The answer when it is complete."""
        parts: list[list[Delta]] = [[] for _ in self._answers.requests]
        async for delta in self._answers:
            parts[self._counted(delta)].append(delta)
        choices = [self._shape.whole(index, joined(deltas)) for index, deltas in enumerate(parts)]
        return self._envelope | {"choices": choices, "usage": self._usage.as_json()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events. An error becomes the last event: the status was sent long ago."""
        self._envelope["object"] = self._shape.piece_kind
        try:
            async for delta in self._answers:
                if piece := self._pieces(delta):
                    yield piece
            if self._options.include_usage:
                yield event(self._envelope | {"choices": [], "usage": self._usage.as_json()})
        except ApiError as error:
            yield event(error.body())
        except Exception:
            log.exception("a stream ends with an error")
            yield event(EngineFailed("The server failed while it sent this answer; see its log.").body())
        yield DONE

    def _counted(self, delta: Delta) -> int:
        """Which choice a delta belongs to. EngineFailed if its sequence could not go on: half an answer is none."""
        if delta.finish_reason == "error":
            raise EngineFailed(str(delta.stop_reason))
        index = self._answers.index[delta.request_id]
        self._usage.add(index, delta)
        return index

    def _pieces(self, delta: Delta) -> bytes:
        """What a delta shows, as bytes of one write. Nothing while half a character or half a stop is held back."""
        index, options = self._counted(delta), self._options
        silent = not delta.text and delta.finish_reason is None
        if silent and options.logprobs is None and not options.continuous_usage:
            return b""
        usage = {}
        if (
            options.include_usage
        ):  # every chunk but the last says null, unless the client wants the count so far
            usage = {"usage": self._usage.as_json() if options.continuous_usage else None}
        return b"".join(
            event(self._envelope | {"choices": [choice]} | usage)
            for choice in self._shape.piece(index, delta)
        )
