"""Windows in the engine: the answers of `generate` with a `WindowCache`; blocks go back while they are given."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lumen.cache import PackedCache, Segment, WindowCache
from lumen.cache.held import HOLE, KeepWindow, held
from lumen.decode import Compiled, generate
from lumen.parts import Window
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..drafters import Scripted
from ..tiny import tiny_gpt, tiny_llama
from .test_engine import collect


def alone(model, requests, kept):
    """Answers, each with its logits' log-probabilities of the drawn tokens, from one rectangle of rings."""
    cache = WindowCache.for_model(model, len(requests), kept.newest, kept.sinks)
    params = [r.params or SamplingParams(temperature=0) for r in requests]
    most = max(r.max_new_tokens for r in requests)
    found = generate(model, [list(r.prompt) for r in requests], most, params, eos_ids=(), cache=cache)
    return {r.id: done.tokens[: r.max_new_tokens] for r, done in zip(requests, found, strict=True)}


def workload(rng, room):
    requests = []
    for number in range(rng.randint(2, 5)):
        prompt = [rng.randrange(97) for _ in range(rng.randint(1, room - 14))]
        params = SamplingParams(temperature=0.9, seed=number) if number % 3 == 2 else None
        requests.append(Request(str(number), prompt, rng.randint(1, 14), params))
    return requests


def engine_for(rng, model, kept, preemption="recompute", drafter=None):
    """A pool that is hardly larger than one window, so that sequences make way for each other."""
    size = rng.choice([1, 3, 4])
    blocks = KeepWindow(size, kept).most(99, 1) + rng.randint(0, 9)
    limits = Limits(
        rng.randint(2, 4), rng.choice([4, 9, 100]), preemption=preemption, priority_preemption=True
    )
    options = {} if drafter is None else {"drafter": drafter}
    return Engine(
        model, num_blocks=blocks, block_size=size, prefix="none", limits=limits, kept=kept, **options
    )


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_answers_equal_generation_with_rings(preemption, drafts):
    """6 workloads each: windows, sinks, blocks and budgets of all sizes, prompts longer than the pool, drafts that are
    right and wrong; tokens equal, every block back."""
    model, preempted, taken = tiny_llama(torch.float64, num_layers=2), 0, 0
    for seed in range(6):
        rng = random.Random(seed)
        kept, requests = Window(rng.randint(1, 12), rng.randint(0, 4)), workload(rng, 64)
        expected = alone(model, requests, kept)
        drafter = None
        if drafts:
            truth = {tuple(r.prompt): expected[r.id] + [1] * 3 for r in requests}
            drafter = Scripted(
                truth, drafts, lambda c, d: [*d[:1], *((t + len(c.output) % 2) % 97 for t in d[1:])]
            )
        engine = engine_for(rng, model, kept, preemption, drafter)
        found: dict[str, list[int]] = {}
        for request in requests:  # of better and better rank, in mid-flight
            engine.add(replace(request, priority=-int(request.id)))
            for delta in [d for _ in range(3) for d in engine.step()]:
                found.setdefault(delta.request_id, []).extend(delta.tokens)
        for name, (tokens, _, _) in collect(engine).items():
            found.setdefault(name, []).extend(tokens)
        assert found == expected, f"seed {seed}"
        assert engine.store.pool.num_free == engine.store.pool.num_blocks
        preempted, taken = preempted + engine.counters.preemptions, taken + engine.counters.accepted_tokens
    assert preempted > 0 and (taken > 0) == bool(drafts)


def test_a_window_over_learned_positions_and_over_a_trained_window():
    """Sinks behind a model's own window stay unseen in its layers: one rule narrows the other."""
    for model in (tiny_gpt(torch.float64), tiny_llama(torch.float64, window=4, full_layers=(1,))):
        rng, kept = random.Random(3), Window(6, 2)
        requests = [
            Request(r.id, [t % 61 for t in r.prompt[:30]], r.max_new_tokens, r.params)
            for r in workload(rng, 40)
        ]
        engine = engine_for(rng, model, kept)
        for request in requests:
            engine.add(request)
        assert {n: t for n, (t, _, _) in collect(engine).items()} == alone(model, requests, kept)


