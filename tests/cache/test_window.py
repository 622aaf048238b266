"""Windows and sinks: rings that have wrapped many times, against the whole text under a mask of the same rule.

The contract (test_contract.py) holds short texts in every order; here texts are long, rings are tight, rows differ, and
distances inside the cache are compared with the way StreamingLLM keeps them, key by key.
"""

from __future__ import annotations

import random
from functools import cache as once

import pytest
import torch
from torch import nn

from lumen.attention.core import visible
from lumen.cache import NoCache, StaticCache, Traits, WindowCache, trained_windows
from lumen.cost.memory import kv_bytes
from lumen.decode import generate
from lumen.models.rope import Turn, rope_at, rotate
from lumen.parts import Window

from ..drafters import Scripted
from ..tiny import relative_error, tiny_gpt, tiny_hybrid, tiny_llama

LENGTHS = 47, 9, 30
CLOSE = 1e-12


class Rule(NoCache):
    """Keeps nothing; the whole text is read under the rule of a window."""

    def __init__(self, kept):
        self.traits = Traits(kept=kept)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(torch.float64)


def texts(lengths=LENGTHS, seed=0, vocab=60):
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(n)] for n in lengths]


def whole(model, tokens, kept):
    """Logits (T, V) of one text without a cache, under the rule."""
    return model(torch.tensor([tokens]), torch.arange(len(tokens))[None], Rule(kept))[0]


def feed(model, cache, rows, chunks):
    """Each row's tokens, so many at a time, a row that is done as padding; returns logits (T, V) of each."""
    found, done, step = [[] for _ in rows], [0] * len(rows), 0
    while any(at < len(row) for at, row in zip(done, rows, strict=True)):
        width = chunks[step % len(chunks)]
        parts = [row[at : at + width] for row, at in zip(rows, done, strict=True)]
        tokens = torch.tensor([[*part, *[0] * (width - len(part))] for part in parts])
        pos = torch.tensor(
            [[*range(at, at + len(p)), *[-1] * (width - len(p))] for at, p in zip(done, parts, strict=True)]
        )
        logits = model(tokens, pos, cache)
        for row, part in enumerate(parts):
            found[row] += logits[row, : len(part)]
            done[row] += len(part)
        step += 1
    return [torch.stack(row) for row in found]


def test_a_query_sees_its_window_and_the_sinks():
    pos = torch.arange(9)[None]
    seen = visible(pos, pos, kept=Window(3, 2))[0, 0]
    for q in range(9):
        assert seen[q].nonzero().flatten().tolist() == [k for k in range(q + 1) if k > q - 3 or k < 2]


@pytest.mark.parametrize("chunks", [[1], [2], [4], [7], [47], [1, 6, 3], [20, 1, 1]])
@pytest.mark.parametrize("kept", [Window(5, 2), Window(1), Window(8), Window(4, 11), Window(60, 1)], ids=str)
def test_long_texts_equal_the_whole_text_under_the_rule(model, kept, chunks):
    """T1, T7: chunks shorter and longer than the ring, one as long as the text; rows of other lengths beside."""
    cache = WindowCache.for_model(model, 3, kept.newest, kept.sinks)
    rows = texts()
    for tokens, logits in zip(rows, feed(model, cache, rows, chunks), strict=True):
        assert relative_error(logits, whole(model, tokens, kept)) < CLOSE
    assert cache.lengths.tolist() == list(LENGTHS)


def test_memory_is_taken_once_and_stays(model):
    """C8 and no cat per step: the same storage from the first token to the last, and the bytes that are foretold."""
    cache = WindowCache.for_model(model, 2, 5, 2, rewind=1)
    slots = 5 + 2 + 1 + 1  # one to go back by, one for padding
    where = cache.k.data_ptr(), cache.v.data_ptr()
    foretold = kv_bytes(model.config, 10**6, batch=2, dtype="fp64", kept=Window(slots))
    assert cache.nbytes == foretold
    feed(model, cache, texts((60, 33)), [1, 4, 9])
    assert (cache.k.data_ptr(), cache.v.data_ptr()) == where and cache.nbytes == foretold
    assert cache.capacity is None
    assert kv_bytes(model.config, 5, kept=Window(4, 2)) == kv_bytes(model.config, 5), (
        "short texts take what they take"
    )


