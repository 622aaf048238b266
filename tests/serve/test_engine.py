"""The engine against `generate`: whatever policy, pool, budget or company, a request's answer is its answer alone."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from lumen.decode import generate
from lumen.io.tokenizer import CharTokenizer
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..tiny import tiny_llama

SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, min_p=0.02, presence_penalty=0.4, logit_bias={5: 1.5})
LETTERS = CharTokenizer("".join(chr(0x4E00 + i) for i in range(97)))


def collect(engine: Engine) -> dict[str, tuple[list[int], str, str | None]]:
    """Step until nobody is left: tokens, text and end of each request."""
    found: dict[str, tuple[list[int], str, str | None]] = {}
    for delta in engine.stream():
        tokens, text, end = found.get(delta.request_id, ([], "", None))
        assert end is None, "a delta after the end"
        found[delta.request_id] = [*tokens, *delta.tokens], text + delta.text, delta.finish_reason
        engine.scheduler.audit()
    return found


def requests(rng: random.Random, room: int) -> list[Request]:
    """A few prompts with common beginnings, half of them sampled with seeds of their own."""
    stem = [rng.randrange(97) for _ in range(room)]
    made = []
    for number in range(rng.randint(2, 7)):
        prompt = [*stem[: rng.randint(0, room // 2)], *(rng.randrange(97) for _ in range(rng.randint(1, 6)))]
        prompt = prompt[: room - 1]
        params = SamplingParams(**{**vars(SAMPLED), "seed": number}) if number % 2 else None
        made.append(Request(str(number), prompt, rng.randint(1, min(20, room - len(prompt) + 1)), params))
    return made


def alone(model, request: Request) -> list[int]:
    params = request.params or SamplingParams(temperature=0)
    (done,) = generate(model, [request.prompt], request.max_new_tokens, params, eos_ids=request.eos_ids)
    return done.tokens


@pytest.mark.parametrize("policy", ["continuous", "static", "dynamic"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_answers_equal_single_request_generation(policy, preemption, prefix):
    """T15, T20, T24, T25 on a real forward in fp64: tokens equal, every block back, preemptions seen."""
    model = tiny_llama(torch.float64)
    preempted = 0
    for seed in range(5):
        rng = random.Random(seed)
        size, blocks = rng.choice([(1, 40), (3, 12), (4, 9), (16, 3)])
        limits = Limits(
            rng.randint(2, 5), rng.choice([5, 8, 200]), policy, preemption, max_wait=0.0,
            priority_preemption=policy == "continuous" and seed % 2 == 0,
        )  # fmt: skip
        engine = Engine(model, num_blocks=blocks, block_size=size, prefix=prefix, limits=limits)
        asked = requests(rng, size * blocks)
        for request in asked:
            engine.add(request)
        found = collect(engine)
        for request in asked:
            assert found[request.id][0] == alone(model, request), f"seed {seed}, request {request.id}"
        engine.store.prefix.evict(blocks)
        assert engine.store.pool.num_free == blocks
        assert not engine.runner._rows and not engine.runner._host
        preempted += engine.counters.preemptions
    assert preempted > 0 or policy != "continuous", "the pools were meant to be too small"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_who_made_way_for_a_better_rank_goes_on_as_if_nothing_had_happened(preemption):
    """Bit-equal, log-probabilities included, but for the order of additions where a prompt is computed again."""
    model, found = tiny_llama(torch.float64), {}
    for urgent in (False, True):
        limits = Limits(1, 40, preemption=preemption, priority_preemption=True)
        engine = Engine(model, num_blocks=20, block_size=4, limits=limits)
        low = Request("low", [5, 9, 2], 12, SamplingParams(seed=3), priority=1, logprobs=1)
        engine.add(low)
        deltas = [*engine.step(), *engine.step(), *engine.step()]
        if urgent:
            engine.add(Request("high", [7, 7], 3, priority=0))
            now = engine.step()
            assert [d.request_id for d in now] == ["high"], "it starts with the next step"
            deltas += now
        deltas += engine.stream()
        mine = [d for d in deltas if d.request_id == "low"]
        found[urgent] = [t for d in mine for t in d.tokens], [x.logprob for d in mine for x in d.logprobs]
        assert engine.counters.preemptions == urgent
    assert found[True][0] == found[False][0] == alone(model, low)
    assert found[True][1] == pytest.approx(found[False][1], abs=0 if preemption == "swap" else 1e-12)


def test_a_neighbour_never_changes_a_draw():
    """T36's neighbour: the same seeded request alone, among others, and after a preemption."""
    model = tiny_llama(torch.float64)
    mine = Request("mine", [5, 9, 2], 16, SamplingParams(temperature=1.2, seed=7))
    expected = alone(model, mine)
    for others, blocks in [(0, 20), (3, 40), (5, 12)]:
        engine = Engine(model, num_blocks=blocks, block_size=4, limits=Limits(6, 64))
        for i in range(others):
            engine.add(Request(str(i), [i + 1] * 4, 16, SamplingParams(seed=i), priority=-1))
        engine.add(Request("mine", mine.prompt, 16, mine.params))
        assert collect(engine)["mine"][0] == expected


