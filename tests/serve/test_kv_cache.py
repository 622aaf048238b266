"""Quantized caches in the engine: the answers of one request alone, whatever else goes on; sizes and words."""

from __future__ import annotations

import argparse
from functools import partial

import pytest
import torch

from lumen.cache import QUANT_FORMATS, KiviStore, QuantStore
from lumen.config import CONFIGS
from lumen.decode import Compiled, generate
from lumen.parts import Window
from lumen.sampling import SamplingParams
from lumen.serve.disagg import Pool, serve
from lumen.serve.engine import Engine
from lumen.serve.kv_cache import PLAIN, Quantized, kept, kv_cache, users_per_gib
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..drafters import Scripted
from ..tiny import tiny_llama

FINE = QUANT_FORMATS["kivi"].with_(bits=8)
PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9], [5, 9, 2, 7, 1, 3, 3, 8, 1]]


def asked(count=9):
    params = [None, SamplingParams(seed=3), SamplingParams(temperature=1.3, top_k=9, seed=4)]
    return [Request(str(i), tuple(p), count, params[i % 3], eos_ids=()) for i, p in enumerate(PROMPTS)]


def collect(engine, requests, turns=1):
    """Answers by turn and request, the books audited behind every step."""
    found = []
    for turn in range(turns):
        answers = {}
        for r in requests:
            engine.add(Request(f"{turn}-{r.id}", r.prompt, r.max_new_tokens, r.params, eos_ids=()))
        while engine.has_work:
            for delta in engine.step():
                assert delta.finish_reason != "error", delta.stop_reason
                answers.setdefault(delta.request_id.split("-")[1], []).extend(delta.tokens)
            engine.scheduler.audit()
        found.append(answers)
    assert engine.kv_usage == 0
    return found


@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix", ["none", "radix"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_codes_of_tokens_change_nothing_but_the_numbers(name, preemption, prefix, drafts):
    """Chunks, neighbours, preemption, shared beginnings and drafts: the tokens of `generate` on such a cache alone."""
    model, form = tiny_llama(torch.float64), QUANT_FORMATS[name]
    want = {}
    for r in asked():
        with QuantStore.for_model(model, 10, 4, form).rows(1) as cache:
            params = r.params or SamplingParams(temperature=0)
            (alone,) = generate(model, [r.prompt], 9, params, eos_ids=(), cache=cache)
        want[r.id] = alone.tokens
    drafter = {"drafter": Scripted({tuple(p): want[str(i)] + [0] * 9 for i, p in enumerate(PROMPTS)}, 3)}
    preempted = 0
    for budget in (5, 64):
        engine = Engine(
            model, num_blocks=6, block_size=4, prefix=prefix, limits=Limits(4, budget, preemption=preemption),
            make_store=Quantized(form).maker(4), **(drafter if drafts else {}),
        )  # fmt: skip
        for answers in collect(engine, asked(), turns=2):
            assert answers == want
        preempted += engine.counters.preemptions
        assert not drafts or engine.counters.accepted_tokens > 0
        assert prefix == "none" or engine.counters.prefix_hits > 0
    assert preempted > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("prefix", ["none", "radix"])
@pytest.mark.parametrize(
    "bend", [None, lambda c, draft: draft, lambda c, draft: [(t + 1) % 97 for t in draft]]
)
def test_kivi_serves_with_everything(preemption, prefix, bend):
    """With codes of 8 bits its greedy answers are those of plain keys. Places are as few as the engine may need."""
    model = tiny_llama(torch.float64)
    requests = [Request(r.id, r.prompt, 9, None, eos_ids=()) for r in asked()]
    (want,) = collect(Engine(model, num_blocks=40, block_size=4), requests)
    answers = {tuple(p): want[str(i)] + [0] * 9 for i, p in enumerate(PROMPTS)}
    engine = Engine(
        model, num_blocks=9, block_size=4, prefix=prefix, limits=Limits(4, 64, preemption=preemption),
        make_store=Quantized(FINE).maker(4), **({"drafter": Scripted(answers, 3, bend)} if bend else {}),
    )  # fmt: skip
    for found in collect(engine, requests, turns=2):
        assert found == want
    assert engine.counters.preemptions > 0 and len(engine.store._tails.place) <= 8
    assert prefix == "none" or engine.counters.prefix_hits > 0


def test_swapping_kivi_out_and_in_changes_no_bit():
    """Two bits, sampled: the answers of an engine that had room for all."""
    model = tiny_llama(torch.float64)
    found = []
    for blocks in (40, 9):
        engine = Engine(
            model, num_blocks=blocks, block_size=4, prefix="none", limits=Limits(4, 64, preemption="swap"),
            make_store=Quantized(QUANT_FORMATS["kivi-2"]).maker(4),
        )  # fmt: skip
        found += collect(engine, asked())
        assert (engine.counters.preemptions > 0) == (blocks == 9)
    assert found[0] == found[1]


