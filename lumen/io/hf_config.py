"""Hugging Face's config.json into a ModelConfig and back."""

from __future__ import annotations

from typing import Any

from ..config import ModelConfig
from .errors import BadFile

FAMILIES = ("llama", "mistral")
_SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
}


def from_hf(data: dict[str, Any], name: str) -> ModelConfig:
    """The shape that a config.json describes. BadFile for a family or an option that our Llama is not."""
    family = data.get("model_type")
    if family not in FAMILIES:
        raise BadFile(f"{name} is a {family!r} model; this course runs {' and '.join(FAMILIES)}.")
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type", "default")) != "default":
        raise BadFile(f"{name} scales its rotary positions ({rope}), which this course's Llama does not do.")
    for option, plain in (("attention_bias", False), ("mlp_bias", False), ("hidden_act", "silu")):
        if data.get(option, plain) != plain:
            raise BadFile(f"{name} has {option} = {data[option]!r}, which this course's Llama does not do.")
    if "quantization_config" in data:
        raise BadFile(f"{name} is stored quantized; load the model that it was made from.")
    if missing := [theirs for theirs in _SIZES.values() if not isinstance(data.get(theirs), int)]:
        raise BadFile(f"The config.json of {name} lacks {', '.join(missing)}. Fetch it again.")
    sizes = {ours: data[theirs] for ours, theirs in _SIZES.items()}
    eos = data.get("eos_token_id")
    eos_ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    try:
        return ModelConfig(
            name=name,
            **sizes,
            num_kv_heads=data.get("num_key_value_heads") or sizes["num_heads"],
            head_dim=data.get("head_dim") or sizes["hidden_size"] // max(sizes["num_heads"], 1),
            tied=bool(data.get("tie_word_embeddings", False)),
            norm_eps=float(data.get("rms_norm_eps", 1e-6)),
            rope_theta=float(rope.get("rope_theta") or data.get("rope_theta") or 10000.0),
            bos_id=data.get("bos_token_id"),
            eos_ids=tuple(eos_ids),
            window=data.get("sliding_window") if family == "mistral" else None,
            source=name,
        )
    except (TypeError, ValueError) as error:
        raise BadFile(f"The config.json of {name} does not describe a model: {error}") from error


def to_hf(config: ModelConfig, pad_id: int | None = None) -> dict[str, Any]:
    """The config.json of this Llama. `rope_theta` stands twice: transformers before 5 looks outside."""
    eos = list(config.eos_ids)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": config.tied,
        "bos_token_id": config.bos_id,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }
