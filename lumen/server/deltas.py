"""The deltas of one client's sequences, as an asynchronous iterator that never grows beyond the answer itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from ..serve.request import Delta, Request
from .api.errors import ApiError


def joined(deltas: Sequence[Delta]) -> Delta:
    """Consecutive deltas of one request as one: what a client that was slow gets."""
    if len(deltas) == 1:
        return deltas[0]
    last = deltas[-1]
    return replace(
        last,
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        text="".join(delta.text for delta in deltas),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
    )


class DeltaStream:
    """Iterates over deltas of `requests`, whichever comes first, until each has ended.

    `async with answers:` aborts what is unfinished on the way out, however the block is left. `accepted` must be
    awaited first: it raises what the engine had to say against the requests, before anything was sent.
    """

    def __init__(self, name: str, requests: Sequence[Request], on_close: Callable[[DeltaStream], None]):
        self.name, self.requests = name, requests
        self.index = {request.id: number for number, request in enumerate(requests)}
        self._on_close = on_close
        self._unfinished = len(requests)
        self._pending: dict[str, list[Delta]] = {}
        self._news = asyncio.Event()
        self._settled = False
        self._error: ApiError | None = None
        self._closed = False

    async def accepted(self) -> None:
        """Wait until the engine has taken the requests. Raises what it said against them."""
        while not self._settled:
            await self._wait()
        if self._error is not None:
            raise self._error

    def __aiter__(self) -> DeltaStream:
        return self

    async def __anext__(self) -> Delta:
        while not self._pending:
            if self._error is not None:
                raise self._error
            if self._unfinished == 0:
                raise StopAsyncIteration
            await self._wait()
        name = next(iter(self._pending))
        delta = joined(self._pending.pop(name))
        if delta.finish_reason is not None:
            self._unfinished -= 1
        return delta

    async def __aenter__(self) -> DeltaStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Abort what is unfinished. Once is enough; more does nothing."""
        if not self._closed:
            self._closed = True
            self._pending.clear()
            self._on_close(self)

    async def _wait(self) -> None:
        self._news.clear()
        await self._news.wait()

    # Called by the worker, on the event loop.

    def settle(self, error: ApiError | None) -> None:
        """The engine's verdict on the requests."""
        self._settled = True
        if error is not None:
            self._error = error
        self._news.set()

    def push(self, delta: Delta) -> None:
        if not self._closed:
            self._pending.setdefault(delta.request_id, []).append(delta)
            self._news.set()

    def fail(self, error: ApiError) -> None:
        """The engine is gone: what was pushed can still be read, then the error comes."""
        self._settled = True
        if self._unfinished - sum(d[-1].finish_reason is not None for d in self._pending.values()):
            self._error = error
        self._news.set()
