"""Answers held to a grammar, in `generate` and in the engine, with drafts and without: a mask, and nothing else."""

from __future__ import annotations

import pytest
import torch

from lumen.decode import ModelDrafter, generate
from lumen.sampling import SamplingParams, distribution
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from .drafters import Scripted
from .grammars import choices
from .test_speculation import BENDS
from .tiny import tiny_llama

TEXTS = [[5, 6, 7, 8, 9, 10], [5, 6, 20, 21], [5, 30], [40, 41, 42, 43, 44, 45, 46], [5, 6, 7]]
ENDS = (2, 0)
PROMPT = [5, 9, 2, 7]


def by_hand(model, prompt, texts):
    """Greedy over what the grammar allows, token by token, without the loop under test."""
    said: list[int] = []
    while True:
        logits = model(torch.tensor([prompt + said]))[0, -1]
        follow = {t[len(said)] if len(t) > len(said) else None for t in texts if t[: len(said)] == said}
        ids = sorted({i for f in follow for i in (ENDS if f is None else (f,))})
        best = ids[int(logits[ids].argmax())]
        if best in ENDS:
            return said
        said.append(best)


def test_the_mask_is_the_distribution_given_that_the_token_is_allowed():
    logits = torch.randn(4, 3, 50, generator=torch.Generator().manual_seed(0))
    allowed = torch.rand(4, 3, 50, generator=torch.Generator().manual_seed(1)) < 0.3
    for settings in ({}, {"temperature": 0.7, "repetition_penalty": 1.3}, {"temperature": 0.0}):
        params = SamplingParams(**settings)
        drafts, prompt, output = [[1, 2]] * 4, [[3, 4]] * 4, [[5]] * 4
        probs = distribution(logits, params, prompt, output, drafts=drafts, allowed=allowed)
        free = distribution(logits.where(allowed, torch.tensor(-1e9)), params, prompt, output, drafts=drafts)
        assert torch.allclose(probs, free, atol=1e-6) and probs[~allowed].sum() == 0
    flat = distribution(logits[:, 0], SamplingParams(top_k=3), allowed=allowed[:, 0])
    assert ((flat > 0).sum(-1) == 3).all(), "filters choose among what is allowed"


def test_places_of_a_row_see_the_drafts_before_them():
    """(B, T, V) equals T calls with (B, V), penalties and all; a row with fewer drafts is padded."""
    logits = torch.randn(2, 4, 30, generator=torch.Generator().manual_seed(0))
    params = [
        SamplingParams(presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.4, top_p=0.9),
        SamplingParams(temperature=0.0),
    ]
    prompt, output, drafts = [[1, 2, 2], [4]], [[3, 3], []], [[3, 7, 1], [9]]
    together = distribution(logits, params, prompt, output, drafts=drafts)
    for place in range(4):
        outputs = [o + d[:place] for o, d in zip(output, drafts, strict=True)]
        assert torch.equal(together[:, place], distribution(logits[:, place], params, prompt, outputs))


def test_a_mask_that_allows_nothing_or_is_none_gets_a_sentence():
    allowed = torch.ones(2, 5, dtype=torch.bool)
    allowed[1] = False
    with pytest.raises(ValueError, match="Row 1 is allowed no token"):
        distribution(torch.zeros(2, 5), SamplingParams(), allowed=allowed)
    bias = SamplingParams(logit_bias={3: float("-inf")})
    only = torch.tensor([[False, False, False, True, False]])
    with pytest.raises(ValueError, match="Row 0 is allowed no token"):
        distribution(torch.zeros(1, 5), bias, allowed=only)
    for wrong in (torch.ones(2, 5), torch.ones(2, 4, dtype=torch.bool)):
        with pytest.raises(ValueError, match="allowed must be bool"):
            distribution(torch.zeros(2, 5), SamplingParams(), allowed=wrong)


@pytest.mark.parametrize("k", [0, 1, 3, 6])
@pytest.mark.parametrize("bend", ["right", "wrong", "partly right"])
def test_a_grammar_holds_with_drafts_as_without(k, bend):
    model = tiny_llama(torch.float64)
    want = by_hand(model, PROMPT, TEXTS)
    assert want in TEXTS
    prompts = [PROMPT, [11, 3]]
    (free,) = generate(model, [[11, 3]], 9, eos_ids=ENDS)
    drafter = Scripted({tuple(PROMPT): [*want, 2], (11, 3): [*free.tokens, 2]}, k, BENDS[bend])
    done = generate(model, prompts, 9, eos_ids=ENDS, constraint=[choices(TEXTS), None], drafter=drafter)
    assert done[0].tokens == want and done[0].finish_reason == "stop" and done[1].tokens == free.tokens
    engine = Engine(model, num_blocks=6, block_size=2, limits=Limits(3, 12), drafter=drafter)
    engine.add(Request("a", PROMPT, 9, eos_ids=frozenset(ENDS), constraint=choices(TEXTS)))
    engine.add(Request("b", [11, 3], 9, eos_ids=frozenset(ENDS)))
    found: dict[str, list[int]] = {"a": [], "b": []}
    for delta in engine.stream():
        found[delta.request_id] += delta.tokens
    assert found == {"a": want, "b": free.tokens}


