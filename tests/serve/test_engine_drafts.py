"""Drafts in the engine: answers equal those of `generate` alone, whatever is drafted, in whatever company."""

from __future__ import annotations

import random

import pytest
import torch

from lumen.decode import Draft, ModelDrafter, NgramDrafter, generate
from lumen.io.tokenizer import CharTokenizer
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..drafters import Scripted
from ..tiny import tiny_llama
from .test_engine import alone, collect, requests

LETTERS = CharTokenizer("".join(chr(0x4E00 + i) for i in range(97)))
BENDS = {
    "right": lambda c, draft: draft,
    "wrong": lambda c, draft: [(t + 1) % 97 for t in draft],
    "partly right": lambda c, draft: [
        t if i < (len(c.prompt) + len(c.output)) % 5 else (t + 1) % 97 for i, t in enumerate(draft)
    ],
    "over-long": lambda c, draft: draft * 4,
    "unknown tokens": lambda c, draft: [*draft[:1], 97, -1],
}


def unlimited(model, asked: list[Request]) -> dict[tuple[int, ...], list[int]]:
    """What each prompt goes on with if nothing ends it: longer than asked, ends included."""
    found = {}
    for request in asked:
        room = model.config.max_positions - len(request.prompt) + 1
        params = request.params or SamplingParams(temperature=0)
        (done,) = generate(model, [request.prompt], min(room, request.max_new_tokens + 8), params, eos_ids=())
        found[tuple(request.prompt)] = done.tokens
    return found


@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_answers_with_drafts_equal_single_request_generation(bend, preemption, prefix):
    """On a real forward in fp64, half of the requests sampled: tokens equal, every block back, preemptions seen."""
    model = tiny_llama(torch.float64)
    preempted = drafted = accepted = 0
    for seed in range(4):
        rng = random.Random(seed)
        size, blocks = rng.choice([(1, 40), (3, 12), (4, 9), (16, 3)])
        limits = Limits(rng.randint(2, 5), rng.choice([5, 8, 200]), "continuous", preemption)
        asked = requests(rng, size * blocks)
        asked = list({tuple(r.prompt): r for r in asked}.values())
        drafter = Scripted(unlimited(model, asked), 4, BENDS[bend])
        engine = Engine(
            model, num_blocks=blocks, block_size=size, prefix=prefix, limits=limits, drafter=drafter
        )
        for request in asked:
            engine.add(request)
        found = collect(engine)
        for request in asked:
            assert found[request.id][0] == alone(model, request), f"seed {seed}, request {request.id}"
        engine.store.prefix.evict(blocks)
        assert engine.store.pool.num_free == blocks
        assert not engine.runner._rows and not engine.runner._host and not engine.runner._drafts
        count = engine.counters
        preempted += count.preemptions
        drafted, accepted = drafted + count.draft_tokens, accepted + count.accepted_tokens
        assert sum(count.accepted_per_position) == count.accepted_tokens
        assert count.generation_tokens == sum(r.max_new_tokens for r in asked)
    assert preempted > 0 and drafted > 0
    assert {"partly right": 0 < accepted < drafted, "wrong": accepted == 0}.get(bend, accepted == drafted)


def test_right_drafts_save_steps():
    model = tiny_llama(torch.float64)
    request = Request("x", [5, 9, 2], 21)
    for k, steps in ((0, 21), (1, 11), (4, 5), (9, 3), (40, 2)):
        engine = Engine(model, num_blocks=20, block_size=4, drafter=Scripted(unlimited(model, [request]), k))
        engine.add(request)
        deltas = list(engine.stream())
        assert engine.counters.steps == len(deltas) == steps
        assert max(len(d.tokens) for d in deltas) == min(k + 1, 20), "several tokens in one delta"
        assert [t for d in deltas for t in d.tokens] == alone(model, request)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_text_ends_and_stops_among_drafts_are_those_of_generate(k):
    """An end token, a stop string or the limit inside an accepted draft: nothing behind it is shown or remembered."""
    model = tiny_llama(torch.float64)
    for seed in range(20):
        rng = random.Random(seed)
        prompt = [rng.randrange(97) for _ in range(4)]
        params = SamplingParams(seed=seed)
        (free,) = generate(model, [prompt], 28, params, tokenizer=LETTERS, eos_ids=())
        stop = (free.text[6:8],) if seed % 2 else ()
        eos = frozenset(rng.sample(range(97), 4))
        (want,) = generate(model, [prompt], 20, params, tokenizer=LETTERS, eos_ids=eos, stop=stop)
        drafter = Scripted({tuple(prompt): free.tokens}, k)
        engine = Engine(model, LETTERS, num_blocks=40, block_size=2, drafter=drafter)
        engine.add(Request("x", prompt, 20, params, eos, stop))
        assert collect(engine)["x"] == (want.tokens, want.text, want.finish_reason)
        ended = want.tokens + (
            [free.tokens[len(want.tokens)]] if want.finish_reason == "stop" and not stop else []
        )
        held = engine.store.prefix.match([*prompt, *free.tokens, 0])
        assert len(held) * 2 < len(prompt) + len(ended), "what was rejected at the end is not remembered"
        engine.store.pool.release(held)
        text = [*prompt, *want.tokens, 3]
        engine.runner.drafter.answers[tuple(text)] = []
        engine.add(Request("again", text, 4))
        assert collect(engine)["again"][0] == alone(model, Request("again", text, 4))


