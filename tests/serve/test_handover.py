"""A prompt computed elsewhere: the answer is, in every field, that of a run without hand-over; what does not fit is
refused before anything has changed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lumen.cache import BlockStore
from lumen.cache.packed import PackedCache, Segment
from lumen.io.tokenizer import CharTokenizer
from lumen.sampling import SamplingParams
from lumen.serve.disagg import Pool, serve
from lumen.serve.engine import Engine
from lumen.serve.request import Request, SequenceState, TokenLogprobs
from lumen.serve.runner import Outcome, Runner

from ..tiny import tiny_llama
from .test_disagg import load

LETTERS = CharTokenizer("".join(chr(0x4E00 + i) for i in range(97)))
PROMPT = [5, 9, 2, 7, 7]


def computed(model, request: Request, size: int = 3):
    """What a prefill worker hands over: the first token, its log-probabilities, keys and values."""
    store = BlockStore.for_model(model, 20, size)
    runner, sequence, found = Runner(model, store), SequenceState(request, (0.0, 0)), Outcome()
    table = store.allocate(-(-len(request.prompt) // size))
    with torch.inference_mode():
        cache = PackedCache(store, [Segment(table, 0, len(request.prompt))])
        hidden = model.hidden(torch.tensor([list(request.prompt)]), cache.pos, cache)
        runner.sample([sequence], model.head(hidden[0, -1:]), found)
        k, v = store.export(table, len(request.prompt))
    told = next(iter(found.logprobs.get(request.id, [])), None)
    return found.tokens[request.id][0], k, v, told


def made(model) -> Engine:
    return Engine(model, LETTERS, num_blocks=20, block_size=4, prefix="none")


def whole(deltas, engine: Engine):
    """Every field of an answer but the times, whose order is checked."""
    last = deltas[-1]
    times = last.times
    stamps = [times.arrival, times.scheduled, times.first_token, times.finished]
    assert all(before <= after for before, after in pairwise(stamps))
    assert all(before.time <= after.time for before, after in pairwise(deltas))
    told = [entry for d in deltas for entry in d.logprobs]
    count = engine.counters
    return (
        [t for d in deltas for t in d.tokens], "".join(d.text for d in deltas), last.finish_reason, last.stop_reason,
        [(x.token, [t for t, _ in x.top]) for x in told], [d.num_generated for d in deltas], last.num_cached_tokens,
        count.prompt_tokens, count.generation_tokens,
    ), [x.logprob for x in told]  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"logprobs": 3},
        {"logprobs": 0, "params": SamplingParams(seed=4, top_p=0.9, presence_penalty=0.5)},
        {"max_new_tokens": 1, "logprobs": 1},
        {"eos": 0, "logprobs": 1},
        {"eos": 3, "min_new_tokens": 2},
        {"stop": 2},
    ],
)
def test_an_answer_is_the_same_in_every_field(changes):
    model = tiny_llama(torch.float64)
    base = Request("x", PROMPT, 6)
    free = [t for d in _alone(model, base)[0] for t in d.tokens]
    changes = dict(changes)
    if "eos" in changes:
        changes["eos_ids"] = frozenset([free[changes.pop("eos")]])
    if "stop" in changes:
        changes["stop"] = (LETTERS.decode(free[changes["stop"] : changes["stop"] + 2]),)
    request = replace(base, **changes)
    want, numbers = whole(*_alone(model, request))
    first, k, v, told = computed(model, request)
    engine = made(model)
    deltas = [engine.add_prefilled(request, first, k, v, told=told), *engine.stream()]
    got, ours = whole(deltas, engine)
    assert got == want and ours == pytest.approx(numbers, abs=1e-6)
    engine.scheduler.audit()
    assert engine.kv_usage == 0 and not engine.runner._rows and not engine.runner._host


def _alone(model, request):
    engine = made(model)
    engine.add(request)
    return list(engine.stream()), engine


def test_what_does_not_fit_is_refused_and_changes_nothing():
    model = tiny_llama(torch.float64)
    request = Request("x", PROMPT, 6, logprobs=1)
    first, k, v, told = computed(model, request)
    engine = made(model)
    other = TokenLogprobs((first + 1) % 97, -1.0)
    for arguments, named, sentence in (
        ((first, k.float(), v.float()), {"told": told}, "one dtype"),
        ((first, k, v.half()), {"told": told}, "one dtype"),
        ((first, k[:2], v[:2]), {"told": told}, "Keys and values"),
        ((first, k[..., :7], v[..., :7]), {"told": told}, "Keys and values"),
        ((first, k[:, :, :2], v[:, :, :2]), {"told": told}, "Keys and values"),
        ((first, k[:, :4], v[:, :4]), {"told": told}, "5 tokens"),
        ((97, k, v), {"told": told}, "outside the vocabulary"),
        ((1.0, k, v), {"told": told}, "outside the vocabulary"),
        ((first, k, v), {}, "log-probabilities"),
        ((first, k, v), {"told": other}, "log-probabilities"),
    ):
        with pytest.raises(ValueError, match=sentence):
            engine.add_prefilled(request, *arguments, **named)
        assert not engine.has_work and not engine.num_waiting and not engine.runner._rows
        assert not engine.runner._host and engine.counters.prompt_tokens == 0
    engine.add_prefilled(request, first, k, v, told=told)
    assert len(list(engine.stream())) == 5, "and then it goes"


def test_two_processes_tell_every_field():
    """One of the requests cannot go on after its prompt; the others are answered."""
    asked = [
        Request("a", PROMPT, 5, logprobs=2),
        Request("b", [3] * 9, 4, SamplingParams(seed=3), logprobs=0),
        Request("none", [1, 2], 4, SamplingParams(logit_bias={t: float("-inf") for t in range(97)})),
    ]
    found = serve(load, asked, prefill=Pool(9, 3), decode=Pool(12, 5))
    for request in asked[:2]:
        (want, *_), numbers = whole(*_alone(load(), request))
        assert found.answers[request.id] == want
        assert [x.logprob for x in found.logprobs[request.id]] == pytest.approx(numbers, abs=1e-6)
        assert found.ends[request.id] == ("length", None)
    assert found.answers["none"] == [] and found.ends["none"][0] == "error"
    assert "allowed no token" in found.ends["none"][1]
