"""Both decoders against implementations we did not write: Hugging Face transformers on the same random weights."""

from __future__ import annotations

import copy
import math
import random
from typing import get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lumen.cache import DynamicCache
from lumen.config import Family
from lumen.cost import parameters
from lumen.models import CONFIGS, Llama, ModelConfig, build
from lumen.models.describe import weights
from lumen.models.layers import rope_table
from lumen.models.passing import Pass
from lumen.models.weights import hf_shapes, load_hf_state, to_hf_state
from lumen.parts import Experts, Latent, LinearLayers, RopeScaling, Rule

from .tiny import relative_error, tiny_gpt, tiny_llama


def hf_llama(config: ModelConfig):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads, head_dim=config.head_dim,
            max_position_embeddings=config.max_positions, rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_eps, tie_word_embeddings=config.tied, initializer_range=0.2,
        )
    )  # fmt: skip
    return reference.double().eval().requires_grad_(False)


@pytest.mark.parametrize(
    "heads, kv_heads, head_dim, tied, theta",
    [
        (9, 3, 8, True, 1e5),
        (9, 9, 8, False, 1e4),
        (4, 1, 10, True, 5e5),
        (6, 2, 4, False, 1e4),
        (1, 1, 2, True, 1e4),
    ],
)
def test_llama_equals_hugging_face(heads, kv_heads, head_dim, tied, theta):
    config = ModelConfig(
        "random", 101, 3, 8 * heads, heads, kv_heads, head_dim, 72, 96, tied=tied, rope_theta=theta, norm_eps=1e-5
    )  # fmt: skip
    reference = hf_llama(config)
    model = load_hf_state(Llama(config).double(), reference.state_dict()).eval()
    tokens = torch.randint(0, 101, (2, 37), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        # HF keeps its rotary table in fp32 as we do, so the two differ by fp32 rounding of the same angles
        assert relative_error(model(tokens), reference(tokens).logits) < 1e-6


@pytest.mark.parametrize("heads", [1, 4, 6])
def test_gptlite_equals_hugging_face_opt(heads):
    """OPT is pre-norm, learned positions, ReLU and biases: GPTlite's architecture under other names."""
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(3)
    reference = OPTForCausalLM(
        OPTConfig(
            vocab_size=61, hidden_size=48, num_hidden_layers=2, ffn_dim=80, num_attention_heads=heads,
            max_position_embeddings=48, word_embed_proj_dim=48, dropout=0.0, init_std=0.2,
        )
    ).double().eval().requires_grad_(False)  # fmt: skip
    model = tiny_gpt(torch.float64, num_heads=heads, num_kv_heads=heads, head_dim=48 // heads)
    theirs = reference.model.decoder
    own = model.state_dict()
    own["embed.weight"] = own["lm_head.weight"] = theirs.embed_tokens.weight
    own["positions.weight"] = theirs.embed_positions.weight[2:]  # OPT's table starts two rows late
    own["norm.weight"], own["norm.bias"] = theirs.final_layer_norm.weight, theirs.final_layer_norm.bias
    for i, layer in enumerate(theirs.layers):
        a = layer.self_attn
        for kind in ("weight", "bias"):
            own[f"blocks.{i}.attn.qkv.{kind}"] = torch.cat(
                [getattr(p, kind) for p in (a.q_proj, a.k_proj, a.v_proj)]
            )
            own[f"blocks.{i}.attn.out.{kind}"] = getattr(a.out_proj, kind)
            own[f"blocks.{i}.attn_norm.{kind}"] = getattr(layer.self_attn_layer_norm, kind)
            own[f"blocks.{i}.mlp_norm.{kind}"] = getattr(layer.final_layer_norm, kind)
            own[f"blocks.{i}.mlp.up.{kind}"] = getattr(layer.fc1, kind)
            own[f"blocks.{i}.mlp.down.{kind}"] = getattr(layer.fc2, kind)
    model.load_state_dict(own)
    tokens = torch.randint(0, 61, (2, 48), generator=torch.Generator().manual_seed(4))
    assert relative_error(model(tokens), reference(tokens).logits) < 1e-12


def test_weights_survive_the_round_trip():
    model = tiny_llama(tied=False)
    state = to_hf_state(model)
    assert {k: tuple(v.shape) for k, v in state.items()} == hf_shapes(model.config)
    copy = load_hf_state(Llama(model.config), state)
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.state_dict().values(), copy.state_dict().values(), strict=True)
    )


