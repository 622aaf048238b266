"""Fewer key/value heads: equal where nothing can be lost, the means where something is, and transformers reads them."""

from __future__ import annotations

import copy

import pytest
import torch

from lumen.cache import DynamicCache, StaticCache
from lumen.cache.base import NoCache
from lumen.cost import kv_bytes_per_token
from lumen.io.hf_config import to_hf
from lumen.models import GPTlite, Llama
from lumen.models.fewer_heads import check_groups, fewer_kv_heads, first, fresh, mean
from lumen.models.surgery import rebuilt, split_heads, stored_projections
from lumen.models.weights import to_hf_state
from lumen.parts import Latent

from .tiny import relative_error, tiny_gpt, tiny_llama

KINDS = {
    "llama 9/3": lambda **more: tiny_llama(torch.float64, **more),
    "llama 9/9, untied, biases": lambda **more: tiny_llama(
        torch.float64, num_kv_heads=9, tied=False, qkv_bias=True, family="qwen2", **more
    ),
    "llama 12/6, norms of heads": lambda **more: tiny_llama(
        torch.float64, num_heads=12, num_kv_heads=6, qk_norm=True, family="qwen3", **more
    ),
    "gptlite": lambda **more: tiny_gpt(torch.float64, **more),
}
TOKENS = torch.randint(0, 61, (2, 23), generator=torch.Generator().manual_seed(1))


class Listening(NoCache):
    """No cache, but the keys and values that each layer would have stored."""

    def __init__(self):
        self.stored = {}

    def update(self, layer, k, v, pos, q=None):
        self.stored[layer] = k, v
        return super().update(layer, k, v, pos, q)


@pytest.fixture(params=KINDS)
def model(request):
    return KINDS[request.param]()


@pytest.mark.parametrize("merge", [mean, first])
def test_as_many_heads_as_before_is_the_model_itself(model, merge):
    same = fewer_kv_heads(model, model.config.num_kv_heads, merge)
    assert same.config == model.config
    old, new = model.state_dict(), same.state_dict()
    assert old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)
    assert torch.equal(same(TOKENS), model(TOKENS))


@pytest.mark.parametrize("heads, kept, members", [(9, 3, 3), (8, 2, 4), (6, 1, 6)])
def test_equal_heads_merge_without_a_loss(heads, kept, members):
    """Every kept head repeated: the cache is `members` times as large and holds nothing more."""
    small = tiny_llama(torch.float64, num_heads=heads, num_kv_heads=kept, qkv_bias=True, family="qwen2")
    wide = small.config.with_(num_kv_heads=heads)
    repeated = {}
    for _, weight in stored_projections(small.config):
        parts = split_heads(small.config, small.get_parameter(weight.name))
        q, k, v = parts[0], *(part.repeat_interleave(members, 0) for part in parts[1:])
        repeated[weight.name] = torch.cat([q, k, v]).flatten(0, 1)
    large = rebuilt(small, wide, repeated)
    assert relative_error(large(TOKENS), small(TOKENS)) < 1e-13, "the same function with a larger cache"
    again = fewer_kv_heads(large, kept)
    assert relative_error(again(TOKENS), small(TOKENS)) < 1e-13
    assert torch.equal(fewer_kv_heads(large, kept, first)(TOKENS), small(TOKENS))


def test_the_cache_holds_the_means_of_what_it_held(model):
    """RoPE and the bias go through the mean; only a norm of each key does not, and then the values show it."""
    before, after = Listening(), Listening()
    pos = torch.arange(23) + torch.tensor([[4], [-3]])  # not from 0, and padding on the left
    pos = torch.where(pos < 0, -1, pos)
    count = {3: 1, 9: 3, 6: 2, 4: 2}[model.config.num_kv_heads]
    model(TOKENS, pos, before)
    fewer_kv_heads(model, count)(TOKENS, pos, after)
    for old, new in list(zip(before.stored[0], after.stored[0], strict=True))[model.config.qk_norm :]:
        assert new.shape[1] == count
        expected = torch.stack([group.mean(1) for group in old.chunk(count, 1)], 1)
        assert relative_error(new, expected) < 1e-14


def test_every_new_head_is_made_of_its_own_queries_heads():
    """Head by head over the published names, in a loop that knows nothing of how ours are stacked."""
    model = tiny_llama(torch.float64, num_heads=12, num_kv_heads=6, qkv_bias=True, family="qwen2")
    old, new = to_hf_state(model), to_hf_state(fewer_kv_heads(model, 2))
    for layer in range(3):
        for name in ("k_proj.weight", "v_proj.weight", "k_proj.bias", "v_proj.bias"):
            name = f"model.layers.{layer}.self_attn.{name}"
            heads = [old[name][8 * h : 8 * h + 8] for h in range(6)]
            for made, members in ((0, heads[:3]), (1, heads[3:])):
                assert torch.allclose(new[name][8 * made : 8 * made + 8], sum(members) / 3, atol=1e-15)
    untouched = [name for name in old if "k_proj" not in name and "v_proj" not in name]
    assert len(untouched) > 20 and all(torch.equal(old[name], new[name]) for name in untouched)


