"""What only some kinds do: codes that travel, layers that share, latents that are read expanded."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import BlockStore, Cache, DynamicCache, NoCache, RecurrentCache, StaticCache, Tree
from lumen.decode import pad

from ..tiny import relative_error, tiny_llama
from .kinds import kivi, quantized

PROMPTS = [[5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4], [11, 0], [7, 7, 21, 60, 2, 9]]


def test_a_swapped_int8_row_comes_back_bit_for_bit():
    store = quantized("int8")(tiny_llama(), 6, 4)
    for plane in store.planes:
        plane.copy_(torch.randint(-9, 9, plane.shape))
    content = store.take([4, 1], 7)
    before = [p.clone() for p in store.planes]
    store.put([0, 5], content)
    for plane, old in zip(store.planes, before, strict=True):
        assert torch.equal(plane[:, 0], old[:, 4]) and torch.equal(plane[:, 5, :3], old[:, 1, :3])
        assert torch.equal(plane[:, 5, 3:], old[:, 5, 3:]), "behind the length nothing is written"
    assert content.length == 7
    k, v = store.export([4, 1], 7)
    with pytest.raises(ValueError, match="Keys and values of this model"):
        store.content(k[:2], v)
    store.put([2, 3], store.content(k, v))
    again, _ = store.export([2, 3], 7)
    assert relative_error(again, k) < store.traits.tolerance


@pytest.mark.parametrize(
    "make",
    [
        lambda m: DynamicCache.for_model(m, 3),
        lambda m: StaticCache.for_model(m, 3, 20),
        lambda m: BlockStore.for_model(m, 20, 4).rows(3),
    ],
)
def test_a_layer_may_read_anothers_keys(make):
    """Cross-layer attention: layers 1 and 2 store nothing; chunks equal the forward without a cache."""
    model = tiny_llama(torch.float64, kv_from=(0, 0, 0))
    cache, (tokens, pos) = make(model), pad(PROMPTS)
    parts = [model(t, p, cache) for t, p in zip(tokens.split(4, 1), pos.split(4, 1), strict=True)]
    for row, prompt in enumerate(PROMPTS):
        alone = model(torch.tensor([prompt]))[0]
        assert relative_error(torch.cat(parts, 1)[row, : len(prompt)], alone) < 1e-12
    tree = Tree(cache, [[-1, 0, 0]] * 3)
    logits = model(torch.tensor([[1, 2, 3]] * 3), tree.pos, tree)
    alone = model(torch.tensor([[*PROMPTS[0], 1, 3]]))[0, -1]
    assert relative_error(logits[0, 2], alone) < 1e-12


def test_a_latent_is_stored_and_its_keys_and_values_are_read():
    """MLA, naive and absorbed (T14, at position 0 too): one cached width, other widths of keys and values, a scale."""
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    heads, nope, rope, rank, width = 4, 6, 4, 10, 5
    up_k, up_v, scale = draw(heads, nope, rank), draw(heads, width, rank), (nope + rope) ** -0.5
    config = tiny_llama(num_kv_heads=1, head_dim=rank + rope).config
    store = BlockStore(config, 20, 4, torch.float64)
    caches: list[Cache] = [store.rows(2), DynamicCache(config, 2, torch.float64), NoCache()]

    def naive(k, v):
        latent, turned = k.split([rank, rope], 3)
        keys = torch.cat([latent @ up_k.mT, turned.expand(-1, heads, -1, -1)], 3)
        return keys, latent @ up_v.mT

    for start, length in ((0, 1), (1, 4), (5, 3)):
        q, latent, turned = (
            draw(2, heads, length, nope + rope),
            draw(2, 1, length, rank),
            draw(2, 1, length, rope),
        )
        pos = torch.arange(start, start + length).expand(2, -1)
        stored = torch.cat([latent, turned], 3)
        absorbed = torch.cat([q[..., :nope] @ up_k, q[..., nope:]], 3)
        outs = []
        for cache in caches[:2]:
            cache.begin(pos)
            outs.append(cache.attend(0, q, stored, stored, pos, scale=scale, expand=naive))
            latents = cache.attend(
                0, absorbed, None, None, pos, scale=scale, expand=lambda k, v: (k, k[..., :rank])
            )
            outs.append(latents @ up_v.mT)
            cache.advance(pos)
        assert outs[0].shape == (2, heads, length, width)
        assert all(relative_error(out, outs[0]) < 1e-12 for out in outs[1:])


def test_a_state_is_no_cache_of_keys_and_the_other_way_round():
    states, keys = RecurrentCache(1, 2), DynamicCache.for_model(tiny_llama(), 1)
    pos = torch.tensor([[0]])
    states.begin(pos)
    with pytest.raises(NotImplementedError):
        states.update(0, torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), pos)
    for call in (lambda: keys.state(0), lambda: keys.set_state(0, torch.zeros(1))):
        with pytest.raises(NotImplementedError, match="no state"):
            call()
    with pytest.raises(NotImplementedError, match="cannot be read"):
        states.read(0)


@pytest.mark.parametrize("make", [quantized("int8"), kivi("kivi")])
def test_a_tree_over_blocks_of_codes_needs_nothing_of_them(make):
    model = tiny_llama(torch.float64)
    cache = make(model, 20, 4).rows(3)
    model(*pad(PROMPTS), cache)
    tree = Tree(cache, [[-1, 0, 0, 2]] * 3)
    logits = model(torch.tensor([[1, 2, 3, 4]] * 3), tree.pos, tree)
    tree.accept([[0, 2, 3], [0], []])
    assert cache.lengths.tolist() == [14, 3, 6]
    for row, prompt in enumerate(PROMPTS):
        alone = model(torch.tensor([[*prompt, 1, 3, 4]]))[0, -1]
        assert relative_error(logits[row, 3], alone) < cache.traits.tolerance
