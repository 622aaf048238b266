"""The families that people bring, each equal to transformers' own implementation on random small weights.

Every model is written by transformers as it would be published and read by our loader: names, stacking and options are
tested with the arithmetic. Head sizes are not hidden / heads, lengths are odd, positions pass the length that a scaled
RoPE was trained on.
"""

from __future__ import annotations

import json

import pytest
import torch

from lumen.cache import DynamicCache, StaticCache, trained_windows
from lumen.io import safetensors
from lumen.io.errors import BadFile
from lumen.io.hf_config import from_hf, to_hf
from lumen.models import Llama
from lumen.models.weights import load_hf_state, to_hf_state
from lumen.parts import Latent

from .tiny import relative_error

CLOSE = 2e-5  # both keep their rotary tables in fp32; transformers multiplies positions in fp32 too
LENGTH = 131  # tokens; scaled RoPE was trained on 32
SIZES = {
    "vocab_size": 101, "hidden_size": 72, "intermediate_size": 50, "num_hidden_layers": 3, "num_attention_heads": 9,
    "num_key_value_heads": 3, "head_dim": 10, "max_position_embeddings": 256, "initializer_range": 0.2,
    "pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 4.0, "original_max_position_embeddings": 32}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2, "rope_parameters": PLAIN}
QWEN_MOE = {"num_experts": 5, "num_experts_per_tok": 3, "moe_intermediate_size": 22, "rope_parameters": PLAIN}
GEMMA = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 7,
         "query_pre_attn_scalar": 10,
         "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}}  # fmt: skip
DEEPSEEK = {"num_key_value_heads": 9, "kv_lora_rank": 21, "q_lora_rank": 17, "qk_nope_head_dim": 7,
            "qk_rope_head_dim": 6, "v_head_dim": 5, "head_dim": 6, "first_k_dense_replace": 3,
            "rope_parameters": PLAIN}  # fmt: skip
FAMILIES = {
    "llama 2": ("Llama", {"rope_parameters": PLAIN}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA3}),
    "llama 3.2": ("Llama", {"rope_parameters": LLAMA3 | {"factor": 32.0}, "tie_word_embeddings": True}),
    "linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "yarn, said in full": ("Llama", {"rope_parameters": YARN | {
        "attention_factor": 1.3, "beta_fast": 20.0, "beta_slow": 2.0, "truncate": False}}),
    "yarn, two mscales": ("Llama", {"rope_parameters": YARN | {"mscale": 1.2, "mscale_all_dim": 0.7}}),
    "mistral": ("Mistral", {"sliding_window": 13, "rope_parameters": PLAIN}),
    "mistral without a window": ("Mistral", {"sliding_window": None, "num_attention_heads": 4,
                                             "num_key_value_heads": 1, "rope_parameters": PLAIN}),
    "qwen 2": ("Qwen2", {"rope_parameters": PLAIN, "use_sliding_window": False}),
    "qwen 2.5": ("Qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen 2, upper layers windowed": ("Qwen2", {"use_sliding_window": True, "sliding_window": 5,
                                                "max_window_layers": 1, "rope_parameters": PLAIN}),
    "qwen 3": ("Qwen3", {"rope_parameters": PLAIN, "head_dim": 16}),
    "qwen 3, tied": ("Qwen3", {"rope_parameters": YARN, "tie_word_embeddings": True, "num_key_value_heads": 9}),
    "gemma 3": ("Gemma3Text", GEMMA),
    "gemma 3, another scale": ("Gemma3Text", GEMMA | {"query_pre_attn_scalar": 17}),
    "mixtral": ("Mixtral", MIXTRAL),
    "mixtral, windowed": ("Mixtral", MIXTRAL | {"sliding_window": 6, "num_experts_per_tok": 1}),
    "qwen 3 moe": ("Qwen3Moe", QWEN_MOE | {"norm_topk_prob": True}),
    "qwen 3 moe, not normalised": ("Qwen3Moe", QWEN_MOE | {"norm_topk_prob": False}),
    "deepseek 2": ("DeepseekV2", DEEPSEEK | {"q_lora_rank": None}),
    "deepseek 2, scaled": ("DeepseekV2", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek 3": ("DeepseekV3", DEEPSEEK | {"v_head_dim": 7}),
    "deepseek 3, scaled": ("DeepseekV3", DEEPSEEK | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.4}}),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """transformers' model, and ours made of the files that it writes, both in fp64."""
    import transformers

    kind, options = FAMILIES[request.param]
    torch.manual_seed(3)
    described = getattr(transformers, f"{kind}Config")(**(SIZES | options))
    name = "Gemma3ForCausalLM" if kind == "Gemma3Text" else f"{kind}ForCausalLM"
    theirs = getattr(transformers, name)(described).eval().requires_grad_(False)
    theirs.config._experts_implementation = "eager"  # the grouped product has no fp64
    for parameter in theirs.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)  # norms and biases too are not 1 and 0
    folder = tmp_path_factory.mktemp("model")
    theirs.save_pretrained(folder)
    data = json.loads((folder / "config.json").read_text())
    state = safetensors.read_folder(folder)
    config = from_hf(data, request.param).with_(tied=safetensors.is_tied(state))
    ours = load_hf_state(Llama(config).double(), state).eval().requires_grad_(False)
    return theirs.double(), ours, state


def some_tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(0, 101, (rows, length), generator=torch.Generator().manual_seed(5))


def test_logits_equal_transformers(family):
    theirs, ours, _ = family
    tokens = some_tokens(2, LENGTH)
    assert relative_error(ours(tokens), theirs(tokens).logits) < CLOSE


