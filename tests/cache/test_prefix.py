"""Both prefix caches behind one interface: what is found, what is never found, what goes first."""

from __future__ import annotations

import random

import pytest
import torch

from lumen.cache import BlockPool, BlockStore, HashPrefix, RadixPrefix
from lumen.cache.prefix import allocate, chain_key
from lumen.decode import generate

from ..tiny import tiny_llama

KINDS = [HashPrefix, RadixPrefix]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def remember(prefix, pool, tokens, extra=()):
    """A sequence that was computed, kept and ended."""
    blocks = pool.allocate(-(-len(tokens) // pool.block_size))
    prefix.insert(tokens, blocks, extra)
    pool.release(blocks)
    return blocks


def test_the_longest_remembered_prefix_in_whole_blocks(kind):
    pool = BlockPool(20, 4)
    prefix = kind(pool)
    blocks = remember(prefix, pool, list(range(10)))
    assert prefix.match([*range(8), 99, 98]) == blocks[:2]
    assert prefix.match([*range(6), 99, 98, 97]) == blocks[:1]
    assert prefix.match([99, *range(8)]) == [], "prefixes, not substrings"
    assert prefix.match([]) == [] and prefix.match([0]) == []
    pool.release(blocks[:2] + blocks[:1])
    pool.audit([prefix.blocks()])


@pytest.mark.parametrize("length, found", [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_a_whole_prompt_is_never_a_hit(kind, length, found):
    """T19, nano-vllm #114, vLLM #11186: an exact multiple of the block, asked twice, still runs its last token."""
    pool = BlockPool(20, 4)
    prefix = kind(pool)
    remember(prefix, pool, list(range(12)))
    assert len(prefix.match(list(range(length)))) == found


def test_a_block_that_was_evicted_and_used_again_is_not_found_by_its_old_name(kind):
    """T16, nano-vllm #163, vLLM #4761."""
    pool = BlockPool(2, 4)
    prefix = kind(pool)
    remember(prefix, pool, [1, 2, 3, 4, 5, 6, 7, 8])
    assert prefix.evict(2) == 2
    pool.allocate(2)
    assert prefix.match([1, 2, 3, 4, 5, 6, 7, 8, 9]) == []


def test_the_same_tokens_for_another_tenant_or_adapter_are_other_blocks(kind):
    pool = BlockPool(20, 4)
    prefix = kind(pool)
    remember(prefix, pool, list(range(8)), ("tenant a", 1))
    for other in [(), ("tenant b", 1), ("tenant a", 2), ("tenant a", "1"), ("tenant a",), ("tenant a", True)]:
        assert prefix.match(list(range(9)), other) == []
    assert len(prefix.match(list(range(9)), ("tenant a", 1))) == 2


def test_a_collision_is_a_miss_and_not_somebody_elses_text():
    """T17, vLLM #12621, openvino.genai #3722: every hash is equal here."""
    pool = BlockPool(20, 4)
    prefix = HashPrefix(pool, key=lambda parent, tokens, extra: b"the same")
    remember(prefix, pool, [1, 2, 3, 4])
    assert prefix.match([5, 6, 7, 8, 9]) == []
    remember(prefix, pool, [5, 6, 7, 8])
    assert prefix.match([5, 6, 7, 8, 9]) == [] and len(prefix.match([1, 2, 3, 4, 9])) == 1
    assert prefix.match([1, 2, 3, 4, 1, 2, 3, 4, 9]) != prefix.blocks() * 2, "no chain through itself"


def test_no_two_inputs_spell_the_same_bytes():
    keys = {
        chain_key(parent, tokens, extra)
        for parent in (b"", b"\x00", b"ab")
        for tokens in ((1, 2), (12,), (1,), (2,), (258,))
        for extra in ((), ("a",), ("a", ""), ("", "a"), ("1",), (1,))
    }
    assert len(keys) == 3 * 5 * 6


def test_the_least_recently_used_leaf_goes_first_and_parents_stay(kind):
    pool = BlockPool(20, 2)
    prefix = kind(pool)
    trunk, old, new = [1, 1], [1, 1, 2, 2], [1, 1, 3, 3]
    remember(prefix, pool, old)
    remember(prefix, pool, new)
    pool.release(prefix.match([*old, 9]))  # old is the newer one now
    assert prefix.evict(1) == 1
    assert len(prefix.match([*new, 9])) == 1 and len(prefix.match([*old, 9])) == 2
    assert len(prefix.match([*trunk, 9])) == 1


def test_blocks_that_a_sequence_reads_are_not_evicted(kind):
    pool = BlockPool(20, 2)
    prefix = kind(pool)
    remember(prefix, pool, [1, 1, 2, 2, 3, 3])
    reading = prefix.match([1, 1, 2, 2, 9])
    assert prefix.evict(99) == 1, "only the third block is free to go"
    assert len(prefix.match([1, 1, 2, 2, 9])) == 2
    pool.release(reading * 2)
    assert prefix.evict(99) == 2
    pool.audit([])


def test_what_can_be_evicted_is_counted_and_not_walked(kind):
    """The engine asks after each step; a walk over 16,384 blocks took 3 ms. The books are compared with the walk."""
    pool, draw = BlockPool(60, 2), random.Random(3)
    prefix, tables = kind(pool), []
    most = 0
    for _ in range(400):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 12))]
        held = prefix.match(tokens)
        missing = -(-len(tokens) // 2) - len(held)
        prefix.evict(max(0, missing - pool.num_free))
        if missing > pool.num_free:
            pool.release(held)
            pool.release(tables.pop(draw.randrange(len(tables))))
            continue
        table = held + pool.allocate(missing)
        prefix.insert(tokens, table)
        tables.append(table)
        if draw.random() < 0.6:
            pool.release(tables.pop(draw.randrange(len(tables))))
        assert prefix.num_evictable() == sum(pool.refs(b) == 1 for b in prefix.blocks())
        pool.audit([*tables, prefix.blocks()])
        most = max(most, prefix.num_evictable())
    assert most > 10
    for table in tables:
        pool.release(table)
    assert prefix.num_evictable() == len(prefix.blocks()) == prefix.evict(60) and prefix.num_evictable() == 0


def test_a_tenant_whose_key_collides_with_anothers_gets_nothing_of_theirs():
    """`extra` is part of the key, and compared again beside it: a hash without it must not leak to other tenants."""
    pool = BlockPool(20, 4)
    prefix = HashPrefix(pool, key=lambda parent, tokens, extra: chain_key(parent, tokens, ()))
    remember(prefix, pool, list(range(8)), ("tenant a",))
    assert prefix.match(list(range(9)), ("tenant b",)) == [] and prefix.match(list(range(9))) == []
    assert len(prefix.match(list(range(9)), ("tenant a",))) == 2


def test_a_branch_in_the_middle_of_a_run(kind):
    """The radix tree splits a node at a page; both branches and the common part are found."""
    pool = BlockPool(30, 2)
    prefix = kind(pool)
    one = remember(prefix, pool, [1, 1, 2, 2, 3, 3, 4, 4])
    two = remember(prefix, pool, [1, 1, 2, 2, 7, 7, 8, 8])
    three = remember(prefix, pool, [1, 1, 6, 6])
    assert prefix.match([1, 1, 2, 2, 3, 3, 4, 4, 9]) == one
    assert prefix.match([1, 1, 2, 2, 7, 7, 8, 8, 9]) == one[:2] + two[2:]
    assert prefix.match([1, 1, 6, 6, 9]) == one[:1] + three[1:]
    assert sorted(prefix.blocks()) == sorted(one + two[2:] + three[1:])


def test_hash_and_radix_find_the_same_on_a_random_workload():
    """Without eviction the two answer every question alike."""
    draw = random.Random(1)
    pools = [BlockPool(5000, 3) for _ in KINDS]
    both = [kind(pool) for kind, pool in zip(KINDS, pools, strict=True)]
    for _ in range(600):
        tokens = [draw.randrange(2) for _ in range(draw.randrange(1, 25))]
        found = []
        for prefix, pool in zip(both, pools, strict=True):
            blocks = prefix.match(tokens)
            found.append(len(blocks))
            blocks += pool.allocate(-(-len(tokens) // 3) - len(blocks))
            prefix.insert(tokens, blocks)
            pool.release(blocks)
            pool.audit([prefix.blocks()])
        assert found[0] == found[1]
    assert both[0].hits == both[1].hits > 0 and both[0].queries == both[1].queries


def test_generation_with_a_prefix_cache_equals_generation_without(kind):
    """Ten turns of a chat: every turn finds the turns before it, answers included, and says the same."""
    model = tiny_llama(torch.float64, max_positions=200)
    store = BlockStore.for_model(model, 60, 4)
    store.prefix = kind(store.pool)
    talk = [5, 9, 2, 7, 1, 3]
    for turn in range(10):
        (plain,) = generate(model, [talk], 5, eos_ids=())
        with store.rows(1) as cache:
            (fast,) = generate(model, [talk], 5, eos_ids=(), cache=cache)
        assert fast.tokens == plain.tokens
        # all blocks of the turn before: its prompt, and its answer but for the last token, which never ran
        known = 0 if turn == 0 else (len(talk) - 3 - 1) // 4 * 4
        assert fast.num_cached_tokens == min(known, (len(talk) - 1) // 4 * 4)
        talk += [*fast.tokens, turn, 40 + turn, 8]
        store.audit()
    assert store.pool.num_free == 60 - len(store.prefix.blocks())


def test_two_rows_with_the_same_new_prompt_in_one_step(kind):
    """T15, mini-sglang #142, nano-vllm #219: both are right, and no free block stands in a table."""
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 20, 4)
    store.prefix = kind(store.pool)
    prompt = [5, 9, 2, 7, 1, 3, 8, 30, 12]
    (alone,) = generate(model, [prompt], 6, eos_ids=())
    for _ in range(2):
        with store.rows(2) as cache:
            twice = generate(model, [prompt, prompt], 6, eos_ids=(), cache=cache)
            store.audit()
        assert [r.tokens for r in twice] == [alone.tokens] * 2
    assert twice[0].num_cached_tokens == 8
    store.audit()


def test_a_full_pool_forgets_prefixes_before_it_refuses(kind):
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 6, 4)
    store.prefix = kind(store.pool)
    for first in range(5):
        prompt = [first, 9, 2, 7, 1, 3, 8, 30, 12]
        with store.rows(1) as cache:
            (result,) = generate(model, [prompt], 6, eos_ids=(), cache=cache)
        assert result.tokens == generate(model, [prompt], 6, eos_ids=())[0].tokens
        store.audit()


def test_what_was_computed_twice_is_read_from_one_copy(kind):
    """Two sequences ran the same eight tokens side by side. Without the exchange the second's next block would hang
    below a block that only the first held: freed with it, it could never be evicted and the pool would shrink."""
    pool = BlockPool(6, 4)
    prefix = kind(pool)
    first, second = pool.allocate(2), pool.allocate(3)
    prefix.insert(list(range(8)), first)
    prefix.insert([*range(8), 9, 9, 9, 9], second)
    assert second[:2] == first and pool.num_free == 6 - 3
    pool.audit([first, second, prefix.blocks()])
    pool.release(first)
    assert prefix.num_evictable() == 0 and prefix.evict(9) == 0
    pool.release(second)
    assert prefix.num_evictable() == 3 and prefix.evict(9) == 3


def held_by(kind, salts=2_000):
    """A prefix cache behind a pool of 12 blocks, through which one sequence each of so many salts has passed."""
    pool = BlockPool(12, 4)
    prefix = kind(pool)
    for salt in range(salts):
        table = allocate(pool, prefix, 3)
        prefix.insert(list(range(12)), table, (f"salt {salt}",))
        pool.release(table)
    return prefix


def test_salts_that_were_used_once_leave_nothing_behind(kind):
    """One root stayed for each salt, and every eviction looked at all of them: a step grew from 8 to 16 ms in 4,000."""
    few, many = held_by(kind, 10), held_by(kind)
    sizes = [
        {name: len(part) for name, part in vars(prefix).items() if isinstance(part, dict)}
        for prefix in (few, many)
    ]
    assert sizes[0] == sizes[1] and sum(sizes[1].values()) <= 12
    assert len(many.blocks()) == 12 == many.num_evictable()
    many.evict(12)
    assert not many.blocks() and not any(part for part in vars(many).values() if isinstance(part, dict))
    many.pool.audit([])


def test_a_tree_that_somebody_reads_stays_and_one_that_is_asked_for_in_vain_never_was():
    pool = BlockPool(12, 4)
    prefix = RadixPrefix(pool)
    for name in ("read", "idle"):
        remember(prefix, pool, list(range(8)), (name,))
    reading = prefix.match(list(range(9)), ("read",))
    assert not prefix.match(list(range(9)), ("nobody",)) and prefix.evict(12) == 2
    assert [key[0][1] for key in prefix._roots] == ["read"]
    pool.release(reading)
    assert prefix.evict(12) == 2 and not prefix._roots
    remember(prefix, pool, list(range(8)), ("idle",))
    assert len(prefix.match(list(range(9)), ("idle",))) == 2


@pytest.mark.parametrize(
    "extra", [([],), ({},), (float("nan"),), (1.5,), (("a", 1),), (object(),), "tenant", 7, None, {"a"}]
)
def test_an_extra_that_cannot_be_compared_is_refused_and_changes_nothing(kind, extra):
    """`([],)` was found out inside a step, where it ended the engine; (1,) and (True,) within a part would be equal."""
    pool = BlockPool(12, 4)
    prefix = kind(pool)
    remember(prefix, pool, list(range(8)), ("a",))
    table = pool.allocate(2)
    before = prefix.blocks(), prefix.queries, prefix.hits, pool.num_free
    with pytest.raises(ValueError, match="extra"):
        prefix.match(list(range(9)), extra)
    with pytest.raises(ValueError, match="extra"):
        prefix.insert(list(range(8)), table, extra)
    assert (prefix.blocks(), prefix.queries, prefix.hits, pool.num_free) == before
    pool.audit([table, prefix.blocks()])


@pytest.mark.parametrize("extra", [("\ud800",), (10**5000,), (b"\xff",), (None,), (-1,), ("",)])
def test_an_odd_extra_is_an_extra(kind, extra):
    pool = BlockPool(12, 4)
    prefix = kind(pool)
    remember(prefix, pool, list(range(8)), extra)
    assert len(prefix.match(list(range(9)), extra)) == 2
    assert not prefix.match(list(range(9)), ("another",))
