"""One request to an OpenAI-style server, streamed and timed.

The clock is read once per read from the socket: events that arrived together have the same time. Nothing here
raises for what a server does; the record's `error` says it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from lumen.loadgen.answer import BadStream, StreamedAnswer, message_of
from lumen.loadgen.record import Record
from lumen.loadgen.sse import EventStream

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True)
class Prompt:
    """What one request asks: a text, its length as we count it, and how many tokens of answer."""

    text: str
    prompt_len: int
    output_len: int


@dataclass
class Target:
    """Where requests go, and what every one of them carries."""

    base_url: str = "http://127.0.0.1:8000"
    model: str = ""
    api: str = "completions"  # or "chat"
    path: str = ""  # another path than the usual one
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 600.0  # longest silence of the server
    count_tokens: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        if self.api not in PATHS:
            raise ValueError(f"The API is completions or chat, got {self.api!r}.")
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"The base URL looks like http://127.0.0.1:8000, got {self.base_url!r}.")
        self.base_url = self.base_url.rstrip("/").removesuffix("/v1")

    @property
    def url(self) -> str:
        return self.base_url + (self.path or PATHS[self.api])

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """The JSON of a request. `extra_body` has the last word."""
        said = {"prompt": prompt.text}
        if self.api == "chat":
            said = {"messages": [{"role": "user", "content": prompt.text}]}  # type: ignore[dict-item]
        fixed = {"max_tokens": prompt.output_len, "stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **said, **fixed, **self.extra_body}

    def session(self) -> httpx.AsyncClient:
        """A client without a limit on connections, since a queue inside it would be a queue nobody measures."""
        local = urlsplit(self.base_url).hostname in ("127.0.0.1", "localhost", "::1")
        headers = dict(self.headers)
        key = os.environ.get("OPENAI_API_KEY")
        if key and "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {key}"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx.Timeout(self.timeout_s)
        return httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=not local)


async def ask(
    session: httpx.AsyncClient,
    target: Target,
    prompt: Prompt,
    *,
    intended: float | None = None,
    zero: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Record:
    """Send one prompt and follow its answer to the end.

    `intended` is when it should have been sent and `zero` the clock at the start of the run; both times of the
    record count from there. Without `intended` the request counts from now.
    """
    answer, events = StreamedAnswer(), EventStream()
    body = target.body(prompt)
    start = clock() - zero
    error = ""
    try:
        async with session.stream("POST", target.url, json=body) as response:
            if response.status_code != 200:
                raise BadStream(await _refusal(response))
            chunks = response.aiter_bytes()
            async for chunk in chunks:
                now = clock() - zero
                for data in events.feed(chunk):
                    answer.feed(data, now)
                if answer.done:
                    await _drain(chunks)
                    break
            now = clock() - zero
            for data in events.finish():
                answer.feed(data, now)
        answer.check()
    except (BadStream, ValueError) as problem:
        error = str(problem)
    except httpx.HTTPError as problem:
        if answer.finish_reason is None:  # a hang-up behind the end of the answer took nothing away
            error = f"{type(problem).__name__}: {problem}".rstrip(": ")
    return answer.record(
        start if intended is None else intended,
        start,
        prompt_len=prompt.prompt_len,
        count_tokens=target.count_tokens,
        error=error,
        end=clock() - zero if error else None,
    )


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the few bytes behind `[DONE]`, so that the connection can be used again; at most a second."""

    async def rest() -> None:
        async for _ in chunks:
            pass

    with suppress(asyncio.TimeoutError, httpx.HTTPError):
        await asyncio.wait_for(rest(), 1.0)


async def _refusal(response: httpx.Response) -> str:
    raw = await response.aread()
    try:
        said = message_of(json.loads(raw))
    except ValueError:
        said = raw[:200].decode("utf-8", errors="replace").strip() or response.reason_phrase
    return f"HTTP {response.status_code}: {said}"


async def first_model(session: httpx.AsyncClient, target: Target) -> str:
    """The first model that the server lists. ValueError, with the cure, if it lists none or is not there."""
    url = target.base_url + "/v1/models"
    try:
        listed = (await session.get(url)).raise_for_status().json()
        return str(listed["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        said = str(error) or type(error).__name__
        raise ValueError(
            f"{url} does not name a model ({said}). Is the server running there? Otherwise give --model."
        ) from error
