"""A tiny HTTP server that answers with exact bytes and pauses, and a transport whose clock is part of the script.

A script is a list of bytes (written and flushed at once), numbers (seconds of silence) and HANG_UP (the connection
is cut). Bodies are chunked, one chunk per bytes item.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

HANG_UP = None
Script = Sequence["bytes | float | None"]


def event(**fields) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(piece: str, finish=None) -> bytes:
    return event(choices=[{"index": 0, "text": piece, "finish_reason": finish}], usage=None)


def delta(finish=None, **fields) -> bytes:
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": finish}], usage=None)


def usage(prompt: int, completion: int) -> bytes:
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = b"data: [DONE]\n\n"


@dataclass
class Seen:
    """What the server saw: bodies, headers, paths, connections."""

    bodies: list[dict] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)  # what /metrics answers, one after the other
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    url: str = ""


@asynccontextmanager
async def serving(*scripts: Script, status: int = 200, metrics: Sequence[str] = ()) -> AsyncIterator[Seen]:
    """Answer request i with script i (the last one again and again). GET /v1/models lists the model `scripted`."""
    seen = Seen(metrics=list(metrics))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                if head.startswith("GET /v1/models"):
                    body = json.dumps({"data": [{"id": "scripted"}]}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                    continue
                if head.startswith("GET"):
                    body = (seen.metrics.pop(0) if seen.metrics else "").encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
                    continue
                length = next(
                    int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length" in line
                )
                script = scripts[min(len(seen.bodies), len(scripts) - 1)]
                seen.bodies.append(json.loads(await reader.readexactly(length)))
                seen.heads.append(head)
                writer.write(b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n" % status)
                for item in script:
                    if item is HANG_UP:
                        writer.transport.abort()
                        return
                    if isinstance(item, bytes):
                        writer.write(b"%x\r\n%b\r\n" % (len(item), item))
                        await writer.drain()
                        await asyncio.sleep(0.002)  # so that the client reads it before the next
                    else:
                        await asyncio.sleep(item)
                writer.write(b"0\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    seen.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield seen
    finally:
        server.close()


class Tape(httpx.AsyncBaseTransport):
    """Answers with (time, bytes) pairs; `clock` reads the time of the pair that was read last."""

    def __init__(self, *reads: tuple[float, bytes]):
        self.reads = reads
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async def body() -> AsyncIterator[bytes]:
            for now, piece in self.reads:
                self.now = now
                yield piece

        return httpx.Response(200, content=body())
