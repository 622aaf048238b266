"""The server that `soak.py` asks: ours, over HTTP, with a path more on which it tells of itself.

The model is small and random unless one is named: what is looked for here are blocks, tasks, files and memory that
nobody gives back, and they do not depend on what the model says. With a leak planted it must be found.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from typing import Any

import tokenizers
import torch
from memory import in_use, resident
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import lumen
from lumen.io.tokenizer import Tokenizer
from lumen.models import Llama, ModelConfig
from lumen.serve.engine import Engine
from lumen.serve.request import Request as EngineRequest
from lumen.serve.scheduler import Limits
from lumen.server.app import Settings, create_app
from lumen.server.command import bind
from lumen.server.process import serve

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\\n' }}"
)


def small(seed: int = 0) -> tuple[Llama, Tokenizer]:
    """A random Llama of two layers whose tokens are bytes: most of what it says is no UTF-8."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(SPECIAL + letters)}
    # A whole text is one word here, and the library would keep ten thousand of them.
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], cache_capacity=0))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    torch.manual_seed(seed)
    size = len(SPECIAL) + len(letters)
    model = Llama(ModelConfig("small", size, 2, 48, 4, 2, 12, 96, 512, eos_ids=(2, 0)))
    return model.eval().requires_grad_(False), Tokenizer(backend, eos_ids=(2, 0), chat_template=TEMPLATE)


class Leaking(Engine):
    """Keeps `leak` bytes for each sequence that it takes, in no object that the garbage collector sees."""

    def __init__(self, *args: Any, leak: int, **options: Any):
        super().__init__(*args, **options)
        self._leak = leak
        self._kept: list[bytes] = []

    def add(self, request: EngineRequest) -> None:
        super().add(request)
        self._kept.append(os.urandom(self._leak))


def told(app: Any) -> dict[str, Any]:
    """What the server holds. Blocks are looked at when nothing runs: they belong to the engine's thread."""
    worker, engine = app.state.service.worker, app.state.service.worker._engine
    idle = worker.num_live == 0 and not engine.has_work
    pool, prefix = engine.store.pool, engine.store.prefix
    gc.collect()
    return {
        "idle": idle,
        "lost_blocks": pool.num_blocks - pool.num_free - prefix.num_evictable() if idle else None,
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/dev/fd")),
        "threads": threading.active_count(),
        "objects": len(gc.get_objects()),
        "python_pieces": sys.getallocatedblocks(),
        "in_use": in_use(),
        "resident": resident(),
    }


def run(port: int, name: str, leak: int) -> None:
    """Serve until a signal. `name` "" is the small random model; `leak` bytes stay behind for each sequence."""
    model, tokenizer = lumen.load(name) if name else small()
    limits = Limits(max_seqs=16, token_budget=32)
    options: dict[str, Any] = {"num_blocks": 512, "limits": limits}
    engine = Leaking(model, tokenizer, leak=leak, **options) if leak else Engine(model, tokenizer, **options)
    app = create_app(engine, tokenizer, "soak", Settings(grace=1.0))

    async def tell(http: HttpRequest) -> Response:
        return JSONResponse(told(app))

    app.router.routes.append(Route("/soak", tell))
    with bind("127.0.0.1", port) as listener:
        serve(app, listener, "A server to soak")