def test_rejected_drafts_are_never_remembered():
    """Wrong drafts fill whole blocks of a prefix cache; whoever comes with those very tokens must compute them."""
    model = tiny_llama(torch.float64)
    wrong = [50, 51, 52, 53, 54, 55, 56, 57]
    drafter = Scripted(
        {(5, 9, 2): wrong * 4, (5, 9, 2, *wrong): []}, 8, lambda c, d: d if len(c.prompt) == 3 else []
    )
    for prefix in ("hash", "radix"):
        engine = Engine(model, num_blocks=40, block_size=2, prefix=prefix, drafter=drafter)
        engine.add(Request("x", [5, 9, 2], 12))
        assert collect(engine)["x"][0] == alone(model, Request("x", [5, 9, 2], 12))
        probe = Request("y", [5, 9, 2, *wrong], 6)
        engine.add(probe)
        *_, last = engine.stream()
        assert last.num_cached_tokens == 2
        assert engine.counters.accepted_tokens < 2 < engine.counters.draft_tokens


def test_an_overrun_of_drafts_fails_nobody():
    """Positions, the pool and max_new_tokens all end inside the drafts; the neighbour does not notice."""
    model = tiny_llama(torch.float64)
    tight = Request("tight", list(range(1, 41)), 25)  # 40 + 25 - 1 = 64: the model's last position
    other = Request("other", [9, 8, 7], 30, SamplingParams(seed=3))
    for k in (1, 5, 60):
        for blocks in (100, 17):
            drafter = Scripted(unlimited(model, [tight, other]), k, lambda c, d: d * 3)
            engine = Engine(model, num_blocks=blocks, block_size=4, drafter=drafter, limits=Limits(4, 64))
            engine.add(tight)
            engine.add(other)
            found = collect(engine)
            assert found["tight"][0] == alone(model, tight) and found["other"][0] == alone(model, other)


def test_a_scheduler_cuts_drafts_that_somebody_else_has_written():
    """Forty drafts a step reach past the model's last position; the neighbour would have failed with it."""
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=100, block_size=4)
    tight, other = Request("tight", list(range(1, 41)), 25), Request("other", [9, 8, 7], 20)
    engine.add(tight)
    engine.add(other)
    tokens: dict[str, list[int]] = {"tight": [], "other": []}
    while engine.has_work:
        for sequence in engine.scheduler.running:
            sequence.drafts = [1, 2] * 20
        for delta in engine.step():
            tokens[delta.request_id] += delta.tokens
        assert all(len(s.output) <= s.request.max_new_tokens for s in engine.scheduler.running)
        engine.scheduler.audit()
    assert tokens == {"tight": alone(model, tight), "other": alone(model, other)}


def test_logprobs_stand_for_every_token_of_a_step_and_least_length_holds_inside_drafts():
    model = tiny_llama(torch.float64)
    prompt = [5, 9, 2]
    first = alone(model, Request("x", prompt, 1))[0]
    plain = Engine(model, num_blocks=20, block_size=4)
    request = Request("x", prompt, 16, eos_ids=frozenset([first]), min_new_tokens=9, logprobs=2)
    plain.add(request)
    want = collect(plain)["x"]
    for bend in ("right", "partly right"):
        drafter = Scripted({tuple(prompt): [*want[0], first]}, 5, BENDS[bend])
        engine = Engine(model, num_blocks=20, block_size=4, drafter=drafter)
        engine.add(request)
        deltas = list(engine.stream())
        tokens = [t for d in deltas for t in d.tokens]
        assert tokens == want[0] and first not in tokens[:9] and engine.counters.accepted_tokens > 3
        assert all(len(d.logprobs) == len(d.tokens) for d in deltas)
        logprobs = model(torch.tensor([prompt + tokens]))[0].float().log_softmax(-1)
        for i, told in enumerate(x for d in deltas for x in d.logprobs):
            row = logprobs[len(prompt) - 1 + i]
            assert told.token == tokens[i] and told.logprob == pytest.approx(float(row[tokens[i]]), abs=1e-5)
            assert [t for t, _ in told.top] == row.topk(2).indices.tolist()