@pytest.mark.parametrize("drafted", [False, True])
def test_samples_under_a_grammar_are_permitted_and_seeds_hold(drafted):
    model = tiny_llama(torch.float64)
    params = [SamplingParams(temperature=2.5, seed=i) for i in range(40)]
    drafter = {"drafter": ModelDrafter(tiny_llama(torch.float64, seed=1), 3)} if drafted else {}
    done = generate(model, [PROMPT] * 40, 9, params, eos_ids=ENDS, constraint=choices(TEXTS), **drafter)
    assert all(r.tokens in TEXTS and r.finish_reason == "stop" for r in done)
    assert len({tuple(r.tokens) for r in done}) > 1
    if not drafted:  # each answer has a matcher of its own, in the engine too
        engine = Engine(model, num_blocks=60, block_size=4)
        for i, p in enumerate(params[:8]):
            engine.add(Request(str(i), PROMPT, 9, p, frozenset(ENDS), constraint=choices(TEXTS)))
        found: dict[str, list[int]] = {str(i): [] for i in range(8)}
        for delta in engine.stream():
            found[delta.request_id] += delta.tokens
        assert list(found.values()) == [r.tokens for r in done[:8]]


class DeadEnd:
    """Two tokens, then nothing may follow, not even an end."""

    def __init__(self):
        self.said = []

    def allowed(self):
        mask = torch.zeros(97, dtype=torch.bool)
        if len(self.said) < 2:
            mask[[7, 8]] = True
        return mask

    def advance(self, token):
        self.said.append(token)
        return True

    def rollback(self, count):
        del self.said[len(self.said) - count :]


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_a_dead_end_ends_its_request_and_no_other(k):
    model = tiny_llama(torch.float64)
    (free,) = generate(model, [[11, 3]], 9, eos_ids=())
    (two,) = generate(model, [PROMPT], 2, eos_ids=(), constraint=DeadEnd)
    drafter = Scripted({tuple(PROMPT): [*two.tokens, 7, 7, 7], (11, 3): free.tokens}, k)
    with pytest.raises(ValueError, match="Row 0, token 2: The grammar allows no token"):
        generate(model, [PROMPT], 9, eos_ids=(), constraint=DeadEnd, drafter=drafter)
    engine = Engine(model, num_blocks=20, block_size=2, drafter=drafter)
    engine.add(Request("a", PROMPT, 9, constraint=DeadEnd))
    engine.add(Request("b", [11, 3], 9))
    ends, tokens = {}, {"a": [], "b": []}
    for delta in engine.stream():
        tokens[delta.request_id] += delta.tokens
        ends[delta.request_id] = (delta.finish_reason, delta.stop_reason)
    assert tokens == {"a": two.tokens, "b": free.tokens}
    assert ends["a"][0] == "error" and "allows no token" in ends["a"][1] and ends["b"] == ("length", None)
    engine.scheduler.audit()
    assert engine.kv_usage == 0 and not engine.runner._rows


def test_the_grammar_goes_before_the_least_length():
    """min_new_tokens 6 and a grammar that is complete after 3: the end is all that it allows, so it comes."""
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=20, block_size=2)
    text = [[5, 6, 7]]
    engine.add(Request("a", PROMPT, 9, eos_ids=frozenset(ENDS), min_new_tokens=6, constraint=choices(text)))
    assert [t for d in engine.stream() for t in d.tokens] == text[0]
    # Where something else may follow, the least length holds.
    engine.add(
        Request(
            "b",
            PROMPT,
            9,
            eos_ids=frozenset(ENDS),
            min_new_tokens=4,
            constraint=choices([*text, [5, 6, 7, 8]]),
        )
    )
    assert [t for d in engine.stream() for t in d.tokens] == [5, 6, 7, 8]


def test_a_constraint_of_another_vocabulary_is_refused_and_nothing_changes():
    model = tiny_llama(torch.float64)
    engine = Engine(model, num_blocks=20, block_size=2)
    with pytest.raises(ValueError, match=r"bool of shape \(97,\)"):
        engine.add(Request("a", PROMPT, 9, constraint=choices(TEXTS, size=60)))
    assert not engine.has_work and engine.num_waiting == 0
    engine.add(Request("a", PROMPT, 2))
    with pytest.raises(ValueError, match=r"bool of shape \(97,\)"):
        generate(model, [PROMPT], 3, constraint=choices(TEXTS, size=60))
    with pytest.raises(ValueError, match="2 constraints for 1 prompts"):
        generate(model, [PROMPT], 3, constraint=[None, None])
