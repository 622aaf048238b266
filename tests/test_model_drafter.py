"""A model that drafts from a cache of its own: answers stay as they are, and memory comes back."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import StaticCache
from lumen.decode import Compiled, ModelDrafter, first_layers, generate, skipping
from lumen.decode.drafter import Context
from lumen.models.passing import Channels
from lumen.models.some_layers import some_layers
from lumen.sampling import SamplingParams

from .tiny import tiny_gpt, tiny_hybrid, tiny_llama

PROMPTS = [[5, 9, 2, 7, 1], [11], [7, 0, 21, 60, 2, 9, 33]]
GREEDY = SamplingParams(temperature=0.0)
NEAR_TIE = 1e-3  # a top-2 gap below this may flip under another order of additions


def near(model_of=tiny_llama):
    """A model and a near copy of it, which is right often and wrong often."""
    model, other = model_of(torch.float64), model_of(torch.float64)
    size = 0.02 if model_of is tiny_llama else 0.2
    for name, parameter in other.named_parameters():
        parameter.data += size * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(len(name)), dtype=parameter.dtype
        )
    return model, other


def books(drafter):
    """Nothing is held for anybody."""
    cache = drafter.cache
    return (
        cache.store.pool.num_free == cache.store.pool.num_blocks
        and not cache._answers
        and not drafter._streams
    )


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_greedy_answers_are_those_without_drafts(make, k):
    model, other = near(make)
    plain = generate(model, PROMPTS, 20, eos_ids=())
    drafter = ModelDrafter(other, k)
    done = generate(model, PROMPTS, 20, eos_ids=(), drafter=drafter)
    assert [r.tokens for r in done] == [r.tokens for r in plain]
    assert 0 < sum(r.num_accepted_tokens for r in done) < sum(r.num_draft_tokens for r in done)
    assert books(drafter)


def test_drafts_are_those_of_the_model_read_from_the_start():
    """Whatever was accepted and refused before: a drafter that is asked now for the first time says the same."""
    model, other = near()
    seen = []

    class Noting(ModelDrafter):
        def propose(self, contexts):
            drafts = super().propose(contexts)
            seen.extend(
                (c.prompt, list(c.output), c.room, d.tokens) for c, d in zip(contexts, drafts, strict=True)
            )
            return drafts

    generate(model, PROMPTS, 20, eos_ids=(), drafter=Noting(other, 4))
    assert len(seen) > 10
    for prompt, output, room, tokens in seen:
        (again,) = ModelDrafter(other, 4).propose([Context(0, prompt, output, room, GREEDY)])
        assert list(again.tokens) == list(tokens)


def test_only_what_is_new_is_computed(monkeypatch):
    model, other = near()
    widths, hidden = [], other.hidden

    def noting(tokens, *rest):
        widths.append(tokens.shape[1])
        return hidden(tokens, *rest)

    monkeypatch.setattr(other, "hidden", noting)
    generate(model, [PROMPTS[2]], 12, eos_ids=(), drafter=ModelDrafter(other, 3))
    assert widths[0] == len(PROMPTS[2]) + 1
    assert max(widths[1:]) <= 2, "the last draft and the token behind it, at most"


def test_a_model_that_drafts_for_itself_is_always_right():
    """q equals p: the ratio is 1 but for two forwards' rounding."""
    model = tiny_llama(torch.float64)
    warm = SamplingParams(temperature=1.3, seed=2)
    (done,) = generate(model, PROMPTS[:1], 25, warm, eos_ids=(), drafter=ModelDrafter(model, 4))
    assert done.num_accepted_tokens == done.num_draft_tokens == 4 * 4 + 3


def test_seeds_make_drafted_samples_repeatable():
    model, other = near()
    rows = [SamplingParams(temperature=0.9, seed=i) for i in range(3)]
    first, second = (
        [r.tokens for r in generate(model, PROMPTS, 15, rows, eos_ids=(), drafter=ModelDrafter(other, 3))]
        for _ in "ab"
    )
    assert first == second


def test_answers_without_room_are_not_drafted_for_and_the_others_are():
    model, other = near()
    plain = generate(model, PROMPTS, 20, eos_ids=())
    drafter = ModelDrafter(other, 3, positions=32)  # two blocks: enough for one answer at a time
    done = generate(model, PROMPTS, 20, eos_ids=(), drafter=drafter)
    assert [r.tokens for r in done] == [r.tokens for r in plain]
    assert sum(r.num_draft_tokens for r in done) > 0 and books(drafter)


def test_past_the_positions_of_the_drafting_model_nothing_is_drafted():
    model = tiny_llama(torch.float64)
    other = tiny_llama(torch.float64, max_positions=10)
    plain = generate(model, PROMPTS[:1], 20, eos_ids=())
    done = generate(model, PROMPTS[:1], 20, eos_ids=(), drafter=ModelDrafter(other, 3))
    assert done[0].tokens == plain[0].tokens and 0 < done[0].num_draft_tokens <= 8


