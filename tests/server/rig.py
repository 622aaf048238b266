"""What the server's tests stand on: a byte-level tokenizer, an engine with a script, and servers to talk to.

`FakeEngine` has the real engine's surface and none of its arithmetic, so that a test can hold a step, slow it down or
let it fail at a chosen moment.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import httpx
import torch
from starlette.applications import Starlette
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lumen.decode.answer import Answer
from lumen.io.byte_level import ALPHABET
from lumen.io.tokenizer import Tokenizer
from lumen.serve.counters import Counters
from lumen.serve.engine import Engine
from lumen.serve.request import Delta, Request, Times, TokenLogprobs
from lumen.serve.scheduler import Limits
from lumen.server.app import Settings, create_app
from lumen.server.command import bind
from lumen.server.process import serving

from ..tiny import tiny_llama

NAME = "tiny"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB = len(SPECIAL) + 256


def byte_tokenizer() -> Tokenizer:
    """Three special tokens and one for each byte: id 3 + b is byte b, and every non-ASCII character is fragments."""
    letters = sorted(ALPHABET, key=lambda letter: ALPHABET[letter])
    backend = Backend(models.BPE(vocab={token: i for i, token in enumerate([*SPECIAL, *letters])}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(backend, eos_ids=(2, 0), bos_id=1, chat_template=TEMPLATE)


def ids(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def post_bytes(path: str, body: dict) -> bytes:
    """A whole HTTP request, for tests that write to a bare socket."""
    content = json.dumps(body).encode()
    lines = ["host: x", "content-type: application/json", f"content-length: {len(content)}", "", ""]
    return "\r\n".join([f"POST {path} HTTP/1.1", *lines]).encode() + content


class FakeEngine:
    """Answers with `script(request)`: the token ids it will say, one per step and sequence.

    `before_step` runs in the engine's thread before each step; what it raises ends the engine.
    """

    def __init__(
        self,
        script: Callable[[Request], list[int]] = lambda request: list(request.prompt)[::-1],
        max_seqs: int = 4,
        max_len: int = 256,
        before_step: Callable[[], None] = lambda: None,
    ):
        config = SimpleNamespace(vocab_size=VOCAB, eos_ids=(2, 0), max_positions=max_len)
        self.model, self.max_seqs = SimpleNamespace(config=config), max_seqs
        self.scheduler = SimpleNamespace(limits=SimpleNamespace(max_seqs=max_seqs), room=max_len)
        self.store = SimpleNamespace(pool=SimpleNamespace(num_blocks=max_len, block_size=1))
        self.script, self.before_step = script, before_step
        self.tokenizer, self.counters = byte_tokenizer(), Counters()
        self.queue: dict[str, tuple[Request, Iterator[int], Answer, list[float]]] = {}
        self.seen: list[Request] = []

    has_work = property(lambda self: bool(self.queue))
    num_running = property(lambda self: min(len(self.queue), self.max_seqs))
    num_waiting = property(lambda self: max(0, len(self.queue) - self.max_seqs))
    kv_usage = property(lambda self: len(self.queue) / 100)

    def add(self, request: Request) -> None:
        if request.id in self.queue:
            raise ValueError("taken")
        if 255 in request.prompt:
            raise ValueError("The engine does not like token 255.")
        answer = Answer(
            request.max_new_tokens, request.eos_ids, self.tokenizer, request.stop,
            keep_stop=request.keep_stop, skip_special=request.skip_special,
        )  # fmt: skip
        self.seen.append(request)
        self.queue[request.id] = (request, iter(self.script(request)), answer, [])
        self.counters.prompt_tokens += len(request.prompt)

    def abort(self, name: str) -> Delta | None:
        if name not in self.queue:
            return None
        del self.queue[name]
        return Delta(name, finish_reason="abort", time=time.monotonic())

    def step(self) -> list[Delta]:
        self.before_step()
        deltas = []
        for name, (request, tokens, answer, times) in list(self.queue.items())[: self.max_seqs]:
            token, now = next(tokens, 2), time.monotonic()
            times.append(now)
            text = answer.add(token)
            new = () if answer.done and token in request.eos_ids else (token,)
            logprobs = ()
            if request.logprobs is not None:
                top = tuple((token + i, -1.0 - i) for i in range(request.logprobs))
                logprobs = tuple(TokenLogprobs(t, -1.0, top) for t in new)
            whole = Times(request.arrival, times[0], times[0], now) if answer.done else None
            deltas.append(
                Delta(name, new, text, logprobs, answer.finish_reason, answer.stop_reason, 0, now, whole)
            )
            self.counters.generation_tokens += deltas[-1].num_generated
            if answer.done:
                del self.queue[name]
        return deltas


@asynccontextmanager
async def client_of(app: Starlette, **options):
    """An httpx client straight into the app; an exception in the app is one in the test."""
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", **options) as client:
            yield client


def app_of(engine, **settings) -> Starlette:
    settings.setdefault("grace", 1.0)
    return create_app(engine, engine.tokenizer, NAME, Settings(**settings))


get, post = partial(httpx.get, timeout=600), partial(httpx.post, timeout=600)  # a busy machine is no failure


@dataclass
class Live:
    """A server on a socket of this machine, in a thread."""

    url: str
    app: Starlette
    server: object
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop | None = None

    @property
    def service(self):
        return self.app.state.service

    def wait_until(self, true: Callable[[], bool], seconds: float = 600.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, "this did not come about in time"
            time.sleep(0.005)

    def tasks(self) -> int:
        """How many asyncio tasks the server's loop has now."""
        return asyncio.run_coroutine_threadsafe(_count_tasks(), self.loop).result(600)

    def signal(self) -> None:
        self.server.handle_exit(signal.SIGTERM, None)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks()) - 1  # without this one


@contextmanager
def live(app: Starlette) -> Iterator[Live]:
    """uvicorn on a free port until the block is left; leaving waits for an orderly end."""
    listener = bind("127.0.0.1", 0)
    server = serving(app, "test")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    found = Live(url, app, server, threading.Thread(target=lambda: asyncio.run(go())))

    async def go():
        found.loop = asyncio.get_running_loop()
        await server.serve([listener])

    found.thread.start()
    try:
        found.wait_until(lambda: server.started or not found.thread.is_alive())
        yield found
    finally:
        found.signal()
        found.thread.join(60)
        assert not found.thread.is_alive(), "the server does not end"


def tiny_engine(num_blocks: int = 64, dtype: torch.dtype = torch.float32, **limits):
    """The real engine on a small random model whose tokens are bytes: what it says is rarely valid UTF-8."""
    model = tiny_llama(dtype, vocab_size=VOCAB, max_positions=256)
    limits = Limits(**{"max_seqs": 8, "token_budget": 64} | limits)
    return Engine(model, byte_tokenizer(), num_blocks=num_blocks, block_size=4, limits=limits)


def check_empty(app: Starlette) -> None:
    """No sequence anywhere, every block free or remembered by the prefix cache, every count explained."""
    service = app.state.service
    worker = service.worker
    engine = worker._engine
    assert worker.num_live == 0 and not worker._live and not service.metrics._timelines
    assert not engine.has_work and engine.num_running == engine.num_waiting == 0
    if isinstance(engine, FakeEngine):
        return
    scheduler = engine.scheduler
    scheduler.audit()
    assert scheduler.pool.num_free + scheduler.prefix.num_evictable() == scheduler.pool.num_blocks
