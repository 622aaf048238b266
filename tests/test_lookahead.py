"""Lookahead: answers as without drafts, and what it pools is what the model said."""

from __future__ import annotations

import pytest
import torch

from lumen.decode import Draft, LookaheadDrafter, generate
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine

from .grammars import choices
from .test_constraint import ENDS, PROMPT, TEXTS, by_hand
from .test_speculation import CACHES, GREEDY, PROMPTS, SEEDED
from .tiny import tiny_gpt, tiny_llama

SIZES = [(1, 2, 1), (1, 4, 2), (3, 2, 2), (2, 3, 5), (5, 4, 5)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("params", ["greedy", "seeded"])
def test_answers_equal_those_without_drafts(sizes, params):
    """Ragged rows over every kind of cache, two to a size; seeded samples too, token for token."""
    settings = GREEDY if params == "greedy" else SEEDED
    kinds = [*CACHES] * 2
    at = SIZES.index(sizes) % 4
    for make, names in ((tiny_llama, kinds[at : at + 2]), (tiny_gpt, ["default"])):
        model = make(torch.float64)
        prompts = [[t % 61 for t in p] for p in PROMPTS]
        plain = generate(model, prompts, 16, settings, eos_ids=())
        for name in names:
            drafter = LookaheadDrafter(*sizes)
            done = generate(
                model, prompts, 16, settings, eos_ids=(), cache=CACHES[name](model), drafter=drafter
            )
            assert [r.tokens for r in done] == [r.tokens for r in plain], name
            assert sum(r.num_draft_tokens for r in done) > 0
            assert not drafter._answers, "forgotten"


@pytest.mark.parametrize("sizes", SIZES)
def test_what_is_pooled_is_what_the_model_said_there(sizes):
    """Every n-gram's last token is the model's best behind the text and the n-gram's way, by a forward without cache;
    the rows stand where they say: behind a move, row r is what was said below row r - 1."""
    model = tiny_llama(torch.float64)
    heard = 0

    class Looking(LookaheadDrafter):
        def propose(self, contexts):
            drafts = super().propose(contexts)
            self.texts = {c.key: [*c.prompt, *c.output] for c in contexts}
            for c, draft in zip(contexts, drafts, strict=True):
                rows = self._answers[c.key].rows
                assert rows[0][0] == self.texts[c.key][-1] and {len(row) for row in rows} == {self.window}
                assert len(draft.tokens) <= self.max_nodes
                assert max(map(len, draft.ways())) <= self.max_drafts
            return drafts

        def saw(self, keys, drafts, logits):
            nonlocal heard
            before = {key: [row[:] for row in known.rows] for key, known in self._answers.items()}
            super().saw(keys, drafts, logits)
            for key, draft in zip(keys, drafts, strict=True):
                for column in range(self.window if key in before else 0):
                    rows = before[key]
                    way = (*rows[0][1 : column + 1], *(row[column] for row in rows[1:]))
                    if way not in draft.ways():  # cut off at the end
                        continue
                    best = int(model(torch.tensor([[*self.texts[key], *way]]))[0, -1].argmax())
                    assert self._answers[key].rows[-1][column] == best
                    assert (*(row[column] for row in rows[1:]), best) in self._answers[key].pool[
                        rows[0][column]
                    ] or self.candidates < self.window
                    heard += 1

    generate(model, PROMPTS, 14, eos_ids=(), drafter=Looking(*sizes))
    assert heard > 20


def test_a_model_that_repeats_itself_is_guessed():
    """Without attention the next token hangs on the last alone, so the answer runs in a circle that the pool knows."""
    model = tiny_llama(torch.float64)
    for block in model.blocks:
        block.attn.out.weight.zero_()
    (plain,) = generate(model, PROMPTS[:1], 55, eos_ids=())
    assert len(set(plain.tokens)) < 40
    (done,) = generate(model, PROMPTS[:1], 55, eos_ids=(), drafter=LookaheadDrafter())
    assert done.tokens == plain.tokens
    assert done.num_accepted_tokens > 10 and len(set(done.token_times)) < 45


def test_a_grammar_and_an_end_hold():
    model = tiny_llama(torch.float64)
    want = by_hand(model, PROMPT, TEXTS)
    (done,) = generate(
        model, [PROMPT], 9, eos_ids=ENDS, constraint=choices(TEXTS), drafter=LookaheadDrafter()
    )
    assert done.tokens == want and done.finish_reason == "stop"


def test_seeds_make_guesses_repeatable_and_move_nothing_else():
    model = tiny_llama(torch.float64)
    runs = [
        generate(model, PROMPTS, 20, eos_ids=(), drafter=LookaheadDrafter(seed=seed)) for seed in (0, 0, 1)
    ]
    counts = [[r.num_draft_tokens for r in run] for run in runs]
    assert counts[0] == counts[1]
    assert [r.tokens for r in runs[0]] == [r.tokens for r in runs[2]]


def test_what_the_hook_tells_is_the_logits_of_every_place(monkeypatch):
    """In `generate`, behind the prompts and behind drafts: the very logits that were verified, before anything else."""
    model, told, heads = tiny_llama(torch.float64), [], []
    head = model.head
    monkeypatch.setattr(model, "head", lambda hidden: heads.append(head(hidden)) or heads[-1])

    class Listening(LookaheadDrafter):
        def saw(self, keys, drafts, logits):
            assert len(keys) == len(drafts) and len(logits) == sum(len(d.tokens) + 1 for d in drafts)
            told.append((logits, list(drafts)))
            super().saw(keys, drafts, logits)

    generate(model, PROMPTS, 9, [GREEDY, SamplingParams(seed=1), GREEDY], eos_ids=(), drafter=Listening())
    assert [id(logits) for logits, _ in told] == [id(logits) for logits in heads]
    assert told[0][1] == [Draft()] * 3


@pytest.mark.parametrize("sizes", [(0, 4, 5), (5, 1, 5), (5, 4, 0)])
def test_sizes_that_are_none_get_a_sentence(sizes):
    with pytest.raises(ValueError, match=r"window|ngram|candidates"):
        LookaheadDrafter(*sizes)


def test_the_engine_says_that_it_takes_no_tree():
    with pytest.raises(
        ValueError, match="LookaheadDrafter drafts trees, and the engine verifies chains only"
    ):
        Engine(tiny_llama(), num_blocks=20, block_size=4, drafter=LookaheadDrafter())
