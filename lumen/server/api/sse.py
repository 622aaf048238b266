"""Server-sent events, and the one question that every answer needs: is the client still there?

Starlette's own streaming response learns of a lost client from a failing `send`. This server runs under uvicorn,
whose `send` says nothing after a disconnect, so both helpers here listen to `receive` instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

log = logging.getLogger("lumen.server")
T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


def to_json(value: Any) -> bytes:
    """Compact UTF-8 JSON. NaN would not be JSON, so it is an error here and not at the client."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def event(value: Any) -> bytes:
    """One event of a stream. JSON has no raw line break, so one `data:` line is enough."""
    return b"data: " + to_json(value) + b"\n\n"


async def until_gone(receive: Receive, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None if the client went away first; `work` is cancelled then."""
    result: T | None = None
    error: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
        try:
            result = await work
        except Exception as raised:  # kept out of the group, which would wrap it
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return result


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class EventStream(Response):
    """Sends `events` until they end, the client goes away, or it reads nothing for `patience` seconds.

    A slow client holds only itself: `send` waits while its buffer is full, and nobody waits for `send`.
    `on_end` runs however the stream ends, even if it never began.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_end: Callable[[], None],
        patience: float,
        headers: dict[str, str] | None = None,
    ):
        self.status_code, self.background = 200, None
        self._events, self._on_end, self._patience = events, on_end, patience
        # A proxy that collected the answer before passing it on would undo the stream.
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._write(send))
        finally:
            self._on_end()

    async def _write(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async for part in self._events:
                if not await self._sent(send, part, more=True):
                    return
            await self._sent(send, b"", more=False)

    async def _sent(self, send: Send, body: bytes, more: bool) -> bool:
        with anyio.move_on_after(self._patience) as waiting:
            await send({"type": "http.response.body", "body": body, "more_body": more})
        if waiting.cancelled_caught:
            log.warning("a client read nothing for %.0f seconds; its stream is given up", self._patience)
        return not waiting.cancelled_caught
