"""`lumen serve`: load a model, open a port, answer until a signal says to stop."""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api.service import Settings

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def add_parser(subparsers: Any) -> None:
    """The grammar of the command."""
    parser = subparsers.add_parser(
        "serve",
        help="answer HTTP requests as OpenAI's API does",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.set_defaults(run=serve_command)
    parser.add_argument("--model", default="smollm2-135m", help="a name, a folder, a .gguf file or a hub id")
    parser.add_argument("--served-model-name", help="what clients call it; the model's name if left out")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=_port, default=8000, help="0 takes a free one")
    parser.add_argument(
        "--api-key",
        help="clients must send it; also read from LUMEN_API_KEY, where other users cannot see it",
    )
    parser.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        help="a web page's origin that may call; may be repeated",
    )
    engine = parser.add_argument_group("the engine")
    engine.add_argument("--max-seqs", type=_count, default=8, help="sequences in one batch")
    engine.add_argument(
        "--token-budget", type=_count, default=256, help="tokens in one step, prompts included"
    )
    engine.add_argument("--block-size", type=_count, default=16, help="positions in one cache block")
    engine.add_argument("--num-blocks", type=_count, help="cache blocks; overrides --memory")
    engine.add_argument(
        "--memory", type=_bytes, default="1G", help="memory for the cache, such as 512M or 2G"
    )
    engine.add_argument("--policy", default="continuous", choices=("continuous", "dynamic", "static"))
    engine.add_argument("--preemption", default="recompute", choices=("recompute", "swap"))
    engine.add_argument(
        "--no-prefix-cache", action="store_true", help="compute every prompt from its beginning"
    )
    limits = parser.add_argument_group("limits")
    limits.add_argument("--max-queue", type=_count_or_none, default=256, help="waiting sequences before 429")
    limits.add_argument("--max-body", type=_bytes, default="4M", help="largest request body")
    limits.add_argument(
        "--grace", type=_seconds, default=30.0, help="seconds for running requests at the end"
    )
    limits.add_argument(
        "--patience", type=_seconds, default=60.0, help="seconds with a client that does not read"
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
        app = create_app(engine, tokenizer, name, _settings(options, key))
        card = app.state.service.card
        what = f"Lumen serves {name} ({card.max_len} tokens of context, {options.max_seqs} sequences at once)"
        serve(app, listener, what, options.access_log)
    finally:
        listener.close()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. OSError says what to do about a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise OSError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}. Choose another --port (0 takes a free "
            "one) or --host."
        ) from None
    return listener


def _settings(options: argparse.Namespace, key: str | None) -> Settings:
    from .api.service import Settings

    return Settings(
        max_body=options.max_body,
        max_queue=options.max_queue,
        grace=options.grace,
        patience=options.patience,
        api_key=key,
        origins=tuple(options.allow_origin),
    )


def _engine(options: argparse.Namespace) -> tuple[Any, Any]:
    from ..io.load import load
    from ..serve.engine import Engine
    from ..serve.scheduler import Limits

    limits = Limits(options.max_seqs, options.token_budget, options.policy, options.preemption)
    model, tokenizer = load(options.model)
    model.warm_up()
    num_blocks = options.num_blocks or blocks_in(options.memory, model, options.block_size, options.max_seqs)
    prefix = "none" if options.no_prefix_cache else "radix"
    engine = Engine(
        model, tokenizer, num_blocks=num_blocks, block_size=options.block_size, prefix=prefix, limits=limits
    )
    return engine, tokenizer


def blocks_in(memory: int, model: Any, block_size: int, max_seqs: int) -> int:
    """How many cache blocks `memory` bytes hold; no more than all sequences at full length could use."""
    from .. import cost

    config = model.config
    per_block = block_size * cost.kv_bytes_per_token(config, next(model.parameters()).dtype)
    fits = int(memory // per_block)
    if fits < 1:
        raise ValueError(
            f"--memory {memory} bytes hold no block of {block_size} positions, which takes {int(per_block)} bytes "
            f"for {config.name}; give more, or a smaller --block-size."
        )
    return min(fits, max_seqs * -(-config.max_positions // block_size))


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or (size := int(float(match[1]) * _UNITS[match[2].upper()])) < 1:
        raise argparse.ArgumentTypeError(f"needs a size such as 512M or 2G, got {text!r}")
    return size


def _count(text: str) -> int:
    return _whole(text, 1, 2**31)


def _count_or_none(text: str) -> int:
    return _whole(text, 0, 2**31)


def _port(text: str) -> int:
    return _whole(text, 0, 65535)


def _whole(text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise argparse.ArgumentTypeError(f"needs a whole number from {low} to {high}, got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"needs seconds from 0 to 86400, got {text!r}")
    return value
