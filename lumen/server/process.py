"""The process around the app: one line when it is ready, and an orderly end at the first signal.

uvicorn closes its port at once when a signal comes, so a load balancer sees refused connections. Here the port stays
open while running requests finish: new ones get 503 and /health says so. A second signal cuts it short, and the process
ends at once: the engine's thread computes inside torch, and an interpreter that ends orderly under it aborts.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from types import FrameType

from ..extras import extra

with extra("serve"):
    import uvicorn
    from starlette.applications import Starlette


class Server(uvicorn.Server):
    """uvicorn's server, with the engine drained before the port closes."""

    def __init__(self, config: uvicorn.Config, app: Starlette, ready: str):
        super().__init__(config)
        self._service, self._ready = app.state.service, ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Task[None] | None = None
        self.cut_short_by = 0  # the signal that came second

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        print(self._ready, flush=True)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: leave now."""
        if self._loop is None or self._service.worker.draining:
            self.should_exit = self.force_exit = True
            self.cut_short_by = sig
        else:
            self._service.worker.draining = True
            self._loop.call_soon_threadsafe(self._begin_to_end)

    def _begin_to_end(self) -> None:
        self._ending = asyncio.ensure_future(self._end())

    async def _end(self) -> None:
        running = self._service.worker.num_live
        if running:
            grace = self._service.settings.grace
            print(
                f"lumen: {running} sequences may finish within {grace:g} s; once more ends now",
                file=sys.stderr,
            )
        await self._service.worker.drain(self._service.settings.grace)
        self.should_exit = True


def serving(app: Starlette, ready: str, access_log: bool = False) -> Server:
    """The server as it is meant to run; `await serve([listener])` runs it."""
    config = uvicorn.Config(
        app,
        log_level="info" if access_log else "warning",
        access_log=access_log,
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    return Server(config, app, ready)


def serve(app: Starlette, listener: socket.socket, what: str, access_log: bool = False) -> None:
    """Answer on `listener` until a signal. Prints `what` and the address when the first request may come.

    A second signal ends the process, with 128 + its number.
    """
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    server = serving(app, f"{what} on {address}/v1 (Ctrl-C ends it)", access_log)

    async def until_signalled() -> None:
        await server.serve([listener])
        if server.cut_short_by:
            sys.stdout.flush()
            os._exit(128 + server.cut_short_by)

    asyncio.run(until_signalled())
