"""A model with more ids than its tokenizer has tokens (padding is common): each way to meet one has an answer."""

from __future__ import annotations

import asyncio

from lumen.serve.engine import Engine
from lumen.serve.scheduler import Limits

from ..tiny import tiny_llama
from .rig import VOCAB, app_of, byte_tokenizer, check_empty, client_of, ids

PAD = VOCAB + 3  # an id without a token


def test_an_id_without_a_token_is_said_echoed_and_named():
    """On 1c95348 `token_bytes` raised inside a step: neighbours got 500, and /health 503 until a restart."""
    model = tiny_llama(vocab_size=VOCAB + 5, max_positions=256)
    engine = Engine(model, byte_tokenizer(), num_blocks=64, block_size=4, limits=Limits(8, 64))
    only = {"logit_bias": {str(PAD): 100}, "max_tokens": 3, "temperature": 0}

    async def go():
        async with client_of(app := app_of(engine), timeout=600) as client:
            asked = {
                "/v1/completions": [
                    {"prompt": "x"} | only | {"logprobs": 3},
                    {"prompt": [*ids("a"), PAD, *ids("b")], "echo": True, "max_tokens": 1},
                    {"prompt": "x"} | only | {"stop": ["z"], "stream": True, "logprobs": 2},
                    {"prompt": "x"} | only | {"n": 2, "skip_special_tokens": False},
                ],
                "/v1/chat/completions": [
                    {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 5}
                    | only
                ],
                "/detokenize": [{"tokens": [*ids("a"), PAD, *ids("b")]}],
            }
            answers = {}
            for path, bodies in asked.items():
                sent = [client.post(path, json={"model": "tiny"} | body) for body in bodies]
                answers[path] = await asyncio.gather(*sent)
            assert all(a.status_code == 200 for found in answers.values() for a in found)
            assert (await client.get("/health")).status_code == 200
            check_empty(app)
            return answers

    answers = asyncio.run(go())
    plain, echoed, _, twice = answers["/v1/completions"]
    (choice,) = plain.json()["choices"]
    assert choice["text"] == "" and choice["finish_reason"] == "length"
    assert choice["logprobs"]["tokens"] == [""] * 3 and plain.json()["usage"]["completion_tokens"] == 3
    for drawn, named in zip(
        choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
    ):
        assert named[""] == drawn, "several ids are spelled alike, and the drawn one is told"
    assert echoed.json()["choices"][0]["text"].startswith("ab")
    assert [c["text"] for c in twice.json()["choices"]] == ["", ""]
    (chat,) = answers["/v1/chat/completions"][0].json()["choices"]
    assert [(t["token"], t["bytes"]) for t in chat["logprobs"]["content"]] == [("", [])] * 3
    assert answers["/detokenize"][0].json() == {"prompt": "ab"}
