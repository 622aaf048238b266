"""Layers that share keys and values: equal where the layers agree, and only what still has a reader is kept."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import DynamicCache, StaticCache
from lumen.cost import kv_bytes_per_token, parameters
from lumen.models.cross_layer import neighbours, share_kv
from lumen.models.fewer_heads import fewer_kv_heads, first, mean
from lumen.models.surgery import split_heads

from .tiny import relative_error, tiny_gpt, tiny_llama

TOKENS = torch.randint(0, 61, (2, 23), generator=torch.Generator().manual_seed(1))
KINDS = {
    "llama": lambda **more: tiny_llama(torch.float64, num_layers=5, **more),
    "llama, biases": lambda **more: tiny_llama(
        torch.float64, num_layers=5, qkv_bias=True, family="qwen2", **more
    ),
    "llama, norms of heads": lambda **more: tiny_llama(
        torch.float64, num_layers=5, qk_norm=True, family="qwen3", **more
    ),
    "gptlite": lambda **more: tiny_gpt(torch.float64, num_layers=5, **more),
}


@pytest.fixture(params=KINDS)
def model(request):
    return KINDS[request.param]()


def test_neighbours_share():
    assert neighbours(6, 1) == (0, 1, 2, 3, 4, 5)
    assert neighbours(6, 2) == (0, 0, 2, 2, 4, 4)
    assert neighbours(5, 3) == (0, 0, 0, 3, 3)
    for factor in (0, -1, 7):
        with pytest.raises(ValueError, match="Of 6 layers"):
            neighbours(6, factor)


@pytest.mark.parametrize("merge", [first, mean])
def test_every_layer_for_itself_is_the_model_itself(model, merge):
    same = share_kv(model, neighbours(5, 1), merge)
    assert same.config == model.config
    assert torch.equal(same(TOKENS), model(TOKENS))


@pytest.mark.parametrize("merge", [first, mean])
def test_layers_that_agree_share_without_a_loss(model, merge):
    """Layer 1 and 2 see what layer 0 sees, because 0 and 1 add nothing, and project it by the same numbers."""
    source = model.blocks[0]
    for layer in (1, 2):
        block = model.blocks[layer]
        block.attn_norm.load_state_dict(source.attn_norm.state_dict())
        if block.attn.k_norm is not None:
            block.attn.k_norm.load_state_dict(source.attn.k_norm.state_dict())
        kept = model.config.num_heads * model.config.head_dim  # queries stay their own
        block.attn.qkv.weight[kept:] = source.attn.qkv.weight[kept:]
        if block.attn.qkv.bias is not None:
            block.attn.qkv.bias[kept:] = source.attn.qkv.bias[kept:]
    for layer in (0, 1):
        for part in (model.blocks[layer].attn.out, model.blocks[layer].mlp.down):
            for parameter in part.parameters():
                parameter.zero_()
    shared = share_kv(model, (0, 0, 0, 3, 4), merge)
    assert relative_error(shared(TOKENS), model(TOKENS)) < 1e-13
    other = share_kv(model, (0, 1, 2, 2, 4), merge)
    assert relative_error(other(TOKENS), model(TOKENS)) > 1e-3, "layers that do not agree lose something"


@pytest.mark.parametrize("merge", [first, mean])
def test_what_is_kept_and_what_is_dropped(model, merge):
    kv_from = (0, 0, 2, 2, 2)
    shared = share_kv(model, kv_from, merge)
    old = [split_heads(model.config, block.attn.qkv.weight) for block in model.blocks]
    for layer, block in enumerate(shared.blocks):
        source, weight = kv_from[layer], block.attn.qkv.weight
        q_rows = model.config.num_heads * model.config.head_dim
        assert torch.equal(weight[:q_rows], old[layer][0].flatten(0, 1))
        if source != layer:
            assert weight.shape[0] == q_rows and block.attn.k_norm is None
            continue
        for kept, part in zip(split_heads(model.config, weight)[1:], (1, 2), strict=True):
            group = [old[i][part] for i in range(5) if kv_from[i] == layer]
            expected = group[0] if merge is first else sum(group) / len(group)
            assert torch.allclose(kept, expected, atol=1e-15)
    assert sum(p.numel() for p in shared.parameters()) == parameters(shared.config).total


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_the_cache_holds_the_storing_layers_alone(model, kind):
    shared = share_kv(model, neighbours(5, 2))
    cache = kind.for_model(shared, 2, 23) if kind is StaticCache else kind.for_model(shared, 2)
    logits = torch.cat([shared(part, None, cache) for part in TOKENS.split([7, 1, 13, 1, 1], 1)], 1)
    assert relative_error(logits, shared(TOKENS)) < 1e-12
    if kind is StaticCache:
        assert cache.nbytes == 2 * (23 + 1) * kv_bytes_per_token(shared.config, "fp64")
    assert kv_bytes_per_token(shared.config) * 5 == kv_bytes_per_token(model.config) * 3


@pytest.mark.parametrize("merge", [first, mean])
def test_fewer_heads_and_shared_layers_in_either_order(merge):
    model = tiny_llama(torch.float64, num_layers=5)
    one = fewer_kv_heads(share_kv(model, neighbours(5, 2), merge), 1, merge)
    two = share_kv(fewer_kv_heads(model, 1, merge), neighbours(5, 2), merge)
    assert one.config.with_(name="") == two.config.with_(name="")
    assert all(
        torch.allclose(a, b, atol=1e-14) for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )


def test_layers_that_share_already_can_share_more():
    model = tiny_llama(torch.float64, num_layers=4)
    twice = share_kv(share_kv(model, (0, 0, 2, 2)), (0, 0, 0, 0))
    once = share_kv(model, (0, 0, 0, 0))
    assert all(torch.equal(a, b) for a, b in zip(once.parameters(), twice.parameters(), strict=True))
    with pytest.raises(ValueError, match=r"Layer 1 of .* reads layer 0 .* the layers 0, 2\."):
        share_kv(share_kv(model, (0, 0, 2, 2)), (0, 1, 2, 2))


@pytest.mark.parametrize("kv_from", [(0, 0), (1, 1, 2), (0, 0, 1)])
def test_maps_that_no_model_has_are_refused(kv_from):
    with pytest.raises(ValueError, match="kv_from names for each of the 3 layers"):
        share_kv(tiny_llama(), kv_from)


def test_layers_that_see_unequally_far_do_not_share():
    model = tiny_llama(window=4, full_layers=(2,))
    share_kv(model, (0, 0, 2))
    with pytest.raises(ValueError, match="Layer 2 of tiny-llama sees everything and layer 0 4 tokens back"):
        share_kv(model, (0, 0, 0))
