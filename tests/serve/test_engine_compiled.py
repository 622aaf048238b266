"""The engine on a compiled model: one graph while sequences join and leave, the answers of the plain engine."""

from __future__ import annotations

import random

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lumen.decode import Compiled
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..drafters import Scripted
from ..tiny import tiny_gpt, tiny_llama


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounter()
    torch._dynamo.reset()


def arrivals(rng):
    """(step, request) of answers of 3 to 12 tokens, half of them sampled, whose prompts come in at odd moments."""
    made = []
    for number in range(40):
        params = SamplingParams(temperature=1.0, seed=number) if number % 2 else None
        prompt = [*[7] * 5, *(rng.randrange(60) for _ in range(rng.randint(1, 4)))]
        made.append((2 * number + rng.randrange(3), Request(str(number), prompt, rng.randint(3, 12), params)))
    return made


def served(engine, todo):
    """Answers by request, and how many sequences each step had that only decoded."""
    answers, decoding, step = {}, [], 0
    while todo or engine.has_work:
        while todo and todo[0][0] <= step:
            engine.add(todo.pop(0)[1])
        for delta in engine.step():
            answers.setdefault(delta.request_id, []).extend(delta.tokens)
        engine.scheduler.audit()
        work = engine.last_plan.work
        if work and all(w.count == 1 for w in work):
            decoding.append(len(work))
        step += 1
    return answers, decoding


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt, lambda dtype: tiny_llama(dtype, window=5)])
def test_fifty_steps_of_an_engine_are_one_graph(make, counter):
    """Rows join and leave, prompts come between, blocks run out and prefixes are shared; the graph stays."""
    model = make(torch.float64)
    options = {"num_blocks": 10, "block_size": 4, "limits": Limits(4, 12)}
    plain = Engine(model, **options)
    fast = Engine(Compiled(model, rows=4, positions=32, backend=counter), **options)
    expected, _ = served(plain, arrivals(random.Random(1)))
    answers, decoding = served(fast, arrivals(random.Random(1)))
    assert answers == expected and len(answers) == 40
    assert len(decoding) >= 50 and set(decoding) >= {1, 2, 3, 4}
    assert counter.frame_count == 1
    assert fast.counters == plain.counters and plain.counters.preemptions > 0 < plain.counters.prefix_hits


def test_a_larger_batch_or_a_longer_answer_is_another_bucket(counter):
    model = tiny_llama(torch.float64, num_layers=1)
    engine = Engine(Compiled(model, positions=8, backend=counter), num_blocks=40, block_size=4)
    for rows, length, graphs in ((1, 4, 1), (2, 4, 2), (1, 9, 3), (2, 4, 3), (1, 13, 3)):
        for i in range(rows):
            engine.add(Request(f"{rows} {length} {i}", [i + 1] * (length - 2), 4))
        list(engine.stream())
        assert counter.frame_count == graphs, (rows, length)


def test_drafts_go_beside_the_graph(counter):
    model = tiny_llama(torch.float64)
    prompt, options = [5, 9, 2], {"num_blocks": 16, "block_size": 4}
    engine = Engine(model, **options)
    engine.add(Request("a", prompt, 12))
    answer = [t for delta in engine.stream() for t in delta.tokens]
    drafter = Scripted({tuple(prompt): answer}, 3)
    engine = Engine(Compiled(model, positions=32, backend=counter), drafter=drafter, **options)
    engine.add(Request("a", prompt, 12))
    assert [t for delta in engine.stream() for t in delta.tokens] == answer
    assert engine.counters.accepted_tokens > 0 and counter.frame_count <= 1
