"""Rows that choose their adapter: in `generate` and in the engine each equals the merged model alone."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from lumen.cache import BlockStore
from lumen.cache.prefix import HashPrefix
from lumen.decode import Compiled, generate
from lumen.models.lora import Adapters
from lumen.models.passing import Channels
from lumen.sampling import SamplingParams
from lumen.serve.disagg import Pool, serve
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from .cache.kinds import kivi, quantized
from .drafters import Scripted
from .test_channels import adapter
from .tiny import tiny_llama

PROMPTS = [[5, 9, 2], [7] * 11, [1, 2, 3, 4, 5], [7] * 11, [7] * 11, [8]]
CHOSEN = ["one", "two", None, "one", None, "two"]
SAMPLED = SamplingParams(temperature=1.0, seed=4)


@pytest.fixture(scope="module")
def adapted():
    """A model, a bank of two adapters (one skips matrices), and what each name is when merged."""
    model = tiny_llama(torch.float64)
    one, first = adapter(model, 3, 1)
    two, second = adapter(model, 5, 2, ("attn.qkv", "mlp.down"))
    return model, Adapters(model.config, {"one": one, "two": two}), {None: model, "one": first, "two": second}


def alone(merged, name, prompt, count, params, cache=None):
    (done,) = generate(merged[name], [prompt], count, params, eos_ids=(), cache=cache)
    return done.tokens


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SAMPLED])
@pytest.mark.parametrize("kind", ["static", "paged", "chunks", "drafts", "compiled"])
def test_rows_of_one_batch_equal_each_merged_model_alone(kind, params, adapted):
    model, bank, merged = adapted
    expected = [alone(merged, n, p, 9, params) for n, p in zip(CHOSEN, PROMPTS, strict=True)]
    assert len({tuple(expected[i]) for i in (1, 3, 4)}) == 3, "the adapters must matter"
    options = {}
    if kind == "paged":
        options["cache"] = BlockStore.for_model(model, 40, 4).rows(len(PROMPTS))
    if kind == "chunks":
        options["prefill_chunk"] = 3
    if kind == "drafts":  # some right, some wrong
        options["drafter"] = Scripted({tuple(p): expected[i] for i, p in enumerate(PROMPTS)}, 3)
    if kind == "compiled":
        torch._dynamo.reset()
        counter = CompileCounter()
        model = Compiled(model, positions=32, backend=counter)
    found = generate(model, PROMPTS, 9, params, eos_ids=(), adapters=bank, adapter=CHOSEN, **options)
    assert [c.tokens for c in found] == expected
    if kind == "drafts" and params.temperature == 0:
        assert sum(c.num_accepted_tokens for c in found) > 0
    if kind == "compiled":
        assert counter.frame_count == 1
        torch._dynamo.reset()


@pytest.mark.parametrize("make", [quantized("int8"), quantized("int4"), kivi("kivi")])
def test_quantized_caches_hold_what_each_row_s_adapter_made(make, adapted):
    """Rows with other keys than their neighbours, in codes: each equals its merged model over a store of that kind."""
    (model, bank, merged), greedy = adapted, SamplingParams(temperature=0.0)
    expected = [
        alone(merged, n, p, 9, greedy, make(merged[n], 8, 4).rows(1))
        for n, p in zip(CHOSEN, PROMPTS, strict=True)
    ]
    cache = make(model, 40, 4).rows(len(PROMPTS))
    found = generate(model, PROMPTS, 9, greedy, eos_ids=(), cache=cache, adapters=bank, adapter=CHOSEN)
    assert [c.tokens for c in found] == expected
    assert len({tuple(expected[i]) for i in (1, 3, 4)}) == 3, "the adapters must matter"


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix", ["hash", "radix", "none"])
def test_the_engine_mixes_adapters_in_a_step(prefix, preemption, adapted):
    """Six requests, chunks of prompts beside answers, too few blocks for all."""
    model, bank, merged = adapted
    limits = Limits(4, 7, preemption=preemption)
    engine = Engine(model, num_blocks=12, block_size=4, prefix=prefix, limits=limits, adapters=bank)
    for i, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        engine.add(Request(str(i), prompt, 9, SAMPLED if i % 2 else None, adapter=name))
    answers, mixed = {}, set()
    while engine.has_work:
        for delta in engine.step():
            answers.setdefault(delta.request_id, []).extend(delta.tokens)
        mixed.add(len({w.sequence.request.adapter for w in engine.last_plan.work}))
        engine.scheduler.audit()
    for i, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        params = SAMPLED if i % 2 else SamplingParams(temperature=0.0)
        assert answers[str(i)] == alone(merged, name, prompt, 9, params), i
    assert 3 in mixed and engine.counters.preemptions > 0


def test_a_compiled_engine_mixes_them_in_one_graph(adapted):
    model, bank, merged = adapted
    torch._dynamo.reset()
    counter = CompileCounter()
    fast = Compiled(model, rows=8, positions=32, backend=counter)
    engine = Engine(fast, num_blocks=60, block_size=4, adapters=bank)
    for i, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        engine.add(Request(str(i), prompt, 5 + i, adapter=name))
    answers = {}
    for delta in engine.stream():
        answers.setdefault(delta.request_id, []).extend(delta.tokens)
    greedy = SamplingParams(temperature=0.0)
    for i, (name, prompt) in enumerate(zip(CHOSEN, PROMPTS, strict=True)):
        assert answers[str(i)] == alone(merged, name, prompt, 5 + i, greedy), i
    assert counter.frame_count == 1
    torch._dynamo.reset()


@pytest.mark.parametrize("prefix", ["hash", "radix"])
def test_one_prompt_under_two_adapters_shares_no_block(prefix, adapted):
    model, bank, _ = adapted
    engine = Engine(model, num_blocks=60, block_size=4, prefix=prefix, adapters=bank)
    tables, cached = {}, {}
    for name in ("one", "two", None, "one"):
        engine.add(Request("a", [7] * 12, 3, adapter=name))
        for delta in engine.step():
            tables.setdefault(name, list(engine.scheduler.running[0].table))
            cached[name] = delta.num_cached_tokens
        list(engine.stream())
    assert cached == {"one": 8, "two": 0, None: 0}  # the second time "one" finds its own
    blocks = [block for table in tables.values() for block in table]
    assert len(set(blocks)) == len(blocks) == 9


def test_generate_shares_prefixes_of_one_adapter_only(adapted):
    model, bank, merged = adapted
    store = BlockStore.for_model(model, 60, 4)
    store.prefix = HashPrefix(store.pool)
    for name, cached in (("one", 0), ("two", 0), (None, 0), ("two", 8), (None, 8)):
        with store.rows(1) as cache:
            options = {"cache": cache, "adapters": bank, "adapter": name, "eos_ids": ()}
            (found,) = generate(model, [[7] * 12], 3, **options)
        assert found.num_cached_tokens == cached
        assert found.tokens == alone(merged, name, [7] * 12, 3, SamplingParams(temperature=0.0))


def test_an_adapter_that_is_not_here_gets_a_sentence(adapted):
    model, bank, _ = adapted
    engine = Engine(model, num_blocks=20, adapters=bank)
    with pytest.raises(ValueError, match=r"no adapter 'three' here\. There are: 'one', 'two'"):
        engine.add(Request("a", [1], 2, adapter="three"))
    assert not engine.has_work and engine.counters.prompt_tokens == 0 and engine.num_waiting == 0
    with pytest.raises(ValueError, match=r"no adapter 'one' here\. There are: none; hand over"):
        Engine(model, num_blocks=20).add(Request("a", [1], 2, adapter="one"))
    for options, why in (
        ({"adapter": "one"}, "none; hand over"),
        ({"adapter": "three", "adapters": bank}, "no adapter 'three'"),
        ({"adapter": ["one"], "adapters": bank}, "1 adapters for 2 prompts"),
    ):
        with pytest.raises(ValueError, match=why):
            generate(model, [[1], [2]], 3, **options)
    with pytest.raises(ValueError, match="two workers hold none"):
        serve(lambda: model, [Request("a", [1], 2, adapter="one")], prefill=Pool(4, 4), decode=Pool(4, 4))


def test_what_is_told_to_every_forward(adapted):
    """An early exit is the shallow model in both; what does not generate is refused."""
    model, bank, _ = adapted
    shallow = tiny_llama(torch.float64, num_layers=2)
    state = {k: v for k, v in model.state_dict().items() if not k.startswith("blocks.2")}
    shallow.load_state_dict(state)
    reduced = []

    def reduce(y):
        reduced.append(y.shape[0])
        return y

    told = Channels(exit=2, reduce=reduce)
    (expected,) = generate(shallow, [[5, 9, 2]], 6, eos_ids=())
    (found,) = generate(model, [[5, 9, 2]], 6, eos_ids=(), channels=told)
    assert found.tokens == expected.tokens and len(reduced) == 6 * 2 * 2
    engine = Engine(model, num_blocks=20, channels=told)
    engine.add(Request("a", [5, 9, 2], 6))
    assert [t for delta in engine.stream() for t in delta.tokens] == expected.tokens
    assert len(reduced) == 2 * 6 * 2 * 2
    wrong = Channels(causal=False), Channels(lora=bank.route(torch.tensor([[0]])))
    for channels in wrong:
        with pytest.raises(ValueError, match="must be causal; adapters are chosen by name"):
            generate(model, [[1]], 2, channels=channels)
        with pytest.raises(ValueError, match="must be causal"):
            Engine(model, num_blocks=20, channels=channels)
    with pytest.raises(ValueError, match="1 to 3 layers"):
        generate(model, [[1]], 2, channels=Channels(exit=9))
