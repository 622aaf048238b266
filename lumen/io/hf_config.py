"""Hugging Face's config.json into a ModelConfig and back.

What a family does differently stands in its options: a bias on q, k and v (Qwen 2), a norm on each head (Qwen 3), norms
behind attention and MLP and two kinds of layers (Gemma 3), experts (Mixtral, Qwen 3 MoE). An option that our model has
no place for is refused with a sentence, before anything is made.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from ..config import LIMITS, Family, ModelConfig
from ..parts import Experts
from . import hf_latent, hf_rope, hf_windows
from .errors import BadFile
from .fields import LONGEST, Fields

FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "mixtral": "mixtral",
    "qwen3_moe": "qwen3_moe",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
}
# (option, the value that our models have); anything else is refused
_PLAIN: tuple[tuple[str, Any], ...] = (
    ("attention_bias", False),
    ("mlp_bias", False),
    ("attn_logit_softcapping", None),
    ("final_logit_softcapping", None),
    ("use_bidirectional_attention", False),
    ("mlp_only_layers", []),
    ("decoder_sparse_step", 1),
    ("partial_rotary_factor", 1.0),
)
_HEAD_DIM = {"qwen3": 128, "gemma3": 256}  # where a config.json without one does not mean hidden_size / heads
MOST_EXPERTS = 2**14  # in a layer
_NOT_SAID = ("name", "source", "tied", "bos_id", "eos_ids")


def from_hf(data: dict[str, Any], name: str) -> ModelConfig:
    """The shape that a config.json describes. BadFile for a family or an option that our models have not."""
    kind = data.get("model_type")
    family = FAMILIES.get(kind) if isinstance(kind, str) else None
    if family is None:
        hint = " Its language model alone (model_type gemma3_text) is read." if kind == "gemma3" else ""
        raise BadFile(f"{name} is a {kind!r:.40} model; this course runs {', '.join(FAMILIES)}.{hint}")
    _refuse(data, name, family)
    said = Fields(data, f"The config.json of {name}")
    sizes: dict[str, Any] = {
        ours: said.whole(theirs, min(LIMITS[ours], LONGEST)) for ours, theirs in _SIZES.items()
    }
    heads, width = sizes["num_heads"], sizes["hidden_size"]
    head_dim = _head_dim(said, family, width, heads)
    bos = said.ids("bos_token_id", sizes["vocab_size"])
    try:
        window, full_layers = hf_windows.read(said, name, family, sizes["num_layers"])
        return ModelConfig(
            name=name,
            **sizes,
            num_kv_heads=said.whole("num_key_value_heads", LIMITS["num_kv_heads"], heads),
            head_dim=head_dim,
            tied=said.flag("tie_word_embeddings", family == "gemma3"),
            mlp="geglu" if family == "gemma3" else "swiglu",
            norm_eps=said.number("rms_norm_eps", 1e-6, most=1.0),
            bos_id=bos[0] if bos else None,
            eos_ids=said.ids("eos_token_id", sizes["vocab_size"]),
            window=window,
            full_layers=full_layers,
            source=name,
            family=family,
            experts=_experts(said, family),
            **hf_rope.read(said, name, family),
            **_options(said, family, head_dim, width),
            **hf_latent.read(said, name, family, sizes["num_layers"]),
        )
    except ValueError as error:
        if isinstance(error, BadFile):
            raise
        raise BadFile(f"The config.json of {name} does not describe a model: {error}") from error


def _head_dim(said: Fields, family: Family, width: int, heads: int) -> int:
    if family in hf_latent.FAMILIES:
        return hf_latent.head_dim(said)
    if not said.has("head_dim") and family not in _HEAD_DIM and width % heads:
        raise said.bad(
            "hidden_size", f"a multiple of num_attention_heads = {heads}, for it names no head_dim"
        )
    return said.whole("head_dim", LIMITS["head_dim"], _HEAD_DIM.get(family, width // heads))


def _refuse(data: dict[str, Any], name: str, family: Family) -> None:
    act = ("hidden_activation", "gelu_pytorch_tanh") if family == "gemma3" else ("hidden_act", "silu")
    for option, plain in (*_PLAIN, act):
        if data.get(option, plain) not in (plain, None):
            raise BadFile(f"{name} has {option} = {data[option]!r}, which this course's models do not do.")
    if "quantization_config" in data:
        raise BadFile(f"{name} is stored quantized; load the model that it was made from.")


def _options(said: Fields, family: Family, head_dim: int, width: int) -> dict[str, Any]:
    if family == "gemma3":
        scalar = said.number("query_pre_attn_scalar", 256)
        return {
            "qk_norm": True,
            "post_norms": True,
            "embed_scale": math.sqrt(width),
            "query_scale": None if scalar == head_dim else scalar**-0.5,
        }
    return {"qkv_bias": family == "qwen2", "qk_norm": family in ("qwen3", "qwen3_moe")}


def _experts(said: Fields, family: Family) -> Experts | None:
    if family not in ("mixtral", "qwen3_moe"):
        return None
    # transformers 5 calls Qwen's local, too
    counted = "num_local_experts" if family == "mixtral" or said.has("num_local_experts") else "num_experts"
    count, used = said.whole(counted, MOST_EXPERTS), said.whole("num_experts_per_tok", MOST_EXPERTS)
    size = "intermediate_size" if family == "mixtral" else "moe_intermediate_size"
    normalised = family == "mixtral" or said.flag("norm_topk_prob", False)
    return Experts(count, used, said.whole(size, LIMITS["intermediate_size"]), normalised)


def to_hf(config: ModelConfig, pad_id: int | None = None) -> dict[str, Any]:
    """The config.json of this model. Raises ValueError for what its family's config.json cannot say.

    `rope_theta` and the scaling stand twice: transformers before 5 looks outside of `rope_parameters`.
    """
    kind = next((kind for kind, family in FAMILIES.items() if family == config.family), None)
    if kind is None:
        raise ValueError(f"{config.name} is a {config.family!r} model, which Hugging Face does not know.")
    eos = list(config.eos_ids)
    data: dict[str, Any] = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        **hf_rope.write(config),
        "attention_bias": False,
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }
    if config.family == "gemma3":
        scale = config.query_scale
        data["hidden_activation"] = "gelu_pytorch_tanh"
        data["query_pre_attn_scalar"] = config.head_dim if scale is None else round(scale**-2)
    else:
        data["hidden_act"] = "silu"
    if config.family in hf_latent.FAMILIES:
        data = hf_latent.write(config, data)
    elif config.family == "llama":
        data["mlp_bias"] = False
    else:
        data |= hf_windows.write(config)
    if config.experts is not None:
        data |= _experts_out(config.family, config.experts)
    _check_said(config, data)
    return data


def _experts_out(family: Family, experts: Experts) -> dict[str, Any]:
    if family == "mixtral":
        return {"num_local_experts": experts.count, "num_experts_per_tok": experts.per_token}
    return {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.per_token,
        "moe_intermediate_size": experts.size,
        "norm_topk_prob": experts.normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _check_said(config: ModelConfig, data: dict[str, Any]) -> None:
    """What is written must be read as the same model."""
    read = from_hf(data, config.name)
    lost = [
        f.name
        for f in fields(config)
        if f.name not in _NOT_SAID and getattr(read, f.name) != getattr(config, f.name)
    ]
    if lost:
        raise ValueError(
            f"A config.json of the family {config.family} cannot say what {config.name} has in {', '.join(lost)}."
        )
