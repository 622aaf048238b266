"""`lumen serve`: load a model, open a port, answer until a signal says to stop."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from ..arguments import Number, Whole, place, quoted, size, text
from ..serve.kv_cache import PLAIN, Kept, KvCache, kept, kv_cache
from ..serve.speculation import speculation

if TYPE_CHECKING:
    from .api.service import Settings

SECONDS = Number(0, 86400)
USER = 2048  # tokens of a user, where users are counted


def add_parser(subparsers: Any) -> None:
    """The grammar of the command."""
    parser = subparsers.add_parser(
        "serve",
        help="answer HTTP requests as OpenAI's API does",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=serve_command)
    parser.add_argument(
        "--model", type=place, default="smollm2-135m", help="a name, a folder, a .gguf file or a hub id"
    )
    parser.add_argument(
        "--served-model-name", type=text, help="what clients call it; the model's name if left out"
    )
    parser.add_argument("--host", type=text, default="127.0.0.1", help="0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=Whole(0, 65535), default=8000, help="0 takes a free one")
    parser.add_argument(
        "--api-key",
        help="clients must send it; also read from LUMEN_API_KEY, where other users cannot see it",
    )
    parser.add_argument(
        "--allow-origin",
        type=text,
        action="append",
        default=[],
        help="a web page's origin that may call; may be repeated",
    )
    engine = parser.add_argument_group("the engine")
    engine.add_argument("--max-seqs", type=Whole(), default=8, help="sequences in one batch")
    engine.add_argument(
        "--token-budget", type=Whole(), default=256, help="tokens in one step, prompts included"
    )
    engine.add_argument(
        "--kv-cache",
        type=kv_cache,
        default=PLAIN.name,
        help="how keys and values are kept: plain, int8, int4, kivi, kivi-2 or window:N+S (newest N, first S)",
    )
    engine.add_argument(
        "--block-size", type=Whole(), help="positions in one cache block; 16, or 32 for kivi if left out"
    )
    engine.add_argument("--num-blocks", type=Whole(), help="cache blocks; overrides --memory")
    engine.add_argument("--memory", type=size, default="1G", help="memory for the cache, such as 512M or 2G")
    engine.add_argument("--policy", default="continuous", choices=("continuous", "dynamic", "static"))
    engine.add_argument("--preemption", default="recompute", choices=("recompute", "swap"))
    engine.add_argument(
        "--priority-preemption",
        action="store_true",
        help="a request of better rank takes the place of a running one",
    )
    engine.add_argument(
        "--no-prefix-cache", action="store_true", help="compute every prompt from its beginning"
    )
    engine.add_argument(
        "--speculate",
        type=speculation,
        metavar="HOW",
        help="guess tokens and verify several in one pass, as far as the cost model says that it pays: ngram (from the "
        "text), layers:N (the model's own first N layers) or draft:MODEL (a smaller one of the same vocabulary; both "
        "keep a cache of their own)",
    )
    engine.add_argument(
        "--draft-tokens", type=Whole(1, 64), default=4, help="most guesses of a sequence a step"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=Whole(0), default=256, help="waiting sequences before 429")
    limits.add_argument("--max-body", type=size, default="4M", help="largest request body")
    limits.add_argument("--grace", type=SECONDS, default=30.0, help="seconds for running requests at the end")
    limits.add_argument(
        "--patience", type=SECONDS, default=60.0, help="seconds with a client that does not read"
    )
    parser.add_argument("--access-log", action="store_true", help="one line per request on stderr")


def serve_command(options: argparse.Namespace) -> None:
    """Bind first, load then: a port that is taken is known at once."""
    from ..runtime import in_passing_thread
    from .app import create_app
    from .process import serve

    key = options.api_key or os.environ.get("LUMEN_API_KEY") or None
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key):
        raise ValueError(
            "The API key must be printable ASCII without blanks around it: it travels in a header."
        )
    logging.basicConfig(level=logging.WARNING, format="lumen: %(levelname)s: %(message)s")
    listener = bind(options.host, options.port)
    try:
        engine, tokenizer = in_passing_thread(_engine, options)  # the only team left is the engine thread's
        name = options.served_model_name or str(options.model)
        told = _kept(options.kv_cache, engine)
        app = create_app(engine, tokenizer, name, _settings(options, key, told))
        card = app.state.service.card
        drafts = "" if options.speculate is None else f"; drafts by {options.speculate.name}"
        what = (
            f"Lumen serves {name} ({card.max_len} tokens of context, {options.max_seqs} sequences at once; {told}"
            f"{drafts})"
        )
        serve(app, listener, what, options.access_log)
    finally:
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; `host` is a name or an address, of IPv6 with or without brackets.

    OSError says what to do about a port that is taken, ValueError about a host that is none.
    """
    name = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not name.strip():
        raise ValueError(
            "--host needs a name or an address: 127.0.0.1 for this machine alone, 0.0.0.0 for all."
        )
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:  # UnicodeError and embedded zeros are ValueErrors
        why = error.strerror if isinstance(error, OSError) else "no name looks like that"
        raise ValueError(f"There is no --host {quoted(host)!r} here: {why}.") from None
    found.sort(key=lambda each: each[0] != socket.AF_INET)  # localhost has both; clients try 127.0.0.1
    family, _, _, _, address = found[0]
    listener = None
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise OSError(
            f"Cannot listen on {quoted(host)} port {port}: {error.strerror or error}. Choose another --port (0 takes a "
            "free one) or --host."
        ) from None
    return listener


