"""One description of a model: every parameter it has, with its shape, its part and the tensors it is published as.

The module that runs, the files it is read from and the cost model all take their shapes from this list, and a test
compares it with the built module name by name. No torch.

    embed.weight (V, D)   blocks.i.attn.qkv.weight ((H + 2 Hkv) head_dim, D)   ...   norm.weight (D,)   lm_head.weight

q, k, v are one matrix and so are gate and up: that is how the model runs them. Files keep them apart; `sources` says
which tensors are stacked, top to bottom.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from ..config import ModelConfig
from ..parts import Latent

Part = Literal["embedding", "positions", "projections", "convolutions", "mlp", "biases", "norms", "head"]


@dataclass(frozen=True)
class Weight:
    """A parameter of the module. `sources` are (published tensor, rows) from top to bottom.

    `matrix` names it among the matrices that a forward multiplies by, "" if it is none. A token uses `used` of the
    `copies` that stand beside each other in a layer (experts). Our value is the published one plus `offset`.
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    sources: tuple[tuple[str, int], ...] = ()
    matrix: str = ""
    used: int = 1
    copies: int = 1
    offset: float = 0.0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@lru_cache(maxsize=64)  # cost functions ask again and again for the same few models
def weights(config: ModelConfig) -> tuple[Weight, ...]:
    """Every parameter of the module, in the order of the forward. A tied head has none of its own."""
    width, vocab = config.hidden_size, config.vocab_size
    rows = [
        Weight("embed.weight", (vocab, width), "embedding", (("model.embed_tokens.weight", vocab),)),
    ]
    if config.positions == "learned":
        rows.append(Weight("positions.weight", (config.max_positions, width), "positions"))
    for i in range(config.num_layers):
        rows += (_in_layer(w, i) for w in _layer(config, i))
    rows += _norm(config, "norm", "model.norm")
    if not config.tied:
        rows.append(Weight("lm_head.weight", (vocab, width), "head", (("lm_head.weight", vocab),), "head"))
    if config.positions == "learned":  # trained here, published under our own names
        rows = [replace(w, sources=((w.name, w.shape[0]),)) for w in rows]
    return tuple(rows)


def hf_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every published tensor that a model of this shape needs, with its shape."""
    return {name: (rows, *w.shape[1:]) for w in weights(config) for name, rows in w.sources}


def layer_matrices(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one layer's matrices by name: `{"attn.qkv": (outputs, inputs), ...}`."""
    return {w.name.removesuffix(".weight"): w.shape for w in _layer(config, layer) if w.matrix}


def _in_layer(weight: Weight, layer: int) -> Weight:
    sources = tuple((f"model.layers.{layer}.{name}", rows) for name, rows in weight.sources)
    return replace(weight, name=f"blocks.{layer}.{weight.name}", sources=sources)


def _layer(config: ModelConfig, layer: int) -> Iterator[Weight]:
    yield from _norm(config, "attn_norm", "input_layernorm")
    if config.is_linear(layer):
        yield from _linear_attention(config)
    elif config.latent is not None:
        yield from _latent_attention(config, config.latent)
    else:
        yield from _attention(config, layer)
    after = "post_attention_layernorm"
    if config.post_norms:
        yield from _norm(config, "attn_post", after)
        after = "pre_feedforward_layernorm"
    yield from _norm(config, "mlp_norm", after)
    yield from _mlp(config) if config.experts is None else _experts(config)
    if config.post_norms:
        yield from _norm(config, "mlp_post", "post_feedforward_layernorm")


def _norm(config: ModelConfig, name: str, published: str, size: int | None = None) -> Iterator[Weight]:
    size = size or config.hidden_size
    offset = 1.0 if config.family == "gemma3" else 0.0  # Gemma publishes how far a weight is from 1
    yield Weight(f"{name}.weight", (size,), "norms", ((f"{published}.weight", size),), offset=offset)
    if config.norm == "layer" and config.bias:
        yield Weight(f"{name}.bias", (size,), "norms")


def _linear(
    name: str,
    part: Part,
    inputs: int,
    sources: tuple[tuple[str, int], ...],
    matrix: str,
    bias: bool,
    used: int = 1,
    copies: int = 1,
) -> Iterator[Weight]:
    outputs = sum(rows for _, rows in sources)
    stacked = {kind: tuple((f"{s}.{kind}", rows) for s, rows in sources) for kind in ("weight", "bias")}
    yield Weight(f"{name}.weight", (outputs, inputs), part, stacked["weight"], matrix, used, copies)
    if bias:
        yield Weight(f"{name}.bias", (outputs,), "biases", stacked["bias"], "", used, copies)


