"""Clauses C1 to C8 of the cache contract, over every kind. A new kind adds one line to KINDS and must pass them all.

The reference is always the model without a cache, one row at a time, in fp64: tolerances are for rounding alone, or
what the kind declares in its traits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache as once

import pytest
import torch

from lumen.cache import (
    QUANT_FORMATS,
    BlockStore,
    Cache,
    CacheFull,
    DynamicCache,
    EvictingCache,
    NoCache,
    QuantCache,
    QuestCache,
    RecurrentCache,
    StaticCache,
    Traits,
    Tree,
    WindowCache,
    cache_for,
    trained_windows,
    with_states,
)
from lumen.cache.evict_rules import H2O, KeyNorm, Newest, Random, SinksAndNewest, SnapKV
from lumen.cache.traits import stored_dims
from lumen.decode import pad
from lumen.parts import Latent

from ..tiny import relative_error, tiny_gpt, tiny_hybrid, tiny_latent, tiny_llama
from .kinds import kivi, quantized

PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9]]
NEXT = [[4, 17, 0, 33, 8], [1, 0, 2, 5, 40], [50, 6, 6, 0, 3]]
CLOSE = 1e-12
INT8 = QUANT_FORMATS["int8"]
PLAIN = ("llama 9/3", "llama window 4", "gptlite")
LATENT = (*PLAIN, "latent")  # latents have values of no width of their own


@dataclass(frozen=True)
class Kind:
    """How to make a cache of this kind with room for `capacity` positions; what it promises it says itself."""

    make: Callable[[object, int, int], Cache]
    tight: Callable[[object], Cache] | None = (
        None  # three rows with room for 13, 4 and 8 positions and no more
    )
    models: tuple[str, ...] = PLAIN


def paged(model, num_blocks, size, rows, make=BlockStore.for_model):
    return make(model, num_blocks, size).rows(rows)


def states_and_blocks(model, rows, capacity):
    """A hybrid model's keys in paged blocks, its states beside them."""
    keys = paged(model, rows * -(-capacity // 4), 4, rows)
    return with_states(model, keys, RecurrentCache.for_model(model, rows))


def evicting(rule, when=None, models=PLAIN[:1]):
    """Six keys a head are fewer than the sequences have: what this promises is only that nothing breaks."""
    return Kind(
        lambda model, rows, capacity: EvictingCache.for_model(model, rows, 6, rule, when), models=models
    )


def evicting_nothing(rule, models):
    """With room for all it must be as exact as a cache that keeps all."""

    def make(model, rows, capacity):
        cache = EvictingCache.for_model(model, rows, capacity, rule)
        cache.traits = replace(cache.traits, tolerance=0.0)
        return cache

    return Kind(make, models=models)


KINDS = {
    "dynamic": Kind(lambda model, rows, capacity: DynamicCache.for_model(model, rows), models=LATENT),
    "static": Kind(
        lambda model, rows, capacity: StaticCache.for_model(model, rows, capacity),
        tight=lambda model: StaticCache.for_model(model, 3, 13),
        models=LATENT,
    ),
    **{
        f"paged, blocks of {size}": Kind(
            lambda model, rows, capacity, size=size: paged(model, rows * -(-capacity // size), size, rows),
            tight=lambda model, size=size: paged(model, sum(-(-n // size) for n in (13, 4, 8)), size, 3),
            models=LATENT,
        )
        for size in (1, 4, 7)
    },
    "int8": Kind(lambda model, rows, capacity: QuantCache.for_model(model, rows), models=LATENT),
    "int8, rotated": Kind(
        lambda model, rows, capacity: QuantCache.for_model(model, rows, INT8.with_(rotated=True)),
        models=LATENT,
    ),
    **{
        f"{name} in blocks of 4": Kind(
            lambda model, rows, capacity, make=make: paged(model, rows * -(-capacity // 4), 4, rows, make),
            tight=lambda model, make=make: paged(model, 4 + 1 + 2, 4, 3, make),
            models=(*PLAIN, "latent, even"),
        )
        for name, make in {
            "int8": quantized("int8"),
            "int4": quantized("int4"),
            "kivi": kivi("kivi"),
            "kivi-2": kivi("kivi-2"),
            "kivi, rotated": kivi("kivi", rotated=True),
        }.items()
    },
    "evicting, H2O": evicting(H2O(), models=PLAIN),
    "evicting, H2O of the prompt": evicting(H2O(), "prompt"),
    "evicting, SnapKV": evicting(SnapKV(observes=3, kernel=3), models=PLAIN[1:2]),
    "evicting, key norm": evicting(KeyNorm()),
    "evicting, sinks": evicting(SinksAndNewest(2)),
    "evicting, random": evicting(Random(), "prompt"),
    "evicting, H2O with room for all": evicting_nothing(H2O(), PLAIN),
    "evicting, SnapKV with room for all": evicting_nothing(SnapKV(observes=3), PLAIN[2:]),
    "evicting, newest with room for all": evicting_nothing(Newest(), PLAIN[:2]),
    "quest, all pages of 4": Kind(
        lambda model, rows, capacity: QuestCache.for_model(model, rows, capacity, -(-capacity // 4), 4),
        tight=lambda model: QuestCache.for_model(model, 3, 13, 4, 4),
    ),
    "quest, 2 pages of 3": Kind(
        lambda model, rows, capacity: QuestCache.for_model(model, rows, capacity, 2, 3, dense_layers=1),
        models=PLAIN[:2],
    ),
    "window 5 and 2 sinks": Kind(
        lambda model, rows, capacity: WindowCache.for_model(model, rows, 5, 2, rewind=3),
        models=(*PLAIN, "windows, all"),
    ),
    "window 3": Kind(lambda model, rows, capacity: WindowCache.for_model(model, rows, 3), models=PLAIN[:1]),
    "trained windows": Kind(
        lambda model, rows, capacity: trained_windows(model, rows, capacity, rewind=3),
        models=("llama window 4", "windows, all"),
    ),
    "states and keys": Kind(cache_for, models=("hybrid",)),
    "states and blocks of 4": Kind(states_and_blocks, models=("hybrid",)),
    "states": Kind(cache_for, models=("linear", "gated_delta")),
    "states, 3 to go back by": Kind(
        lambda model, rows, capacity: cache_for(model, rows, capacity, rewind=3),
        models=("hybrid", "gated_delta"),
    ),
}
MODELS = {
    "llama 9/3": once(lambda: tiny_llama(torch.float64)),
    "llama window 4": once(lambda: tiny_llama(torch.float64, window=4)),
    "gptlite": once(lambda: tiny_gpt(torch.float64)),
    "latent": once(lambda: tiny_latent(torch.float64)),
    "latent, even": once(  # 20 numbers, so that codes of 2 and 4 bits end with a byte
        lambda: tiny_latent(torch.float64, latent=Latent(12, 8, 5, query_rank=14))
    ),
    "windows, all": once(lambda: tiny_llama(torch.float64, window=4, full_layers=(1,), local_theta=50.0)),
    "hybrid": once(lambda: tiny_hybrid(torch.float64)),
    **{
        rule: once(lambda rule=rule: tiny_hybrid(torch.float64, rule=rule, layers=(0, 1, 2, 3)))
        for rule in ("linear", "gated_delta")
    },
}


def pytest_generate_tests(metafunc):
    if "kind" in metafunc.fixturenames:
        pairs = [(m, k) for m in MODELS for k, kind in KINDS.items() if m in kind.models]
        metafunc.parametrize("model, kind", pairs, indirect=True)


@pytest.fixture
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def model(request):
    return MODELS[request.param]()


def close(cache) -> float:
    """The error that a kind may have; kinds that promise nothing skip the test."""
    if cache.traits.tolerance == float("inf"):
        pytest.skip("promises no closeness")
    return cache.traits.tolerance or CLOSE


def keyed(model) -> list[int]:
    """The places of the layers that store keys and values."""
    return list(range(len(model.config.storing_layers)))


class Rule(NoCache):
    """Keeps nothing; the new tokens are read as a cache of this kind would have them read."""

    def __init__(self, kept):
        self.traits = Traits(kept=kept)


def alone(model, cache, tokens: list[int]) -> torch.Tensor:
    """Logits (T, V) of a whole sequence: no cache, no batch, no padding, under the rule of `cache`."""
    return model(torch.tensor([tokens]), torch.arange(len(tokens))[None], Rule(cache.traits.kept))[0]


def reference(model, cache, row: int, upto: int | None = None) -> torch.Tensor:
    """`alone` of the prompt of `row` and what follows it."""
    return alone(model, cache, (PROMPTS[row] + NEXT[row])[:upto])


def prefill(model, cache, side="right", chunk=None, prompts=PROMPTS):
    """Feed the prompts; returns logits per row in the order of positions."""
    tokens, pos = pad(prompts, side)
    chunk = chunk or tokens.shape[1]
    parts = [
        model(tokens[:, a : a + chunk], pos[:, a : a + chunk], cache)
        for a in range(0, tokens.shape[1], chunk)
    ]
    cache.prompt_ended()
    logits = torch.cat(parts, 1)
    return [logits[row][pos[row] >= 0] for row in range(len(prompts))]


def decode(model, cache, rows=(0, 1, 2), steps=5, first=0):
    """Feed the known continuations one token at a time; returns (B, steps, V)."""
    out = []
    for step in range(first, steps):
        tokens = torch.tensor([[NEXT[r][step]] for r in rows])
        out.append(model(tokens, None, cache)[:, -1])
    return torch.stack(out, 1)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("chunk", [None, 1, 2, 4, 7])
def test_c4_any_chunking_and_padding_equals_no_cache(model, kind, side, chunk):
    """T1 and T2: in one go, in chunks, left or right padded, single rows: the same logits."""
    cache = kind.make(model, 3, 20)
    allowed = close(cache)
    prompts = prefill(model, cache, side, chunk)
    answers = decode(model, cache)
    for row, prompt in enumerate(PROMPTS):
        expected = reference(model, cache, row)
        assert relative_error(prompts[row], expected[: len(prompt)]) < allowed
        assert relative_error(answers[row], expected[len(prompt) :]) < allowed
    assert cache.lengths.tolist() == [len(p) + 5 for p in PROMPTS]


def test_c4_rows_of_one_batch_may_prefill_decode_and_rest_together(model, kind):
    """A mixed step: row 0 decodes, row 1 rests, row 2 takes three prompt tokens."""
    cache = kind.make(model, 3, 20)
    allowed = close(cache)
    prefill(model, cache, prompts=[PROMPTS[0], PROMPTS[1], PROMPTS[2][:3]])
    tokens = torch.tensor([[NEXT[0][0], 0, 0], [0, 0, 0], PROMPTS[2][3:6]])
    pos = torch.tensor([[11, -1, -1], [-1, -1, -1], [3, 4, 5]])
    mixed = model(tokens, pos, cache)
    assert relative_error(mixed[0, 0], reference(model, cache, 0)[11]) < allowed
    assert relative_error(mixed[2], reference(model, cache, 2)[3:6]) < allowed
    assert (
        relative_error(decode(model, cache, steps=1, rows=(1, 1, 1))[1, 0], reference(model, cache, 1)[2])
        < allowed
    )


def test_a_draft_tree_is_taken_or_refused(model, kind):
    """Each node equals its own path; the accepted path is written and the row goes on. Kinds without say so at once."""
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    if not cache.traits.takes_trees:
        with pytest.raises(ValueError, match="takes no draft tree"):
            Tree(cache, [[-1]] * 3)
        assert cache.lengths.tolist() == [11, 2, 6]
        return
    allowed = close(cache)
    tree = Tree(cache, [[-1, 0, 0, 2], [-1], []])
    logits = model(torch.tensor([[4, 9, 17, 0], [1] + [0] * 3, [0] * 4]), tree.pos, tree)
    for node, row, upto in ((0, 0, 12), (2, 0, 13), (3, 0, 14), (0, 1, 3)):
        assert relative_error(logits[row, node], reference(model, cache, row, upto)[-1]) < allowed
    aside = alone(model, cache, PROMPTS[0] + [4, 9])[-1]
    assert relative_error(logits[0, 1], aside) < allowed
    tree.accept([[0, 2, 3], [0], []])
    assert cache.lengths.tolist() == [14, 3, 6]
    after = model(torch.tensor([[33], [0], [50]]), None, cache)
    for row, upto in ((0, 15), (1, 4), (2, 7)):
        assert relative_error(after[row, 0], reference(model, cache, row, upto)[-1]) < allowed


def test_c1_padding_writes_and_advances_nothing(model, kind):
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    before = cache.lengths.clone()
    out = model(torch.zeros(3, 4, dtype=torch.int64), torch.full((3, 4), -1), cache)
    assert torch.isfinite(out).all() and torch.equal(cache.lengths, before)
    plain = kind.make(model, 3, 20)
    prefill(model, plain)
    assert relative_error(decode(model, cache), decode(model, plain)) < CLOSE


def test_c1_a_row_of_padding_is_finite_and_has_length_zero(model, kind):
    """T3: the row that is all padding."""
    cache = kind.make(model, 2, 20)
    out = model(torch.tensor([[1, 2, 3], [0, 0, 0]]), torch.tensor([[0, 1, 2], [-1, -1, -1]]), cache)
    assert torch.isfinite(out).all() and cache.lengths.tolist() == [3, 0]


def test_c2_positions_are_absolute_not_slots(model, kind):
    """Left padding puts position 0 in another slot than 0; a cache that answered with slot numbers would show it."""
    cache = kind.make(model, 3, 20)
    _, pos = pad(PROMPTS, "left")
    cache.begin(pos)
    heads, *widths = stored_dims(model.config)
    # keys and values that know their own position
    k, v = (pos[:, None, :, None].expand(3, heads, -1, width).double() for width in widths)
    for layer in keyed(model):
        keys, _, k_pos = cache.update(layer, k, v, pos)
        assert k_pos.dim() == 2 or cache.traits.per_head
        k_pos = k_pos[:, 0] if k_pos.dim() == 3 else k_pos
        stored = keys[:, 0, :, 0]
        real = k_pos >= 0
        apart = 1e-5 if cache.traits.lossless else 0.49  # still nearest to its own
        assert torch.allclose(stored[real], k_pos[real].double(), atol=apart)
        assert sorted(k_pos[1][k_pos[1] >= 0].tolist()) == [0, 1]


def test_c3_slots_nobody_wrote_hold_finite_numbers(model, kind):
    """T4, pytorch #101967: a NaN in a masked value row leaks into the output."""
    cache = kind.make(model, 3, 20)
    _, pos = pad(PROMPTS)
    cache.begin(pos)
    heads, *widths = stored_dims(model.config)
    k, v = (torch.zeros(3, heads, pos.shape[1], width, dtype=torch.float64) for width in widths)
    for layer in keyed(model):
        keys, values, _ = cache.update(layer, k, v, pos)
        assert torch.isfinite(keys).all() and torch.isfinite(values).all()


@pytest.mark.parametrize("back", [1, 3, 99])
def test_c5_rewind_then_replay_equals_never_having_written(model, kind, back):
    """T9: rewind by one, by a few, by everything; rows by different amounts."""
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    plain = decode(model, cache)
    to = [max(0, 5 - back), max(0, 5 - back), 5]
    target = torch.tensor([len(PROMPTS[r]) + to[r] for r in range(3)])
    limit = cache.traits.max_rewind
    if limit is not None and int((cache.lengths - target).max()) > limit:
        before, stored = cache.lengths.clone(), [t.clone() for t in tensors(cache)]
        with pytest.raises(ValueError, match=f"can go back {limit} positions"):
            cache.rewind(target)
        assert torch.equal(cache.lengths, before)
        assert all(torch.equal(a, b) for a, b in zip(tensors(cache), stored, strict=True))
        cache.rewind(before)  # nowhere is not far
        return
    allowed = close(cache)
    cache.rewind(target)
    assert torch.equal(cache.lengths, target)
    for row in range(3):
        for step in range(to[row], 5):
            tokens = torch.tensor([[NEXT[r][step] if r == row else 0] for r in range(3)])
            pos = torch.tensor([[len(PROMPTS[r]) + step if r == row else -1] for r in range(3)])
            assert relative_error(model(tokens, pos, cache)[row, 0], plain[row, step]) < allowed


def test_c5_rewind_to_zero_forgets_the_prompt(model, kind):
    cache = kind.make(model, 3, 20)
    if cache.traits.max_rewind is not None:
        pytest.skip("cannot go back so far, and says so (tested above)")
    prefill(model, cache, prompts=[[50, 51, 52], [53], [54, 55]])
    cache.rewind([0, 0, 0])
    logits, allowed = prefill(model, cache), close(cache)
    assert all(
        relative_error(logits[r], reference(model, cache, r, len(PROMPTS[r]))) < allowed for r in range(3)
    )


def test_c5_rewind_forward_or_below_zero_is_refused(model, kind):
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    for wrong in ([12, 2, 6], [-1, 2, 6], [1, 2]):
        with pytest.raises(ValueError):
            cache.rewind(wrong)
    assert cache.lengths.tolist() == [11, 2, 6]


def test_c6_full_raises_before_any_layer_is_written(model, kind):
    """T8: one token past capacity raises, and the cache is as it was, to the last number."""
    if kind.tight is None:
        pytest.skip("grows as long as there is memory")
    cache = kind.tight(model)
    prefill(model, cache)
    decode(model, cache, steps=2)
    stored, held = [t.clone() for t in tensors(cache)], tables(cache)
    with pytest.raises(CacheFull, match=r"\d+ "):
        model(
            torch.zeros(3, 4, dtype=torch.int64),
            torch.tensor([[13, 14, 15, 16], [-1] * 4, [8, 9, 10, 11]]),
            cache,
        )
    assert cache.lengths.tolist() == [13, 4, 8] and tables(cache) == held
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), stored, strict=True))
    cache.rewind([12, 3, 7])
    tokens = torch.tensor([[NEXT[0][1]], [NEXT[1][1]], [NEXT[2][1]]])
    again = model(tokens, None, cache)
    allowed = close(cache)
    assert all(
        relative_error(again[r, 0], reference(model, cache, r)[len(PROMPTS[r]) + 1]) < allowed
        for r in range(3)
    )


def tables(cache: Cache) -> list[list[int]]:
    """The block tables of a paged cache, nothing for others."""
    return [list(table) for table in getattr(cache, "tables", [])]


def tensors(held: object) -> list[torch.Tensor]:
    """Every tensor that holds state: a cache's own, its store's, its parts'."""
    if isinstance(held, torch.Tensor):
        return [held]
    if isinstance(held, list | tuple):
        return [t for part in held for t in tensors(part)]
    if isinstance(held, Cache | BlockStore):
        own = {
            name: part
            for name, part in vars(held).items()
            if name[0] != "_" and name not in ("caches", "places")
        }
        return [t for name in sorted(own) for t in tensors(own[name])]
    return []


def test_c7_copies_made_by_select_are_independent(model, kind):
    """Row 2 twice, row 0 once, reordered; then each copy goes its own way."""
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    cache.select([2, 0, 2])
    assert cache.lengths.tolist() == [6, 11, 6]
    a = model(torch.tensor([[NEXT[2][0]], [NEXT[0][0]], [33]]), None, cache)
    b = model(torch.tensor([[NEXT[2][1]], [NEXT[0][1]], [34]]), None, cache)
    allowed = close(cache)
    assert relative_error(a[0, 0], reference(model, cache, 2)[6]) < allowed
    assert relative_error(b[0, 0], reference(model, cache, 2)[7]) < allowed
    assert relative_error(b[1, 0], reference(model, cache, 0)[12]) < allowed
    other = alone(model, cache, PROMPTS[2] + [33, 34])[-1]
    assert relative_error(b[2, 0], other) < allowed


def test_c7_select_can_shrink_and_refuses_rows_that_are_not_there(model, kind):
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    for wrong in ([3], [-1], torch.tensor([True, False, True]), torch.tensor([0.0])):
        with pytest.raises(ValueError):
            cache.select(wrong)
    cache.select([1])
    assert cache.lengths.tolist() == [2]
    allowed = close(cache)
    assert relative_error(decode(model, cache, rows=(1,))[0], reference(model, cache, 1)[2:]) < allowed


def test_c8_nbytes_is_the_storage_of_keys_and_values(model, kind):
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    decode(model, cache)
    numbers = [t for t in tensors(cache) if t.dtype != torch.int64]  # whole numbers of 64 bits are positions
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in numbers}
    assert cache.nbytes == sum(storages.values()) > 0
    if cache.traits.lossless and cache.traits.max_rewind is None:
        config = model.config
        per_position = config.num_layers * config.cache_dims.stored * 8
        assert cache.nbytes >= per_position * sum(len(p) + 5 for p in PROMPTS)


def test_a_forward_that_dies_half_way_leaves_no_trace(model, kind):
    """An interrupt between two layers: what was stored so far is never read."""
    cache = kind.make(model, 3, 20)
    prefill(model, cache)
    block = model.blocks[1].attn
    original = block.forward

    def interrupted(*args):
        raise KeyboardInterrupt

    block.forward = interrupted
    try:
        with pytest.raises(KeyboardInterrupt):
            model(torch.tensor([[55, 56], [55, 56], [55, 56]]), None, cache)
    finally:
        block.forward = original
    assert cache.lengths.tolist() == [11, 2, 6]
    answers, allowed = decode(model, cache), close(cache)
    for row in range(3):
        assert relative_error(answers[row], reference(model, cache, row)[len(PROMPTS[row]) :]) < allowed


def test_reset_starts_again_whatever_cannot_rewind(model, kind):
    cache = kind.make(model, 3, 20)
    prefill(model, cache, prompts=[[50, 51, 52], [53], [54, 55]])
    cache.reset()
    assert cache.lengths.tolist() == [0, 0, 0]
    logits, allowed = prefill(model, cache), close(cache)
    assert all(
        relative_error(logits[r], reference(model, cache, r, len(PROMPTS[r]))) < allowed for r in range(3)
    )


def test_two_new_tokens_at_one_position_are_refused(model, kind):
    """Siblings of a draft tree: one overwrote the other in silence. Padding may repeat; the columns may be anywhere."""
    cache = kind.make(model, 2, 20)
    model(torch.tensor([[1, 2], [3, 0]]), torch.tensor([[0, 1], [0, -1]]), cache)
    stored = [t.clone() for t in tensors(cache)]
    tokens = torch.tensor([[4, 5, 6, 7], [8, 9, 10, 11]])
    for pos in ([[2, 3, 4, 5], [1, 2, 2, 3]], [[2, 3, 4, 2], [1, 2, 3, 4]], [[2, 2, -1, -1], [-1] * 4]):
        with pytest.raises(ValueError, match=r"two new tokens at position 2.*Tree"):
            model(tokens, torch.tensor(pos), cache)
    assert all(torch.equal(a, b) for a, b in zip(tensors(cache), stored, strict=True))
    with pytest.raises(ValueError, match="two new tokens at position 0"):
        model(tokens, torch.tensor([[0, 0, 1, 2], [0, 1, 2, 3]]))  # without a cache too
    model(tokens, torch.tensor([[2, -1, -1, 3], [-1] * 4]), cache)
    assert cache.lengths.tolist() == [4, 1]


def test_a_cache_of_another_batch_is_refused(model, kind):
    cache = kind.make(model, 3, 20)
    with pytest.raises(ValueError, match="3 rows"):
        model(torch.tensor([[1, 2]]), None, cache)
