"""Read a Llama, Qwen 2 or Qwen 3 out of a GGUF file: its shape, and its fp32 weights under Hugging Face's names.

Three things differ from the published checkpoint. Weights are quantized in blocks (the `gguf` package holds
the formulas). Names are llama.cpp's. And a Llama's rows of q and k are permuted per head: llama.cpp turns its
neighbouring channels (2i, 2i+1), Hugging Face turns channel i with channel i + D/2. Undoing that needs each
matrix's own number of heads; with 9 query and 3 key/value heads a loader that uses 9 for both still runs,
and the model speaks nonsense.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf.quants import dequantize

from ..config import LIMITS, Family, ModelConfig
from ..models.describe import hf_shapes
from . import blocks, gguf_rope
from .errors import BadFile
from .fields import LONGEST, Fields
from .gguf_header import Header, TensorInfo, read_header

ARCHITECTURES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
# Hugging Face's names to llama.cpp's, without layer and leaf
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
# Besides the one `eos_token_id`, control tokens with these texts end an answer too.
END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
CONTROL = 3  # token_type of a special token


def read_config(path: str | os.PathLike[str], name: str) -> tuple[Header, ModelConfig]:
    """Header and shape of the file at `path`, with what a tensor says about rotary positions. BadFile says why not."""
    header = read_header(path)
    config = config_of(header, name)
    info = header.tensors.get(gguf_rope.TENSOR)
    if info is None:
        return header, config
    data = np.memmap(path, np.uint8, "r")
    try:
        values = _dequantize(data[info.start : info.start + info.size], info)
        return header, gguf_rope.with_divisors(config, values)
    except ValueError as error:
        raise BadFile(f"{name}: {gguf_rope.TENSOR} does not fit its description: {error}") from error


def config_of(header: Header, name: str) -> ModelConfig:
    """The model's shape, from the metadata alone. BadFile if it is of another family or the numbers make no model."""
    said = Fields(header.metadata, name)
    kind = said.text("general.architecture")
    if kind not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise BadFile(f"{name} holds a {kind!r:.40} model; from GGUF we read {known}. Load it by its hub id.")
    if experts := header.metadata.get(f"{kind}.expert_count"):
        raise BadFile(
            f"{name} has {kind}.expert_count = {experts}; experts are read from Hugging Face folders only."
        )
    layers = said.whole(f"{kind}.block_count", LIMITS["num_layers"])
    if layers > len(header.tensors):
        raise BadFile(
            f"{name} claims {layers:,} layers and holds {len(header.tensors)} tensors. Fetch it again."
        )
    heads = said.whole(f"{kind}.attention.head_count", LIMITS["num_heads"])
    width = said.whole(f"{kind}.embedding_length", LIMITS["hidden_size"])
    if not said.has(f"{kind}.attention.key_length") and width % heads:
        raise said.bad(
            f"{kind}.embedding_length", f"a multiple of the {heads} heads, for it names no key_length"
        )
    head_dim = said.whole(f"{kind}.attention.key_length", LIMITS["head_dim"], width // heads)
    if said.whole(f"{kind}.rope.dimension_count", LIMITS["head_dim"], head_dim) != head_dim:
        raise BadFile(f"{name} turns only part of each head's channels, which this reader does not know.")
    positions = said.whole(f"{kind}.context_length", LONGEST)
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    vocabulary = len(tokens) if isinstance(tokens, list) else None
    vocab_size = said.whole(f"{kind}.vocab_size", LIMITS["vocab_size"], vocabulary)
    bos = said.ids("tokenizer.ggml.bos_token_id", vocab_size)
    epsilon = said.number(f"{kind}.attention.layer_norm_rms_epsilon", most=1.0)
    try:
        return ModelConfig(
            name=name,
            vocab_size=vocab_size,
            num_layers=layers,
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=said.whole(f"{kind}.attention.head_count_kv", LIMITS["num_kv_heads"], heads),
            head_dim=head_dim,
            intermediate_size=said.whole(f"{kind}.feed_forward_length", LIMITS["intermediate_size"]),
            max_positions=positions,
            tied="output.weight" not in header.tensors,
            norm_eps=float(str(np.float32(epsilon))),  # 1e-05, not 9.99e-06
            rope_theta=said.number(f"{kind}.rope.freq_base", 10000.0, above=1.0),
            bos_id=bos[0] if bos else None,
            eos_ids=eos_ids(header),
            source=name,
            family=kind,
            qkv_bias=kind == "qwen2",
            qk_norm=kind == "qwen3",
            rope_scaling=gguf_rope.scaling_of(header.metadata, kind, positions, name),
        )
    except ValueError as error:
        raise (
            error if isinstance(error, BadFile) else BadFile(f"{name} does not describe a model: {error}")
        ) from error


def eos_ids(header: Header) -> tuple[int, ...]:
    """Every id that ends an answer, the declared one first. 0 is an id like any other."""
    found = [header.metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    types = header.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, np.ndarray) and len(tokens) == len(types):
        found += [int(i) for i in np.flatnonzero(types == CONTROL) if tokens[i] in END_TOKENS]
    return tuple(dict.fromkeys(i for i in found if isinstance(i, int) and not isinstance(i, bool) and i >= 0))


def read_state(
    path: str | os.PathLike[str], header: Header, config: ModelConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """`(name, fp32 array)` one tensor after another, so that a caller can show progress.

    Names and shapes are compared with `config` first: BadFile comes before the first tensor.
    """
    names = _hf_names(config)
    _check_shapes(Path(path).name, header, config, names)
    data = np.memmap(path, np.uint8, "r")
    for ours, theirs in names.items():
        info = header.tensors[ours]
        value = _dequantize(data[info.start : info.start + info.size], info)
        if config.family == "llama" and ours.endswith("attn_q.weight"):
            value = unpermute(value, config.num_heads)
        elif config.family == "llama" and ours.endswith("attn_k.weight"):
            value = unpermute(value, config.num_kv_heads)
        yield theirs, value


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k, (heads * D, in), from llama.cpp's order 0, D/2, 1, D/2+1, ... to 0, 1, ..., D-1."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows, columns)


def _dequantize(raw: np.ndarray, info: TensorInfo) -> np.ndarray:
    quick = blocks.unpack(raw, info.kind.name)
    if quick is not None:
        return quick.reshape(info.shape)
    try:
        value = dequantize(raw.reshape(*info.shape[:-1], -1), info.kind)
    except (NotImplementedError, KeyError) as error:
        raise BadFile(
            f"Tensor {info.name!r} is stored as {info.kind.name}, which the gguf package cannot unpack."
        ) from error
    return np.array(value, np.float32).reshape(
        info.shape
    )  # a copy, also of fp32 tensors: the file stays untouched


def _hf_names(config: ModelConfig) -> dict[str, str]:
    """llama.cpp's name of every tensor to Hugging Face's."""
    names: dict[str, str] = {}
    for theirs in hf_shapes(config):
        if theirs in _OUTSIDE:
            names[_OUTSIDE[theirs]] = theirs
        else:  # model.layers.3.self_attn.q_proj.weight
            _, _, layer, rest = theirs.split(".", 3)
            what, leaf = rest.rsplit(".", 1)
            names[f"blk.{layer}.{_LAYER[what]}.{leaf}"] = theirs
    return names


def _check_shapes(file: str, header: Header, config: ModelConfig, names: dict[str, str]) -> None:
    wanted = hf_shapes(config)
    missing = sorted(names.keys() - header.tensors.keys())
    extra = sorted(header.tensors.keys() - names.keys() - {gguf_rope.TENSOR})
    if gguf_rope.TENSOR in header.tensors and config.rope_scaling is None:
        raise ValueError(f"{file} divides its rotary frequencies; take its shape from read_config.")
    if missing or extra:
        what = f"lacks {', '.join(missing[:4])}" if missing else f"holds {', '.join(extra[:4])} besides"
        raise BadFile(f"{file} {what}; it is damaged or of a kind this reader does not know.")
    for ours, theirs in names.items():
        if header.tensors[ours].shape != wanted[theirs]:
            raise BadFile(
                f"{file}: {ours} has shape {header.tensors[ours].shape}, "
                f"its description asks for {wanted[theirs]}. Fetch it again."
            )