def _attention(config: ModelConfig, layer: int) -> Iterator[Weight]:
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    stores = config.cache_layer(layer) == layer
    sources: tuple[tuple[str, int], ...] = (("self_attn.q_proj", queries),)
    if stores:
        sources += (("self_attn.k_proj", keys), ("self_attn.v_proj", keys))
    yield from _linear(
        "attn.qkv", "projections", config.hidden_size, sources, "qkv", config.bias or config.qkv_bias
    )
    if config.qk_norm:
        yield from _norm(config, "attn.q_norm", "self_attn.q_norm", config.head_dim)
        if stores:
            yield from _norm(config, "attn.k_norm", "self_attn.k_norm", config.head_dim)
    out = (("self_attn.o_proj", config.hidden_size),)
    yield from _linear("attn.out", "projections", queries, out, "out", config.bias)


def _linear_attention(config: ModelConfig) -> Iterator[Weight]:
    """Published as Qwen3.5 does, whose first matrix is four: q k v, z, b, a."""
    linear, home = config.linear, "linear_attn"
    assert linear is not None
    values = linear.heads * linear.value_dim
    rows: tuple[tuple[str, int], ...] = (
        (f"{home}.in_proj_qkv", linear.channels),
        (f"{home}.in_proj_z", values),
    )
    rows += ((f"{home}.in_proj_b", linear.heads),) if linear.corrects else ()
    rows += ((f"{home}.in_proj_a", linear.heads),) if linear.decays else ()
    yield from _linear("attn.proj", "projections", config.hidden_size, rows, "linear in", False)
    taps = (linear.channels, 1, linear.conv)
    yield Weight("attn.conv", taps, "convolutions", ((f"{home}.conv1d.weight", linear.channels),))
    if linear.decays:
        yield Weight("attn.dt_bias", (linear.heads,), "biases", ((f"{home}.dt_bias", linear.heads),))
        yield Weight("attn.a_log", (linear.heads,), "biases", ((f"{home}.A_log", linear.heads),))
    yield Weight("attn.norm", (linear.value_dim,), "norms", ((f"{home}.norm.weight", linear.value_dim),))
    out = ((f"{home}.out_proj", config.hidden_size),)
    yield from _linear("attn.out", "projections", values, out, "linear out", False)


def _latent_attention(config: ModelConfig, latent: Latent) -> Iterator[Weight]:
    width, queries = config.hidden_size, config.num_heads * config.key_dim
    first = ("self_attn.q_a_proj", latent.query_rank) if latent.query_rank else ("self_attn.q_proj", queries)
    stored = ("self_attn.kv_a_proj_with_mqa", latent.rank + latent.rope)
    bias = config.bias or config.qkv_bias
    yield from _linear("attn.down", "projections", width, (first, stored), "latents", bias)
    if latent.query_rank:
        if latent.normed:
            yield _compressed("attn.q_norm", "self_attn.q_a_layernorm", latent.query_rank)
        up = (("self_attn.q_b_proj", queries),)
        yield from _linear("attn.q_up", "projections", latent.query_rank, up, "queries", False)
    if latent.normed:
        yield _compressed("attn.kv_norm", "self_attn.kv_a_layernorm", latent.rank)
    values = config.num_heads * config.value_dim
    up = (("self_attn.kv_b_proj", config.num_heads * config.head_dim + values),)
    yield from _linear("attn.kv_up", "projections", latent.rank, up, "kv_up", False)
    out = (("self_attn.o_proj", width),)
    yield from _linear("attn.out", "projections", values, out, "out", config.bias)


def _compressed(name: str, published: str, size: int) -> Weight:
    """The norm of a latent, an RMSNorm whatever the model's others are."""
    return Weight(f"{name}.weight", (size,), "norms", ((f"{published}.weight", size),))


def _mlp(config: ModelConfig) -> Iterator[Weight]:
    width, size = config.hidden_size, config.intermediate_size
    up = (("mlp.gate_proj", size), ("mlp.up_proj", size)) if config.gated else (("mlp.up_proj", size),)
    yield from _linear("mlp.gate_up" if config.gated else "mlp.up", "mlp", width, up, "up", config.bias)
    yield from _linear("mlp.down", "mlp", size, (("mlp.down_proj", width),), "down", config.bias)


def _experts(config: ModelConfig) -> Iterator[Weight]:
    experts, width = config.experts, config.hidden_size
    assert experts is not None
    mixtral = config.family == "mixtral"
    home = "block_sparse_moe" if mixtral else "mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    yield from _linear("mlp.router", "mlp", width, ((f"{home}.gate", experts.count),), "router", False)
    for e in range(experts.count):
        ours, theirs = f"mlp.experts.{e}", f"{home}.experts.{e}"
        rows = ((f"{theirs}.{gate}", experts.size), (f"{theirs}.{up}", experts.size))
        share = experts.per_token, experts.count
        yield from _linear(f"{ours}.gate_up", "mlp", width, rows, "up", False, *share)
        yield from _linear(
            f"{ours}.down", "mlp", experts.size, ((f"{theirs}.{down}", width),), "down", False, *share
        )
