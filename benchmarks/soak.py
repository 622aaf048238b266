"""Ten thousand requests, one in ten broken off: does the server keep anything that it should give back?

    python benchmarks/soak.py                       a small random model, a quarter of an hour; writes evidence
    python benchmarks/soak.py --model smollm2-135m  the same with a real one, an hour; writes nothing
    python benchmarks/soak.py --quick               400 requests; writes nothing
    python benchmarks/soak.py --leak 1024           1 KiB kept for each sequence, which must be found; writes nothing

A server in a process of its own, 32 clients at a time. Half of the answers are streamed; one request in ten is broken
off by its client before the answer is complete, one in twenty is wrong in itself; prompts share beginnings or have a
salt of their own. After every hundred requests all connections are closed and the server is asked what it still holds.
The first quarter of these looks is compared with the last. Every answer is checked as well: its status, the form of its
stream, the sums of its usage.

What counts is memory in use: bytes that malloc has handed out (`memory.py`), and the number of pieces that Python has,
which takes the small ones from pools of its own. What is resident stands beside them with a wider limit: it alone has
memory that is not malloc's, but malloc's gaps as well.

Four things below us keep memory up to a limit that ten thousand requests do not reach; until then it looks like a leak.
oneDNN has a compiled product for every shape that it met, 1,024 of them twice over (pytorch issue 98688): here both
caches hold 16, and a step has 32 tokens at most. glibc keeps seven freed pieces of each of 64 sizes up to 1 KiB for
every thread (malloc's tcache), 240 KB for each of the twenty that tokenize; they fill as rare sizes come by, and count
as in use: here none are kept. Threads share up to eight heaps (arenas) for each core, each with gaps of its own: here
there is one. And what malloc holds ready for the next request goes back before every look (malloc_trim). What is left
to grow is ours.

Two more runs stand in the evidence: one with 2 KiB kept for each sequence, which must be found, and one with nothing
below us bounded, which says what an operator sees.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from serving import free_port, started

from lumen import bench

ROUND, AT_ONCE, SEED = 100, 32, 0
BOUNDS = {
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
    "LRU_CACHE_CAPACITY": "16",
    "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
    "MALLOC_ARENA_MAX": "1",
}
WARM = 10  # rounds before the first look
PER_REQUEST = {  # what may stay behind for each request
    "in_use": 64.0,  # bytes that malloc has handed out
    "python_pieces": 0.1,  # of memory, of any size, that Python has handed out
    "objects": 0.1,  # Python's, those that may hold others
    "resident": 512.0,  # bytes of pages, malloc's gaps and what is not malloc's among them
}
PLANTED, PLANTED_ROUNDS = 2048, 28  # bytes kept for each sequence in a run that must be judged to leak
NEVER_MORE = ("tasks", "files")
MOST_THREADS = 2 + 40  # the loop's, the engine's, and those that anyio keeps for templates and long texts


@dataclass(frozen=True)
class Ask:
    """One request. `after` is the number of pieces of a stream, or of milliseconds, before its client hangs up."""

    path: str
    body: dict[str, Any]
    after: int | None = None
    wrong: bool = False


def ask(dice: random.Random) -> Ask:
    """The next request of the mix."""
    text = dice.choice(["A shared beginning that a prefix cache may keep. " * 2, ""])
    text += "".join(chr(dice.randrange(97, 123)) for _ in range(dice.randrange(1, 80)))
    body: dict[str, Any] = {
        "model": "soak",
        "max_tokens": dice.randrange(1, 25),
        "stream": dice.random() < 0.5,
    }
    chat = dice.random() < 0.5
    body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    extras: list[dict[str, Any]] = [
        {"cache_salt": str(dice.random())}, {"n": 2}, {"temperature": 0}, {"logprobs": True if chat else 2},
        {"stop": ["e", "é"]}, {"bad_words": ["a", "th"]}, {"allowed_token_ids": [70, 71, 2]}, {"ignore_eos": True},
    ]  # fmt: skip
    for more in dice.sample(extras, dice.choice([0, 0, 1, 2])):
        body |= more
    if body["stream"] and dice.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    kind = dice.random()
    if kind < 0.10:
        return Ask(path, body | {"max_tokens": 64, "ignore_eos": True}, after=dice.randrange(12))
    if kind < 0.15:
        wrong = [{"temperature": 9}, {"max_token": 5}, {"tools": [1]}, {"max_tokens": 10**6}, {"model": "x"}]
        return Ask(path, body | dice.choice(wrong), wrong=True)
    return Ask(path, body)


async def one(client: httpx.AsyncClient, asked: Ask) -> str:
    """What came of a request, in a word; ValueError for an answer that is none."""
    if asked.after is not None and not asked.body["stream"]:
        with contextlib.suppress(TimeoutError, httpx.TimeoutException):
            await asyncio.wait_for(client.post(asked.path, json=asked.body), asked.after / 1000)
        return "broken off"
    async with client.stream("POST", asked.path, json=asked.body) as answer:
        if asked.wrong:
            said = json.loads(await answer.aread())
            if not (400 <= answer.status_code < 500 and said["error"]["message"]):
                raise ValueError(f"status {answer.status_code} for a wrong request: {said}")
            return "refused"
        if answer.status_code != 200:
            raise ValueError(f"status {answer.status_code}: {(await answer.aread())[:300]!r}")
        if not asked.body["stream"]:
            whole(json.loads(await answer.aread()), asked.body.get("n", 1))
            return "whole"
        pieces = []
        async for line in answer.aiter_lines():
            pieces += [line.removeprefix("data: ")] if line else []
            if asked.after is not None and len(pieces) >= asked.after:
                return "broken off"
        streamed(pieces, asked.body)
        return "streamed"


def whole(said: dict[str, Any], choices: int) -> None:
    usage = said["usage"]
    if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        raise ValueError(f"usage does not add up: {usage}")
    if [c["index"] for c in said["choices"] if c["finish_reason"] in ("stop", "length")] != [*range(choices)]:
        raise ValueError(f"not {choices} choices that ended: {said}")


def streamed(pieces: Sequence[str], body: dict[str, Any]) -> None:
    *found, done = pieces
    events = [json.loads(piece) for piece in found]
    if done != "[DONE]":
        raise ValueError(f"a stream ended with {done[:80]}")
    ends = [c for event in events for c in event["choices"] if c["finish_reason"]]
    usage = events[-1].get("usage") if "stream_options" in body else {"total_tokens": 0, "prompt_tokens": 0}
    sums = {"completion_tokens": 0, **(usage or {})}
    whole({"usage": sums, "choices": sorted(ends, key=lambda c: c["index"])}, body.get("n", 1))


async def soak(url: str, rounds: int) -> tuple[Counter[str], list[dict[str, Any]], list[str]]:
    """(how many requests of each outcome, what the server held after every round, what went wrong)"""
    dice, outcomes = random.Random(SEED), Counter[str]()
    looks: list[dict[str, Any]] = []
    wrong: list[str] = []
    for number in range(-WARM, rounds):
        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120.0, trust_env=False) as client:
            asks = [ask(dice) for _ in range(ROUND)]
            found = await asyncio.gather(*(one(client, asked) for asked in asks), return_exceptions=True)
        if number < 0:
            continue
        for asked, outcome in zip(asks, found, strict=True):
            if isinstance(outcome, BaseException):
                wrong.append(f"{outcome!r} after {json.dumps(asdict(asked))}")
            outcomes["wrong" if isinstance(outcome, BaseException) else outcome] += 1
        looks.append(await at_rest(url))
        if number % 10 == 9:
            print(f"{(number + 1) * ROUND:6} requests: {looks[-1]}", flush=True)
    return outcomes, looks, wrong


async def at_rest(url: str) -> dict[str, Any]:
    """What the server holds when nothing runs and the tasks of closed connections have ended."""
    async with httpx.AsyncClient(base_url=url, timeout=120.0, trust_env=False) as client:
        said, before = {}, None
        for _ in range(600):
            said = (await client.get("/soak")).json()
            if said["idle"] and said["tasks"] == before:
                return said
            before = said["tasks"]
            await asyncio.sleep(0.1)
    raise RuntimeError(f"The server does not come to rest: {said}")


def judge(looks: Sequence[dict[str, Any]]) -> tuple[dict[str, bench.Estimate], list[str]]:
    """What grows for each request between the first and the last quarter, and a sentence for what may not be so.

    Growth has an interval, and so a verdict, from six looks a quarter on. A meter that is not there (None) has none.
    """
    quarter = len(looks) // 4
    first, last = looks[:quarter], looks[-quarter:]
    between = ROUND * (len(looks) - quarter)
    growth, faults = {}, []
    for name, most in PER_REQUEST.items():
        if looks[0][name] is None:
            continue
        found = bench.Estimate.difference([x[name] for x in last], [x[name] for x in first], "")
        growth[name] = found.scaled(1 / between, f"{name} per request")
        if quarter >= 6 and growth[name].high > most:
            faults.append(f"{name} may grow by {growth[name].high:.3g} for each request, more than {most:g}")
    for name in NEVER_MORE:
        was, now = max(x[name] for x in first), max(x[name] for x in last)
        if now > was:
            faults.append(f"{name} rose from {was} to {now}")
    if (most := max(x["threads"] for x in looks)) > MOST_THREADS:
        faults.append(f"there were {most} threads, more than {MOST_THREADS}")
    if lost := max(x["lost_blocks"] for x in looks):
        faults.append(f"{lost} blocks belong to nobody")
    return growth, faults


def run(rounds: int, model: str = "", leak: int = 0, bounds: Mapping[str, str] = BOUNDS) -> dict[str, Any]:
    """Soak a server that is started for it: its outcomes, its looks, what grew and what was wrong."""
    port = free_port()
    command = [sys.executable, "-c", f"import soak_server; soak_server.run({port}, {model!r}, {leak})"]
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    with started(command, port, {**bounds, "PYTHONPATH": os.pathsep.join(paths)}) as url:
        outcomes, looks, wrong = asyncio.run(soak(url, rounds))
    growth, faults = judge(looks)
    print(f"{dict(outcomes)}; " + "; ".join(map(str, growth.values())))
    return {"outcomes": outcomes, "growth": growth, "faults": faults + wrong[:5], "looks": looks}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--model", default="", help="a model that `lumen serve` takes; a small random one if left out"
    )
    parser.add_argument(
        "--leak", type=int, default=0, help="bytes that the server is to keep for each sequence"
    )
    options = parser.parse_args()
    found = run(4 if options.quick else 100, options.model, options.leak)
    if not (options.quick or options.model or options.leak):
        planted = run(PLANTED_ROUNDS, leak=PLANTED)
        meter = "in_use" if "in_use" in planted["growth"] else "resident"
        if not any(fault.startswith(meter) for fault in planted["faults"]):
            found["faults"].append(f"{PLANTED:,} bytes kept for each sequence were not found")
        found |= {"warm": WARM * ROUND, "planted": {"bytes": PLANTED} | planted}
        found["unbounded"] = run(100, bounds={})
        print("wrote", bench.evidence("soak", found, seed=SEED).name)
    print("; ".join(found["faults"]) or "nothing stays behind")
    return 1 if found["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