@pytest.mark.parametrize("chunks", [[1], [3]])
@pytest.mark.parametrize("back", [1, 2, 4])
def test_going_back_in_a_ring_that_has_wrapped(model, back, chunks):
    """T9: replay equals never having written, row by row."""
    kept, rows = Window(5, 2), texts()
    cache = WindowCache.for_model(model, 3, 5, 2, rewind=4)
    feed(model, cache, rows, chunks)
    cache.rewind([n - back for n in LENGTHS])
    for row, tokens in enumerate(rows):
        for place in range(len(tokens) - back, len(tokens)):
            at = torch.full((3, 1), -1)
            at[row] = place
            again = model(torch.full((3, 1), tokens[place]), at, cache)[row, 0]
            assert relative_error(again, whole(model, tokens, kept)[place]) < CLOSE


def test_a_ring_goes_back_no_further_than_it_holds(model):
    """Twice by two is as far as once by four: what a wrapped ring has let go does not come back."""
    cache = WindowCache.for_model(model, 1, 5, 2, rewind=3)
    feed(model, cache, texts((30,)), [1])
    cache.rewind([28])
    before = cache.positions.clone()
    with pytest.raises(ValueError, match=r"reached \[30\].*go back 3 positions from there"):
        cache.rewind([26])
    assert cache.lengths.tolist() == [28] and torch.equal(cache.positions, before)
    cache.rewind([27])
    short = WindowCache.for_model(model, 1, 5, 2, rewind=3)
    feed(model, short, texts((9,)), [4])
    short.rewind([7])
    short.rewind([5])  # nothing has been let go yet


def test_layers_refuse_to_go_back_together():
    model = tiny_llama(
        torch.float64, window=4, full_layers=(0,)
    )  # the part that could go back is asked first
    cache = trained_windows(model, 1, 40, rewind=3)
    feed(model, cache, texts((30,)), [1])
    cache.rewind([28])
    held = [part.lengths.tolist() for part in cache.parts]
    with pytest.raises(ValueError, match="go back 3 positions from there"):
        cache.rewind([26])
    assert [part.lengths.tolist() for part in cache.parts] == held == [[28], [28]]


@pytest.mark.parametrize("width", [1, 3])
def test_a_step_that_dies_costs_nothing_of_what_can_be_gone_back_to(model, width):
    """One token is written over the ring at once: the slot that it takes must be one that nobody can come back to."""
    kept, (tokens,) = Window(5, 2), texts((40,))
    cache = WindowCache.for_model(model, 1, 5, 2, rewind=3)
    feed(model, cache, [tokens[:30]], [1])
    attn = model.blocks[2].attn
    original = attn.forward

    def interrupted(*args):
        raise KeyboardInterrupt

    attn.forward = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            model(torch.tensor([[55] * width]), None, cache)
    finally:
        attn.forward = original
    cache.rewind([27])
    logits = follow(model, cache, tokens, 27)
    assert relative_error(logits, whole(model, tokens, kept)[27:]) < CLOSE


def follow(model, cache, tokens, start):
    """The rest of one text, a token at a time."""
    return torch.stack([model(torch.tensor([[t]]), None, cache)[0, 0] for t in tokens[start:]])


def test_a_token_behind_the_end_of_a_ring_is_refused(model):
    cache = WindowCache.for_model(model, 2, 5, 2, rewind=2)
    feed(model, cache, texts((20, 8)), [4])
    stored = cache.k.clone(), cache.positions.clone()
    with pytest.raises(ValueError, match=r"Row 1 holds 8 positions.*at position 3.*Rewind first"):
        model(torch.tensor([[1], [1]]), torch.tensor([[20], [3]]), cache)
    assert torch.equal(cache.k, stored[0]) and torch.equal(cache.positions, stored[1])


