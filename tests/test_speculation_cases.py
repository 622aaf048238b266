"""A thousand speculations of all sorts, each equal to no speculation, and samples of each kind of draft and filter.

A case is a model, a drafter, a draft length, a cache or the engine, and a batch, all drawn by a seed. Greedy answers
are in fp64 and equal token for token.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
import torch

from lumen.cache import BlockStore, DynamicCache, StaticCache
from lumen.decode import LookaheadDrafter, ModelDrafter, NgramDrafter, first_layers, generate, skipping
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from .cache.kinds import quantized
from .distributions import assert_the_models
from .drafters import Forest, Scripted, TreeModel, bush
from .serve.test_engine import collect
from .tiny import tiny_gpt, tiny_latent, tiny_llama

LENGTH, VOCAB = 9, 13
SMALL = {"vocab_size": VOCAB, "num_layers": 2, "eos_ids": (2,)}
MODELS = {
    "llama": lambda seed: tiny_llama(torch.float64, seed, **SMALL),
    "gpt": lambda seed: tiny_gpt(torch.float64, seed, **SMALL),
    "latent": lambda seed: tiny_latent(torch.float64, seed, **SMALL),
    "window": lambda seed: tiny_llama(torch.float64, seed, window=5, **SMALL),
    "shared keys": lambda seed: tiny_llama(torch.float64, seed, kv_from=(0, 0), **SMALL),
}
CACHES = {
    "default": lambda model, rows: None,
    "dynamic": DynamicCache.for_model,
    "static": lambda model, rows: StaticCache.for_model(model, rows, 40),
    "paged": lambda model, rows: BlockStore.for_model(model, 80, 3).rows(rows),
    "int8": lambda model, rows: quantized("int8")(model, 80, 4).rows(rows),
    "int4": lambda model, rows: quantized("int4")(model, 80, 4).rows(rows),
}


@cache
def model_of(name, seed=0):
    return MODELS[name](seed)


@cache
def other_of(name):
    """A near copy: right often and wrong often."""
    other = MODELS[name](0)
    random_ = torch.Generator().manual_seed(1)
    for parameter in other.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=random_, dtype=parameter.dtype)
    return other


@cache
def plain(name, prompt, where):
    """One prompt's greedy answer, alone and without drafts; over a lossy cache it is that cache's."""
    model = model_of(name)
    made = CACHES[where if where in LOSSY else "default"](model, 1)
    (done,) = generate(model, [prompt], LENGTH, cache=made)
    return tuple(done.tokens)


def scripted(rng, answers, k, tree=False):
    """Knows the answers and errs at places of its own."""
    wrong = {(key, place) for key in range(5) for place in range(LENGTH) if rng.random() < 0.4}

    def bend(c, draft):
        at = len(c.output)
        return [(t + ((c.key, at + i) in wrong)) % VOCAB for i, t in enumerate(draft)]

    if tree:
        return Forest(answers, k, lambda c, right: bush(bend(c, right), VOCAB))
    return Scripted(answers, k, bend)


DRAFTERS = {
    "ngram": lambda rng, name, answers, k: NgramDrafter(k, rng.randint(2, 4), rng.randint(1, 2)),
    "model": lambda rng, name, answers, k: ModelDrafter(other_of(name), k, rng.choice([16, 64, 1024])),
    "itself": lambda rng, name, answers, k: ModelDrafter(model_of(name), k),
    "first layers": lambda rng, name, answers, k: first_layers(model_of(name), 1, k),
    "skipping": lambda rng, name, answers, k: skipping(model_of(name), [rng.randrange(2)], k),
    "lookahead": lambda rng, name, answers, k: LookaheadDrafter(k, rng.randint(2, 4), 3, rng.randrange(99)),
    "scripted": lambda rng, name, answers, k: scripted(rng, answers, k),
    "tree": lambda rng, name, answers, k: scripted(rng, answers, k, tree=True),
}
TREES, LOSSY = ("lookahead", "tree"), ("int8", "int4")


@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_cases_equal_no_speculation(seed):
    rng = random.Random(seed)
    drafted = accepted = 0
    for case in range(100):
        name, kind, k = rng.choice([*MODELS]), rng.choice([*DRAFTERS]), rng.randint(1, 6)
        if kind == "skipping" and name == "shared keys":  # its layers differ in kind
            kind = "first layers"
        where = rng.choice([*CACHES, "engine"])
        if name == "latent" and where in LOSSY:
            where = "static"
        if kind in TREES and where in (
            "engine",
            *LOSSY,
        ):  # a tree's own tokens are read before they are coded
            where = "paged"
        pool = random.Random(7)
        prompts = [tuple(pool.randrange(VOCAB) for _ in range(size)) for size in (1, 2, 3, 5, 8, 12)]
        prompts = rng.sample(prompts, rng.randint(1, 4))
        want = [plain(name, prompt, where) for prompt in prompts]
        answers = {prompt: [*tokens, 2] for prompt, tokens in zip(prompts, want, strict=True)}
        model, drafter = model_of(name), DRAFTERS[kind](rng, name, answers, k)
        said = f"seed {seed}, case {case}: {name}, {kind}, k = {k}, {where}, {len(prompts)} prompts"
        if where == "engine":
            limits = Limits(rng.randint(1, 4), rng.choice([6, 64]))
            engine = Engine(
                model, num_blocks=rng.choice([8, 40]), block_size=3, limits=limits, drafter=drafter
            )
            for i, prompt in enumerate(prompts):
                engine.add(Request(str(i), prompt, LENGTH, eos_ids=frozenset([2])))
            found = collect(engine)
            got = [tuple(found[str(i)][0]) for i in range(len(prompts))]
            drafted += engine.counters.draft_tokens
            accepted += engine.counters.accepted_tokens
        else:
            made = CACHES[where](model, len(prompts))
            done = generate(model, prompts, LENGTH, cache=made, drafter=drafter)
            got = [tuple(r.tokens) for r in done]
            drafted += sum(r.num_draft_tokens for r in done)
            accepted += sum(r.num_accepted_tokens for r in done)
        assert got == want, said
    assert 0 < accepted < drafted


FILTERS = {
    "half": SamplingParams(temperature=0.5),
    "one": SamplingParams(temperature=1.0),
    "top-p": SamplingParams(temperature=1.0, top_p=0.9),
    "min-p": SamplingParams(temperature=1.3, min_p=0.15),
    "bias": SamplingParams(temperature=1.0, logit_bias={1: 2.0, 3: -3.0}),
    "top-k, penalties": SamplingParams(
        temperature=0.9, top_k=4, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4
    ),
}
ANSWERS, TOKENS, WORDS = 5_000, 4, 5  # 20,000 tokens over five words: 625 paths


def sources():
    """One of each kind, over the same model."""
    model, other = (tiny_llama(vocab_size=WORDS, num_layers=2, seed=seed) for seed in (0, 1))
    room = 16 * ANSWERS
    return model, {
        "ngram": lambda: NgramDrafter(2, 2, 1),
        "model": lambda: ModelDrafter(other, 2, room),
        "first layers": lambda: first_layers(model, 1, 2, room),
        "lookahead": lambda: LookaheadDrafter(2, 3, 2),
        "drawn trees": lambda: TreeModel(other, (2, 2)),
    }


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("source", sources()[1])
def test_samples_have_the_targets_distribution(source, filters):
    """20,000 tokens in 5,000 answers with seeds 0 to 4,999, against the probability of every path without drafts:
    chi-square over paths, at 1 - 1e-6. All 30 tests together raise a false alarm for one choice of seeds in
    33,000; with these seeds, never or always."""
    model, kinds = sources()
    params = FILTERS[filters]
    prompt = [4, 1, 4, 1]
    rows = [SamplingParams(**{**vars(params), "seed": i}) for i in range(ANSWERS)]
    done = generate(model, [prompt] * ANSWERS, TOKENS, rows, eos_ids=(), drafter=kinds[source]())
    drafted, kept = (sum(getattr(r, f"num_{what}_tokens") for r in done) for what in ("draft", "accepted"))
    assert 0 < kept < drafted
    assert_the_models(model, prompt, params, [r.tokens for r in done])
