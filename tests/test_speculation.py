"""Drafts in `generate`: answers are those without drafts, whatever is drafted, and sampling keeps its distribution."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from lumen.cache import BlockStore, DynamicCache, HashPrefix, RecurrentCache, StaticCache
from lumen.cache.traits import Traits
from lumen.decode import Context, Draft, Drafter, NgramDrafter, generate
from lumen.decode.accept import accept
from lumen.decode.drafters.ngram import Endings, look_up
from lumen.decode.row import Row
from lumen.decode.step import verify
from lumen.sampling import SamplingParams, Stream, distribution, draw, generators

from .distributions import chi_square
from .drafters import Scripted
from .tiny import tiny_gpt, tiny_llama

PROMPTS = [[5, 9, 2, 7, 1], [11], [7, 0, 21, 60, 2, 9, 33]]
SEEDED = [SamplingParams(temperature=0.9, top_p=0.95, seed=i, presence_penalty=0.4) for i in range(3)]
GREEDY = SamplingParams(temperature=0.0)
BENDS = {
    "right": lambda c, draft: draft,
    "wrong": lambda c, draft: [(t + 1) % 61 for t in draft],
    "partly right": lambda c, draft: [
        t if i < (len(c.prompt) + len(c.output)) % 5 else (t + 1) % 61 for i, t in enumerate(draft)
    ],
    "ragged": lambda c, draft: draft[: (3 * len(c.output) + len(c.prompt)) % (len(draft) + 1)],
    "none": lambda c, draft: [],
    "over-long": lambda c, draft: draft + draft,
    "unknown tokens": lambda c, draft: [*draft[:1], 10**6, -3, *draft[1:]],
}
CACHES = {
    "default": lambda model: None,
    "dynamic": lambda model: DynamicCache.for_model(model, 3),
    "static": lambda model: StaticCache.for_model(model, 3, 30),
    "paged": lambda model: BlockStore.for_model(model, 40, 4).rows(3),
}


def answers_of(done, prompts):
    return {tuple(p): r.tokens for p, r in zip(prompts, done, strict=True)}


class Logits:
    """A model that notes the logits that were looked at: what a greedy answer was read from."""

    def __init__(self, model, monkeypatch):
        self.rows = []
        head = model.head
        monkeypatch.setattr(model, "head", lambda hidden: self.rows.append(head(hidden)) or self.rows[-1])


@pytest.mark.parametrize("bend", BENDS)
@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("params", ["greedy", "seeded"])
def test_answers_equal_those_without_drafts(bend, k, params):
    """Rows of different lengths, drafts of different lengths, 0 and past the end among them; chosen drafts leave even
    a seeded sample as it is, token for token."""
    prompts = [[t % 61 for t in p] for p in PROMPTS]
    for make, names in ((tiny_llama, CACHES), (tiny_gpt, ["default"])):
        model = make(torch.float64)
        settings = GREEDY if params == "greedy" else SEEDED
        plain = generate(model, prompts, 12, settings, eos_ids=())
        for name in names:
            drafter = Scripted(answers_of(plain, prompts), k, BENDS[bend])
            done = generate(
                model, prompts, 12, settings, eos_ids=(), cache=CACHES[name](model), drafter=drafter
            )
            assert [r.tokens for r in done] == [r.tokens for r in plain], name
            assert all(len(r.token_times) == 12 for r in done)
            for r in done:
                assert r.num_accepted_tokens <= min(r.num_draft_tokens, 11)
                if bend == "right":
                    assert r.num_accepted_tokens == r.num_draft_tokens > 0
            if bend == "right":
                assert drafter.asked == -(-10 // (k + 1)), "k + 1 tokens a pass"


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("k", [1, 4])
def test_logits_behind_drafts_are_those_of_the_whole_text(monkeypatch, cache, k):
    """Equal tokens can hide a wrong cache. Here the logits of every kept place equal one forward over the answer."""
    model = tiny_llama(torch.float64)
    plain = answers_of(generate(model, PROMPTS, 12, eos_ids=()), PROMPTS)
    for prompt in PROMPTS:
        with monkeypatch.context() as patch:
            told = Logits(model, patch)
            drafter = Scripted(plain, k, BENDS["partly right"])
            made = CACHES[cache](model)
            if made is not None:
                made.select([0])
            (done,) = generate(model, [prompt], 12, eos_ids=(), cache=made, drafter=drafter)
        whole = model(torch.tensor([prompt + done.tokens]))[0]
        at = len(prompt) - 1
        for rows in told.rows:  # each pass: one row behind the last token, then one behind each draft
            kept = 0
            while kept < len(rows) and torch.allclose(rows[kept], whole[at], atol=1e-10):
                at, kept = at + 1, kept + 1
            assert kept > 0
        assert at == len(prompt) - 1 + 12, "every token of the answer was read from the right logits"


def test_an_end_among_the_drafts_ends_the_row_there():
    """The drafter guesses the end token and what never comes behind it; neighbours go on."""
    model = tiny_llama(torch.float64)
    free = generate(model, PROMPTS, 14, eos_ids=())
    for place in range(1, 9):
        ends = {free[0].tokens[place]}
        plain = generate(model, PROMPTS, 14, eos_ids=ends)
        for k in (1, 3, 8):
            store = BlockStore.for_model(model, 60, 2)
            store.prefix = HashPrefix(store.pool)
            with store.rows(3) as cache:
                drafter = Scripted(answers_of(free, PROMPTS), k)
                done = generate(model, PROMPTS, 14, eos_ids=ends, drafter=drafter, cache=cache)
                assert cache.lengths.tolist() <= [
                    len(p) + len(r.tokens) for p, r in zip(PROMPTS, done, strict=True)
                ]
            for ours, want in zip(done, plain, strict=True):
                assert (ours.tokens, ours.finish_reason) == (want.tokens, want.finish_reason)
                assert len(ours.token_times) == len(want.token_times)
            store.audit()
            with store.rows(1) as cache:  # what is remembered is what was said
                text = PROMPTS[0] + done[0].tokens
                (again,) = generate(model, [[*text, 3]], 4, eos_ids=(), cache=cache)
            (want,) = generate(model, [[*text, 3]], 4, eos_ids=())
            assert again.tokens == want.tokens


@pytest.mark.parametrize("kind", ["drawn", "chosen"])
def test_what_is_accepted_has_the_targets_distribution(kind):
    """40,000 times the first two tokens behind two drafts, against p x p. Chi-square over the 30 pairs that can come
    (p has a zero, q has another), at the 1 - 1e-6 quantile: two false alarms in a million runs of this test."""
    generator = torch.Generator().manual_seed(3)
    n, size = 40_000, 6
    p = torch.rand(3, size, generator=generator)
    p[0, 2] = 0
    q = torch.rand(2, size, generator=generator)
    q[:, 4] = 0
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    first = torch.multinomial(q[0], n, True, generator=generator).tolist()
    second = torch.multinomial(q[1], n, True, generator=generator).tolist()
    if kind == "chosen":
        first, second = [1] * n, [3] * n
    drafts = [Draft(list(pair), q if kind == "drawn" else None) for pair in zip(first, second, strict=True)]
    uniform = torch.rand(3 * n, generator=generator, dtype=torch.float64).tolist()
    new = accept(p.repeat(n, 1), drafts, uniform)
    # Places after a rejection were not drawn: the next token there has the distribution p[1] by a draw of its own.
    pairs = torch.zeros(size, size, dtype=torch.float64)
    rest = torch.multinomial(p[1], n, True, generator=generator).tolist()
    for tokens, other in zip(new, rest, strict=True):
        pairs[tokens[0], tokens[1] if len(tokens) > 1 else other] += 1
    assert chi_square(pairs.flatten(), torch.outer(p[0], p[1]).flatten()) < 80.4  # 29 degrees of freedom
    lengths = torch.bincount(torch.tensor([len(t) for t in new]), minlength=4)[1:].double() / n
    if kind == "drawn":
        alpha = torch.minimum(p[:2], q).sum(-1)
        want = torch.tensor(
            [1 - alpha[0], alpha[0] * (1 - alpha[1]), alpha[0] * alpha[1]], dtype=torch.float64
        )
    else:
        want = torch.tensor([1 - p[0, 1], p[0, 1] * (1 - p[1, 3]), p[0, 1] * p[1, 3]], dtype=torch.float64)
    assert (lengths - want).abs().max() < 5 * 0.5 / n**0.5  # five standard deviations: 6e-7 each


def looked_up(tokens, **kinds):
    """What the drafter guesses behind a text, and what a scan of all of it finds: the same."""
    drafter = NgramDrafter(3, **kinds)
    (draft,) = drafter.propose([Context(0, tokens, [], 3, GREEDY)])
    at = look_up(tokens, drafter.longest, drafter.shortest)
    assert list(draft.tokens) == ([] if at is None else list(tokens[at : at + 3]))
    return list(draft.tokens)


def test_prompt_lookup_finds_what_was_said_before():
    assert looked_up([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4, 5]
    assert looked_up([1, 2, 7, 1, 2, 8, 9, 1, 2]) == [7, 1, 2], "the first occurrence"
    assert looked_up([5, 1, 2, 7, 6, 1, 2, 8, 9, 6, 1, 2]) == [8, 9, 6], (
        "the longest ending goes before the first place"
    )
    assert looked_up([4, 4, 4, 4]) == [4]
    assert looked_up([3, 1]) == looked_up([7]) == looked_up([1, 2, 3]) == []
    assert looked_up([256, 1, 0, 1]) == [], "bytes of two tokens are no token"
    assert looked_up([9, 3, 9], shortest=1) == [3, 9]
    with pytest.raises(ValueError, match="max_drafts"):
        NgramDrafter(0)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 2) | st.sampled_from([255, 256, 2**40]), max_size=12), max_size=8),
    st.integers(1, 5),
    st.integers(1, 5),
)
def test_a_growing_index_equals_looking_at_every_place(pieces, one, other):
    """Texts of few tokens that come piece by piece, empty pieces too: behind each, the index, the scan in bytes and
    the definition name one place."""
    longest, shortest = max(one, other), min(one, other)
    index, text = Endings(longest, shortest), []

    def by_hand():
        for size in range(longest, shortest - 1, -1):
            for at in range(len(text) - size):
                if text[at : at + size] == text[-size:]:
                    return at + size
        return None

    for piece in pieces:
        index.extend(piece)
        text += piece
        assert index.tokens == text
        if text:
            assert index.before() == look_up(text, longest, shortest) == by_hand()


def test_an_index_looks_at_as_much_behind_a_long_text_as_behind_a_short_one():
    class Counting(dict):
        count = 0

        def get(self, *key):
            self.count += 1
            return super().get(*key)

        def setdefault(self, *entry):
            self.count += 1
            return super().setdefault(*entry)

    for length in (10, 1_000, 30_000):
        index = Endings(4, 2)
        index.extend(range(length))
        index._ends = entries = Counting(index._ends)
        index.extend([5])
        assert index.before() is None and entries.count == 6, "an entry and a look a length"


def test_prompt_lookup_forgets_answers_that_ended():
    drafter = NgramDrafter(3)
    generate(tiny_llama(), PROMPTS, 12, eos_ids=(), drafter=drafter)
    assert not drafter._answers
    for text in ([1, 2, 3, 1, 2], [5, 1, 2, 9, 1, 2]):  # another answer of the same name
        (draft,) = drafter.propose([Context("x", text, [], 1, GREEDY)])
        assert list(draft.tokens) == [text[-3]]
        drafter.forget("x")


def test_prompt_lookup_drafts_in_generate():
    model = tiny_llama(torch.float64)
    prompts = [[5, 9, 2, 7, 1, 5, 9, 2], [11] * 6, [3, 4]]
    plain = generate(model, prompts, 30, eos_ids=())
    done = generate(model, prompts, 30, eos_ids=(), drafter=NgramDrafter(3, shortest=1))
    assert [r.tokens for r in done] == [r.tokens for r in plain]
    assert sum(r.num_draft_tokens for r in done) > 0


@pytest.mark.parametrize("far", [0, 2, 3, None])
def test_a_cache_that_cannot_go_back_far_enough_is_refused_before_anything_runs(far, monkeypatch):
    class Stiff(DynamicCache):
        traits = Traits(max_rewind=far)

    model = tiny_llama(torch.float64)
    (plain,) = generate(model, PROMPTS[:1], 12, eos_ids=(), cache=Stiff.for_model(model, 1))
    drafter = Scripted({tuple(PROMPTS[0]): plain.tokens}, 3, BENDS["partly right"])
    cache = Stiff.for_model(model, 1)
    if far in (0, 2):
        monkeypatch.setattr(model, "hidden", None)
        with pytest.raises(
            ValueError, match=f"Stiff can go back {far} positions, and Scripted drafts up to 3"
        ):
            generate(model, PROMPTS[:1], 12, eos_ids=(), cache=cache, drafter=drafter)
        assert drafter.asked == 0 and cache.lengths.tolist() == [0]
    else:
        (done,) = generate(model, PROMPTS[:1], 12, eos_ids=(), cache=cache, drafter=drafter)
        assert done.tokens == plain.tokens


def test_drafts_over_a_recurrent_state_are_refused_before_anything_runs(monkeypatch):
    model = tiny_llama()
    monkeypatch.setattr(model, "hidden", None)
    with pytest.raises(ValueError, match="RecurrentCache can go back 0 positions"):
        generate(model, [[5, 9]], 4, cache=RecurrentCache(1, 3), drafter=NgramDrafter(2))


def test_the_cache_is_told_once_that_the_prompts_have_ended():
    class Told(DynamicCache):
        told = ()

        def prompt_ended(self):
            self.told += (self.lengths.tolist(),)

    model = tiny_llama()
    cache = Told.for_model(model, 3)
    generate(model, PROMPTS, 4, eos_ids=(), cache=cache, prefill_chunk=2)
    assert cache.told == ([5, 1, 7],)


class Operators(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
def test_without_drafts_a_step_is_one_distribution_and_one_draw(kind):
    """The step that can do more costs nobody more: no operator beside those of `distribution` and `draw`."""
    params = [GREEDY] * 3 if kind == "greedy" else [SamplingParams(top_p=0.9, seed=i) for i in range(3)]
    rows = [Row(i, [1], [], p, Stream(p), 9, (2,)) for i, p in enumerate(params)]
    logits = torch.randn(3, 97, generator=torch.Generator().manual_seed(0))
    with Operators() as plain:
        want = draw(distribution(logits, params), generators(params)).tolist()
    with Operators() as step:
        new = verify(rows, [Draft()] * 3, logits)
    assert new == [[t] for t in want] and step.count <= plain.count


class Answering(Drafter):
    max_drafts = 2

    def __init__(self, *drafts):
        self.drafts = drafts

    def propose(self, contexts):
        return self.drafts


@pytest.mark.parametrize(
    ("drafts", "sentence"),
    [
        ([], "asked about 1 rows and answered 0"),
        ([Draft([1], torch.ones(1, 5))], r"needs probabilities \(1, 97\), got \(1, 5\)"),
        ([Draft([1, 2], torch.ones(1, 97))], r"needs probabilities \(2, 97\)"),
        ([Draft([1], torch.zeros(1, 97))], "gives token 1 no chance"),
    ],
)
def test_a_drafter_that_is_out_of_step_gets_a_sentence(drafts, sentence):
    with pytest.raises(ValueError, match=sentence):
        generate(tiny_llama(), [[5]], 5, eos_ids=(), drafter=Answering(*drafts))
