"""What a server costs on top of the model: an engine step at eight streams, driven directly and through `lumen serve`.

    python benchmarks/server_overhead.py            SmolLM2-135M, two minutes on two cores; writes evidence
    python benchmarks/server_overhead.py --quick    one round of short answers; writes nothing

Both sides answer the same eight prompts in the same run, in turns. Directly: `engine.step()` in a loop, every part
of it timed. Through the server: a process of its own, eight clients over localhost, the gap between two events.
Clients only note when bytes come, but they share the cores with the server, as they do on a laptop.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import selectors
import socket
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import torch
from serving import free_port, lumen_serve, started

import lumen
from lumen import assets, bench
from lumen.loadgen import prompts
from lumen.loadgen.client import Prompt
from lumen.serve import forward, runner
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

STREAMS, PROMPT, SEED, TARGET = 8, 52, 0, 0.10
NAME = "smollm2-135m"
TEXT = re.compile(rb'"text":"[^"]')  # an event that brings some
PARTS = ("schedule", "pack", "forward", "sample", "detokenise")


class Clock:
    """Adds up the seconds of named functions between two calls of `take`."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    def timed(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            try:
                return fn(*args, **options)
            finally:
                self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - start

        return call

    def take(self) -> dict[str, float]:
        spent, self.spent = self.spent, {}
        return spent