def test_left_padding_equals_transformers(family):
    theirs, ours, _ = family
    tokens = some_tokens(3, 41)
    pads = torch.tensor([0, 17, 40])
    pos = torch.arange(41) - pads[:, None]
    seen = pos >= 0
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=seen.long(), position_ids=pos.clamp(min=0)).logits
    got = ours(tokens, pos.masked_fill(~seen, -1))
    assert relative_error(got[seen], expected[seen]) < CLOSE


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_cache_in_awkward_chunks_equals_the_forward_without(family, kind):
    _, ours, _ = family
    tokens = some_tokens(2, LENGTH)
    cache = DynamicCache.for_model(ours, 2) if kind == "dynamic" else StaticCache.for_model(ours, 2, LENGTH)
    parts = [ours(part, None, cache) for part in tokens.split([1, 6, 57, 1, 64, 2], 1)]
    assert relative_error(torch.cat(parts, 1), ours(tokens)) < 1e-9


def test_weights_and_configuration_survive_the_way_out_and_back(family):
    theirs, ours, state = family
    back = to_hf_state(ours)
    for name, value in state.items():
        if name != "lm_head.weight" or not ours.config.tied:
            assert torch.allclose(back[name], value.double(), atol=1e-6), name
    again = from_hf(json.loads(json.dumps(to_hf(ours.config))), ours.config.name)
    assert again == ours.config
    kind = type(theirs)
    described = kind.config_class.from_dict(to_hf(ours.config))
    described._experts_implementation = "eager"
    reread = kind.from_pretrained(None, config=described, state_dict={k: v.float() for k, v in back.items()})
    tokens = some_tokens(1, 40)
    with torch.no_grad():
        assert relative_error(reread.double()(tokens).logits, theirs(tokens).logits) < CLOSE


def hub(**changes):
    """A config.json as published before transformers 5: scaling and base stand outside."""
    data = {"model_type": "llama", "rope_theta": 500000.0, "rms_norm_eps": 1e-5, **SIZES, **changes}
    return {key: value for key, value in data.items() if value != "absent"}


def test_configurations_as_they_are_published():
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    config = from_hf(hub(rope_scaling=scaling), "llama")
    assert config.rope_theta == 500000.0 and config.rope_scaling.kind == "llama3"
    assert from_hf(hub(rope_scaling={"type": "linear", "factor": 2.0}), "old").rope_scaling.factor == 2.0
    qwen = from_hf(hub(model_type="qwen2", sliding_window=4096, use_sliding_window=False), "qwen")
    assert qwen.qkv_bias and qwen.window is None
    gemma = from_hf(hub(model_type="gemma3_text", sliding_window=512, rope_local_base_freq=1e4, num_hidden_layers=13,
                        hidden_activation="gelu_pytorch_tanh", rope_theta=1e6), "gemma")  # fmt: skip
    assert gemma.full_layers == (5, 11) and (gemma.rope_theta, gemma.local_theta) == (1e6, 1e4)
    assert from_hf(hub(model_type="qwen3", head_dim=None), "qwen").head_dim == 128


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "phi3"}, "'phi3' model; this course runs llama"),
        ({"model_type": "gemma3"}, "language model alone"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'; .* linear, llama3 and yarn"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}}, "at least 1"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of each head"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"model_type": "gemma3_text", "final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"model_type": "qwen3_moe", **QWEN_MOE, "mlp_only_layers": [1]}, "mlp_only_layers"),
        ({"model_type": "qwen3_moe"}, "num_experts"),
        ({"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 3}, "cannot use 3"),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["odd"] * 3}, "odd"),
        ({"quantization_config": {}}, "quantized"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "first_k_dense_replace": 2}, "DeepSeek's experts"),
        ({"model_type": "deepseek_v2", **DEEPSEEK, "first_k_dense_replace": "absent"}, "DeepSeek's experts"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "rope_interleave": False}, "rope_interleave = False"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "kv_lora_rank": "absent"}, "lacks kv_lora_rank"),
        ({"model_type": "deepseek_v3", **DEEPSEEK, "qk_rope_head_dim": 5}, "even number of rotary"),
        ({"num_hidden_layers": "absent"}, "lacks num_hidden_layers"),
    ],
)  # fmt: skip
def test_what_no_model_here_does_is_refused(changes, words):
    with pytest.raises(BadFile, match=words):
        from_hf(hub(**changes), "x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"qk_norm": True}, "cannot say what x has in qk_norm"),
        ({"window": 4}, "window"),
        ({"kv_from": (0, 0, 2)}, "kv_from"),
        ({"latent": Latent(8, 4)}, "latent"),
        ({"family": "deepseek_v3"}, "without latents"),
        ({"positions": "learned"}, "does not know"),
    ],
)
def test_what_a_config_json_cannot_say_is_not_written(changes, words):
    with pytest.raises(ValueError, match=words):
        to_hf(from_hf(hub(), "x").with_(**changes))


@pytest.mark.parametrize("chunk", [1, 2, 4, 7, LENGTH])
@pytest.mark.parametrize(
    "family", ["mistral", "qwen 2, upper layers windowed", "gemma 3", "mixtral, windowed"], indirect=True
)
def test_rings_of_trained_windows_equal_transformers(family, chunk):
    """T1: what has left a ring was read by nobody; full layers beside keep all."""
    theirs, ours, _ = family
    tokens = some_tokens(2, LENGTH)
    cache = trained_windows(ours, 2, LENGTH)
    parts = [ours(part, None, cache) for part in tokens.split(chunk, 1)]
    assert relative_error(torch.cat(parts, 1), theirs(tokens).logits) < CLOSE
    assert cache.nbytes < StaticCache.for_model(ours, 2, LENGTH).nbytes
