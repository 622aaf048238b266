"""Latents made of a trained model: exact where the theory says so, and as good as a rank allows elsewhere."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import BlockStore, StaticCache
from lumen.io.load import load
from lumen.models.describe import weights
from lumen.models.surgery import split_heads
from lumen.models.to_latent import Moments, full_rank, input_moments, latent_config, to_latent
from lumen.parts import Latent, RopeScaling

from .tiny import relative_error, tiny_gpt, tiny_latent, tiny_llama

EXACT = 1e-10
TOKENS = torch.randint(61, (3, 33), generator=torch.Generator().manual_seed(1))
LLAMA3 = RopeScaling("llama3", 8.0, 16, low_freq=1.0, high_freq=4.0)
YARN = RopeScaling("yarn", 4.0, 16)


def cached(model, tokens):
    """Logits through a static and a paged cache: a prompt of 20, then token by token."""
    found = []
    for cache in (StaticCache.for_model(model, 3, 33), BlockStore.for_model(model, 30, 4).rows(3)):
        chunks = [tokens[:, :20], *tokens[:, 20:].split(1, 1)]
        found.append(torch.cat([model(chunk, None, cache) for chunk in chunks], 1))
    return found


@pytest.mark.parametrize("whitened", [False, True])
@pytest.mark.parametrize(
    "shape", [{}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "bias": False}, {"head_dim": 5}]
)
def test_with_learned_positions_nothing_is_lost_at_full_rank(shape, whitened):
    """Biases of q, k, v and the output among it: those of keys fall out, those of values move."""
    model = tiny_gpt(torch.float64, **shape)
    rank = full_rank(model.config)
    moments = input_moments(model, [TOKENS[:2], TOKENS[2:]]) if whitened else None
    made = to_latent(model, rank, moments)
    assert (
        made.config.cache_dims.stored
        == rank
        == min(48, 2 * model.config.num_kv_heads * model.config.head_dim)
    )
    expected = model(TOKENS)
    assert all(relative_error(got, expected) < EXACT for got in (made(TOKENS), *cached(made, TOKENS)))


ROTARY = {
    "9/3": ({}, 3),
    "one key/value head": ({"num_kv_heads": 1}, 1),
    "as many as queries": ({"num_heads": 4, "num_kv_heads": 4, "head_dim": 6}, 4),
    "llama 3": ({"rope_scaling": LLAMA3, "window": 6}, 3),
    "yarn, another scale": ({"rope_scaling": YARN, "query_scale": 0.2}, 3),
}


@pytest.mark.parametrize("shape", ROTARY)
def test_with_rope_nothing_is_lost_with_all_keys_turned_at_full_rank(shape):
    changes, keys = ROTARY[shape]
    model = tiny_llama(torch.float64, **changes)
    made = to_latent(model, full_rank(model.config), input_moments(model, [TOKENS]), keys)
    expected = model(TOKENS)
    assert all(relative_error(got, expected) < EXACT for got in (made(TOKENS), *cached(made, TOKENS)))


@pytest.mark.parametrize(
    "scaling", [RopeScaling("linear", 1e9), RopeScaling("yarn", 1e9, 1, attention_factor=1.3)]
)
@pytest.mark.parametrize("keys", [1, 2])
def test_where_rope_hardly_turns_one_turned_key_is_enough(scaling, keys):
    """What loses its position loses nothing there, YaRN's factor on queries and keys among it. YaRN turns the first
    pair as before, so no query asks for that one here."""
    model = tiny_llama(torch.float64, rope_scaling=scaling)
    for block in model.blocks:
        block.attn.qkv.weight[: 9 * 8].unflatten(0, (9, 2, 4))[:, :, 0] = 0
    made = to_latent(model, full_rank(model.config), None, keys)
    assert relative_error(made(TOKENS), model(TOKENS)) < 1e-5


def test_more_turned_keys_lose_less():
    model, errors = tiny_llama(torch.float64), []
    moments = input_moments(model, [TOKENS])
    for keys in (1, 2, 3):
        errors.append(
            relative_error(to_latent(model, full_rank(model.config), moments, keys)(TOKENS), model(TOKENS))
        )
    assert errors[0] > errors[1] > errors[2] < 1e-6


def keys_and_values(model, x, layer):
    """[k; v] of every head for inputs x (N, D): (N, 2 H head_dim), keys less their bias, which no softmax sees."""
    attn, config = model.blocks[layer].attn, model.config
    if config.latent is None:
        _, k, v = split_heads(config, attn.qkv.weight)
        return torch.cat([x @ k.flatten(0, 1).mT, x @ v.flatten(0, 1).mT], 1)
    _, latent = (x @ attn.down.weight.mT).split([attn.first, attn.rank], 1)
    made = attn.kv_up(latent).unflatten(1, (attn.heads, -1))
    k, v = made.split([attn.head_dim, attn.value_dim], 2)
    return torch.cat([k.flatten(1), v.flatten(1)], 1)


@pytest.mark.parametrize("rank", [1, 7, 31])
def test_a_rank_keeps_as_much_as_any_rank_can(rank):
    """Eckart and Young: what is lost are the singular values behind it, of M alone or of M on the text."""
    model = tiny_gpt(torch.float64, bias=False)
    moments = input_moments(model, [TOKENS])
    layer = 1
    _, k, v = split_heads(model.config, model.blocks[layer].attn.qkv.weight)
    stacked = torch.cat([k, v]).flatten(0, 1)
    _, (before,) = model.features(TOKENS, layers=[0])
    x = model.blocks[layer].attn_norm(before).flatten(0, 1)
    assert relative_error(moments[layer].second, x.mT @ x / len(x)) < EXACT
    lost = {}
    for name, given in (("plain", None), ("whitened", moments)):
        made = to_latent(model, rank, given)
        lost[name] = [
            float((keys_and_values(made, y, layer) - keys_and_values(model, y, layer)).norm() ** 2)
            for y in (torch.eye(48, dtype=torch.float64), x)
        ]
    tail = torch.linalg.svdvals(stacked)[rank:].square().sum()
    assert lost["plain"][0] == pytest.approx(float(tail))
    tail = torch.linalg.svdvals(stacked @ x.mT)[rank:].square().sum()
    assert lost["whitened"][1] == pytest.approx(float(tail), rel=1e-4)
    assert lost["whitened"][1] < lost["plain"][1] and lost["whitened"][0] > lost["plain"][0]


def test_the_mean_of_what_is_left_out_goes_into_the_bias_of_the_output():
    """Attention over equal inputs gives the value itself, and on average it is right at any rank."""
    model = tiny_gpt(torch.float64)
    moments = input_moments(model, [TOKENS])
    made = to_latent(model, 3, moments)
    mean, attn, old = moments[0].mean, made.blocks[0].attn, model.blocks[0].attn
    _, _, v = split_heads(model.config, old.qkv.weight @ mean + old.qkv.bias)
    expected = old.out(v.flatten())
    latent = (attn.down.weight @ mean + attn.down.bias)[attn.first :]
    _, value = attn.kv_up(latent).unflatten(0, (4, -1)).split([12, 12], 1)
    assert relative_error(attn.out(value.flatten()), expected) < EXACT


def test_gptlite_at_full_rank_is_gptlite_with_half_the_cache():
    model, tokenizer = load("gptlite", "cpu", torch.float32)
    made = to_latent(model, 256)
    tokens = torch.tensor([tokenizer.encode("ROMEO: But soft, what light through yonder window breaks?")])
    assert relative_error(made(tokens), model(tokens)) < 1e-5
    assert made.config.cache_dims.stored * 2 == model.config.cache_dims.stored


def test_the_model_itself_is_left_as_it_is():
    model = tiny_gpt()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    made = to_latent(model, 8)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    own = {value.untyped_storage().data_ptr() for value in model.state_dict().values()}
    assert not own & {value.untyped_storage().data_ptr() for value in made.state_dict().values()}
    assert {w.name for w in weights(made.config)} == set(dict(made.named_parameters()))
    assert not made.training and not any(p.requires_grad for p in made.parameters())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: to_latent(tiny_gpt(), 0), "from 1 to 48"),
        (lambda: to_latent(tiny_gpt(), 49), "from 1 to 48"),
        (lambda: to_latent(tiny_llama(), 20, None, 0), "1 to 3 mixed keys"),
        (lambda: to_latent(tiny_llama(), 20, None, 4), "1 to 3 mixed keys"),
        (lambda: to_latent(tiny_latent(), 4), "latent attention already"),
        (lambda: to_latent(tiny_llama(qk_norm=True), 4), "not linear in one input"),
        (lambda: to_latent(tiny_llama(qkv_bias=True), 4), "not linear in one input"),
        (lambda: to_latent(tiny_llama(kv_from=(0, 0, 0)), 4), "not linear in one input"),
        (lambda: to_latent(tiny_gpt(), 4, [Moments(torch.zeros(48), torch.eye(48))]), "moments of 1"),
        (lambda: input_moments(tiny_gpt(), []), "a token at least"),
    ],
)
def test_what_cannot_be_converted_gets_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_names_say_what_was_done():
    assert latent_config(tiny_gpt().config, 12).name == "tiny-gpt-mla12"
    config = latent_config(tiny_llama().config, 12, 2)
    assert (config.name, config.latent) == ("tiny-llama-mla12x2", Latent(12, 16, normed=False, repeats=2))
