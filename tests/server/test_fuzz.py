"""Whatever a stranger sends, and wherever he hangs up: an answer or OpenAI's error, never a 5xx, nothing lost.

LUMEN_FUZZ=20 tries twenty times as much. A failure prints the request, shrunk.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import struct
from collections import Counter
from contextlib import contextmanager

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from .rig import app_of, check_empty, client_of, live, post_bytes, tiny_engine
from .shapeless import Shapeless, shapeless

MORE = int(os.environ.get("LUMEN_FUZZ", "1"))
SOME = settings(
    deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=False
)
HUNG = 300.0  # seconds without an answer


@contextmanager
def talking(app):
    """(how to run a coroutine, a client of the app); leaving checks that nothing was lost and all works as before."""
    known = {"model": "tiny", "prompt": "ab", "max_tokens": 5, "seed": 1}
    with asyncio.Runner() as runner:
        entered = client_of(app, timeout=HUNG)
        client = runner.run(entered.__aenter__())

        async def ask():
            return (await client.post("/v1/completions", json=known)).json()["choices"]

        before = runner.run(ask())
        yield runner.run, client
        assert runner.run(ask()) == before
        assert runner.run(client.get("/health")).status_code == 200
        runner.run(asyncio.sleep(0.05))
        check_empty(app)
        runner.run(entered.__aexit__(None, None, None))
        assert not asyncio.all_tasks(runner.get_loop())


def events(answer: httpx.Response) -> list[dict]:
    """The JSON of a stream, by the decoder of OpenAI's own client; the last event is [DONE]."""
    *found, done = [event.data for event in SSEDecoder().iter_bytes(iter([answer.content]))]
    assert done == "[DONE]"
    return [json.loads(data) for data in found]


def check(answer: httpx.Response) -> str:
    """What kind of answer it is, if it is one that a client can live with."""
    status = answer.status_code
    assert status in (200, 400, 404, 405, 413, 415), (status, answer.text)
    if answer.request.method == "HEAD":
        return "head"
    if status != 200:
        error = answer.json()["error"]
        assert answer.json().keys() == {"error"} and error.keys() == {"message", "type", "param", "code"}
        assert 10 < len(error["message"]) < 700 and error["message"][-1] in ".…?", error
        assert error["param"] is None or isinstance(error["param"], str)
        return f"{status}"
    if not answer.headers["content-type"].startswith("text/event-stream"):
        found = answer.json()
        if "usage" in found:
            count(found["usage"], len(found["choices"]))
        return "whole"
    found = events(answer)
    assert not any("error" in event for event in found)
    ends = Counter(c["index"] for event in found for c in event["choices"] if c["finish_reason"])
    assert ends and set(ends.values()) == {1} and set(ends) == set(range(len(ends)))  # each choice ends, once
    if found[-1].get("usage"):
        assert found[-1]["choices"] == []
        count(found[-1]["usage"], len(ends))
    return "stream"


def count(usage: dict, choices: int) -> None:
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] >= choices and usage["prompt_tokens"] >= 1
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def test_any_bytes_get_an_answer_or_a_sentence():
    app = app_of(tiny_engine(), max_body=20_000)
    kinds: Counter[str] = Counter()
    with talking(app) as (run, client):

        async def send(asked: Shapeless) -> httpx.Response:
            async def parts():
                for start, end in zip((0, *asked.cuts), (*asked.cuts, len(asked.raw)), strict=True):
                    yield asked.raw[start:end]

            content = asked.raw if asked.cuts is None else parts()
            headers = {name: value.encode("latin-1") for name, value in asked.headers.items()}
            sending = client.request(asked.method, asked.path, content=content, headers=headers)
            return await asyncio.wait_for(sending, HUNG)

        @settings(SOME, max_examples=450 * MORE)
        @given(shapeless())
        def one(asked):
            kinds[check(run(send(asked)))] += 1

        one()
    assert min(kinds[kind] for kind in ("whole", "stream", "400", "404", "405", "413", "415")) > 0, kinds