def direct(model: Any, tokenizer: Any, asked: list[Prompt]) -> list[dict[str, float]]:
    """Seconds of every step in which all streams decode: the whole, and its parts."""
    clock = Clock()
    with (
        mock.patch.object(forward, "PackedCache", clock.timed("pack", forward.PackedCache)),
        mock.patch.object(runner, "verify", clock.timed("sample", runner.verify)),
    ):
        engine = Engine(model, tokenizer, num_blocks=512, limits=Limits(max_seqs=STREAMS, token_budget=256))
        engine.scheduler.schedule = clock.timed("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
        engine.scheduler.update = clock.timed("schedule", engine.scheduler.update)  # type: ignore[method-assign]
        engine.runner.run = clock.timed("run", engine.runner.run)  # type: ignore[method-assign]
        for number, prompt in enumerate(asked):
            engine.add(Request(str(number), tokenizer.encode(prompt.text), prompt.output_len))
        steps = []
        with bench.quiet():
            while engine.has_work:
                start = time.perf_counter()
                engine.step()
                whole = time.perf_counter() - start
                spent = clock.take()
                if len(engine.last_plan.work) == engine.last_plan.num_tokens == STREAMS:
                    in_run = spent["pack"] + spent["sample"]
                    steps.append(
                        {
                            "step": whole,
                            "schedule": spent["schedule"],
                            "pack": spent["pack"],
                            "forward": spent["run"] - in_run,
                            "sample": spent["sample"],
                            "detokenise": whole - spent["schedule"] - spent["run"],
                        }
                    )
    return steps


def through_server(url: str, asked: list[Prompt]) -> list[float]:
    """Seconds between two events of a stream, while all streams are running.

    The clients are bare sockets that note when bytes came and look into them afterwards: what is measured is the
    server, not the JSON of its guests.
    """
    where = urlsplit(url)
    reads: dict[socket.socket, list[tuple[float, bytes]]] = {}
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as ready:
        for _ in asked:
            client = stack.enter_context(socket.create_connection((where.hostname, where.port)))
            reads[client] = []
            ready.register(client, selectors.EVENT_READ)
        for client, prompt in zip(reads, asked, strict=True):
            client.sendall(_post(prompt))
        while ready.get_map():
            came = ready.select(60)
            if not came:
                raise RuntimeError(
                    "No stream brought anything for a minute; ask `lumen serve` by hand to see why."
                )
            for key, _ in came:
                client = key.fileobj  # type: ignore[assignment]
                data = client.recv(2**16)
                reads[client].append((time.perf_counter(), data))
                if not data or data.endswith(b"0\r\n\r\n"):  # the empty chunk ends an HTTP answer
                    ready.unregister(client)
    times = [[at for at, data in got if TEXT.search(data)] for got in reads.values()]
    if min(map(len, times)) < asked[0].output_len // 2:
        raise RuntimeError("A stream failed or came in lumps; ask `lumen serve` by hand to see why.")
    start, end = max(stream[0] for stream in times), min(stream[-1] for stream in times)
    return [b - a for stream in times for a, b in pairwise(t for t in stream if start <= t <= end)]


def _post(prompt: Prompt) -> bytes:
    asked = {"model": NAME, "prompt": prompt.text, "max_tokens": prompt.output_len, "temperature": 0}
    body = json.dumps({**asked, "ignore_eos": True, "stream": True}).encode()
    head = ["POST /v1/completions HTTP/1.1", "host: localhost", "content-type: application/json"]
    head += [f"content-length: {len(body)}", "", ""]
    return "\r\n".join(head).encode() + body


def model_part(step: dict[str, float]) -> float:
    """Seconds of a step that the model takes."""
    return step["pack"] + step["forward"] + step["sample"]


def show(name: str, seconds: float, model_step: float) -> None:
    print(f"{name:11} {1e3 * seconds:8.3f} ms   {100 * seconds / model_step:5.1f} % of the model's step")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    # Short rounds: both sides meet the machine in one mood.
    rounds, answer = (1, 16) if options.quick else (40, 24)
    model, tokenizer = lumen.load(NAME, dtype=torch.float32)
    text = assets.shakespeare()[0]
    steps: list[dict[str, float]] = []
    gaps: list[float] = []
    pairs: list[tuple[float, float]] = []  # a round's median gap, and its median step of the model
    port = free_port()
    with started(lumen_serve(port, NAME, STREAMS), port) as url:
        for number in range(rounds + 1):  # the first round warms up
            asked = prompts.from_text(
                text,
                [PROMPT] * STREAMS,
                [answer] * STREAMS,
                tokenizer.encode,
                tokenizer.decode,
                seed=SEED + number,
            )  # a seed of its own: no round finds the last one's prompts in a prefix cache
            if number % 2:  # who comes first takes turns
                ours, theirs = direct(model, tokenizer, asked), through_server(url, asked)
            else:
                theirs, ours = through_server(url, asked), direct(model, tokenizer, asked)
            print(f"round {number} of {rounds}: {len(ours)} steps, {len(theirs)} gaps", flush=True)
            if number:
                steps += ours
                gaps += theirs
                pairs.append((statistics.median(theirs), statistics.median(map(model_part, ours))))
    timed = {name: bench.Timing(tuple(step[name] for step in steps)) for name in ("step", *PARTS)}
    served = bench.Timing(tuple(gaps))
    model_step = statistics.median(map(model_part, steps))
    ratio = bench.Estimate.ratio(*zip(*pairs, strict=True))
    summary = {
        "model_step": model_step,
        "engine_step": timed["step"].median,
        "served_step": served.median,
        "overhead": ratio.value - 1,
        "overhead_low": ratio.low - 1,
        "overhead_high": ratio.high - 1,
        "rounds": ratio.n,
        "server_over_engine": served.median / timed["step"].median - 1,
        "streams": STREAMS,
        "prompt": PROMPT,
        "answer": answer,
    }
    for name, timing in (*timed.items(), ("served", served)):
        show(name, timing.median, model_step)
    print(
        f"HTTP, JSON, detokenising and scheduling cost {100 * (ratio.value - 1):.1f} % on top of the model's step "
        f"({100 * (ratio.low - 1):.1f} to {100 * (ratio.high - 1):.1f} %, {ratio.n} rounds)"
    )
    if not options.quick:
        print(
            "wrote",
            bench.evidence(
                "server_overhead", {"summary": summary, "direct": timed, "served": served}, seed=SEED
            ).name,
        )
    met = summary["overhead"] <= TARGET
    print(f"target (at most {TARGET:.0%}): {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
