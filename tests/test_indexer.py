"""The lightning indexer against transformers', what it is taught, and the look into a forward that teaches it."""

from __future__ import annotations

import pytest
import torch

from lumen.attention import attention
from lumen.attention.sparse import recall as rc
from lumen.attention.sparse.blocks import slots_of
from lumen.attention.sparse.dsa import dsa_tokens, index_scores
from lumen.cache import DynamicCache
from lumen.models.indexer import Indexer
from lumen.models.observe import observe
from lumen.parts import LinearLayers
from lumen.train.indexer import Recipe, lessons_of, loss_of, new_indexers, texts_of, train

from .tiny import relative_error, tiny_gpt, tiny_llama


def test_it_points_where_hugging_face_s_points():
    """Same weights, partial RoPE, LayerNorm on the keys: the same tokens, and the scores behind them."""
    from transformers import DeepseekV32Config
    from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer

    torch.manual_seed(0)
    config = DeepseekV32Config(
        hidden_size=24, index_n_heads=3, index_head_dim=12, index_topk=6, qk_rope_head_dim=8, q_lora_rank=24
    )
    theirs = DeepseekV32Indexer(config, 0).eval().requires_grad_(False)
    ours = Indexer(24, 3, 12).requires_grad_(False)
    for name, weight in (
        ("q", theirs.wq_b),
        ("k", theirs.wk),
        ("k_norm", theirs.k_norm),
        ("w", theirs.weights_proj),
    ):
        getattr(ours, name).load_state_dict(weight.state_dict())
    x, pos = torch.randn(2, 40, 24), torch.arange(40)
    angles = pos[:, None] * 10000.0 ** (-torch.arange(4) / 4)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    future = torch.ones(40, 40, dtype=torch.bool).tril().expand(2, -1, -1)
    wanted = theirs(x, x, (cos.expand(2, -1, -1), sin.expand(2, -1, -1)), future, pos.expand(2, -1))
    signed = torch.cat([-sin[:, :4], sin[:, 4:]], -1)
    index = ours(x, (cos, signed))
    chosen = dsa_tokens(*index, pos.expand(2, -1), slots_of(pos.expand(2, -1), 1), 6)[:, 0]
    scores = index_scores(*index)
    assert torch.allclose(index[2], theirs.weights_proj(x) * 3**-0.5 * 12**-0.5), "both scales"
    for t in range(6, 40):
        for row in range(2):
            ours_, theirs_ = scores[row, t, chosen[row, t]], scores[row, t, wanted[row, t].long()]
            assert torch.allclose(ours_.sort().values, theirs_.sort().values, atol=1e-6)


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gpt()])
def test_what_is_observed_is_what_a_cache_is_given_and_makes_the_layer_s_output(model):
    tokens = torch.randint(model.config.vocab_size, (2, 11), generator=torch.Generator().manual_seed(0))
    pos = torch.arange(11).expand(2, -1).clone()
    pos[1] = torch.tensor([-1, -1, *range(9)])
    cache = DynamicCache.for_model(model, 2)
    model(tokens, pos, cache)
    real = (pos >= 0)[:, None, :, None]
    for layer, given in observe(model, tokens, range(model.config.num_layers), pos).items():
        assert torch.allclose(given.k * real, cache.k[layer] * real, atol=1e-5)
        assert torch.allclose(given.v * real, cache.v[layer] * real, atol=1e-5)
        y = attention(given.q, given.k, given.v, pos, pos)
        block = model.blocks[layer]
        before = model.stretch(model.embedded(tokens, pos), pos, None, 0, layer)
        after = before + block.attn.out(y.transpose(1, 2).flatten(2))
        after = after + block.mlp(block.mlp_norm(after).flatten(0, 1), _pass(model, pos), layer).view_as(
            after
        )
        wanted = model.stretch(model.embedded(tokens, pos), pos, None, 0, layer + 1)
        kept = (pos >= 0)[..., None]
        assert relative_error(after * kept, wanted * kept) < 1e-5
        assert relative_error(given.x * kept, block.attn_norm(before) * kept) < 1e-5


def _pass(model, pos):
    from lumen.cache import NoCache
    from lumen.models.passing import PLAIN, Pass

    return Pass(pos, NoCache(), model.turns(pos), PLAIN)


@pytest.mark.parametrize(
    "model",
    [tiny_llama(kv_from=(0, 0, 2)), tiny_llama(linear=LinearLayers((1,), "gated_delta", 3, 8, 8))],
)
def test_only_layers_with_keys_of_their_own_are_observed(model):
    """Layer 1 reads another's keys, or carries a state: it runs, and cannot be looked into."""
    tokens = torch.ones(1, 3, dtype=torch.int64)
    assert set(observe(model, tokens, (0, 2))) == {0, 2} and observe(model, tokens, ()) == {}
    for layer in (1, 3, -1):
        with pytest.raises(ValueError, match="cannot be observed"):
            observe(model, tokens, (layer,))


def test_training_draws_the_indexer_to_attention():
    """A few steps on a tiny model of random weights: nearer on what it was shown, and it catches more of the weight."""
    model = tiny_llama()
    recipe = Recipe(layers=(1, 2), texts=2, length=48, queries=32, steps=60, lr=1e-2, heads=4, dim=8)
    texts = texts_of(torch.randint(97, (96,), generator=torch.Generator().manual_seed(0)).tolist(), recipe)
    trained, fresh = train(model, texts, recipe), new_indexers(model, recipe)
    for layer, one in lessons_of(model, texts[0], recipe.layers).items():
        given = one.given
        weights = rc.weights_of(given.q, given.k, given.pos, given.pos)
        with torch.no_grad():
            assert float(loss_of(trained[layer], one)) < 0.7 * float(loss_of(fresh[layer], one))
            after, before = (
                rc.caught(
                    weights, rc.by_index(*some[layer](given.x, one.turn), given.pos, given.pos, 8)
                ).mass.mean()
                for some in (trained, fresh)
            )
            assert after > before + 0.05
    with pytest.raises(ValueError, match="need 96"):
        texts_of([1] * 95, recipe)
