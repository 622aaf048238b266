"""The server over the real engine on a tiny model: answers, seeds, cached tokens, isolation, and counts that add up."""

from __future__ import annotations

import asyncio
import time
from functools import cache

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import lumen
from lumen.sampling import SamplingParams

from .rig import app_of, check_empty, client_of, get, ids, live, post, tiny_engine


def ask_all(engine, *bodies, path="/v1/completions", together=False, **settings):
    """The answers to `bodies`, sent one after the other or all at once; the engine must be empty afterwards."""

    async def one(client, body):
        answer = await client.post(path, json={"model": "tiny"} | body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def go():
        async with client_of(app := app_of(engine, **settings), timeout=600) as client:
            asking = [one(client, body) for body in bodies]
            found = await asyncio.gather(*asking) if together else [await each for each in asking]
            check_empty(app)
            return found

    return asyncio.run(go())


@cache
def alone(prompt: str, limit: int, **params):
    engine = tiny_engine()
    (done,) = lumen.generate(
        engine.model, [ids(prompt)], limit, SamplingParams(**params), tokenizer=engine.tokenizer
    )
    return done


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"seed": 3},
        {"seed": 4, "top_k": 5, "temperature": 0.7},
        {"temperature": 0, "repetition_penalty": 1.5},
        {"seed": 9, "min_p": 0.1},
    ],
)
def test_an_answer_is_what_generate_says(params):
    (found,) = ask_all(tiny_engine(), {"prompt": "once upon", "max_tokens": 20} | params)
    done = alone("once upon", 20, **params)
    (choice,) = found["choices"]
    assert choice["text"] == done.text and choice["finish_reason"] == done.finish_reason
    assert found["usage"]["completion_tokens"] == len(done.tokens) + (done.finish_reason == "stop")


@pytest.mark.parametrize("policy", ["static", "dynamic"])
def test_other_policies_give_the_same_answers(policy):
    """Dynamic batching waits for a fuller batch: the engine has work and does none, and its thread must not spin."""
    engine = tiny_engine(policy=policy, max_seqs=3, max_wait=0.2)
    prompts = ["abc", "de", "f", "ghij"]
    bodies = [{"prompt": prompt, "max_tokens": 6, "temperature": 0} for prompt in prompts]
    steps = []
    engine.step = lambda step=engine.step: steps.append(1) or step()
    found = ask_all(engine, *bodies, together=True)
    assert [answer["choices"][0]["text"] for answer in found] == [
        alone(p, 6, temperature=0).text for p in prompts
    ]
    assert len(steps) < engine.counters.steps + 250


def test_a_seed_means_the_same_whatever_shares_the_batch():
    body = {"prompt": "abc", "max_tokens": 12, "seed": 5, "temperature": 1.5}
    others = [{"prompt": "xyz" * i, "max_tokens": 12, "temperature": 2} for i in range(1, 9)]
    (single,) = ask_all(tiny_engine(), body)
    crowd = ask_all(tiny_engine(), *others[:4], body, *others[4:], together=True)
    assert crowd[4]["choices"] == single["choices"]
    (three,) = ask_all(tiny_engine(), body | {"n": 3})
    texts = [choice["text"] for choice in three["choices"]]
    assert texts[0] == single["choices"][0]["text"] and len(set(texts)) == 3
    (again,) = ask_all(tiny_engine(), body | {"n": 3})
    assert again["choices"] == three["choices"]


def test_without_a_seed_answers_differ():
    """Two equal answers of 12 tokens at temperature 2 over 259 tokens: never in practice."""
    body = {"prompt": "abc", "max_tokens": 12, "temperature": 2, "n": 2, "ignore_eos": True}
    (found,) = ask_all(tiny_engine(), body)
    assert found["choices"][0]["text"] != found["choices"][1]["text"]


def test_cached_tokens_are_told_and_a_salt_keeps_tenants_apart():
    body = {"prompt": "a prompt of thirty-two characters", "max_tokens": 1, "ignore_eos": True}
    one, two = body | {"cache_salt": "one"}, body | {"cache_salt": "two"}
    found = ask_all(tiny_engine(), body, body, one, one, two)
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in found]
    assert cached == [0, 32, 0, 32, 0]
    found = ask_all(tiny_engine(max_seqs=1), body | {"n": 2}, body | {"n": 2, "prompt": [body["prompt"]] * 2})
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in found]
    assert cached == [0, 64]  # the second choice finds what the first computed, which is no hit of the prompt