def test_an_end_past_the_least_length_counts_inside_the_same_draft():
    """The draft begins before the least length and the end stands behind it: the answer ends there."""
    model = tiny_llama(torch.float64)
    free = alone(model, Request("x", [5, 9, 2], 12))
    place = next(i for i in range(4, 12) if free[i] not in free[:i])
    drafter = Scripted({(5, 9, 2): free}, 11)
    engine = Engine(model, num_blocks=20, block_size=4, drafter=drafter)
    for least in (0, 2, place - 1, place):
        engine.add(Request("x", [5, 9, 2], 12, eos_ids=frozenset([free[place]]), min_new_tokens=least))
        assert collect(engine)["x"] == (free[:place], "", "stop")


def test_a_neighbour_never_changes_a_seeded_answer_with_chosen_drafts():
    """A tight budget trims the drafts differently in every company; the answer is the one without drafts."""
    model = tiny_llama(torch.float64)
    mine = Request("mine", [5, 9, 2], 16, SamplingParams(temperature=1.2, seed=7))
    for others, blocks, budget in [(0, 20, 64), (3, 40, 6), (5, 12, 64), (5, 12, 7)]:
        asked = [mine] + [
            Request(str(i), [i + 1] * 4, 16, SamplingParams(seed=i), priority=-1) for i in range(others)
        ]
        drafter = Scripted(unlimited(model, asked), 3, BENDS["partly right"])
        engine = Engine(model, num_blocks=blocks, block_size=4, limits=Limits(6, budget), drafter=drafter)
        for request in asked:
            engine.add(request)
        assert collect(engine)["mine"][0] == alone(model, mine)


def test_a_drafting_model_is_told_what_was_accepted_and_when_to_forget():
    """Drafts drawn from a model with its own cache, greedy requests: the answers are exact; the same engine and seeds
    give the same samples again."""
    model, other = tiny_llama(torch.float64), tiny_llama(torch.float64)
    for name, parameter in other.named_parameters():
        parameter.data += 0.02 * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(len(name))
        )
    samples = []
    for _ in range(2):
        drafter = ModelDrafter(other, 3)
        engine = Engine(model, num_blocks=14, block_size=4, limits=Limits(4, 12), drafter=drafter)
        asked = [
            Request(str(i), [i + 3] * (i + 2), 14, None if i % 2 else SamplingParams(seed=i))
            for i in range(5)
        ]
        for request in asked:
            engine.add(request)
        found = collect(engine)
        for request in asked[1::2]:
            assert found[request.id][0] == alone(model, request)
        assert drafter.cache.store.pool.num_free == drafter.cache.store.pool.num_blocks, "told to forget"
        assert 0 < engine.counters.accepted_tokens < engine.counters.draft_tokens
        samples.append([found[r.id][0] for r in asked])
    assert samples[0] == samples[1]


def test_prompt_lookup_serves():
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=60, block_size=4, drafter=NgramDrafter(3, shortest=1))
    asked = [Request(str(i), [i, 9, i, 9, i], 25, SamplingParams(temperature=0.3, seed=i)) for i in range(4)]
    for request in asked:
        engine.add(request)
    found = collect(engine)
    assert all(found[r.id][0] == alone(model, r) for r in asked)
    assert engine.counters.accepted_tokens > 0


def test_an_abort_between_steps_takes_the_drafts_along():
    model = tiny_llama(torch.float64)
    asked = [Request("a", [5, 9, 2], 30), Request("b", [1, 2], 30)]
    engine = Engine(model, num_blocks=30, block_size=2, drafter=Scripted(unlimited(model, asked), 3))
    for request in asked:
        engine.add(request)
    early = [t for _ in range(3) for d in engine.step() if d.request_id == "b" for t in d.tokens]
    engine.abort("a")
    engine.scheduler.audit()
    assert early + collect(engine)["b"][0] == alone(model, asked[1])
    assert engine.kv_usage == 0


def test_a_draft_with_probabilities_of_another_vocabulary_ends_its_request():
    class Foreign(Scripted):
        def propose(self, contexts):
            return [Draft([1], torch.ones(1, 5)) for _ in contexts]

    engine = Engine(tiny_llama(), num_blocks=20, block_size=4, drafter=Foreign({}, 2))
    engine.add(Request("x", [5], 4))
    engine.step()
    (end, *_) = engine.step()
    assert end.finish_reason == "error" and "share a vocabulary" in end.stop_reason
    engine.scheduler.audit()
    assert not engine.has_work and engine.kv_usage == 0
