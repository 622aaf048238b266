"""Two thousand requests that are wrong in some way, mutated from valid ones: never a 500, never a hang, nothing lost.

The mutator is seeded, so a failure names the request that caused it. httpx talks to the app without a socket and lets
every exception of the app through to the test.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random

from .rig import app_of, check_empty, client_of, tiny_engine

COUNT, AT_ONCE = 2000, 16
COMMON = {
    "model": "tiny", "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.01, "n": 2, "seed": 1,
    "stop": ["ab", "c"], "logit_bias": {"5": 1.5, "7": -100}, "presence_penalty": 0.5, "frequency_penalty": -0.5,
    "repetition_penalty": 1.1, "stop_token_ids": [9, 10], "ignore_eos": False, "min_tokens": 1, "priority": 3,
    "cache_salt": "s", "response_format": {"type": "text"}, "stream": True, "user": "u", "skip_special_tokens": False,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "include_stop_str_in_output": True,
}  # fmt: skip
TEXT = {"messages": [{"role": "user", "content": "hi"}], "model": "tiny", "max_tokens": 2}
PARTS = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "é👋"}]}]
CHAT = {"messages": PARTS, "logprobs": True, "top_logprobs": 2, "max_completion_tokens": 2}
ECHO = {"prompt": "ab", "echo": True, "stream": False, "stream_options": None}
SHORT = {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 1}
VALID = {
    "/v1/chat/completions": [COMMON | CHAT, TEXT],
    "/v1/completions": [COMMON | {"prompt": [[5, 6], [7]], "logprobs": 2}, COMMON | ECHO, SHORT],
    "/tokenize": [{"prompt": "abc", "return_token_strs": True}, {"model": "tiny", "messages": PARTS}],
    "/detokenize": [{"model": "tiny", "tokens": [1, 2, 200]}],
}
NASTY = [
    None, True, False, 0, 1, -1, 2, 255, 258, 259, 1e308, -1e308, 1e-308, 2**31, 2**53, 2**63, -(2**63), 10**40, 0.5,
    3.0, "", " ", "0", "tiny", "a" * 5000, "\x00", "\u2028", "é", "👋", "\ud800", "<|im_end|>", "NaN", [], {}, [[]],
    [{}], [None], {"": ""}, {"type": "json_object"}, {"role": "user"}, [1, "a"], [-1], [10**40], {"5": 10**40},
    list(range(300)), "user",
]  # fmt: skip
NAMES = ["extra", "Model", "max_Tokens", "\x00", "tools", "suffix", "best_of"]
PATHS = ["/", "/v1/completions/", "/V1/COMPLETIONS", "/v2/x", "/v1/models", "//v1/completions", "/%00"]
METHODS = ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "BREW"]
JSON = {"content-type": "application/json"}
HEADERS = [{"content-type": kind} for kind in ("text/plain", "application/xml", "\t")]
HEADERS += [
    JSON | {"authorization": "Bearer x" * 100},
    JSON | {"content-encoding": "br"},
    JSON | {"content-length": "-5"},
]


def spots(value, at=()):
    """The way to every value inside."""
    found = [at] if at else []
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found += spots(value[key], (*at, key))
    return found


def mutate(rng: random.Random, body: dict) -> bytes:
    body = copy.deepcopy(body)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        way = rng.choice(spots(body) or [("prompt",)])
        inside = body
        for key in way[:-1]:
            inside = inside[key]
        kind = rng.randrange(6)
        if kind == 0 and isinstance(inside, dict):
            inside.pop(way[-1], None)
        elif kind == 1 and isinstance(inside, dict):
            inside[rng.choice(NAMES)] = rng.choice(NASTY)
        elif kind == 2 and isinstance(inside, dict):
            inside[way[-1]] = [inside.get(way[-1])] * rng.choice([1, 3, 20])
        else:
            inside[way[-1]] = copy.deepcopy(rng.choice(NASTY))
    raw = json.dumps(body).encode()
    kind = rng.randrange(12)
    if kind == 0:
        raw = raw[: rng.randrange(len(raw))]
    elif kind == 1:
        at = rng.randrange(len(raw))
        raw = raw[:at] + bytes([rng.randrange(256)]) + raw[at + rng.randrange(2) :]
    elif kind == 2:
        number = rng.choice([b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"-0", b"0x1", b"01", b"1_0"])
        raw = raw.replace(rng.choice([b"0.5", b"1.5", b'"a"', b"2"]), number, 1)
    elif kind == 3:
        deep = rng.choice([5, 900, 3000])
        raw = raw[:-1] + b', "deep": ' + b"[" * deep + b"]" * deep + b"}"
    return raw


def check(answer, raw: bytes) -> int:
    """The answer is what was asked for, or an error object with a sentence."""
    status = answer.status_code
    assert status in (200, 400, 404, 405, 413, 415), (status, raw, answer.text)
    if answer.request.method == "HEAD":
        return status
    if status != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and 10 < len(error["message"]) < 700, (
            raw,
            error,
        )
        assert "Traceback" not in answer.text
    elif answer.headers["content-type"].startswith("text/event-stream"):
        *events, done = answer.text.removesuffix("\n\n").split("\n\n")
        assert done == "data: [DONE]" and not any('"error"' in event for event in events), (raw, answer.text)
        for event in events:
            json.loads(event.removeprefix("data: "))
    else:
        answer.json()
    return status


def test_two_thousand_malformed_requests():
    rng = random.Random(4)
    engine = tiny_engine()
    app = app_of(engine, max_body=200_000)
    counts: dict[int, int] = {}

    async def one(client, path, method, raw, headers):
        answer = await client.request(method, path, content=raw, headers=headers)
        status = check(answer, raw)
        counts[status] = counts.get(status, 0) + 1

    async def go():
        async with client_of(app, timeout=600) as client:
            for _ in range(COUNT // AT_ONCE):
                batch = []
                for _ in range(AT_ONCE):
                    path = rng.choice(list(VALID))
                    raw, headers, method = mutate(rng, rng.choice(VALID[path])), JSON, "POST"
                    odd = rng.randrange(40)
                    if odd == 0:
                        headers = rng.choice(HEADERS)
                    elif odd == 1:
                        method = rng.choice(METHODS)
                    elif odd == 2:
                        path = rng.choice(PATHS)
                    elif odd == 3:
                        raw += b" " * 200_000
                    batch.append(one(client, path, method, raw, headers))
                await asyncio.gather(*batch)
            assert (await client.get("/health")).status_code == 200
            body = SHORT
            assert (await client.post("/v1/completions", json=body)).status_code == 200
            await asyncio.sleep(0.05)
            check_empty(app)
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(go())
    assert sum(counts.values()) == COUNT and set(counts) == {200, 400, 404, 405, 413, 415}
    assert counts[200] > 100 and counts[400] > 1000  # some mutants are still valid, most are not