def _settings(options: argparse.Namespace, key: str | None, told: Kept | None = None) -> Settings:
    from .api.service import Settings

    return Settings(
        max_body=options.max_body,
        max_queue=options.max_queue,
        grace=options.grace,
        patience=options.patience,
        api_key=key,
        origins=tuple(options.allow_origin),
        kept=told,
    )


def _kept(kind: KvCache, engine: Any) -> Kept:
    """What the start line and /metrics say of the cache; users of 2,048 tokens, or of what the model takes."""
    config, store = engine.model.config, engine.store
    return kept(kind, config, store.dtype, min(USER, config.max_positions), store.block_size)


def _engine(options: argparse.Namespace) -> tuple[Any, Any]:
    from ..io.load import load
    from ..serve.engine import Engine
    from ..serve.runner import NO_DRAFT
    from ..serve.scheduler import Limits

    kind: KvCache = options.kv_cache
    if kind.window is not None and not options.no_prefix_cache:
        raise ValueError(
            f"--kv-cache {kind.name} gives blocks back while it answers, and a prefix cache remembers a prompt by "
            "every block from its first on; add --no-prefix-cache."
        )
    limits = Limits(
        options.max_seqs,
        options.token_budget,
        options.policy,
        options.preemption,
        priority_preemption=options.priority_preemption,
    )
    model, tokenizer = load(options.model)
    model.warm_up()
    block_size = options.block_size or kind.block_size
    num_blocks = options.num_blocks or blocks_in(
        options.memory, model, block_size, options.max_seqs, kind, options.token_budget
    )
    check_memory(num_blocks, model, block_size, options.max_seqs, kind)
    prefix = "none" if options.no_prefix_cache else "radix"
    drafter = NO_DRAFT
    if options.speculate is not None:
        positions = num_blocks * block_size
        drafter = options.speculate.drafter(model, tokenizer, options.draft_tokens, positions)
    engine = Engine(
        model, tokenizer, num_blocks=num_blocks, block_size=block_size, prefix=prefix, limits=limits, drafter=drafter,
        make_store=kind.maker(options.max_seqs), kept=kind.window,
    )  # fmt: skip
    return engine, tokenizer


def blocks_in(
    memory: int, model: Any, block_size: int, max_seqs: int, kind: KvCache = PLAIN, chunk: int = 1
) -> int:
    """How many cache blocks `memory` bytes hold; no more than all sequences at full length could use."""
    config, dtype = model.config, next(model.parameters()).dtype
    per_block = kind.block_bytes(config, dtype, block_size)
    beside = max_seqs * kind.sequence_bytes(config, dtype, block_size)
    fits = int((memory - beside) // per_block)
    if fits < 1:
        raise ValueError(
            f"--memory {memory} bytes hold no block of {block_size} positions, which takes {int(per_block)} bytes "
            f"for {config.name}{_also(beside, max_seqs)}; give more, or a smaller --block-size."
        )
    return min(fits, max_seqs * kind.blocks(config.max_positions, block_size, chunk))


def _also(beside: float, max_seqs: int) -> str:
    """What the sentence adds for kinds that keep something beside their blocks."""
    return f", beside {int(beside)} bytes for {max_seqs} sequences (--max-seqs)" if beside else ""


def check_memory(
    num_blocks: int, model: Any, block_size: int, max_seqs: int = 0, kind: KvCache = PLAIN
) -> None:
    """ValueError if the blocks are more than the memory of this machine: asking for them would end the process."""
    from ..hardware.identity import memory_bytes

    where = next(model.parameters()).device
    if where.type == "cuda":
        import torch

        there = float(torch.cuda.mem_get_info(where)[1])
    else:
        there = memory_bytes()
    config, dtype = model.config, next(model.parameters()).dtype
    asked = num_blocks * kind.block_bytes(config, dtype, block_size)
    asked += max_seqs * kind.sequence_bytes(config, dtype, block_size)
    if there and asked > there:
        raise ValueError(
            f"{num_blocks} cache blocks of {block_size} positions take {asked / 2**30:,.1f} GiB for "
            f"{model.config.name}, and the device has {there / 2**30:,.1f} GiB; give fewer --num-blocks, or less "
            "--memory."
        )
