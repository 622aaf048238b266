"""One request to an OpenAI-style server, streamed and timed.

The clock is read once per read from the socket: events that arrived together have the same time. Nothing here
raises for what a server does; the record's `error` says it, in one line.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from lumen.loadgen.answer import StreamedAnswer
from lumen.loadgen.malformed import BadStream, message_of, one_line, parsed, typed
from lumen.loadgen.record import Record
from lumen.loadgen.sse import EventStream

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
MAX_WORDS = 64 * 2**10  # bytes read of an answer that is no stream: a refusal, a web page
MAX_LIST = 4 * 2**20  # bytes read of a list of models: a router's has hundreds


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
        try:
            parts = urlsplit(self.base_url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            httpx.URL(self.url)
            fits = fits and not any(map(str.isspace, self.url))
        except (
            ValueError,
            httpx.InvalidURL,
        ):  # a port that is no number up to 65535, a bracket that never closes
            fits = False
        if not fits:
            path = f" with the path {self.path!r}" if self.path else ""
            raise ValueError(f"The base URL looks like http://127.0.0.1:8000, got {self.base_url!r}{path}.")
        for name, value in self.headers.items():
            if not (name + value).isascii() or not (name + value).isprintable() or " " in name:
                raise ValueError(f"A header is printable ASCII without a blank in its name, got {name!r}.")
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
            if response.status_code != 200 or not _is_stream(response):
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
    except ValueError as problem:
        error = str(problem)
    except httpx.HTTPError as problem:
        if answer.finish_reason is None:  # a hang-up behind the end of the answer took nothing away
            error = _named(problem)
    except Exception as problem:  # whatever one request meets, the others are measured
        error = _named(problem)
    return answer.record(
        start if intended is None else intended,
        start,
        prompt_len=prompt.prompt_len,
        count_tokens=target.count_tokens,
        error=one_line(error),
        end=clock() - zero if error else None,
    )


async def _drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the few bytes behind `[DONE]`, so that the connection can be used again; at most a second."""

    async def rest() -> None:
        async for _ in chunks:
            pass

    with suppress(asyncio.TimeoutError, httpx.HTTPError):
        await asyncio.wait_for(rest(), 1.0)


def _named(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}".rstrip(": ")


def _is_stream(response: httpx.Response) -> bool:
    """Whether the answer says that it is a stream of events, or says nothing."""
    kind = response.headers.get("content-type", "")
    return not kind or kind.partition(";")[0].strip().lower() == "text/event-stream"


async def _refusal(response: httpx.Response) -> str:
    """What an answer that is no stream says: an error's sentence, where a redirect leads, the beginning of a page."""
    raw = await _beginning(response, MAX_WORDS)
    try:
        said = message_of(parsed(raw))
    except (BadStream, RecursionError):
        said = raw[:200].decode("utf-8", errors="replace").strip() or response.reason_phrase
    if response.has_redirect_location:
        said = f"the server is at {response.headers['location']}; redirects are not followed, give --base-url that"
    elif response.status_code == 200:
        said = f"no stream of events but {response.headers['content-type']}: {said}"
    return f"HTTP {response.status_code}: {said}"


async def _beginning(response: httpx.Response, limit: int) -> bytes:
    """The first bytes of a body, `limit` at most."""
    raw = bytearray()
    async for part in response.aiter_bytes():
        raw += part
        if len(raw) >= limit:
            break
    return bytes(raw[:limit])


async def first_model(session: httpx.AsyncClient, target: Target) -> str:
    """The first model that the server lists. ConnectionError, with the cure, if it lists none or is not there."""
    url = target.base_url + "/v1/models"
    try:
        async with session.stream("GET", url) as response:
            listed = parsed(await _beginning(response.raise_for_status(), MAX_LIST), "the list")
        return typed(listed["data"][0]["id"], str, what="its id")
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        said = one_line(str(error)) or type(error).__name__
        raise ConnectionError(
            f"{url} does not name a model ({said}). Is the server running there? Otherwise give --model."
        ) from error
