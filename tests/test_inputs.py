"""Whatever is put where a number belongs: it works, or a sentence names the parameter and nothing has changed."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lumen.cache import (
    BlockPool,
    BlockStore,
    DecodeBatch,
    DynamicCache,
    KiviStore,
    PackedCache,
    PagedCache,
    QuantCache,
    QuantFormat,
    RecurrentCache,
    Segment,
    StaticCache,
    Tree,
)
from lumen.decode import Draft, NgramDrafter, generate, pad
from lumen.inputs import as_float, as_int, real, token_ids, whole
from lumen.sampling import SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from .tiny import tiny_llama

MODEL = tiny_llama()
STORE = BlockStore.for_model(MODEL, 8, 4)


class Rude:
    def __repr__(self):
        raise RuntimeError("no")

    def __index__(self):
        raise RuntimeError("nor this")


HOSTILE = [
    True, False, None, "", "100", "nan", b"7", 1.5, -1.5, 0.0, -0.0, math.nan, math.inf, -math.inf, 1e308, 2.0, 1j,
    -1, -(2**63), -(2**63) - 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(10**400), 10**5000,
    [], [1], [1.5], [True], [[]], (), (1,), {}, {1: 2}, {3}, object(), Rude(), int, len, slice(3), range(3), Ellipsis,
    np.int64(3), np.bool_(True), np.float64(math.nan), np.float32(1.5), np.uint64(2**64 - 1), np.array([3]),
    np.array(3), np.array("3"), np.str_("5"), torch.tensor(3), torch.tensor(True), torch.tensor(1.5),
    torch.tensor([3]), torch.zeros(0), torch.tensor(1j), torch.zeros(2, 2), "\ud800", "a" * 10_000, "\x00\n",
]  # fmt: skip

PLAIN = {"id": "a", "prompt": [1], "max_new_tokens": 1}
PLACES = {
    **{
        f"SamplingParams.{name}": lambda value, name=name: SamplingParams(**{name: value})
        for name in SamplingParams.__dataclass_fields__
    },
    "a bias": lambda value: SamplingParams(logit_bias={1: value}),
    **{
        f"Limits.{name}": lambda value, name=name: Limits(**{name: value})
        for name in ("max_seqs", "token_budget", "max_wait", "ageing")
    },
    **{
        f"Request.{name}": lambda value, name=name: Request(**{**PLAIN, name: value})
        for name in (
            "id", "prompt", "max_new_tokens", "eos_ids", "stop", "priority", "extra", "min_new_tokens", "logprobs",
            "arrival",
        )
    },
    "a token": lambda value: Request("a", [1, value], 1),
    "a part of extra": lambda value: Request("a", [1], 1, extra=(value,)),
    "BlockPool.num_blocks": lambda value: BlockPool(min_or(value, 2**12), 4),
    "BlockPool.block_size": lambda value: BlockPool(4, value),
    "BlockPool.allocate": lambda value: BlockPool(4, 4).allocate(value),
    "BlockStore.num_blocks": lambda value: BlockStore.for_model(MODEL, value, 4),
    "BlockStore.block_size": lambda value: BlockStore.for_model(MODEL, 4, value),
    "DynamicCache.rows": lambda value: DynamicCache.for_model(MODEL, value),
    "QuantCache.rows": lambda value: QuantCache.for_model(MODEL, value),
    "QuantFormat.bits": lambda value: QuantFormat("a", value),
    "QuantFormat.group": lambda value: QuantFormat("a", 4, value),
    "KiviStore.sequences": lambda value: KiviStore.for_model(MODEL, 4, 4, sequences=value),
    "StaticCache.rows": lambda value: StaticCache.for_model(MODEL, value, 4),
    "StaticCache.capacity": lambda value: StaticCache.for_model(MODEL, 1, value),
    "PagedCache.rows": lambda value: PagedCache(STORE, value).close(),
    "RecurrentCache.rows": lambda value: RecurrentCache(value, 1),
    "RecurrentCache.num_layers": lambda value: RecurrentCache(1, value),
    "RecurrentCache.rewind": lambda value: RecurrentCache(1, 1, rewind=value),
    "DecodeBatch.rows": lambda value: DecodeBatch(STORE, value, 1),
    "DecodeBatch.width": lambda value: DecodeBatch(STORE, 1, value),
    "Segment.start": lambda value: PackedCache(STORE, [Segment([0, 1], value, 1)]),
    "Segment.count": lambda value: PackedCache(STORE, [Segment([0, 1], 0, value)]),
    "Tree.parents": lambda value: Tree(DynamicCache.for_model(MODEL, 1), [[-1, value]]),
    "rewind": lambda value: DynamicCache.for_model(MODEL, 1).rewind([value]),
    "rewind to": lambda value: DynamicCache.for_model(MODEL, 1).rewind(value),
    "select": lambda value: DynamicCache.for_model(MODEL, 1).select([value]),
    "reserve": lambda value: STORE.rows(1).reserve([value]),
    "pad": lambda value: pad([[1, value]]),
    "Draft.tokens": lambda value: Draft([value]),
    "Draft.parents": lambda value: Draft([1, 2], None, [-1, value]),
    "NgramDrafter.max_drafts": lambda value: NgramDrafter(value),
    "NgramDrafter.longest": lambda value: NgramDrafter(4, value, 1),
    "generate.prompts": lambda value: generate(MODEL, value, 1),
    "generate.prompt": lambda value: generate(MODEL, [value], 1),
    "generate.token": lambda value: generate(MODEL, [[1, value]], 1),
    "generate.max_new_tokens": lambda value: generate(MODEL, [[1]], value),
    "generate.params": lambda value: generate(MODEL, [[1]], 1, value),
    "generate.eos_ids": lambda value: generate(MODEL, [[1]], 1, eos_ids=value),
    "generate.stop": lambda value: generate(MODEL, [[1]], 1, stop=value),
    "generate.prefill_chunk": lambda value: generate(MODEL, [[1]], 1, prefill_chunk=value),
    "generate.extra": lambda value: generate(MODEL, [[1]], 1, extra=value),
}  # fmt: skip


def min_or(value, most):
    return min(value, most) if type(value) is int and value < 2**26 else value


def said(place, value):
    """What is said against the value; None if it is taken."""
    try:
        PLACES[place](value)
    except (ValueError, TypeError, NotImplementedError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("place", PLACES)
def test_hostile_values_are_taken_or_refused_with_a_sentence(place):
    refused = 0
    for value in HOSTILE:
        sentence = said(place, value)
        refused += sentence is not None
        assert sentence is None or (len(sentence) >= 20 and len(sentence) < 1000), (
            place,
            type(value),
            sentence,
        )
        assert sentence is None or " " in sentence
    assert refused > len(HOSTILE) // 3


@settings(max_examples=40, deadline=None)
@given(
    place=st.sampled_from(
        sorted(set(PLACES) - {"BlockStore.num_blocks", "StaticCache.capacity", "StaticCache.rows"})
    ),
    value=st.one_of(
        st.floats(),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.complex_numbers(),
        st.lists(st.floats(), max_size=2),
    ),
)
def test_so_is_whatever_hypothesis_thinks_of(place, value):
    sentence = said(place, value)
    assert sentence is None or len(sentence) >= 20


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens"), ({"max_new_tokens": True}, "max_new_tokens"),
        ({"max_new_tokens": 10**30}, "max_new_tokens"), ({"prompt": [1.0, 2.0]}, "prompt"),
        ({"prompt": [True]}, "prompt"), ({"prompt": "abc"}, "prompt"), ({"prompt": []}, "prompt"),
        ({"priority": math.nan}, "priority"), ({"arrival": math.nan}, "arrival"), ({"arrival": math.inf}, "arrival"),
        ({"arrival": -1.0}, "arrival"), ({"logprobs": 1.0}, "logprobs"), ({"extra": ([],)}, "extra"),
        ({"stop": "END"}, "stop"), ({"stop": ("",)}, "stop"), ({"id": 7}, "id"), ({"eos_ids": 2}, "eos_ids"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_is_never_made(change, name):
    with pytest.raises(ValueError, match=name):
        Request(**{**PLAIN, **change})


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, "100", 1.5, True, math.nan, [1]])
def test_a_seed_that_torch_cannot_take_is_refused_where_it_is_given(seed):
    with pytest.raises(ValueError, match="seed must be a whole number"):
        SamplingParams(seed=seed)


def test_numbers_of_numpy_and_torch_are_numbers():
    for three in (
        3,
        np.int8(3),
        np.uint64(3),
        np.array(3),
        torch.tensor(3),
        torch.tensor(3, dtype=torch.uint8),
    ):
        assert type(whole(three, "x")) is int and whole(three, "x") == 3 and real(three, "x") == 3.0
        assert SamplingParams(seed=three, top_k=three) == SamplingParams(seed=3, top_k=3)
        assert Request("a", [three], three, arrival=0.0) == Request("a", [3], 3, arrival=0.0)
    for ids in (
        [1, 2],
        (1, 2),
        range(1, 3),
        np.array([1, 2]),
        torch.tensor([1, 2]),
        [torch.tensor(1), np.int16(2)],
    ):
        assert token_ids(ids, "x") == [1, 2]
    assert as_float("1.5") is None and as_int(2.0) is None and as_float(np.float16(1.5)) == 1.5
    (ours,) = generate(MODEL, torch.tensor([[5, 9, 2]]), np.int64(4))
    assert ours.tokens == generate(MODEL, [[5, 9, 2]], 4)[0].tokens


@pytest.mark.parametrize(
    "wrong", [[1.5], [True], torch.tensor([True]), torch.tensor([1.0]), [2**70], [-1], [1, 1], 1, "1"]
)
def test_a_refused_rewind_changes_nothing(wrong):
    cache = StaticCache.for_model(MODEL, 1, 8)
    MODEL(torch.tensor([[1, 2, 3]]), None, cache)
    before = cache.lengths.clone(), cache.positions.clone(), cache.k.clone()
    with pytest.raises(ValueError, match=r"length"):
        cache.rewind(wrong)
    assert all(
        torch.equal(a, b) for a, b in zip(before, (cache.lengths, cache.positions, cache.k), strict=True)
    )


def test_a_refused_request_leaves_the_engine_as_it_was():
    engine = Engine(MODEL, num_blocks=16, block_size=4)
    engine.add(Request("here", [1, 2, 3, 4, 5], 4))
    engine.step()

    def state():
        pool = engine.store.pool
        return (
            pool.num_free,
            list(pool._refs),
            engine.num_waiting,
            engine.num_running,
            copy.copy(engine.counters),
        )

    before = state()
    for wrong in (
        Request("a", [97], 1), Request("a", [1], 10**9), Request("a", [1], 1, logprobs=10**9), Request("here", [1], 1),
        Request("a", [1], 1, min_new_tokens=2), Request("a", [1], 1, stop=("x",)),
        Request("a", [1], 1, params={"seed": 1}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"\w+ \w+"):
            engine.add(wrong)
        assert state() == before
    for wrong in (-1, 1.5, True, 99):
        with pytest.raises(ValueError, match=r"count|blocks"):
            engine.store.pool.allocate(wrong)
        assert state() == before


@pytest.mark.parametrize(
    "make", [lambda: BlockStore.for_model(MODEL, 2**31), lambda: StaticCache.for_model(MODEL, 2**20, 2**40)]
)
def test_what_memory_cannot_hold_is_refused_before_it_is_taken(make):
    with pytest.raises(ValueError, match=r"need [\d,.]+ GiB, and [\d,.]+ GiB are available"):
        make()