def test_requests_that_arrive_in_mid_flight_and_leave_early():
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=30, block_size=4, limits=Limits(3, 6))
    engine.add(Request("a", [1, 2, 3], 12))
    tokens: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for step in range(60):
        if step == 3:
            engine.add(Request("b", list(range(20)), 6))
            engine.add(Request("c", [9, 9], 30))
        if step == 8:
            gone = engine.abort("c")
            assert gone is not None and gone.finish_reason == "abort" and gone.times is not None
            assert engine.abort("c") is None and engine.abort("never seen") is None
            engine.scheduler.audit()
        for delta in engine.step():
            tokens[delta.request_id] += delta.tokens
    assert not engine.has_work
    assert tokens["a"] == alone(model, Request("a", [1, 2, 3], 12))
    assert tokens["b"] == alone(model, Request("b", list(range(20)), 6))
    assert tokens["c"] == alone(model, Request("c", [9, 9], 30))[: len(tokens["c"])]


def test_text_ends_and_stops_are_those_of_generate():
    model = tiny_llama(torch.float64)
    for seed in range(20):
        rng = random.Random(seed)
        prompt = [rng.randrange(97) for _ in range(4)]
        (free,) = generate(model, [prompt], 20, SamplingParams(seed=seed), tokenizer=LETTERS, eos_ids=())
        stop = (free.text[6:8],)
        eos = frozenset(rng.sample(range(97), 4))
        params = SamplingParams(seed=seed)
        (want,) = generate(model, [prompt], 20, params, tokenizer=LETTERS, eos_ids=eos, stop=stop)
        engine = Engine(model, LETTERS, num_blocks=20, block_size=4)
        engine.add(Request("x", prompt, 20, params, eos, stop))
        assert collect(engine)["x"] == (want.tokens, want.text, want.finish_reason)


def test_logprobs_are_those_of_the_model_and_least_length_holds_the_end_back():
    model = tiny_llama(torch.float64)
    prompt, first = [5, 9, 2], alone(model, Request("x", [5, 9, 2], 1))[0]
    engine = Engine(model, num_blocks=20, block_size=4)
    engine.add(Request("x", prompt, 6, eos_ids=frozenset([first]), min_new_tokens=3, logprobs=2))
    deltas = list(engine.stream())
    tokens = [t for d in deltas for t in d.tokens]
    assert len(tokens) >= 3 and first not in tokens
    logprobs = model(torch.tensor([prompt + tokens]))[0].float().log_softmax(-1)
    for i, told in enumerate(x for d in deltas for x in d.logprobs):
        row = logprobs[len(prompt) - 1 + i]
        assert told.token == tokens[i] and told.logprob == pytest.approx(float(row[tokens[i]]), abs=1e-5)
        assert [t for t, _ in told.top] == row.topk(2).indices.tolist()
    assert deltas[0].logprobs[0].top[0][0] == first, "the bias is not in the reported probabilities"


def test_a_shared_prompt_is_computed_once_and_reported():
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=20, block_size=4, limits=Limits(4, 64))
    for name in "ab":
        engine.add(Request(name, list(range(1, 15)), 3))
        *_, last = engine.stream()
        assert last.num_cached_tokens == (0 if name == "a" else 12)
    engine.add(Request("c", list(range(1, 15)), 3, extra=("somebody else",)))
    assert list(engine.stream())[-1].num_cached_tokens == 0
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (42, 12)
    assert engine.kv_usage == 0


def test_times_are_in_order():
    engine = Engine(tiny_llama(), num_blocks=20, block_size=4, limits=Limits(1, 8))
    for name in "ab":
        engine.add(Request(name, [1, 2, 3], 3))
    ends = {d.request_id: d.times for d in engine.stream() if d.times}
    for times in ends.values():
        stamps = [times.arrival, times.scheduled, times.first_token, times.finished]
        assert all(before <= after for before, after in pairwise(stamps))
    assert ends["b"].scheduled >= ends["a"].finished, "one slot: b waits for a"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [97]}, "outside the vocabulary"),
        ({"prompt": [-1]}, "outside the vocabulary"),
        ({"prompt": [1] * 60, "max_new_tokens": 6}, "64 positions"),
        ({"prompt": [1] * 200}, "whole pool has 80"),
        ({"max_new_tokens": 0}, "1 or more"),
        ({"min_new_tokens": 5}, "min_new_tokens"),
        ({"params": SamplingParams(logit_bias={97: 1.0})}, "logit_bias"),
        ({"logprobs": -1}, "logprobs"),
        ({"stop": ("x",)}, "tokenizer"),
        ({"id": "here"}, "already"),
    ],
)
def test_bad_requests_get_a_sentence_and_change_nothing(changes, sentence):
    """T21: the ones that are here go on and finish."""
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=20, block_size=4)
    engine.add(Request("here", [1, 2, 3], 4))
    engine.step()
    with pytest.raises(ValueError, match=sentence):
        engine.add(Request(**{"id": "bad", "prompt": [1], "max_new_tokens": 2, **changes}))
    assert engine.num_running + engine.num_waiting == 1
    collect(engine)
    engine.scheduler.audit()
    assert engine.kv_usage == 0