def test_weights_that_do_not_fit_are_refused_before_anything_is_copied():
    model = tiny_llama()
    before = model.embed.weight.clone()
    state = {k: torch.zeros_like(v) for k, v in to_hf_state(model).items()}
    state.pop("model.layers.1.mlp.up_proj.weight")
    state["model.layers.0.self_attn.k_proj.weight"] = torch.zeros(72, 72)
    with pytest.raises(ValueError, match=r"missing: model\.layers\.1\.mlp\.up_proj.*wrong shape: .*k_proj"):
        load_hf_state(model, state)
    assert torch.equal(model.embed.weight, before)


def test_rope_table_stays_in_fp32_and_is_right_at_position_8191():
    """T12, transformers #29285: bf16 angles are off by whole turns at 8k."""
    config = CONFIGS["smollm2-135m"]
    cos, sin = rope_table(config)
    exact = 8191 * 100000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)
    assert torch.allclose(cos[8191, :32].double(), exact.cos(), atol=1e-7)
    assert torch.allclose(sin[8191, 32:].double(), exact.sin(), atol=1e-7)
    half = tiny_llama(torch.bfloat16)
    assert half.embed.weight.dtype == torch.bfloat16 and half.rope_cos.dtype == torch.float32
    assert torch.equal(half.rope_cos, rope_table(half.config)[0]), (
        "rebuilt, not rounded through bf16 and back"
    )


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_hidden_and_head_make_forward(make):
    model = make()
    tokens = torch.tensor([[5, 0, 9, 4]])
    assert torch.equal(model.head(model.hidden(tokens)), model(tokens))


def test_head_sees_any_selection_of_rows():
    model = tiny_llama()
    hidden = model.hidden(torch.tensor([[5, 6, 7], [1, 2, 3]]))
    picked = model.head(hidden[[1, 0], [2, 0]])
    assert torch.allclose(picked, model.head(hidden)[[1, 0], [2, 0]], atol=1e-5)


AWKWARD_LINEARS = [(7, 24, True), (5, 12, False), (3, 6, True), (4, 9, False), (576, 41, False)]


@pytest.mark.parametrize(("size_in", "size_out", "bias"), AWKWARD_LINEARS)
def test_a_linear_layer_equals_a_plain_product_on_every_path(size_in, size_out, bias, monkeypatch):
    """Tiles of oneDNN in fp32, blocks of output rows where there are none, and in fp64: all compute x Wᵀ + b."""
    from lumen.models import linear

    torch.manual_seed(0)
    for dtype, packs, close in [
        (torch.float32, True, 1e-5),
        (torch.float32, False, 1e-5),
        (torch.float64, True, 1e-12),
    ]:
        monkeypatch.setattr(
            linear, "can_pack", lambda packs=packs: packs and torch.backends.mkldnn.is_available()
        )
        layer = linear.Linear(size_in, size_out, bias=bias).to(dtype).requires_grad_(False)
        for shape in [
            (1, 1, size_in),
            (2, 1, size_in),
            (1, 2, size_in),
            (3, 2, size_in),
            (64, size_in),
            (65, size_in),
            (2, 0, size_in),
        ]:
            x = torch.randn(*shape, dtype=dtype)
            assert torch.allclose(
                layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias), atol=close
            )


