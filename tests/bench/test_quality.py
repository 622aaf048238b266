"""The two meters: with a full cache they say what one forward says; with less kept, they notice."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from lumen import assets
from lumen.bench.needle import INTRODUCTION, Cell, Needle, ask, grid, needles
from lumen.bench.quality import Losses, losses, passages
from lumen.cache import DynamicCache, EvictingCache, StaticCache
from lumen.cache.evict_rules import Newest

from ..tiny import tiny_llama

BLOCKS = torch.randint(0, 97, (5, 20), generator=torch.Generator().manual_seed(0)).tolist()


def full(model, rows, positions):
    return StaticCache.for_model(model, rows, positions)


def few(model, rows, positions):
    return EvictingCache.for_model(model, rows, 4, Newest())


@pytest.mark.parametrize(("step", "batch"), [(1, 5), (4, 2), (99, 1)])
def test_through_a_full_cache_the_loss_is_that_of_one_forward(step, batch):
    model = tiny_llama(torch.float64)
    found = losses(model, BLOCKS, full, prompt=7, step=step, batch=batch)
    tokens = torch.tensor(BLOCKS)
    logits = model(tokens)[:, 6:-1].transpose(1, 2)
    expected = F.cross_entropy(logits, tokens[:, 7:], reduction="none").mean(1)
    assert found.scored == 13 and found.stretches == pytest.approx(expected.tolist(), rel=1e-5)
    assert found.perplexity().value == pytest.approx(math.exp(expected.mean()), rel=1e-5)


def test_stretches_are_samples_of_their_own():
    model = tiny_llama(torch.float64)
    whole = losses(model, BLOCKS, full, prompt=8)
    parts = losses(model, BLOCKS, full, prompt=8, step=5, batch=2, stretch=4)
    means = torch.tensor(parts.stretches).view(5, 3).mean(1).tolist()
    assert parts.scored == 4 and means == pytest.approx(whole.stretches, rel=1e-5)
    first = losses(model, [block[:12] for block in BLOCKS], full, prompt=8)
    assert parts.stretches[::3] == pytest.approx(first.stretches, rel=1e-5)
    with pytest.raises(ValueError, match="12 predicted tokens are no whole number of stretches of 5"):
        losses(model, BLOCKS, full, prompt=8, stretch=5)


def test_keys_that_have_left_are_missed_only_where_tokens_come_one_by_one():
    model = tiny_llama(torch.float64)
    whole = losses(model, BLOCKS, full, prompt=7)
    least = losses(model, BLOCKS, few, prompt=7)
    assert max(abs(a - b) for a, b in zip(whole.stretches, least.stretches, strict=True)) > 1e-3
    at_once = losses(model, BLOCKS, few, prompt=19)  # one token is predicted, from the prompt itself
    assert at_once.stretches == pytest.approx(losses(model, BLOCKS, full, prompt=19).stretches, rel=1e-5)


def test_the_cache_is_told_that_the_prompt_has_ended():
    told = []

    class Told(DynamicCache):
        def prompt_ended(self):
            told.append(self.lengths.tolist())

    losses(tiny_llama(), BLOCKS, lambda m, r, n: Told.for_model(m, r), prompt=7, batch=3)
    assert told == [[7, 7, 7], [7, 7]]


def test_ratios_of_perplexities_are_paired():
    """Blocks differ by far more than the two caches do; in pairs that cancels."""
    base = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    one, other = Losses(tuple(x + 0.01 for x in base), 10), Losses(tuple(base), 10)
    ratio = one.over(other)
    assert ratio.value == pytest.approx(math.exp(0.01)) and ratio.width < 1e-9
    assert one.perplexity().low < 0.5 * one.perplexity().high
    assert Losses((2.0,), 3).perplexity().width == 0.0
    for wrong in (Losses((1.0,), 10), Losses(tuple(base), 11)):
        with pytest.raises(ValueError, match="on the same stretches"):
            one.over(wrong)


def test_passages_are_spread_and_do_not_overlap():
    found = passages(list(range(103)), 25, 4)
    assert [len(p) for p in found] == [25] * 4 and found[0][0] == 0 and found[-1][-1] == 102
    assert all(b[0] > a[-1] for a, b in pairwise(found))
    with pytest.raises(ValueError, match="5 passages of 25 tokens do not fit into 103"):
        passages(list(range(103)), 25, 5)


def test_bad_blocks_get_a_sentence():
    model = tiny_llama()
    with pytest.raises(ValueError, match=r"equally long.*\[2, 3\]"):
        losses(model, [[1, 2], [1, 2, 3]], full, prompt=1)
    with pytest.raises(ValueError, match="prompt must be a whole number from 1 to 2"):
        losses(model, [[1, 2, 3]], full, prompt=3)


@pytest.fixture(scope="module")
def hay(tokenizer):
    return tokenizer.encode(assets.shakespeare()[1][:20_000], add_special=False)


def test_needles_are_of_one_length_and_where_they_should_be(tokenizer, hay):
    for depth in (0.0, 0.3, 1.0):
        first, second = needles(tokenizer, hay, 160, depth, 2, seed=4)
        assert needles(tokenizer, hay, 160, depth, 2, seed=4) == [first, second] and first != second
        for needle in (first, second):
            assert len(needle.context) + len(needle.question) == 160
            text, answer = tokenizer.decode(needle.context), tokenizer.decode(needle.answer)
            before, after = text.split(INTRODUCTION)[1].split(f" is{answer}.\n")
            before, after = (len(tokenizer.encode(part)) for part in (before, after))
            assert answer.strip().isdigit() and abs((before - 7) / (before + after - 7) - depth) < 0.1
            assert tokenizer.decode(needle.question).endswith(" is") and answer[0] == " "
            sentence = tokenizer.decode(needle.context[slice(*needle.at)])
            assert sentence.startswith("\nThe pass number of ") and sentence.endswith(f" is{answer}.\n")
    (short,) = needles(tokenizer, hay, 160, 0.5, 1, digits=2)
    assert len(tokenizer.decode(short.answer).strip()) == 2
    with pytest.raises(ValueError, match="leaves -"):
        needles(tokenizer, hay, 20, 0.5, 1)
    with pytest.raises(ValueError, match="the text has 50"):
        needles(tokenizer, hay[:50], 160, 0.5, 1)


def test_a_full_cache_finds_the_needle_and_a_short_window_does_not(model, tokenizer, hay):
    def window(model, rows, positions):
        return EvictingCache.for_model(model, rows, 40, Newest(), "prompt")

    sizes = {"lengths": [130], "depths": [0.2, 0.4], "count": 1, "batch": 2}
    cells = grid(model, tokenizer, hay, full, **sizes)
    assert [(c.length, c.depth, c.found.value) for c in cells] == [(130, 0.2, 1.0), (130, 0.4, 1.0)]
    assert all(p > -2 for c in cells for p in c.logprobs)
    lost = grid(model, tokenizer, hay, window, **sizes)
    assert all(c.found.value == 0.0 and max(c.logprobs) < -5 for c in lost)


def test_the_prompt_ends_before_the_question_where_it_is_not_seen(tokenizer, hay):
    told = []

    class Told(DynamicCache):
        def prompt_ended(self):
            told.append(self.lengths.tolist())

    model = tiny_llama(vocab_size=49152, max_positions=200)
    asked = needles(tokenizer, hay, 100, 0.5, 3)
    answers = [
        ask(model, asked, lambda m, r, n: Told.for_model(m, r), question_seen=seen) for seen in (True, False)
    ]
    assert told == [[100] * 3, [len(n.context) for n in asked]]
    for (right, a), (same, b) in zip(*answers, strict=True):
        assert right == same and a == pytest.approx(b, rel=1e-4)  # nothing left, so it is all one


def test_an_answer_is_right_where_every_token_of_it_is():
    """After a wrong first token the second is what the model says then, and the answer is wrong all the same."""
    model, context = tiny_llama(torch.float64), [5, 9, 2, 7]
    first = int(model(torch.tensor([context]))[0, -1].argmax())
    wrong = (first + 1) % 97
    answers = []
    for start in (first, wrong):
        after = int(model(torch.tensor([[*context, start]]))[0, -1].argmax())
        answers.append(Needle((5, 9), (2, 7), (start, after)))
    assert [right for right, _ in ask(model, answers, full)] == [True, False]


def test_answers_of_unequal_length_are_not_asked_together():
    asked = [Needle((1, 2, 3), (4,), (5, 6)), Needle((1, 2, 3), (4,), (5,))]
    model = tiny_llama()
    with pytest.raises(ValueError, match="answers of equally many tokens"):
        ask(model, asked, full)
    assert len(ask(model, asked, full, batch=1)) == 2


def test_a_cell_has_wilson_s_interval():
    found = Cell(512, 0.5, (True,) * 10, (-0.1,) * 10).found
    assert found.value == 1.0 and found.low == pytest.approx(0.722, abs=1e-3) and found.n == 10