@pytest.mark.parametrize("drafts", [1, 2, 5])
def test_rejected_drafts_change_no_bit_of_kivi(drafts):
    """Two bits, every draft wrong, over many edges of blocks: as if nobody had drafted."""
    model = tiny_llama(torch.float64)
    make = Quantized(QUANT_FORMATS["kivi-2"]).maker(2)
    requests = [Request("a", tuple(PROMPTS[0]), 30, None, eos_ids=())]
    (want,) = collect(Engine(model, num_blocks=20, block_size=8, prefix="none", make_store=make), requests)
    drafter = Scripted(
        {tuple(PROMPTS[0]): want["a"] + [0] * 9}, drafts, lambda c, d: [(t + 1) % 97 for t in d]
    )
    engine = Engine(model, num_blocks=20, block_size=8, prefix="none", make_store=make, drafter=drafter)
    assert collect(engine, requests) == [want]
    assert engine.counters.draft_tokens > 20 and engine.counters.accepted_tokens == 0


def test_a_compiled_model_and_a_window_over_kivi_are_refused():
    model = Compiled(tiny_llama())
    with pytest.raises(ValueError, match="keep the cache as int8 or int4"):
        Engine(model, num_blocks=8, make_store=Quantized(QUANT_FORMATS["kivi"]).maker(2))
    with pytest.raises(ValueError, match="keep the window plain"):
        Engine(
            tiny_llama(), num_blocks=8, block_size=4, prefix="none", kept=Window(8, 2),
            make_store=Quantized(QUANT_FORMATS["kivi"]).maker(2),
        )  # fmt: skip
    Engine(model, num_blocks=8, make_store=Quantized(QUANT_FORMATS["int8"]).maker(2))


def load():
    return tiny_llama(torch.float64)


@pytest.mark.parametrize("form", [QUANT_FORMATS["int8"], FINE], ids=["int8", "kivi"])
def test_what_is_handed_over_plain_is_packed_where_it_arrives(form):
    make = Quantized(form).maker(2)
    requests = [Request(r.id, r.prompt, 6, eos_ids=()) for r in asked()]
    result = serve(
        load, requests, prefill=Pool(6, 3), decode=Pool(9, 4), limits=Limits(2, 64), make_store=make
    )
    (want,) = collect(Engine(load(), num_blocks=40, block_size=4, make_store=make), requests)
    assert result.answers == want


def test_a_word_becomes_a_choice():
    assert kv_cache("plain") is PLAIN
    for name, form in QUANT_FORMATS.items():
        assert kv_cache(name) == Quantized(form) and kv_cache(name).name == name
    for wrong in ("", "int3", "INT8", "kivi-3", "int8 "):
        with pytest.raises(argparse.ArgumentTypeError, match="needs one of plain, int8, int4, kivi, kivi-2"):
            kv_cache(wrong)


@pytest.mark.parametrize("word", ["plain", *QUANT_FORMATS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_choice_says_it_takes_it_takes(word, dtype):
    model, kind = tiny_llama(dtype), kv_cache(word)
    store = kind.maker(3)(model, 20, 8)
    config = model.config
    said = 21 * kind.block_bytes(config, dtype, 8) + 3 * kind.sequence_bytes(config, dtype, 8)
    assert store.nbytes == said and store.dtype == dtype


def test_users_per_gib_are_those_of_the_target():
    """int8: 1.8 times the users and more, in bfloat16 too; every step down holds more."""
    config = CONFIGS["smollm2-135m"]
    for dtype, factor in ((torch.float32, 3.8), (torch.bfloat16, 1.9)):
        told = [
            kept(kv_cache(w), config, dtype, 2048, kv_cache(w).block_size) for w in ("int8", "int4", "kivi")
        ]
        assert told[0].users >= factor * told[0].plain_users
        assert told[1].users > 1.5 * told[0].users
        assert told[0].plain_users == users_per_gib(PLAIN, config, dtype, 2048, 16)
    line = str(kept(kv_cache("int8"), config, torch.float32, 2048, 16))
    assert line == "KV cache int8: 11,880 bytes a token, 44 users of 2,048 tokens in a GiB, 11 with plain"
    assert "with" not in str(kept(PLAIN, config, torch.float32, 2048, 16))


def test_a_store_for_too_few_sequences_says_so_and_the_engine_goes_on():
    """A maker for one sequence under an engine that runs three: errors with a sentence, every block back."""
    model = tiny_llama(torch.float64)
    make = partial(KiviStore.for_model, form=FINE, sequences=1)
    engine = Engine(model, num_blocks=20, block_size=8, limits=Limits(3, 64), prefix="none", make_store=make)
    for r in asked()[:3]:
        engine.add(r)
    ends = {d.request_id: d.finish_reason for d in engine.stream() if d.finish_reason}
    assert "error" in ends.values() and engine.kv_usage == 0
    engine.scheduler.audit()
    engine.add(Request("later", (5, 6), 4, eos_ids=()))
    assert [d.finish_reason for d in engine.stream()][-1] == "length"
