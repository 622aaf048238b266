"""Drafts as far as they pay: the price of a round, what was accepted, and an engine that stops drafting in a crowd."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch

from lumen import cost, hardware
from lumen.config import CONFIGS
from lumen.decode import Draft, Drafter, LookaheadDrafter, ModelDrafter, NgramDrafter, generate
from lumen.decode.drafter import Context
from lumen.hardware import CHIPS
from lumen.sampling.sampler import GREEDY
from lumen.serve import runner
from lumen.serve.engine import Engine
from lumen.serve.pace import Acceptance, Paced
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits
from lumen.serve.speculation import speculation

from ..drafters import Scripted
from ..tiny import tiny_gpt, tiny_llama
from .test_engine import alone, collect
from .test_engine_drafts import unlimited


def crowded(batch, context, drafts):
    """Free up to eight rows, then every row costs: four answers with one draft each, eight with none."""
    return 1.0 + 0.01 * drafts + max(0, batch * (drafts + 1) - 8)


def test_a_round_without_drafts_is_a_decode_step_and_verifying_is_a_mixed_one():
    config, chip = CONFIGS["smollm2-135m"], CHIPS["H100 SXM"]
    step = cost.predict_decode(config, chip, 500, 3).seconds
    assert cost.round_seconds(config, chip, 500, 3, 0) == step
    assert cost.round_seconds(config, chip, 500, 3, 0, drafter=config) == step
    verify = cost.predict_mixed(config, chip, [(499, 5)] * 3, head_rows=15).seconds
    assert cost.round_seconds(config, chip, 500, 3, 4) == verify
    assert cost.round_seconds(config, chip, 500, 3, 4, drafter=config) == pytest.approx(verify + 4 * step)


def paying(config, chip, context, batch, acceptance):
    rounds = [cost.round_seconds(config, chip, context, batch, k) for k in range(7)]
    return cost.paying_length(acceptance, rounds)


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("name", ["H100 SXM", "A100 80GB SXM"])
def test_one_answer_drafts_and_a_crowd_does_not_unless_its_contexts_are_long(name, acceptance):
    """A large model behind short contexts: what pays shrinks with the batch and ends. Behind long ones the pass is
    bound by reading caches, which the drafts of an answer share."""
    config, chip = CONFIGS["llama-2-70b"], CHIPS[name]
    found = [paying(config, chip, 16, batch, acceptance) for batch in (1, 16, 128, 256, 1024)]
    assert found[0] > 0 == found[-1] and found == sorted(found, reverse=True), found
    assert paying(config, chip, 16_384, 256, acceptance) > 0


def test_what_pays_is_the_best_of_all_lengths_and_leviathans_where_a_pass_costs_the_same():
    for acceptance in (0.0, 0.5, 0.8, 0.95, 1.0):
        for draft_cost in (0.01, 0.1, 0.5):
            rounds = [1 + k * draft_cost for k in range(65)]
            assert cost.paying_length(acceptance, rounds) == cost.best_draft_length(acceptance, draft_cost)[0]


def test_the_acceptance_is_that_of_the_drafts_that_were_asked():
    """Chains whose drafts are right with 0.6 each: the estimate is within five standard deviations; the drafts behind
    a refused one are no evidence."""
    rng, belief = random.Random(0), Acceptance()
    values = []
    for _ in range(4_000):
        belief.fade()
        for _ in range(4):
            kept = next((i for i in range(5) if rng.random() > 0.6), 5)
            belief.add(kept, 5)
        values.append(belief.value)
    settled = values[400:]
    tries = 4 * (1 - 0.6**5) / 0.4 / (1 - 0.98)  # that are left of what was seen, on average
    assert sum(settled) / len(settled) == pytest.approx(0.6, abs=0.02)
    assert max(abs(v - 0.6) for v in settled) < 5 * (0.24 / tries) ** 0.5 + 0.01
    for _ in range(600):
        belief.fade()
    assert belief.value == pytest.approx(belief.prior, abs=1e-3), "without news"


class Always(Drafter):
    """As many drafts as there is room for; notes what it was asked and told."""

    max_drafts = 4

    def __init__(self):
        self.rooms, self.told, self.forgotten = [], 0, []

    def propose(self, contexts):
        self.rooms.append([c.room for c in contexts])
        return [Draft([7] * min(c.room, 4)) for c in contexts]

    def saw(self, keys, drafts, logits):
        self.told += 1

    def forget(self, key):
        self.forgotten.append(key)


def ask(paced, outputs, room=9):
    return paced.propose([Context(i, [1, 2], output, room, GREEDY) for i, output in enumerate(outputs)])


def verified(paced, drafts):
    paced.saw(range(len(drafts)), drafts, torch.zeros(sum(len(d.tokens) + 1 for d in drafts), 9))


def test_right_drafts_are_asked_for_and_wrong_ones_are_not():
    """A round's price grows by half with each draft: 0.9 pays for some, 0.2 for none; then the belief returns."""
    inner = Always()
    paced = Paced(inner, lambda batch, context, drafts: 1 + 0.5 * drafts)
    assert len(ask(paced, [[]])[0].tokens) > 0, "at the start it tries"
    output, lengths = [], []
    for _ in range(60):
        drafts = ask(paced, [output])
        verified(paced, drafts)
        lengths.append(paced.length)
        output = [*output, 5]  # refused, each time
    assert lengths[-1] == 0 < lengths[0]
    assert sum(n == 0 for n in lengths) > 0 and inner.told == 60
    for _ in range(400):  # nothing is drafted, so nothing is learned
        drafts = ask(paced, [output])
        output = [*output, 5]
        if drafts[0].tokens:
            break
    assert drafts[0].tokens, "it tries again"
    right = Paced(Always(), lambda batch, context, drafts: 1 + 0.5 * drafts)
    output = []
    for _ in range(30):
        drafts = ask(right, [output])
        verified(right, drafts)
        output = [*output, *drafts[0].tokens, 5]
    assert right.length == 4 and right.acceptance.value > 0.9