@pytest.mark.parametrize("part", range(4))
def test_whatever_comes_in_whatever_order(part):
    """Chunks, rests, padding on both sides, going back, rows kept, dropped and repeated, steps that die: 24 walks."""
    model = tiny_llama(torch.float64, num_layers=2)
    for seed in range(6 * part, 6 * part + 6):
        rng = random.Random(seed)
        kept, rewind = Window(rng.randint(1, 7), rng.randint(0, 4)), rng.randint(0, 4)
        cache = WindowCache.for_model(model, 2, kept.newest, kept.sinks, rewind=rewind)
        rows, furthest = [[], []], [0, 0]
        for _ in range(25):
            event = rng.random()
            if event < 0.12:
                chosen = [rng.randrange(len(rows)) for _ in range(rng.randint(1, 3))]
                cache.select(chosen)
                rows, furthest = [list(rows[r]) for r in chosen], [furthest[r] for r in chosen]
            elif event < 0.3:
                to = [
                    rng.randint(max(0, len(r) - rewind, f - rewind), len(r))
                    for r, f in zip(rows, furthest, strict=True)
                ]
                cache.rewind(to)
                rows = [row[:n] for row, n in zip(rows, to, strict=True)]
            else:
                width = rng.choice([1, 1, 1, 2, 5, 12])
                counts = [min(rng.randint(0, width), 60 - len(row)) for row in rows]
                new = [[rng.randrange(60) for _ in range(n)] for n in counts]
                pads = [rng.randint(0, width - n) for n in counts]
                tokens, pos = (
                    torch.zeros(len(rows), width, dtype=torch.int64),
                    torch.full((len(rows), width), -1),
                )
                for row, (part_, pad) in enumerate(zip(new, pads, strict=True)):
                    tokens[row, pad : pad + len(part_)] = torch.tensor(part_, dtype=torch.int64)
                    pos[row, pad : pad + len(part_)] = torch.arange(len(part_)) + len(rows[row])
                if event < 0.4:  # dies in the second layer
                    cache.begin(pos)
                    junk = torch.full((len(rows), 3, width, 8), 9.0, dtype=torch.float64)
                    cache.update(0, junk, junk, pos)
                    continue
                logits = model(tokens, pos, cache)
                for row, (part_, pad) in enumerate(zip(new, pads, strict=True)):
                    rows[row] += part_
                    furthest[row] = max(furthest[row], len(rows[row]))
                    if part_:
                        expected = whole(model, rows[row], kept)[-len(part_) :]
                        error = relative_error(logits[row, pad : pad + len(part_)], expected)
                        assert error < CLOSE, f"seed {seed}"
            assert cache.lengths.tolist() == [len(row) for row in rows]


# Distances inside the cache


class Streaming(nn.Module):
    """Attention as StreamingLLM has it: keys are kept before they are turned, the oldest behind the sinks leaves, and
    every key is turned to its place among those that are left. One row, one token a call."""

    def __init__(self, attention, config, kept):
        super().__init__()
        self.qkv, self.out, self.config, self.kept = attention.qkv, attention.out, config, kept
        self.keys, self.values = [], []

    def forward(self, x, at, layer):
        config = self.config
        heads = self.qkv(x).view(-1, config.head_dim)
        q, k, v = heads.split([config.num_heads, config.num_kv_heads, config.num_kv_heads])
        self.keys.append(k)
        self.values.append(v)
        if len(self.keys) > self.kept.positions:
            del self.keys[self.kept.sinks], self.values[self.kept.sinks]
        places = torch.arange(len(self.keys))
        cos, sin = rope_at(config, places)
        keys = rotate(torch.stack(self.keys, 1), cos, sin)  # (Hkv, S, D)
        q = rotate(q, cos[-1], sin[-1])
        out = []
        for head in range(config.num_heads):
            own = head // config.group_size
            weights = (keys[own] @ q[head] / config.head_dim**0.5).softmax(-1)
            out.append(weights @ torch.stack(self.values, 1)[own])
        return self.out(torch.cat(out)[None])


def streamed(tokens, kept):
    """Logits (T, V) of one text, a token at a time, every place as the cache has it."""
    return _streamed(tuple(tokens), kept)


@once
def _streamed(tokens, kept):
    model = tiny_llama(torch.float64)
    for block in model.blocks:
        block.attn = Streaming(block.attn, model.config, kept)
    return torch.stack([model(torch.tensor([[t]]), torch.tensor([[0]]))[0, 0] for t in tokens])


@pytest.mark.parametrize("chunks", [[1], [2], [7], [1, 5, 30], [90]])
@pytest.mark.parametrize("kept", [Window(5, 2), Window(6), Window(3, 4)], ids=str)
def test_turned_sinks_equal_keys_that_are_turned_to_their_places(model, kept, chunks):
    """Texts of 90 tokens on a model of 64 positions: what is kept is all that distances can reach."""
    turn, rows = Turn(model.config), texts((90, 12, 71))
    cache = WindowCache.for_model(model, 3, kept.newest, kept.sinks, turn=turn)
    for tokens, logits in zip(rows, feed(model, cache, rows, chunks), strict=True):
        assert relative_error(logits, streamed(tokens, kept)) < 1e-6, "rotary tables are fp32 on both sides"


