"""Weights under the names that Hugging Face publishes, into and out of our fused matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import ModelConfig
from .llama import Llama

# (our parameter, the published tensors that are stacked into it, top to bottom)
_PER_LAYER = (
    ("attn_norm.weight", ("input_layernorm.weight",)),
    ("attn.qkv.weight", ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight")),
    ("attn.out.weight", ("self_attn.o_proj.weight",)),
    ("mlp_norm.weight", ("post_attention_layernorm.weight",)),
    ("mlp.gate_up.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    ("mlp.down.weight", ("mlp.down_proj.weight",)),
)


def _table(config: ModelConfig) -> list[tuple[str, tuple[str, ...]]]:
    rows: list[tuple[str, tuple[str, ...]]] = [
        ("embed.weight", ("model.embed_tokens.weight",)),
        ("norm.weight", ("model.norm.weight",)),
    ]
    if not config.tied:
        rows.append(("lm_head.weight", ("lm_head.weight",)))
    for i in range(config.num_layers):
        for ours, theirs in _PER_LAYER:
            rows.append((f"blocks.{i}.{ours}", tuple(f"model.layers.{i}.{name}" for name in theirs)))
    return rows


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every published tensor that a Llama of this shape needs, with its shape."""
    width, mlp, dim = config.hidden_size, config.intermediate_size, config.head_dim
    rows = {
        "input_layernorm.weight": (width,),
        "post_attention_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (config.num_heads * dim, width),
        "self_attn.k_proj.weight": (config.num_kv_heads * dim, width),
        "self_attn.v_proj.weight": (config.num_kv_heads * dim, width),
        "self_attn.o_proj.weight": (width, config.num_heads * dim),
        "mlp.gate_proj.weight": (mlp, width),
        "mlp.up_proj.weight": (mlp, width),
        "mlp.down_proj.weight": (width, mlp),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, width),
        "model.norm.weight": (width,),
    }
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, width)
    for i in range(config.num_layers):
        shapes.update({f"model.layers.{i}.{name}": shape for name, shape in rows.items()})
    return shapes


def check_hf_state(config: ModelConfig, state: dict[str, Tensor]) -> None:
    """Names and shapes agree with the configuration, or a sentence that lists what does not. Changes nothing."""
    wanted = hf_shapes(config)
    missing = sorted(wanted.keys() - state.keys())
    extra = sorted(
        k
        for k in state.keys() - wanted.keys()
        if not k.endswith("rotary_emb.inv_freq") and k != "lm_head.weight"
    )
    wrong = sorted(k for k in wanted.keys() & state.keys() if tuple(state[k].shape) != wanted[k])
    if missing or extra or wrong:
        found = (("missing", missing), ("not part of this model", extra), ("wrong shape", wrong))
        parts = [
            f"{what}: {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
            for what, names in found
            if names
        ]
        raise ValueError(
            f"These weights do not fit {config.name}; {'; '.join(parts)}. Is it the right configuration?"
        )


@torch.no_grad()
def load_hf_state(model: Llama, state: dict[str, Tensor]) -> Llama:
    """Copy published weights into `model` in its own dtype, q, k, v and gate, up stacked. Checked before copying."""
    check_hf_state(model.config, state)
    own = dict(model.named_parameters())
    for ours, theirs in _table(model.config):
        row = 0
        for name in theirs:
            part = state[name]
            own[ours][row : row + part.shape[0]].copy_(part)
            row += part.shape[0]
    return model


@torch.no_grad()
def to_hf_state(model: Llama) -> dict[str, Tensor]:
    """The model's weights under the published names, as views of its own storage."""
    own, shapes = dict(model.named_parameters()), hf_shapes(model.config)
    state: dict[str, Tensor] = {}
    for ours, theirs in _table(model.config):
        row = 0
        for name in theirs:
            rows = shapes[name][0]
            state[name] = own[ours][row : row + rows]
            row += rows
    return state
