"""One request that fails is one failed request: its client hears why, neighbours get their answers, /health stays."""

from __future__ import annotations

import asyncio
import json
import math

import lumen
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.scheduler import Limits

from ..tiny import tiny_llama
from .rig import VOCAB, FakeEngine, app_of, byte_tokenizer, check_empty, client_of, ids


def test_logits_that_are_no_numbers_fail_their_own_request():
    model = tiny_llama(vocab_size=VOCAB, max_positions=256, tied=False)
    sick = ids("!")[0]
    model.embed.weight.data[sick] = math.nan
    engine = Engine(model, byte_tokenizer(), num_blocks=64, block_size=4, limits=Limits(8, 64))
    well = {
        "model": "tiny",
        "prompt": "once upon",
        "max_tokens": 20,
        "temperature": 0,
        "logit_bias": {str(sick): -100},
    }

    async def go():
        async with client_of(app := app_of(engine), timeout=600) as client:
            bodies = [
                well,
                well | {"prompt": "a!"},
                well | {"prompt": "b!", "stream": True},
                well | {"prompt": "c!", "n": 3},
            ]
            found = await asyncio.gather(*(client.post("/v1/completions", json=body) for body in bodies))
            healthy = await client.get("/health")
            metrics = (await client.get("/metrics")).text
            check_empty(app)
            return found, healthy, metrics

    (answer, failed, stream, several), healthy, metrics = asyncio.run(go())
    params = SamplingParams(temperature=0, logit_bias={sick: -100.0})
    (done,) = lumen.generate(model, [ids("once upon")], 20, params, tokenizer=engine.tokenizer)
    assert answer.json()["choices"][0]["text"] == done.text and healthy.status_code == 200
    for one in (failed, several):
        assert one.status_code == 500 and "no numbers" in one.json()["error"]["message"]
    last, end = stream.text.split("\n\n")[-3:-1]
    assert (
        "no numbers" in json.loads(last.removeprefix("data: "))["error"]["message"] and end == "data: [DONE]"
    )
    assert 'finished_reason="error"' in metrics


def test_a_request_that_cannot_begin_is_answered_and_the_engine_goes_on():
    class Picky(FakeEngine):
        def add(self, request):
            if request.prompt == ids("x"):
                raise KeyError("secret detail")
            super().add(request)

    async def go():
        async with client_of(app := app_of(Picky()), timeout=600) as client:
            body = {"model": "tiny", "prompt": "x", "max_tokens": 3}
            failed = await client.post("/v1/completions", json=body)
            answer = await client.post("/v1/completions", json=body | {"prompt": "ab"})
            healthy = await client.get("/health")
            check_empty(app)
            return failed, answer, healthy

    failed, answer, healthy = asyncio.run(go())
    assert (
        failed.status_code == 500
        and "secret" not in failed.text
        and "log" in failed.json()["error"]["message"]
    )
    assert answer.json()["choices"][0]["text"] == "ba" and healthy.status_code == 200