def test_what_a_scheduler_cut_is_not_counted_against_the_drafts():
    paced = Paced(Always(), lambda batch, context, drafts: 1.0)
    ask(paced, [[], []])
    verified(paced, [Draft([7]), Draft()])
    ask(paced, [[7, 5], [5]])
    assert (paced.acceptance.kept, paced.acceptance.tried) == (1, 1)


def test_rows_that_end_are_forgotten():
    inner = Always()
    paced = Paced(inner, crowded)
    verified(paced, ask(paced, [[], []]))
    paced.forget(0), paced.forget(1)
    assert not paced._outputs and not paced._verified and inner.forgotten == [0, 1]
    verified(paced, [Draft([7])])
    assert not paced._verified, "nobody's"


def test_trees_have_no_pace():
    with pytest.raises(ValueError, match="LookaheadDrafter drafts trees"):
        Paced(LookaheadDrafter(), crowded)


@pytest.mark.parametrize("right", [True, False])
def test_an_engine_drafts_for_few_and_stops_for_many(right):
    """Answers are those alone, whatever is drafted; eight answers fill the pass, and then nobody drafts."""
    model = tiny_llama(torch.float64)
    asked = [Request(str(i), [i + 3, i], 24) for i in range(8)]
    bend = (lambda c, d: d) if right else (lambda c, d: [(t + 1) % 97 for t in d])
    drafted = {}
    for count in (1, 2, 8):
        paced = Paced(Scripted(unlimited(model, asked), 4, bend), crowded)
        engine = Engine(model, num_blocks=80, block_size=4, limits=Limits(8, 64), drafter=paced)
        for request in asked[:count]:
            engine.add(request)
        found = collect(engine)
        assert all(found[r.id][0] == alone(model, r) for r in asked[:count])
        assert not paced._outputs and not paced._verified
        drafted[count] = engine.counters.draft_tokens / count
    assert drafted[1] > 0 == drafted[8]
    if right:
        assert drafted[1] >= drafted[2] > 0


def test_pacing_serves_in_generate_too():
    model = tiny_llama(torch.float64)
    prompts = [[5, 9, 2], [7], [1, 2, 1, 2, 1]]
    plain = generate(model, prompts, 25, eos_ids=())
    paced = Paced(NgramDrafter(3, shortest=1), crowded)
    done = generate(model, prompts, 25, eos_ids=(), drafter=paced)
    assert [r.tokens for r in done] == [r.tokens for r in plain]
    assert sum(r.num_draft_tokens for r in done) > 0 and not paced.drafter._answers


def test_a_drafter_that_cannot_listen_ends_nobody(monkeypatch):
    class Deaf(Always):
        def saw(self, keys, drafts, logits):
            raise RuntimeError("no")

    model, logged = tiny_llama(torch.float64), []
    monkeypatch.setattr(runner.log, "exception", logged.append)
    engine = Engine(model, num_blocks=20, block_size=4, drafter=Deaf())
    request = Request("x", [5, 9, 2], 9)
    engine.add(request)
    assert collect(engine)["x"][0] == alone(model, request)
    assert "could not take in" in logged[0]


# The words of the command line


@pytest.mark.parametrize("word", ["ngram", "layers:2", "draft:/some/place", " draft:owner/name "])
def test_words_are_choices(word):
    assert speculation(word).name == word.strip()


@pytest.fixture
def datasheet(monkeypatch):
    monkeypatch.setattr(hardware, "measure", lambda: CHIPS["H100 SXM"])


class Words(SimpleNamespace):
    def token_bytes(self, i):
        return bytes([i % 256, self.shift])


def test_choices_become_drafters(datasheet, monkeypatch):
    import lumen.io.load as loading

    model = tiny_llama(torch.bfloat16)
    small, other = tiny_llama(torch.bfloat16, seed=1, num_layers=1), tiny_gpt(torch.bfloat16)
    small.warm_up = other.warm_up = lambda: None
    words = Words(vocab_size=97, shift=0)
    found = {
        "small": (small, Words(vocab_size=97, shift=0)),
        "shifted": (small, Words(vocab_size=97, shift=1)),
        "other": (other, words),
    }
    monkeypatch.setattr(loading, "load", found.__getitem__)
    made = {
        word: speculation(word).drafter(model, words, 3, 64) for word in ("ngram", "layers:2", "draft:small")
    }
    assert all(isinstance(paced, Paced) and paced.max_drafts == 3 for paced in made.values())
    assert isinstance(made["ngram"].drafter, NgramDrafter)
    layers, draft = made["layers:2"].drafter, made["draft:small"].drafter
    assert isinstance(layers, ModelDrafter) and layers.cache.store.num_layers == 2
    assert draft.model is small and draft.cache.store.pool.num_blocks == 4
    prices = {word: paced._seconds(2, 50, 3) - paced._seconds(2, 50, 0) for word, paced in made.items()}
    assert prices["layers:2"] > prices["draft:small"] > prices["ngram"], (
        "two layers cost more than one, and text is free"
    )
    for word in ("draft:shifted", "draft:other"):
        with pytest.raises(ValueError, match="another vocabulary than tiny-llama"):
            speculation(word).drafter(model, words, 3, 64)
    for word in ("layers:3", "layers:99"):
        with pytest.raises(ValueError, match="first 1 to 2 layers"):
            speculation(word).drafter(model, words, 3, 64)