@pytest.mark.parametrize("kind, family", [("Llama", "llama"), ("Qwen2", "qwen2"), ("Qwen3", "qwen3")])
@pytest.mark.parametrize("kept", [1, 2])
def test_transformers_computes_the_same_with_the_converted_weights(kind, family, kept):
    import transformers

    options = {"family": family, "qkv_bias": family == "qwen2", "qk_norm": family == "qwen3"}
    model = tiny_llama(torch.float64, num_heads=12, num_kv_heads=6, **options)
    ours = fewer_kv_heads(model, kept)
    theirs = getattr(transformers, f"{kind}ForCausalLM")
    described = theirs.config_class.from_dict(to_hf(ours.config))
    assert described.num_key_value_heads == kept
    state = {name: value.float() for name, value in to_hf_state(ours).items()}
    reference = theirs.from_pretrained(None, config=described, state_dict=state).eval()
    with torch.no_grad():
        expected = reference(TOKENS).logits
    assert relative_error(ours.float()(TOKENS), expected) < 2e-5


@pytest.mark.parametrize("kind", [DynamicCache, StaticCache])
def test_the_cache_shrinks_by_the_same_factor_and_decodes_the_same(kind):
    model = tiny_llama(torch.float64, num_heads=9, num_kv_heads=9)
    small = fewer_kv_heads(model, 3)

    def filled(of):
        cache = kind.for_model(of, 2, 23) if kind is StaticCache else kind.for_model(of, 2)
        logits = torch.cat([of(part, None, cache) for part in TOKENS.split([7, 1, 13, 1, 1], 1)], 1)
        return cache, logits

    (large_cache, _), (cache, logits) = filled(model), filled(small)
    assert relative_error(logits, small(TOKENS)) < 1e-12
    assert large_cache.nbytes == 3 * cache.nbytes
    if kind is StaticCache:
        assert cache.nbytes == 2 * (23 + 1) * kv_bytes_per_token(small.config, "fp64")


def test_a_fresh_start_is_drawn_once_and_as_wide_as_what_it_replaces():
    model = tiny_llama(torch.float64, num_heads=16, num_kv_heads=16, hidden_size=96)
    one, two = (fewer_kv_heads(model, 4, fresh(7)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    q, k, v = split_heads(model.config.with_(num_kv_heads=4), one["blocks.0.attn.qkv.weight"])
    old = split_heads(model.config, model.blocks[0].attn.qkv.weight)
    assert torch.equal(q, old[0]) and not torch.equal(k, v)
    for drawn, members in (
        (k, old[1]),
        (v, old[2]),
    ):  # 3,072 numbers: a deviation is 1.3 % off; five of those, 6e-7
        assert abs(float(drawn.std() / members.std()) - 1) < 0.065
        assert abs(float(torch.corrcoef(torch.stack([drawn.flatten(), members[::4].flatten()]))[0, 1])) < 0.1


def test_the_original_is_left_as_it_is_and_shares_nothing():
    model = tiny_gpt().requires_grad_(True).train()
    before = copy.deepcopy(model.state_dict())
    dice = torch.random.get_rng_state()
    made = fewer_kv_heads(model, 2)
    assert torch.equal(dice, torch.random.get_rng_state())
    assert isinstance(made, GPTlite) and made.training and made.embed.weight.requires_grad
    assert made.lm_head.weight is made.embed.weight
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    half = fewer_kv_heads(tiny_llama(torch.bfloat16), 1)
    assert half.embed.weight.dtype == torch.bfloat16 and half.rope_cos.dtype == torch.float32
    assert isinstance(half, Llama) and not half.training and not half.embed.weight.requires_grad


@pytest.mark.parametrize("count", [0, -1, 2, 4, True, 1.5, "3"])
def test_heads_that_cannot_be_grouped_are_refused(count):
    with pytest.raises(ValueError, match=r"3 key/value heads of tiny-llama .*choose one of 1, 3"):
        fewer_kv_heads(tiny_llama(), count)


def test_latent_attention_has_no_heads_to_merge():
    with pytest.raises(ValueError, match="one latent serves all heads"):
        check_groups(tiny_llama().config.with_(latent=Latent(8, 4)), 1)


def test_a_model_is_not_rebuilt_from_what_does_not_fit():
    model = tiny_llama()
    with pytest.raises(
        ValueError, match=r"tiny-llama needs blocks\.0\.attn\.qkv\.weight \(88, 72\); \(120, 72\) was"
    ):
        rebuilt(model, model.config.with_(num_kv_heads=1), {})
    with pytest.raises(ValueError, match=r"needs blocks\.0\.attn\.qkv\.bias \(120,\); nothing was carried"):
        rebuilt(model, model.config.with_(qkv_bias=True), {})