def test_bias_and_minimum_reach_the_draw():
    first = alone("abc", 1, temperature=0).tokens[0]
    banned, forced, kept = ask_all(
        tiny_engine(),
        {
            "prompt": "abc",
            "max_tokens": 1,
            "temperature": 0,
            "logit_bias": {str(first): -100},
            "ignore_eos": True,
        },
        {"prompt": "abc", "max_tokens": 3, "temperature": 0, "logit_bias": {str(3 + ord("q")): 100}},
        {"prompt": "abc", "max_tokens": 5, "min_tokens": 4, "temperature": 0, "logit_bias": {"2": 100}},
    )
    assert banned["choices"][0]["text"] != alone("abc", 1, temperature=0).text
    assert forced["choices"][0]["text"] == "qqq"
    assert kept["choices"][0]["finish_reason"] == "stop"
    assert kept["usage"]["completion_tokens"] == 4 + 1  # the end is a token, too


def test_logprobs_are_those_of_the_model():
    import torch

    engine = tiny_engine()
    (found,) = ask_all(
        engine, {"prompt": "abc", "max_tokens": 4, "temperature": 0, "logprobs": 3, "ignore_eos": True}
    )
    logprobs = found["choices"][0]["logprobs"]
    tokens = ids("abc")
    for entry in logprobs["token_logprobs"]:
        with torch.inference_mode():
            row = engine.model(torch.tensor([tokens]))[0, -1].log_softmax(-1)
        tokens.append(int(row.argmax()))
        assert entry == pytest.approx(float(row.max()), abs=1e-4)
    assert all(3 <= len(top) <= 4 for top in logprobs["top_logprobs"])
    offsets = logprobs["text_offset"]
    assert offsets == sorted(offsets) and offsets[0] == 0


def test_metrics_parse_and_add_up():
    """Four whole answers, one of two choices, one stream, one refusal, one client that left."""
    engine = tiny_engine()
    with live(app_of(engine)) as server:
        url = f"{server.url}/v1/completions"
        body = {"model": "tiny", "max_tokens": 6, "seed": 1, "ignore_eos": True}
        usages = []
        for extra in (
            {"prompt": "abcdefgh"},
            {"prompt": "abcdefgh"},
            {"prompt": "a", "n": 2},
            {"prompt": ["b", "cc"]},
        ):
            usages.append(post(url, json=body | extra).json()["usage"])
        post(url, json=body | {"prompt": "d", "stream": True})
        assert post(url, json=body | {"prompt": "e", "max_tokens": 999}).status_code == 400
        step, engine.step = (
            engine.step,
            lambda: (time.sleep(0.05), step())[1],
        )  # it would take 12 s; who asks leaves
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                url, json=body | {"prompt": "f", "max_tokens": 250}, timeout=httpx.Timeout(600, read=0.02)
            )
        server.wait_until(lambda: server.service.worker.num_live == 0 and not engine.has_work)
        answer = get(f"{server.url}/metrics")
        check_empty(server.app)
    assert answer.headers["content-type"].startswith("text/plain")
    found = {
        (sample.name, sample.labels.get("finished_reason") or sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels["model_name"] == "tiny"
    }
    value = {name: v for (name, label), v in found.items() if label is None}
    made = sum(usage["completion_tokens"] for usage in usages) + 6
    assert made == 7 * 6 and value["lumen:request_generation_tokens_sum"] == made
    assert made <= value["lumen:generation_tokens_total"] < made + 250
    assert value["lumen:request_prompt_tokens_sum"] == 8 + 8 + 1 + 1 + 1 + 2 + 1
    assert value["lumen:prompt_tokens_total"] == 22 + 1  # the one that left had a prompt too
    assert value["lumen:prefix_cache_hits_total"] == usages[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert value["lumen:prefix_cache_queries_total"] >= 22
    ends = {reason: found["lumen:request_success_total", reason] for reason in ("stop", "length", "abort")}
    assert ends == {"stop": 0, "length": 7, "abort": 1}
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time",
                 "request_decode_time", "request_inference_time", "request_time_per_output_token"):  # fmt: skip
        assert value[f"lumen:{name}_seconds_count"] >= 7
        assert found[f"lumen:{name}_seconds_bucket", "+Inf"] == value[f"lumen:{name}_seconds_count"]
    assert value["lumen:inter_token_latency_seconds_count"] >= 7 * 5
    parts = value["lumen:request_queue_time_seconds_sum"] + value["lumen:request_inference_time_seconds_sum"]
    assert parts == pytest.approx(value["lumen:e2e_request_latency_seconds_sum"], abs=1e-6)
    assert value["lumen:iteration_tokens_total_count"] == engine.counters.steps
    assert value["lumen:iteration_tokens_total_sum"] == engine.counters.computed_tokens > made
    assert value["lumen:num_requests_running"] == value["lumen:num_requests_waiting"] == 0
    assert value["lumen:kv_cache_usage_perc"] == 0
