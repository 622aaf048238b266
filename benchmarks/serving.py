"""Servers in processes of their own, for the benchmarks that need some: start, wait until they answer, end."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence

import httpx

from lumen.server.command import bind


class DidNotStart(RuntimeError):
    """The server ended, or never answered; the message has the end of what it said."""


def free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def started(
    command: Sequence[str], port: int, env: Mapping[str, str] | None = None, patience: float = 400.0
) -> Iterator[str]:
    """Run `command` until the block is left; gives the base URL once /v1/models answers on `port`."""
    url, end = f"http://127.0.0.1:{port}", time.monotonic() + patience
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}
        )
        try:
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    said = log.read()[-600:].decode(errors="replace").strip()
                    raise DidNotStart(f"{' '.join(command[:4])} … did not answer. Its last words: {said}")
                time.sleep(0.25)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", trust_env=False, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def lumen_serve(port: int, model: str, max_seqs: int) -> list[str]:
    """The command line of our server."""
    engine = ["--max-seqs", str(max_seqs), "--token-budget", "256", "--num-blocks", "512"]
    return [
        sys.executable, "-m", "lumen.cli", "serve", "--model", model, "--port", str(port), *engine, "--grace", "1",
    ]  # fmt: skip
