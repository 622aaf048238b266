"""Draft trees in `generate`: the answers and distributions of chains and of no drafts, whatever the branches say."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
import torch

from lumen.cache import BlockStore, DynamicCache, HashPrefix, RecurrentCache
from lumen.cache.traits import Traits
from lumen.decode import Draft, ModelDrafter, generate
from lumen.decode.accept import accept
from lumen.decode.row import Row
from lumen.decode.step import propose, verify
from lumen.io.tokenizer import CharTokenizer
from lumen.sampling import SamplingParams, Stream
from lumen.serve.engine import Engine
from lumen.serve.request import Request

from .distributions import assert_the_models, chi_square, limit
from .drafters import Forest, Scripted, TreeModel, bush
from .grammars import Choices, choices
from .test_constraint import ENDS, PROMPT, TEXTS, DeadEnd, by_hand
from .test_speculation import CACHES, GREEDY, PROMPTS, SEEDED, Logits, answers_of
from .tiny import tiny_gpt, tiny_llama

LETTERS = CharTokenizer("".join(chr(0x4E00 + i) for i in range(97)))


def line(tokens):
    """A tree with one branch."""
    return Draft(tokens, parents=range(-1, len(tokens) - 1))


def halfway(context, right):
    """Right down to a level that moves with the answer, wrong below."""
    level = (len(context.prompt) + len(context.output)) % (len(right) + 1)
    return bush([t if i < level else (t + 3) % 61 for i, t in enumerate(right)])


GROW = {
    "one branch": lambda c, right: line(right),
    "right among wrong": lambda c, right: bush(right),
    "wrong": lambda c, right: bush([(t + 3) % 61 for t in right]),
    "halfway": halfway,
    "too deep": lambda c, right: bush(right * 3),
    "unknown tokens": lambda c, right: Draft(
        [*bush(right).tokens, 10**6, right[0]],
        parents=[*bush(right).parents, 1, 4 * len(right) - 1],
    ),
    "trees, chains, nothing": lambda c, right: [bush(right), Draft(right), Draft(), bush(right[:1])][
        (c.key + len(c.output)) % 4
    ],
}


@pytest.mark.parametrize("grow", GROW)
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("params", ["greedy", "seeded"])
def test_answers_equal_those_without_drafts(grow, k, params):
    """Ragged rows over every kind of cache; chosen branches leave even a seeded, penalized sample as it is."""
    for make, names in ((tiny_llama, CACHES), (tiny_gpt, ["default"])):
        model = make(torch.float64)
        prompts = [[t % 61 for t in p] for p in PROMPTS]
        settings = GREEDY if params == "greedy" else SEEDED
        plain = generate(model, prompts, 12, settings, eos_ids=())
        for name in names:
            cache = CACHES[name](model)
            drafter = Forest(answers_of(plain, prompts), k, GROW[grow])
            done = generate(model, prompts, 12, settings, eos_ids=(), cache=cache, drafter=drafter)
            assert [r.tokens for r in done] == [r.tokens for r in plain], name
            assert all(len(r.token_times) == 12 for r in done)
            if cache is not None:
                assert cache.lengths.tolist() == [len(p) + 11 for p in prompts], "one path and nothing else"
            if grow in ("one branch", "right among wrong", "too deep", "unknown tokens"):
                assert drafter.asked == -(-10 // (k + 1)), "k + 1 tokens a pass"
            if grow == "wrong":
                assert sum(r.num_accepted_tokens for r in done) == 0 < sum(r.num_draft_tokens for r in done)


@pytest.mark.parametrize("params", ["greedy", "seeded", "drawn"])
def test_a_tree_with_one_branch_is_the_chain(params):
    """Tokens, drafts and what was accepted, pass for pass; drawn drafts are kept by the same numbers."""
    model, other = tiny_llama(torch.float64), tiny_llama(torch.float64)
    for name, parameter in other.named_parameters():
        parameter.data += 0.02 * torch.randn(
            parameter.shape, generator=torch.Generator().manual_seed(len(name))
        )

    class Branch(ModelDrafter):
        max_nodes = 64

        def propose(self, contexts):
            return [Draft(d.tokens, d.probs, range(-1, len(d.tokens) - 1)) for d in super().propose(contexts)]

    settings = GREEDY if params == "greedy" else SEEDED
    if params == "drawn":
        drafters = ModelDrafter(other, 4), Branch(other, 4)
    else:
        plain = answers_of(generate(model, PROMPTS, 20, settings, eos_ids=()), PROMPTS)
        bend = lambda c, draft: [t if (i + len(c.output)) % 4 else 60 for i, t in enumerate(draft)]  # noqa: E731
        drafters = Scripted(plain, 4, bend), Forest(plain, 4, lambda c, right: line(bend(c, right)))
    chain, tree = (generate(model, PROMPTS, 20, settings, eos_ids=(), drafter=d) for d in drafters)
    for ours, want in zip(tree, chain, strict=True):
        assert ours.tokens == want.tokens
        assert ours.num_draft_tokens == want.num_draft_tokens > ours.num_accepted_tokens > 0
        assert ours.num_accepted_tokens == want.num_accepted_tokens


@pytest.mark.parametrize("cache", CACHES)
def test_logits_of_the_way_down_are_those_of_the_whole_text(monkeypatch, cache):
    """Equal tokens can hide a wrong cache. Here the logits of every kept place equal one forward over the answer."""
    model = tiny_llama(torch.float64)
    plain = answers_of(generate(model, PROMPTS, 14, eos_ids=()), PROMPTS)
    for prompt in PROMPTS:
        drafts = [Draft()]
        with monkeypatch.context() as patch:
            told = Logits(model, patch)
            made = CACHES[cache](model)
            if made is not None:
                made.select([0])
            grow = lambda c, right: drafts.append(halfway(c, right[: c.room])) or drafts[-1]  # noqa: E731, B023
            (done,) = generate(model, [prompt], 14, eos_ids=(), cache=made, drafter=Forest(plain, 3, grow))
        whole = model(torch.tensor([prompt + done.tokens]))[0]
        at = 0
        drafts += [Draft()] * (len(told.rows) - len(drafts))  # the last token has no room for a draft
        for draft, rows in zip(drafts, told.rows, strict=True):
            assert len(rows) == len(draft.tokens) + 1
            place = 0
            while True:
                assert torch.allclose(rows[place], whole[len(prompt) - 1 + at], atol=1e-10)
                children = [i for i, p in enumerate(draft.parents or ()) if p == place - 1]
                place = next((i + 1 for i in children if draft.tokens[i] == done.tokens[at]), 0)
                at += 1
                if not place:
                    break
        assert at == 14


def test_an_end_or_a_stop_string_inside_a_tree_ends_the_row_there():
    """What the branches say behind it is neither shown nor remembered; neighbours go on."""
    model = tiny_llama(torch.float64)
    free = generate(model, PROMPTS, 14, eos_ids=(), tokenizer=LETTERS)
    for place in range(1, 9):
        for stops in ({"eos_ids": {free[0].tokens[place]}}, {"eos_ids": (), "stop": [free[0].text[place]]}):
            plain = generate(model, PROMPTS, 14, tokenizer=LETTERS, **stops)
            for k in (1, 3, 8):
                store = BlockStore.for_model(model, 60, 2)
                store.prefix = HashPrefix(store.pool)
                drafter = Forest(answers_of(free, PROMPTS), k, GROW["right among wrong"])
                with store.rows(3) as cache:
                    done = generate(
                        model, PROMPTS, 14, tokenizer=LETTERS, drafter=drafter, cache=cache, **stops
                    )
                    held = cache.lengths.tolist()
                for ours, want, prompt, length in zip(done, plain, PROMPTS, held, strict=True):
                    assert (ours.tokens, ours.text, ours.finish_reason) == (
                        want.tokens, want.text, want.finish_reason,
                    )  # fmt: skip
                    assert len(ours.token_times) == len(want.token_times)
                    assert ours.num_accepted_tokens < len(ours.token_times), (
                        "what it did not take is not kept"
                    )
                    assert length <= len(prompt) + len(ours.tokens)
                store.audit()
                text = PROMPTS[0] + done[0].tokens
                with store.rows(1) as cache:  # what is remembered is what was said
                    (again,) = generate(model, [[*text, 3]], 4, eos_ids=(), cache=cache)
                (want,) = generate(model, [[*text, 3]], 4, eos_ids=())
                assert again.tokens == want.tokens


# The rule itself


def law(p, q, order):
    """How likely each token is when the siblings `order` are tried, over a uniform number: the widths of the intervals
    that give it, their borders found by bisection."""

    def tokens(numbers):
        draft = Draft(order, q.expand(len(order), -1), [-1] * len(order))
        places = torch.cat([p[None], torch.full_like(p, 1 / len(p)).expand(len(order), -1)])
        uniform = [x for u in numbers.tolist() for x in (u, *[0.5] * len(order))]
        new = accept(places.repeat(len(numbers), 1), [draft] * len(numbers), uniform)
        return torch.tensor([t[0] for t in new])

    low = torch.linspace(0, 1, 400, dtype=torch.float64)[:-1]
    high = torch.cat([low[1:], torch.tensor([1 - 2**-53], dtype=torch.float64)])
    first, last = tokens(low), tokens(high)
    mixed = first != last
    borders = torch.where(mixed, low, high)
    left, right = low[mixed], high[mixed]
    for _ in range(40):
        middle = (left + right) / 2
        same = tokens(middle) == first[mixed]
        left, right = torch.where(same, middle, left), torch.where(same, right, middle)
    borders[mixed] = left
    found = torch.zeros(len(p), dtype=torch.float64)
    found.index_add_(0, first, borders - low)
    return found.index_add_(0, last, high - borders)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_tried_siblings_have_the_targets_distribution_exactly(count, seed):
    """Every order in which siblings can be drawn without replacement, every number, in fp64: the sum is p."""
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    if seed == 1:
        p[2] = 0
    if seed == 2:
        q[1] = 0
    p, q = p / p.sum(), q / q.sum()
    total, mass = torch.zeros(4, dtype=torch.float64), 0.0
    for order in permutations([t for t in range(4) if q[t] > 0], count):
        odds, left = 1.0, 1.0
        for token in order:
            odds, left = odds * float(q[token]) / left, left - float(q[token])
        total += odds * law(p, q, list(order))
        mass += odds
    assert mass == pytest.approx(1)
    assert (total - p).abs().max() < 1e-9


@pytest.mark.parametrize("renormalized", [False, True])
def test_what_is_accepted_of_drawn_trees_has_the_targets_distribution(renormalized):
    """10,000 trees of three and below each two siblings: the first two tokens against p(a) p(b | a). Chi-square at the
    1 - 1e-6 quantile. A sibling may hand over their common distribution or what was left of it when it was drawn."""
    n, size, generator = 10_000, 6, torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.02  # noqa: E731
    p0, p1, q0, q1 = draw(size), draw(size, size), draw(size), draw(size, size)
    p0[2], q0[4], q1[:, 1], p1[:, 3] = 0, 0, 0, 0
    p0, p1, q0, q1 = (x / x.sum(-1, keepdim=True) for x in (p0, p1, q0, q1))
    top = torch.multinomial(q0.expand(n, -1), 3, generator=generator)
    low = torch.multinomial(q1[top].flatten(0, 1), 2, generator=generator).view(n, 3, 2)
    tokens = torch.cat([top, low.flatten(1)], 1)
    q = torch.cat([q0.expand(n, 3, -1), q1[top].repeat_interleave(2, 1)], 1)
    if renormalized:
        for node, elders in ((1, [0]), (2, [0, 1]), (4, [3]), (6, [5]), (8, [7])):
            q[:, node] = q[:, node].scatter(1, tokens[:, elders], 0)
        q = q / q.sum(-1, keepdim=True)
    probs = torch.cat([p0.expand(n, 1, -1), p1[top], torch.full((n, 6, size), 1 / size)], 1)
    trees = [
        Draft(t, each, [-1, -1, -1, 0, 0, 1, 1, 2, 2]) for t, each in zip(tokens.tolist(), q, strict=True)
    ]
    numbers = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    uniform = numbers[:, [0, 1, 1, 1, 2, 2, 2, 2, 2, 2]].flatten().tolist()
    new = accept(probs.flatten(0, 1), trees, uniform)
    first = torch.tensor([t[0] for t in new])
    rest = (
        torch.multinomial(p1[first], 1, generator=generator).flatten().tolist()
    )  # where the walk ended above
    counts = torch.zeros(size, size, dtype=torch.float64)
    for tokens_, other in zip(new, rest, strict=True):
        counts[tokens_[0], tokens_[1] if len(tokens_) > 1 else other] += 1
    want = p0[:, None] * p1
    assert chi_square(counts.flatten(), want.flatten()) < limit(int((want > 0).sum()) - 1)
    lengths = torch.bincount(torch.tensor([len(t) for t in new]), minlength=4)
    once = float(torch.minimum(p0, q0).sum())
    assert float(lengths[2:].sum()) / n > once + 0.025, (
        "three candidates are kept more often than one"
    )  # 5 sd


@pytest.mark.parametrize("params", ["warm", "filtered", "greedy"])
def test_samples_with_drawn_trees_have_the_targets_distribution(params):
    """3,000 answers of four tokens, trees drawn from another model, against every path's probability without drafts.
    Chi-square over the paths with 8 expected or more, the others together, at 1 - 1e-6."""
    model, other, n, prompt = tiny_llama(vocab_size=5), tiny_llama(vocab_size=5, seed=1), 3_000, [4, 1, 2]
    kind = {
        "warm": SamplingParams(temperature=1.1),
        "filtered": SamplingParams(temperature=0.9, top_k=3, presence_penalty=0.8),
        "greedy": GREEDY,
    }[params]
    rows = [SamplingParams(**{**vars(kind), "seed": 1000 + i}) for i in range(n)]
    done = generate(model, [prompt] * n, 4, rows, eos_ids=(), drafter=TreeModel(other, (2, 2)))
    assert_the_models(model, prompt, kind, [r.tokens for r in done])
    assert {r.num_accepted_tokens for r in done} >= {0, 1, 2} or params == "greedy"


class Trap(Choices):
    """Behind token 3 nothing is allowed, not even an end."""

    def allowed(self):
        return super().allowed() & (self.said[-1:] != [3])


def some_rows(seed, size, end):
    """Four rows of all sorts, the same for the same seed."""
    rng, rows = random.Random(seed), []
    for key in range(4):
        params = SamplingParams(
            temperature=[0.0, 1.0, 1.5][(seed + key) % 3], seed=seed + key, repetition_penalty=1.3,
            presence_penalty=0.4, frequency_penalty=0.3,
        )  # fmt: skip
        texts = [[rng.randrange(end) for _ in range(rng.randrange(1, 5))] for _ in range(30)]
        matcher = [None, Choices, Trap, Choices][(seed + key) % 4]
        rows.append(
            Row(
                key, [1, 2], [], params, Stream(params), 9, (end,), least=seed % 4,
                matcher=matcher and matcher(texts, (end,), size),
            )
        )  # fmt: skip
    return rows


@pytest.mark.parametrize("seed", range(40))
def test_every_place_sees_its_own_way(seed):
    """Penalties, least length, ends, grammar and stream of `verify` over trees, chains and nothing at once, against one
    token at a time. Logits are any function of the tokens so far."""
    size, end, rng = 6, 5, random.Random(seed)

    def logits(row, way):
        known = hash((seed, row.key, *row.output, *way)) % 2**31
        return 2 * torch.randn(size, generator=torch.Generator().manual_seed(known))

    ours, plain = some_rows(seed, size, end), some_rows(seed, size, end)
    drafts = [
        full(rng, size, 14),
        Draft([rng.randrange(size) for _ in range(3)]),
        Draft(),
        full(rng, size, 5),
    ]
    rng.shuffle(drafts)
    stacked = [logits(row, way) for row, draft in zip(ours, drafts, strict=True) for way in draft.ways()]
    found = verify(ours, drafts, torch.stack(stacked))
    for row, draft, tokens, mine in zip(plain, drafts, found, ours, strict=True):
        said, place = [], 0
        while place is not None:
            (new,) = verify([row], [Draft()], logits(row, [])[None])
            said += new
            if not new or new[0] == end:
                break
            row.output.extend(new)
            below = [i for i, parent in enumerate(draft.above) if parent == place - 1]
            place = next((i + 1 for i in below if draft.tokens[i] == new[0]), None)
        assert tokens == said
        assert mine.stream.peek(3) == row.stream.peek(3) and mine.stuck == row.stuck
        if mine.matcher is not None:
            assert mine.matcher.said == row.matcher.said


def full(rng, size, count):
    """A random tree in which siblings differ."""
    tokens, parents = [], []
    while len(tokens) < count:
        parent, token = rng.randrange(-1, len(tokens)), rng.randrange(size)
        if (parent, token) not in list(zip(parents, tokens, strict=True)):
            tokens.append(token), parents.append(parent)
    return Draft(tokens, parents=parents)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_grammar_holds_along_every_branch(k):
    model = tiny_llama(torch.float64)
    want = by_hand(model, PROMPT, TEXTS)
    (free,) = generate(model, [[11, 3]], 9, eos_ids=ENDS)
    drafter = Forest(
        {tuple(PROMPT): [*want, 2], (11, 3): [*free.tokens, 2]}, k, lambda c, right: bush(right, 97)
    )
    done = generate(
        model, [PROMPT, [11, 3]], 9, eos_ids=ENDS, constraint=[choices(TEXTS), None], drafter=drafter
    )
    assert done[0].tokens == want and done[0].finish_reason == "stop" and done[1].tokens == free.tokens
    params = [SamplingParams(temperature=2.5, seed=i) for i in range(40)]
    drawn = TreeModel(tiny_llama(torch.float64, seed=1), (3, 2))
    done = generate(model, [PROMPT] * 40, 9, params, eos_ids=ENDS, constraint=choices(TEXTS), drafter=drawn)
    assert all(r.tokens in TEXTS and r.finish_reason == "stop" for r in done)


def test_a_dead_end_below_a_branch_cuts_the_way_there():
    model = tiny_llama(torch.float64)
    (two,) = generate(model, [PROMPT], 2, eos_ids=(), constraint=DeadEnd)
    drafter = Forest({tuple(PROMPT): [*two.tokens, 7, 7, 7]}, 3, lambda c, right: bush(right, 97))
    seen: list[int] = []
    with pytest.raises(ValueError, match=r"Row 0, token \d: The grammar allows no token"):
        generate(
            model, [PROMPT], 9, eos_ids=(), constraint=DeadEnd, drafter=drafter,
            on_token=lambda row, token, text: seen.append(token),
        )  # fmt: skip
    assert seen == two.tokens


# What is cut and what is refused


def test_trees_are_cut_in_depth_and_in_number():
    for deep in [bush([3, 4, 5, 6, 7])] + [full(random.Random(seed), 9, 17) for seed in range(10)]:
        probs = torch.rand(len(deep.tokens), 97)
        for depth in range(7):
            cut = Draft(deep.tokens, probs, deep.parents).within(depth)
            kept = [i for i, way in enumerate(deep.ways()[1:]) if len(way) <= depth]
            assert [deep.tokens[i] for i in kept] == list(cut.tokens) and torch.equal(cut.probs, probs[kept])
            assert cut.ways() == [way for way in deep.ways() if len(way) <= depth]
    row = Row(0, [1], [], GREEDY, Stream(GREEDY), 4)
    cases = [("right among wrong", k, most) for k in (1, 2, 5) for most in (1, 5, 64)]
    for grow, k, most in [*cases, ("too deep", 9, 64)]:
        drafter = Forest({(1,): [3] * 9}, k, GROW[grow])
        drafter.max_nodes = most
        (draft,) = propose(drafter, [row], 97)
        depth = max(map(len, draft.ways()))
        assert depth <= min(k, 3) and 0 < len(draft.tokens) <= most
        assert most < 64 or depth == min(k, 3)
    (draft,) = propose(Forest({(1,): [3] * 9}, 2, GROW["unknown tokens"]), [row], 97)
    assert draft.tokens == bush([3, 3]).tokens


@pytest.mark.parametrize(
    ("tokens", "parents", "sentence"),
    [
        ([1, 2], [-1], "2 tokens needs a parent for each, got 1"),
        ([1, 2], [-1, 1], "Draft 1 has parent 1"),
        ([1, 2], [1, -1], "Draft 0 has parent 1"),
        ([1], [-2], "Draft 0 has parent -2"),
        ([1, 2, 1], [-1, 0, -1], "repeats token 1 behind the last token"),
        ([1, 2, 2], [-1, 0, 0], "repeats token 2 behind draft 0"),
    ],
)
def test_what_is_no_tree_gets_a_sentence(tokens, parents, sentence):
    with pytest.raises(ValueError, match=sentence):
        Draft(tokens, parents=parents)


def test_siblings_that_were_not_drawn_from_their_distribution_get_a_sentence():
    q = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(3, -1)
    p = torch.tensor([0.0, 0.0, 0.0, 1.0]).expand(4, -1)
    for tokens, wrong in (([0, 1, 2], 2), ([2, 0, 1], 2)):
        with pytest.raises(ValueError, match=f"gives token {wrong} no chance.*siblings without replacement"):
            accept(p, [Draft(tokens, q, [-1, -1, -1])], [0.5] * 4)


class Weighing(DynamicCache):
    traits = Traits(weighs=True)


class Unreadable(DynamicCache):
    traits = Traits(readable=False)


@pytest.mark.parametrize("kind", [Weighing, Unreadable])
def test_a_cache_that_takes_no_tree_is_refused_before_anything_runs(kind, monkeypatch):
    model = tiny_llama()
    cache = kind.for_model(model, 1)
    drafter = Forest({(5,): [1, 2, 3]}, 2, GROW["right among wrong"])
    monkeypatch.setattr(model, "hidden", None)
    with pytest.raises(ValueError, match=f"Forest drafts trees, and {kind.__name__} takes none"):
        generate(model, [[5]], 4, eos_ids=(), cache=cache, drafter=drafter)
    assert drafter.asked == 0 and cache.lengths.tolist() == [0]
    with pytest.raises(ValueError, match="can go back 0"):
        generate(model, [[5]], 4, eos_ids=(), cache=RecurrentCache(1, 3), drafter=drafter)


def test_a_tree_from_a_drafter_of_chains_is_refused():
    drafter = Forest({(5,): [1, 2, 3]}, 2, GROW["right among wrong"])
    drafter.max_nodes = 0
    with pytest.raises(ValueError, match="Forest proposed a tree, but its max_nodes is 0"):
        generate(tiny_llama(), [[5]], 4, eos_ids=(), drafter=drafter)


def test_the_engine_refuses_trees():
    """When it is made; and, of a drafter that does not say so, when it proposes one: that ends the request."""
    model = tiny_llama(torch.float64)
    drafter = Forest({(5, 9, 2): [1] * 20, (7,): [1] * 20}, 2, GROW["right among wrong"])
    with pytest.raises(ValueError, match="Forest drafts trees, and the engine verifies chains only"):
        Engine(model, num_blocks=20, block_size=4, drafter=drafter)
    drafter.max_nodes = 0
    engine = Engine(model, num_blocks=20, block_size=4, drafter=drafter)
    for request in [Request("a", [5, 9, 2], 6, SamplingParams(seed=3)), Request("b", [7], 6)]:
        engine.add(request)
    ends = {d.request_id: d for d in engine.stream() if d.finish_reason}
    assert set(ends) == {"a", "b"}
    assert all(d.finish_reason == "error" and "proposed a tree" in d.stop_reason for d in ends.values())
    engine.scheduler.audit()