def test_a_forward_that_dies_leaves_nothing_half_written(monkeypatch):
    _, other = near()
    drafter = ModelDrafter(other, 3)
    ask = [Context("a", PROMPTS[0], [], 5, GREEDY)]
    (right,) = drafter.propose(ask)
    with monkeypatch.context() as patch:
        patch.setattr(other, "hidden", lambda *a, **kw: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            drafter.propose([Context("a", PROMPTS[0], [3], 5, GREEDY)])
    assert drafter.cache.store.pool.num_free == drafter.cache.store.pool.num_blocks
    assert list(drafter.propose(ask)[0].tokens) == list(right.tokens)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_some_layers_are_the_model_without_the_others(make):
    """Against a forward through the same blocks by hand; weights are shared, and its cache keeps so many layers."""
    model = make(torch.float64)
    view = some_layers(model, [0, model.config.num_layers - 1])
    tokens = torch.tensor([PROMPTS[2]])
    pos = torch.arange(tokens.shape[1])[None]
    x = model.stretch(model.embedded(tokens, pos), pos, None, 0, 1)
    last = model.config.num_layers
    x = model.stretch(x, pos, None, last - 1, last)
    assert torch.equal(view(tokens), model.head(model.norm(x)))
    assert view.embed.weight is model.embed.weight
    cache = StaticCache.for_model(view, 1, 10)
    assert cache.k.shape[0] == 2
    step = torch.cat([view(tokens[:, :4], cache=cache), view(tokens[:, 4:], cache=cache)], 1)
    assert torch.allclose(step, view(tokens), atol=1e-10)
    assert model.config.num_layers == last and len(model.blocks) == last


@pytest.mark.parametrize("layers", [[], [5, 9], [1, 0], [0, 0]])
def test_layers_that_are_none_get_a_sentence(layers):
    with pytest.raises(ValueError, match="name some of them"):
        some_layers(tiny_llama(), layers)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_a_models_own_layers_draft(make, k):
    """Exact, whichever layers; the first ones are the model that has no others; their cache is as deep as they."""
    model = make(torch.float64)
    plain = generate(model, PROMPTS, 12, eos_ids=())
    n = model.config.num_layers
    sets = {"first": first_layers(model, 1, k), "same": skipping(model, range(1, n), k)}
    sets |= {"last": skipping(model, [0], k), "all": skipping(model, [], k)}
    done = {name: generate(model, PROMPTS, 12, eos_ids=(), drafter=each) for name, each in sets.items()}
    assert all([r.tokens for r in each] == [r.tokens for r in plain] for each in done.values())
    accepted = {name: [r.num_accepted_tokens for r in each] for name, each in done.items()}
    assert accepted["first"] == accepted["same"]
    assert accepted["all"] == [r.num_draft_tokens for r in done["all"]], "nothing skipped: always right"
    assert {name: each.cache.store.num_layers for name, each in sets.items()} == {
        "first": 1, "same": 1, "last": n - 1, "all": n,
    }  # fmt: skip
    assert all(books(each) for each in sets.values())


def test_the_first_layers_of_a_compiled_model_draft():
    model = tiny_llama(torch.float64)
    fast = Compiled(model, backend="eager")
    plain = generate(model, PROMPTS, 12, eos_ids=())
    done = generate(fast, PROMPTS, 12, eos_ids=(), drafter=first_layers(fast, 2, 3))
    assert [r.tokens for r in done] == [r.tokens for r in plain]
    assert sum(r.num_draft_tokens for r in done) > 0


def test_first_layers_that_read_each_others_keys_draft():
    """Layers that store nothing take no memory here either."""
    model = tiny_llama(torch.float64, num_layers=4, kv_from=(0, 0, 2, 2))
    plain = generate(model, PROMPTS, 12, eos_ids=())
    for layers, stored in ((1, 1), (2, 1), (3, 2)):
        drafter = first_layers(model, layers, 3)
        done = generate(model, PROMPTS, 12, eos_ids=(), drafter=drafter)
        assert [r.tokens for r in done] == [r.tokens for r in plain]
        assert drafter.cache.store.num_layers == stored
        view = generate(model, PROMPTS, 12, eos_ids=(), channels=Channels(exit=layers))
        (draft,) = drafter.propose([Context("x", PROMPTS[0], [], 3, GREEDY)])
        assert list(draft.tokens) == view[0].tokens[:3], "what these layers say by themselves"


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda m: first_layers(m, 0), "first 1 to 2 layers, not 0"),
        (lambda m: first_layers(m, 3), "first 1 to 2 layers, not 3"),
        (lambda m: first_layers(m, 1.5), "layers"),
        (lambda m: skipping(m, [3]), r"layers 0 to 2, not \[3\]"),
        (lambda m: skipping(m, [-1]), "0 or more, got -1"),
        (lambda m: skipping(m, [0, 1, 2]), "name some of them"),
        (lambda m: first_layers(m, 1, 0), "max_drafts"),
        (lambda m: ModelDrafter(tiny_hybrid()), "linear layers, whose states cannot be taken back"),
    ],
)
def test_set_ups_that_are_none_get_a_sentence(build, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(tiny_llama())


@pytest.mark.parametrize(
    "build", [lambda m: first_layers(m, 26, 3), lambda m: skipping(m, [11, 17], 7)], ids=["first", "skipping"]
)
def test_smollm2_drafts_for_itself_and_its_answers_stay(model, tokenizer, build):
    """Prompts of 1, 7 and 63 tokens side by side. Two texts part where two forwards round differently or not at all: at
    the first place where they differ, the model's two best logits are nearly equal."""
    text = "One, two, three, four, five, six, seven. " * 9
    prompts = [tokenizer.encode(text)[:size] for size in (1, 7, 63)]
    plain = generate(model, prompts, 11, eos_ids=())
    drafter = build(model)
    done = generate(model, prompts, 11, eos_ids=(), drafter=drafter)
    for prompt, ours, want in zip(prompts, done, plain, strict=True):
        at = next((i for i in range(11) if ours.tokens[i] != want.tokens[i]), None)
        if at is not None:
            best = model(torch.tensor([prompt + want.tokens[:at]]))[0, -1].topk(2).values
            assert float(best[0] - best[1]) < NEAR_TIE
    assert sum(r.num_draft_tokens for r in done) > 0 and books(drafter)
