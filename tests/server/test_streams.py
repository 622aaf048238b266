"""Many at once: 64 streams on a pool for eight, 200 clients that leave, texts in pieces; and memory that stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import tracemalloc

import httpx
import torch

import lumen
from lumen.sampling import SamplingParams

from .rig import app_of, check_empty, client_of, get, ids, live, post, post_bytes, tiny_engine


def events_of(text: str) -> list[dict]:
    *events, done = text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]", text[-200:]
    return [json.loads(event.removeprefix("data: ")) for event in events]


def requests(count: int) -> list[dict]:
    """Greedy and sampled, short and long, many with a beginning in common."""
    rng = random.Random(1)
    found = []
    for number in range(count):
        prompt = (
            rng.choice(["", "a common beginning ", "another one, "]) + "abcdefghijkl"[: rng.randint(1, 12)]
        )
        body = {"prompt": prompt, "max_tokens": rng.randint(1, 32), "seed": number, "stream": True}
        body["temperature"] = rng.choice([0.0, 0.0, 0.8, 1.5])
        if rng.random() < 0.3:
            body["stop"] = [rng.choice("abcdefghij0123456789"), "\ufffd\ufffd\ufffd"]
        found.append(body)
    return found


def test_sixty_four_streams_on_a_pool_for_eight():
    """Equal in float64 to each request alone; every block back, no task left."""
    engine = tiny_engine(num_blocks=8 * 64 // 4, dtype=torch.float64)
    bodies = requests(64)
    with live(app_of(engine)) as server:
        assert get(f"{server.url}/health").status_code == 200
        before = server.tasks()

        async def one(client, body):
            answer = await client.post(f"{server.url}/v1/completions", json=body | {"model": "tiny"})
            return "".join(event["choices"][0]["text"] for event in events_of(answer.text))

        async def go():
            async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=64)) as client:
                return await asyncio.gather(*(one(client, body) for body in bodies))

        texts = asyncio.run(go())
        server.wait_until(lambda: server.service.worker.num_live == 0 and server.tasks() <= before)
        check_empty(server.app)
    assert engine.counters.slot_steps / engine.counters.steps > 4  # they did share steps
    for body, text in zip(bodies, texts, strict=True):
        params = SamplingParams(temperature=body["temperature"], seed=body["seed"])
        (done,) = lumen.generate(
            engine.model, [ids(body["prompt"])], body["max_tokens"], params,
            tokenizer=engine.tokenizer, stop=body.get("stop", ()),
        )  # fmt: skip
        assert text == done.text, body


async def read_some(reader: asyncio.StreamReader, times: int) -> None:
    for _ in range(times):
        if not await reader.read(300):
            return


def test_two_hundred_clients_leave_at_random_moments(capfd):
    rng = random.Random(2)
    engine = tiny_engine(num_blocks=100)
    with live(app_of(engine)) as server:
        assert get(f"{server.url}/health").status_code == 200
        before = server.tasks()
        port = int(server.url.rsplit(":", 1)[1])

        async def leave(number):
            await asyncio.sleep(rng.random() * 2)
            body = {"model": "tiny", "prompt": "ab" * rng.randint(1, 30), "max_tokens": rng.randint(1, 150),
                    "stream": number % 3 > 0, "n": rng.choice([1, 1, 2]), "ignore_eos": True}  # fmt: skip
            whole = post_bytes("/v1/completions", body)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(whole[: rng.choice([len(whole), len(whole), len(whole), rng.randrange(len(whole))])])
            await writer.drain()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    read_some(reader, rng.randint(0, 40)), rng.choice([0.0, 0.01, 0.1, 0.5])
                )
            if rng.random() < 0.5:
                writer.transport.abort()  # a reset instead of an orderly end
            writer.close()

        async def go():
            await asyncio.gather(*(leave(number) for number in range(200)))

        asyncio.run(go())
        server.wait_until(lambda: server.service.worker.num_live == 0 and not engine.has_work)
        server.wait_until(lambda: server.tasks() <= before)
        check_empty(server.app)
        assert engine.counters.prompt_tokens > 1000
        whole = post(f"{server.url}/v1/completions", json={"model": "tiny", "prompt": "x", "seed": 1})
        assert whole.status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_pieces_of_any_bytes_join_to_the_whole_text():
    """Random bytes make broken characters of every kind, at the end of answers too. Joined pieces are the decoding of
    all tokens, which the log-probabilities give byte by byte (field bug T42)."""
    engine = tiny_engine()
    bodies = [
        {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1 + seed % 40, "seed": seed,
         "temperature": 2, "logprobs": True, "stream": True, "skip_special_tokens": bool(seed % 2)}
        for seed in range(60)
    ]  # fmt: skip

    async def go():
        async with client_of(app_of(engine), timeout=600) as client:
            found = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))
            return [events_of(answer.text) for answer in found]

    replaced = 0
    for body, events in zip(bodies, asyncio.run(go()), strict=True):
        choices = [event["choices"][0] for event in events]
        text = "".join(choice["delta"]["content"] for choice in choices)
        entries = [
            entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]
        ]
        special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        shown = [e for e in entries if not (body["skip_special_tokens"] and e["token"] in special)]
        assert text == bytes(b for entry in shown for b in entry["bytes"]).decode(errors="replace")
        replaced += text.count("\ufffd")
    assert replaced > 100  # it was hard


def test_memory_stays_flat():
    """What Python holds after three hundred more requests. Slack 300 KB: a leak of 1 KB a request is found."""
    engine = tiny_engine(num_blocks=64)

    async def round_of(client, count):
        bodies = [
            {"model": "tiny", "prompt": f"{i:04}", "max_tokens": 2, "stream": i % 2 == 0}
            for i in range(count)
        ]
        for start in range(0, count, 25):
            some = bodies[start : start + 25]
            await asyncio.gather(*(client.post("/v1/completions", json=body) for body in some))
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async def go():
        async with client_of(app_of(engine), timeout=600) as client:
            await round_of(client, 100)
            return await round_of(client, 100), await round_of(client, 300)

    tracemalloc.start()
    try:
        first, second = asyncio.run(go())
    finally:
        tracemalloc.stop()
    assert second - first < 300_000