def test_turned_sinks_go_back_and_move_with_their_rows(model):
    kept, (tokens, other) = Window(5, 2), texts((80, 50))
    cache = WindowCache.for_model(model, 2, 5, 2, rewind=3, turn=Turn(model.config))
    feed(model, cache, [tokens, other], [1, 4])
    cache.rewind([77, 47])
    cache.select([1, 0, 1])
    expected = streamed(other, kept)[47], streamed(tokens, kept)[77]
    again = model(torch.tensor([[other[47]], [tokens[77]], [3]]), None, cache)[:, 0]
    assert relative_error(again[0], expected[0]) < 1e-6 and relative_error(again[1], expected[1]) < 1e-6
    assert relative_error(again[2], streamed([*other[:47], 3], kept)[47]) < 1e-6


def test_short_texts_stand_where_they_stood(model):
    """Until something leaves, places and positions are the same."""
    (tokens,) = texts((7,))
    cache = WindowCache.for_model(model, 1, 5, 2, turn=Turn(model.config))
    assert relative_error(feed(model, cache, [tokens], [1])[0], model(torch.tensor([tokens]))[0]) < CLOSE


def test_generation_goes_past_the_positions_of_a_model_only_where_distances_stay_small(model):
    prompt = texts((50,))[0]
    turned = WindowCache.for_model(model, 1, 12, 2, turn=Turn(model.config))
    (answer,) = generate(model, [prompt], 60, eos_ids=(), cache=turned)
    said = streamed([*prompt, *answer.tokens[:-1]], Window(12, 2))[len(prompt) - 1 :]
    assert answer.tokens == said.argmax(-1).tolist() and len(answer.tokens) == 60
    with pytest.raises(ValueError, match="64 positions"):
        generate(model, [prompt], 60, cache=WindowCache.for_model(model, 1, 12, 2))
    plain = WindowCache.for_model(model, 1, 12, 2)
    with pytest.raises(ValueError, match="Position 64 is past"):
        feed(model, plain, texts((65,)), [5])


def test_what_cannot_be_turned_says_so():
    with pytest.raises(ValueError, match=r"learned vector.*no turn"):
        Turn(tiny_gpt().config)
    with pytest.raises(ValueError, match="another base"):
        Turn(tiny_llama(window=4, local_theta=50.0).config)


def test_bad_windows_get_a_sentence(model):
    for newest, sinks in ((0, 2), (4, -1), (True, 1), (2.5, 0)):
        with pytest.raises(ValueError, match="A window keeps 1 position at least"):
            Window(newest, sinks)
    with pytest.raises(ValueError, match="rewind"):
        WindowCache.for_model(model, 1, 4, rewind=-1)
    with pytest.raises(ValueError, match="smaller window"):
        WindowCache.for_model(model, 2**20, 2**24)


# Decoding, and models that were trained with windows


def test_drafts_are_taken_back_as_far_as_the_ring_allows(model):
    prompts = texts((20, 9))
    make = lambda rewind: WindowCache.for_model(model, 2, 6, 2, rewind=rewind)  # noqa: E731
    plain = generate(model, prompts, 24, eos_ids=(), cache=make(0))
    truth = {tuple(p): done.tokens for p, done in zip(prompts, plain, strict=True)}
    wrong = Scripted(truth, 3, lambda c, draft: [draft[0], (draft[1] + len(c.output) % 2) % 60, *draft[2:]])
    drafted = generate(model, prompts, 24, eos_ids=(), cache=make(3), drafter=wrong)
    assert [d.tokens for d in drafted] == [p.tokens for p in plain]
    with pytest.raises(ValueError, match="can go back 2 positions"):
        generate(model, prompts, 24, cache=make(2), drafter=wrong)


def test_memory_falls_in_the_layers_that_were_trained_with_a_window():
    both = tiny_llama(torch.float64, window=4, full_layers=(1,))
    cache = trained_windows(both, 2, 50)
    assert cache.traits.lossless and cache.capacity == 50
    per_position = kv_bytes(both.config.with_(num_layers=1), 1, batch=2, dtype="fp64")
    assert cache.nbytes == per_position * (2 * (4 + 1) + 50 + 1)
    assert isinstance(trained_windows(tiny_llama(), 1, 9), StaticCache)
    assert isinstance(trained_windows(tiny_llama(window=4), 1, 9), WindowCache)
    shared = tiny_llama(torch.float64, window=4, full_layers=(2,), kv_from=(0, 1, 1))
    cache, (tokens,) = trained_windows(shared, 1, 40), texts((40,))
    (logits,) = feed(shared, cache, [tokens], [1, 6])
    assert relative_error(logits, shared(torch.tensor([tokens]))[0]) < CLOSE, (
        "layer 1 keeps what layer 2 sees"
    )


def test_windows_are_not_enough_for_a_model_with_states():
    with pytest.raises(ValueError, match="cache_for"):
        trained_windows(tiny_hybrid(), 1, 20)