valid = st.fixed_dictionaries(
    {"model": st.just("tiny"), "max_tokens": st.integers(1, 8), "seed": st.integers(0, 9), "n": st.integers(1, 3)},
    optional={
        "temperature": st.sampled_from([0, 0.3, 1, 2]), "stop": st.lists(st.text("abé", min_size=1), max_size=2),
        "top_p": st.floats(0, 1), "top_k": st.integers(-1, 9), "min_tokens": st.just(1), "ignore_eos": st.booleans(),
        "bad_words": st.lists(st.text("xyz", min_size=1, max_size=2), max_size=3), "typical_p": st.floats(0.1, 1),
        "include_stop_str_in_output": st.booleans(), "skip_special_tokens": st.booleans(),
        "stop_token_ids": st.lists(st.integers(3, 258), max_size=60),
    },
)  # fmt: skip


def test_a_stream_says_what_the_whole_answer_says():
    """Text, reason, log-probabilities and usage of every choice, whatever is asked for; seeds make them comparable."""
    app = app_of(tiny_engine())
    lengths: Counter[int] = Counter()
    with talking(app) as (run, client):

        @settings(SOME, max_examples=40 * MORE)
        @given(valid, st.sampled_from(["chat", "text", "echo"]), st.booleans(), st.booleans())
        def one(body, kind, logprobs, continuous):
            path, chat = ("/v1/chat/completions", True) if kind == "chat" else ("/v1/completions", False)
            body |= {"messages": [{"role": "user", "content": "é?"}]} if chat else {"prompt": ["ab", "é"]}
            body |= (
                {"echo": True} if kind == "echo" else {"logprobs": True if chat else 2} if logprobs else {}
            )
            usage = {"include_usage": True, "continuous_usage_stats": continuous}
            whole = run(client.post(path, json=body)).json()
            pieces = events(run(client.post(path, json=body | {"stream": True, "stream_options": usage})))
            for choice in whole["choices"]:
                mine = [c for piece in pieces for c in piece["choices"] if c["index"] == choice["index"]]
                say = [c["delta"].get("content", "") if chat else c["text"] for c in mine]
                assert "".join(say) == (choice["message"]["content"] if chat else choice["text"])
                for name in ("finish_reason", "stop_reason"):
                    assert mine[-1][name] == choice[name]
                if choice["logprobs"]:
                    for name in ("content",) if chat else ("tokens", "token_logprobs", "text_offset"):
                        likely = [x for c in mine if c["logprobs"] for x in c["logprobs"][name]]
                        assert likely == choice["logprobs"][name]
                    shown = len(choice["logprobs"]["content" if chat else "tokens"])
                    lengths[shown] += 1
            for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert pieces[-1]["usage"][name] == whole["usage"][name]

        one()
    assert len(lengths) > 3, lengths


def said(stream: bytes) -> bytes:
    return b"".join(re.findall(rb'"content":"(.*?)"', stream))


def test_clients_that_hang_up_at_any_byte_free_their_blocks():
    """Of the request and of the answer, politely (FIN) and not (RST)."""
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "é?"}], "max_tokens": 6, "seed": 1}
    asked |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    raw = post_bytes("/v1/chat/completions", asked)
    app = app_of(tiny_engine())
    with live(app) as server:
        where = httpx.URL(server.url)

        def talk(sent: int, read: int, rude: bool) -> bytes:
            """What came of the answer; no more than `read` bytes are taken."""
            with socket.create_connection((where.host, where.port), timeout=HUNG) as client:
                client.sendall(raw[:sent])
                got = b""
                while len(got) < read and (part := client.recv(min(read - len(got), 4096))):
                    got += part
                    if got.endswith(b"0\r\n\r\n"):
                        break
                if rude:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return got

        first = talk(len(raw), 10**6, False)
        assert len(first) > 1000 and first.count(b"[DONE]") == 1
        server.wait_until(lambda: server.service.worker.num_live == 0)
        tasks = server.tasks()
        stride = max(1, 41 // MORE)
        for sent in range(0, len(raw), stride):
            talk(sent, 0, sent % 2 == 0)
        for read in range(0, len(first), stride):
            talk(len(raw), read, read % 2 == 0)
        server.wait_until(lambda: server.service.worker.num_live == 0 and server.tasks() <= tasks)
        assert said(talk(len(raw), 10**6, False)) == said(first)
        server.wait_until(lambda: server.service.worker.num_live == 0)
        server.wait_until(lambda: not server.service.worker._engine.has_work)
        check_empty(app)