def test_a_linear_layer_sees_new_weights_and_still_trains():
    """Packed tiles are a copy: they must follow the weight through writes, loads and replacement."""
    from lumen.models.linear import Linear

    torch.manual_seed(0)
    layer, x = Linear(6, 8, bias=False).requires_grad_(False), torch.randn(2, 6)

    def agrees() -> bool:
        return torch.allclose(layer(x), x @ layer.weight.T, atol=1e-5)

    assert agrees()
    layer.weight.mul_(2)
    assert agrees()
    layer.load_state_dict({"weight": torch.randn(8, 6)})
    assert agrees()
    layer.weight = torch.nn.Parameter(torch.randn(8, 6), requires_grad=False)
    assert agrees()
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    with torch.inference_mode():
        made_inside = Linear(6, 8, bias=False).requires_grad_(False)
        for _ in range(2):
            assert torch.allclose(made_inside(x), x @ made_inside.weight.T, atol=1e-5)
            made_inside.weight.mul_(2)
    layer.requires_grad_(True)
    layer(x).sum().backward()
    assert torch.allclose(layer.weight.grad, x.sum(0).expand(8, -1), atol=1e-5)


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
def test_bad_input_gets_a_sentence_and_changes_nothing(make):
    model = make()
    cache = DynamicCache.for_model(model, 1)
    model(torch.tensor([[1, 2, 3]]), cache=cache)
    size = model.config.max_positions
    for tokens, pos, sentence in [
        ([[model.config.vocab_size]], None, "vocabulary"),
        ([[-1]], None, "vocabulary"),
        ([[1]], [[size]], f"{size - 1}"),
        ([[1, 2]], [[3]], "shape"),
    ]:
        with pytest.raises(ValueError, match=sentence):
            model(torch.tensor(tokens), None if pos is None else torch.tensor(pos), cache)
    with pytest.raises(ValueError, match="T at least 1"):
        model(torch.zeros(1, 0, dtype=torch.int64), cache=cache)
    assert cache.lengths.tolist() == [3] and cache.positions.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"num_heads": 9, "num_kv_heads": 2}, "multiple"),
        ({"head_dim": 7}, "even"),
        ({"num_layers": 0}, "positive"),
        ({"window": 0}, "window"),
        ({"num_layers": 3, "kv_from": (0, 0)}, "each of the 3 layers"),
        ({"num_layers": 3, "kv_from": (1, 1, 2)}, "an earlier layer that stores"),
        ({"num_layers": 3, "kv_from": (0, 0, 1)}, "an earlier layer that stores"),
        ({"rope_scaling": RopeScaling("divisors", divisors=(1.0,))}, "turn 32 pairs; there are 1"),
    ],
)
def test_impossible_shapes_get_a_sentence(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        CONFIGS["smollm2-135m"].with_(**changes)


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: RopeScaling("divisors"), "positive"),
        (lambda: RopeScaling("linear", 0.5), "at least 1"),
        (lambda: RopeScaling("linear", math.nan), "at least 1"),
        (lambda: RopeScaling("yarn", 2.0), "trained on"),
        (lambda: RopeScaling("llama3", 2.0, 32, low_freq=4.0), "below high_freq"),
        (lambda: RopeScaling("yarn", 2.0, 32, beta_slow=32.0), "below beta_fast"),
        (lambda: Experts(4, 5, 8), "cannot use 5"),
        (lambda: Experts(0, 0, 8), "cannot use 0"),
        (lambda: Latent(16, 3), "even"),
    ],
)
def test_impossible_parts_get_a_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_model_refuses_a_configuration_of_the_other_kind():
    with pytest.raises(ValueError, match="GPTlite is"):
        type(tiny_gpt())(CONFIGS["smollm2-135m"])
    with pytest.raises(ValueError, match="Llama is"):
        Llama(CONFIGS["gptlite"])


def test_a_warm_model_has_its_weights_packed():
    from lumen.models import linear

    if not linear.can_pack():
        pytest.skip("this torch has no prepacked linear")
    model = tiny_llama(torch.float32)
    layers = [part for part in model.modules() if isinstance(part, linear.Linear)]
    assert not any(part._tiles is not None for part in layers)
    model.warm_up()
    assert all(part._tiles is not None for part in layers)


