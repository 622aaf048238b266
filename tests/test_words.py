"""Bad words and allowed tokens, against transformers' own processor and in the engine with drafts."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from transformers.generation.logits_process import NoBadWordsLogitsProcessor

from lumen.decode import NgramDrafter
from lumen.sampling import SamplingParams
from lumen.sampling.words import WordRules, spelled
from lumen.serve.engine import Engine
from lumen.serve.request import Request

from .tiny import tiny_llama

V = 23


def test_the_same_tokens_are_forbidden_as_in_transformers():
    """400 random answers over random words; words that share beginnings, repeat a token, contain one another."""
    rng = random.Random(3)
    forbidden = 0
    for _ in range(400):
        size = rng.choice([2, 3, V])
        words = {
            tuple(rng.choices(range(size), k=rng.choice([1, 2, 2, 3, 5]))) for _ in range(rng.randint(1, 8))
        }
        words = [word for word in words if word != (0,)]
        if not words:
            continue
        theirs = NoBadWordsLogitsProcessor([list(word) for word in words])
        matcher = WordRules(V, None, words)()
        came = []
        for _ in range(12):
            if came:  # transformers takes a word that is as long as the answer or longer for no match
                expected = theirs(torch.tensor([came]), torch.zeros(1, V))[0] == 0
                if all(len(word) <= len(came) for word in words):
                    assert torch.equal(matcher.allowed(), expected), (words, came)
                    forbidden += int((~expected).sum())
            token = rng.choice(matcher.allowed().nonzero().flatten().tolist()[:size])
            assert matcher.advance(token)
            came.append(token)
    assert forbidden > 2000


def test_a_matcher_goes_back_and_refuses_without_changing():
    matcher = WordRules(V, None, [(1, 2, 3), (2, 2)])()
    assert matcher.advance(1) and matcher.advance(2)
    before = matcher.allowed().clone()
    assert not before[3] and not before[2]
    assert not matcher.advance(3) and torch.equal(matcher.allowed(), before)
    assert matcher.advance(4) and bool(matcher.allowed().all())
    matcher.rollback(1)
    assert torch.equal(matcher.allowed(), before)
    matcher.rollback(0)
    matcher.rollback(2)
    assert bool(matcher.allowed().all())


@pytest.mark.parametrize(
    ("rules", "word"),
    [((5, [5], ()), "no token 5"), ((5, None, [(1, -1)]), "no token -1"), ((5, None, [()]), "without tokens"),
     ((2, [1], [(1,)]), "no token at all")],
)  # fmt: skip
def test_rules_that_are_none(rules, word):
    with pytest.raises(ValueError, match=word):
        WordRules(*rules)


def test_a_word_is_spelled_at_the_start_and_behind_a_blank():
    assert spelled([" ab", "ab"], lambda text: [*text.encode()]) == [(97, 98), (32, 97, 98)]


@pytest.mark.parametrize("drafts", [False, True])
def test_answers_keep_to_the_rules(drafts):
    """With drafts as without: a forbidden token is not accepted either, and no neighbour is touched."""
    model = tiny_llama(vocab_size=V, eos_ids=())
    runs = [(a, b) for a in range(5) for b in range(5) if (a + b) % 2]
    rules = WordRules(V, range(5), runs)
    engine = Engine(model, num_blocks=64, block_size=4, **({"drafter": NgramDrafter()} if drafts else {}))
    alone = Engine(model, num_blocks=64, block_size=4)
    params = [SamplingParams(seed=i) for i in range(4)]
    found = {}
    for i in range(4):
        engine.add(Request(f"r{i}", [1, 2, 1, 2, 1], 24, params[i], constraint=rules))
        engine.add(Request(f"free{i}", [3, i + 1], 24, params[i]))
        alone.add(Request(f"free{i}", [3, i + 1], 24, params[i]))
    for delta in engine.stream():
        found.setdefault(delta.request_id, []).extend(delta.tokens)
    for i in range(4):
        answer = found[f"r{i}"]
        assert len(answer) == 24 and set(answer) <= set(range(5))
        assert not {(a, b) for a, b in itertools.pairwise(answer)} & set(runs)
    apart = {}
    for delta in alone.stream():
        apart.setdefault(delta.request_id, []).extend(delta.tokens)
    assert all(found[name] == tokens for name, tokens in apart.items())
