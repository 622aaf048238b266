"""The engine in a thread of its own, so that a forward never stops the event loop and a slow client never stops a
forward.

    event loop                                engine thread
    submit, abort  ── inbox (under a lock) ──>  add, abort, step
    DeltaStream    <── one call a step ───────  every delta of the step

The engine belongs to its thread alone. The loop belongs to the clients: whoever reads slowly finds the deltas of
several steps joined into one, so what waits for a client is never more than its own answer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..serve.request import Delta, Request
from .api.errors import ApiError, BadRequest, Busy, EngineFailed, Unavailable
from .deltas import DeltaStream

log = logging.getLogger("lumen.server")

WAIT = 0.001  # seconds


@dataclass(frozen=True)
class EngineState:
    """What the engine said of itself after its last step; `counters` is the engine's own dataclass, copied."""

    num_running: int
    num_waiting: int
    kv_usage: float
    counters: Any


class Observer:
    """Hears of steps, and when requests come, get tokens, go early, or are refused. This one does nothing with it."""

    def stepped(self, before: EngineState, after: EngineState) -> None: ...
    def arrived(self, request: Request) -> None: ...
    def saw(self, request: Request, delta: Delta) -> None: ...
    def left(self, request: Request) -> None: ...
    def refused(self, request: Request) -> None: ...


@dataclass
class _Outbox:
    """What one turn of the engine thread has to tell the loop."""

    verdicts: list[tuple[DeltaStream, ApiError | None]]
    deltas: list[Delta]
    state: EngineState


class EngineWorker:
    """Runs `engine` from `start` to `stop`. All methods are called on the event loop.

    `max_live` bounds the sequences that are running, waiting, or finished and not yet read to the end.
    """

    def __init__(self, engine: Any, max_live: int, observer: Observer | None = None):
        self._engine, self.max_live = engine, max_live
        self._observer = observer or Observer()
        self._inbox: list[tuple[str, Any]] = []
        self._bell = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="lumen-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[str, tuple[Request, DeltaStream]] = {}
        self._open: set[DeltaStream] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self.draining = False
        self.failure: BaseException | None = None
        self.state = _state(engine)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def num_live(self) -> int:
        return sum(len(answers.requests) for answers in self._open)

    def check(self) -> None:
        """Raise Unavailable if no request can be taken now or ever."""
        if self.failure is not None:
            raise Unavailable("The engine has failed and takes no requests; the server must be restarted.")
        if self.draining:
            raise Unavailable("The server is shutting down and takes no new requests; try another one.")

    def submit(self, name: str, requests: Sequence[Request]) -> DeltaStream:
        """Queue the sequences of one client, all or none, under the `name` of the answer. Raises Busy or Unavailable.

        Use the answers in `async with`: leaving the block aborts what has not finished.
        """
        self.check()
        if self.num_live + len(requests) > self.max_live:
            raise Busy(
                f"The server holds {self.num_live} sequences and takes {self.max_live} at most, waiting ones "
                "included; try again in a moment."
            )
        answers = DeltaStream(name, requests, self._close)
        self._open.add(answers)
        self._all_closed.clear()
        for request in requests:
            self._live[request.id] = (request, answers)
            self._observer.arrived(request)
        self._tell("add", answers)
        return answers

    async def drain(self, timeout: float) -> None:
        """Take nothing new, let what runs finish within `timeout` seconds, abort the rest, end the thread."""
        self.draining = True
        if not await self._closed_within(timeout):
            self._tell("abort", list(self._live))
            await self._closed_within(5.0)  # clients read their last event
        self._tell("stop", None)
        await asyncio.to_thread(self._thread.join, 30.0)

    async def _closed_within(self, timeout: float) -> bool:
        try:
            await asyncio.wait_for(self._all_closed.wait(), timeout)
        except asyncio.TimeoutError:
            return False
        return True

    def _tell(self, verb: str, what: Any) -> None:
        with self._bell:
            self._inbox.append((verb, what))
            self._bell.notify()

    def _close(self, answers: DeltaStream) -> None:
        """A client is done with its answers, or gone: whatever still runs for it is aborted."""
        unfinished = [request for request in answers.requests if self._live.pop(request.id, None)]
        if unfinished:
            for request in unfinished:
                self._observer.left(request)
            self._tell("abort", [request.id for request in unfinished])
        self._open.discard(answers)
        if not self._open:
            self._all_closed.set()

    def _deliver(self, outbox: _Outbox) -> None:
        self._observer.stepped(self.state, outbox.state)
        self.state = outbox.state
        for answers, error in outbox.verdicts:
            if error is not None:
                for request in answers.requests:
                    if self._live.pop(request.id, None):
                        self._observer.refused(request)
            answers.settle(error)
        for delta in outbox.deltas:
            found = self._live.get(delta.request_id)
            if found is None:
                continue  # its client has gone
            request, answers = found
            if delta.finish_reason is not None:
                del self._live[delta.request_id]
            try:
                self._observer.saw(request, delta)
            except Exception:  # whoever counts may be wrong; the client gets his answer
                log.exception("a delta of request %s was not counted", delta.request_id)
            answers.push(delta)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        for request, _ in self._live.values():
            self._observer.left(request)
        self._live.clear()
        for answers in self._open:
            answers.fail(
                EngineFailed("The engine failed while it worked on this request; see the server's log.")
            )

    # Below: the engine's thread.

    def _run(self) -> None:
        assert self._loop is not None
        try:
            while (orders := self._next_orders()) is not None:
                verdicts, deltas = self._obey(orders)
                if self._engine.has_work:
                    deltas += self._engine.step()
                    if not deltas and not self._engine.num_running:
                        time.sleep(WAIT)  # a policy that waits for a fuller batch: look again in a moment
                self._loop.call_soon_threadsafe(
                    self._deliver, _Outbox(verdicts, deltas, _state(self._engine))
                )
        except BaseException as error:
            log.exception("the engine failed; its requests end with an error and no new ones are taken")
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._fail, error)

    def _next_orders(self) -> list[tuple[str, Any]] | None:
        """What came in since the last step; waits only if there is nothing to compute. None: the end."""
        with self._bell:
            while not self._inbox and not self._engine.has_work:
                self._bell.wait()
            orders, self._inbox = self._inbox, []
        return None if any(verb == "stop" for verb, _ in orders) else orders

    def _obey(
        self, orders: list[tuple[str, Any]]
    ) -> tuple[list[tuple[DeltaStream, ApiError | None]], list[Delta]]:
        verdicts: list[tuple[DeltaStream, ApiError | None]] = []
        deltas: list[Delta] = []
        for verb, what in orders:
            if verb == "add":
                verdicts.append((what, self._add(what.requests)))
            else:
                deltas += [delta for name in what if (delta := self._engine.abort(name)) is not None]
        return verdicts, deltas

    def _add(self, requests: Sequence[Request]) -> ApiError | None:
        """All or none."""
        for number, request in enumerate(requests):
            try:
                self._engine.add(request)
            except Exception as error:
                for earlier in requests[:number]:
                    self._engine.abort(earlier.id)
                if isinstance(error, ValueError):
                    return BadRequest(str(error))
                log.exception("request %s could not begin", request.id)
                return EngineFailed("The engine could not begin this request; the server's log says why.")
        return None


def _state(engine: Any) -> EngineState:
    return EngineState(engine.num_running, engine.num_waiting, engine.kv_usage, replace(engine.counters))