def random_config(seed: int) -> ModelConfig:
    """A shape nobody would choose, from every option the description knows."""
    draw = random.Random(seed)
    family = draw.choice(get_args(Family))
    kv_heads, layers, learned = draw.randint(1, 3), draw.randint(1, 4), family == "gptlite"
    moe = family in ("mixtral", "qwen3_moe")
    latent = None
    if draw.random() < 0.3:
        wide, query = draw.choice([None, draw.randint(1, 9)]), draw.choice([None, draw.randint(1, 9)])
        rope = 0 if learned else 2 * draw.randint(1, 3)
        latent = Latent(draw.randint(1, 9), rope, wide, query, draw.random() < 0.5)
    kept = [draw.randint(0, i) for i in range(layers)] if draw.random() < 0.3 and latent is None else []
    return ModelConfig(
        f"random-{family}-{seed}", draw.randint(5, 40), layers, draw.randint(3, 30), kv_heads * draw.randint(1, 3),
        kv_heads, 2 * draw.randint(1, 5), draw.randint(3, 30), 20,
        tied=draw.random() < 0.5, family=family, norm="layer" if learned else "rms",
        positions="learned" if learned else "rope", mlp="relu" if learned else draw.choice(["swiglu", "geglu"]),
        bias=draw.random() < 0.5, qkv_bias=draw.random() < 0.5,
        qk_norm=not learned and latent is None and draw.random() < 0.5, latent=latent,
        post_norms=not learned and draw.random() < 0.5,
        kv_from=tuple(source_of(kept, i) for i in range(layers)) if kept and not learned else (),
        experts=Experts(5, draw.randint(1, 5), draw.randint(2, 9)) if moe else None,
        linear=random_linear(draw, layers) if not kept and draw.random() < 0.4 else None,
    )  # fmt: skip


def random_linear(draw: random.Random, layers: int) -> LinearLayers:
    chosen = sorted(draw.sample(range(layers), draw.randint(1, layers)))
    keys = draw.randint(1, 3)
    return LinearLayers(
        tuple(chosen), draw.choice(get_args(Rule)), keys * draw.randint(1, 2), draw.randint(1, 5), draw.randint(1, 7),
        keys, draw.randint(1, 4),
    )  # fmt: skip


def source_of(kept: list[int], layer: int) -> int:
    """Follow the references until a layer stores its own keys."""
    while kept[layer] != layer:
        layer = kept[layer]
    return layer


@pytest.mark.parametrize("seed", range(60))
def test_the_description_is_the_built_model(seed):
    """Names, shapes and counts of every parameter, for every family."""
    config = random_config(seed)
    own = {name: tuple(p.shape) for name, p in build(config).named_parameters()}
    assert own == {w.name: w.shape for w in weights(config)}, config
    assert sum(math.prod(shape) for shape in own.values()) == parameters(config).total


def test_a_layer_of_a_decode_step_has_fourteen_operators_beside_matrices_and_attention():
    """Norms 2, heads laid out 3, RoPE 3, rows again 1, additions 2, the gate 3: none of them does nothing."""

    class Ready(torch.nn.Module):
        def __init__(self, outputs: int):
            super().__init__()
            self.answer = torch.ones(1, outputs)

        def forward(self, x):
            return self.answer

    class NoAttention:
        def attend(self, layer, q, k, v, pos, window):
            return q

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    block = tiny_llama().blocks[0]
    for home, name in ((block.attn, "qkv"), (block.attn, "out"), (block.mlp, "gate_up"), (block.mlp, "down")):
        setattr(home, name, Ready(getattr(home, name).out_features))
    turn = torch.ones(1, 1, 1, 8), torch.ones(1, 1, 1, 8)
    at = Pass(torch.zeros(1, 1, dtype=torch.int64), NoAttention(), (turn,))
    x = torch.ones(1, 72)
    with torch.inference_mode(), Count() as count:
        block(x, at, 0)
    assert len(count.names) == 14, count.names