def test_a_long_prompt_takes_a_window_and_an_answer_keeps_to_it():
    """4,000 tokens through 12 blocks of 16 that hold 192 positions, in chunks of no more than fit beside the window."""
    model, kept = tiny_llama(torch.float64, max_positions=4096, num_layers=2), Window(64, 4)
    rng = random.Random(0)
    request = Request("long", [rng.randrange(97) for _ in range(4000)], 40, logprobs=0)
    engine = Engine(model, num_blocks=12, prefix="none", limits=Limits(2, 256), kept=kept)
    engine.add(request)
    tokens, logprobs, taken = [], [], []
    for delta in engine.stream():
        tokens += delta.tokens
        logprobs += [x.logprob for x in delta.logprobs]
        taken.append(engine.store.pool.num_blocks - engine.store.pool.num_free)
    assert len(taken) == 40 and max(taken) <= 1 + 5, "sinks and what 64 positions touch"
    cache = WindowCache.for_model(model, 1, 64, 4)
    (done,) = generate(model, [list(request.prompt)], 40, eos_ids=(), cache=cache, prefill_chunk=300)
    assert tokens == done.tokens
    cache.reset()
    parts = torch.tensor([[*request.prompt, *tokens[:-1]]]).split(250, 1)
    logits = torch.cat([model(part, None, cache) for part in parts], 1)
    told = logits[0, 3999:].log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert logprobs == pytest.approx(told.tolist(), abs=1e-6), "logits, not only tokens; told in fp32"


def test_a_window_runs_in_a_compiled_step():
    model, kept = tiny_llama(torch.float64, num_layers=1), Window(9, 3)
    rng = random.Random(1)
    requests = workload(rng, 50)
    torch._dynamo.reset()
    counter = CompileCounter()
    fast = Compiled(model, rows=4, positions=32, backend=counter)
    options = {"num_blocks": 40, "block_size": 4, "prefix": "none", "limits": Limits(4, 12), "kept": kept}
    engine = Engine(fast, **options)
    for request in requests:
        engine.add(request)
    assert {n: t for n, (t, _, _) in collect(engine).items()} == alone(model, requests, kept)
    assert counter.frame_count == 1
    torch._dynamo.reset()


def test_who_leaves_in_the_midst_leaves_no_block_behind():
    model = tiny_llama(torch.float64, num_layers=1)
    engine = Engine(model, num_blocks=20, block_size=2, prefix="none", limits=Limits(2, 8), kept=Window(5, 2))
    for name in "abc":
        engine.add(Request(name, list(range(30)), 20))
    for _ in range(7):
        engine.step()
    assert any(HOLE in s.table for s in engine.scheduler.running)
    for name in "abc":
        engine.abort(name)
    engine.scheduler.audit()
    assert engine.store.pool.num_free == 20


def test_what_a_window_cannot_do_is_refused_at_the_start():
    model, kept = tiny_llama(), Window(30, 4)
    with pytest.raises(ValueError, match="without a prefix cache"):
        Engine(model, num_blocks=40, kept=kept)
    with pytest.raises(ValueError, match=r"takes up to 10 blocks of 4, and the pool has 9.*window smaller"):
        Engine(model, num_blocks=9, block_size=4, prefix="none", kept=kept)
    engine = Engine(model, num_blocks=10, block_size=4, prefix="none", kept=kept)
    k = torch.zeros(3, 2, 3, 8)
    with pytest.raises(ValueError, match=r"keeps a window.*Send the prompt here"):
        engine.add_prefilled(Request("x", [1, 2], 3), 5, k, k)
    assert not engine.has_work
    with pytest.raises(ValueError, match="WindowCache"):
        engine.store.rows(2)
    with pytest.raises(ValueError, match="has been given back"):
        PackedCache(engine.store, [Segment([3, HOLE, 4], 5, 1)])


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("kept", [Window(1), Window(7, 3), Window(40, 17)], ids=str)
def test_a_sequence_never_holds_more_than_is_foretold(kept, size):
    """The bound is met, and so is the longest chunk that it allows: one token more would not fit."""
    keep = KeepWindow(size, kept)
    for chunk in (1, 2, 5, 33):
        worst = 0
        for computed in range(300):
            table = [HOLE if p in keep.gone(computed) else 7 for p in range(-(-(computed + chunk) // size))]
            worst = max(worst, len(held(table)))
            needed = [p for p in range(computed + chunk) if p > computed - kept.newest or p < kept.sinks]
            assert all(table[p // size] != HOLE for p in needed)
        assert worst == keep.most(10**6, chunk)
    blocks = keep.most(10**6, 5)
    assert keep.longest(blocks) >= 5 and keep.most(10**6, keep.longest(blocks) + 1) > blocks
    with pytest.raises(ValueError, match="Make the pool larger"):
        keep.longest(keep.most(10**6, 1) - 1)
