"""Read a Llama-family model out of a GGUF file: its shape, and its fp32 weights under Hugging Face's names.

Three things differ from the published checkpoint. Weights are quantized in blocks (the `gguf` package holds
the formulas). Names are llama.cpp's. And the rows of q and k are permuted per head: llama.cpp turns
neighbouring channels (2i, 2i+1), Hugging Face turns channel i with channel i + D/2. Undoing that needs each
matrix's own number of heads; with 9 query and 3 key/value heads a loader that uses 9 for both still runs,
and the model speaks nonsense.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf.quants import dequantize

from ..config import ModelConfig
from . import blocks
from .errors import BadFile
from .gguf_header import Header, TensorInfo

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
# Besides the one `eos_token_id`, control tokens with these texts end an answer too.
END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
CONTROL = 3  # token_type of a special token


def config_of(header: Header, name: str) -> ModelConfig:
    """The model's shape. Raises BadFile if it is not a plain Llama or the numbers do not make a model."""
    get = _Metadata(header.metadata, name)
    if (kind := get("general.architecture", str)) != "llama":
        raise BadFile(
            f"{name} holds a {kind!r} model; from GGUF we read the 'llama' family. Load it by its hub id."
        )
    for key in ("llama.expert_count", "llama.rope.scaling.type"):
        if header.metadata.get(key) not in (None, 0, "none"):
            raise BadFile(f"{name} uses {key} = {header.metadata[key]!r}, which this reader does not know.")
    heads = get("llama.attention.head_count", int)
    width = get("llama.embedding_length", int)
    head_dim = get("llama.attention.key_length", int, width // max(heads, 1))
    if get("llama.rope.dimension_count", int, head_dim) != head_dim:
        raise BadFile(f"{name} turns only part of each head's channels, which this reader does not know.")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    layers = get("llama.block_count", int)
    if layers > len(header.tensors):
        raise BadFile(
            f"{name} claims {layers:,} layers and holds {len(header.tensors)} tensors. Fetch it again."
        )
    try:
        return ModelConfig(
            name=name,
            vocab_size=get("llama.vocab_size", int, len(tokens) if isinstance(tokens, list) else 0),
            num_layers=layers,
            hidden_size=width,
            num_heads=heads,
            num_kv_heads=get("llama.attention.head_count_kv", int, heads),
            head_dim=head_dim,
            intermediate_size=get("llama.feed_forward_length", int),
            max_positions=get("llama.context_length", int),
            tied="output.weight" not in header.tensors,
            norm_eps=float(
                str(np.float32(get("llama.attention.layer_norm_rms_epsilon", float)))
            ),  # 1e-05, not 9.99e-06
            rope_theta=get("llama.rope.freq_base", float, 10000.0),
            bos_id=get.optional("tokenizer.ggml.bos_token_id", int),
            eos_ids=eos_ids(header),
            source=name,
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
    return tuple(dict.fromkeys(i for i in found if isinstance(i, int)))


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
        if ours.endswith("attn_q.weight"):
            value = unpermute(value, config.num_heads)
        elif ours.endswith("attn_k.weight"):
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
    names = {ours: theirs for ours, theirs in _OUTSIDE.items() if ours != "output.weight" or not config.tied}
    for i in range(config.num_layers):
        for ours, theirs in _LAYER.items():
            names[f"blk.{i}.{ours}.weight"] = f"model.layers.{i}.{theirs}.weight"
    return names


def _check_shapes(file: str, header: Header, config: ModelConfig, names: dict[str, str]) -> None:
    from ..models.weights import hf_shapes

    wanted = hf_shapes(config)
    missing = sorted(names.keys() - header.tensors.keys())
    extra = sorted(header.tensors.keys() - names.keys())
    if missing or extra:
        what = f"lacks {', '.join(missing[:4])}" if missing else f"holds {', '.join(extra[:4])} besides"
        raise BadFile(f"{file} {what}; it is damaged or of a kind this reader does not know.")
    for ours, theirs in names.items():
        if header.tensors[ours].shape != wanted[theirs]:
            raise BadFile(
                f"{file}: {ours} has shape {header.tensors[ours].shape}, "
                f"its description asks for {wanted[theirs]}. Fetch it again."
            )


class _Metadata:
    """Typed access to the key-value pairs: a wrong type is the file's fault and said so."""

    def __init__(self, pairs: dict[str, Any], file: str):
        self.pairs, self.file = pairs, file

    def __call__(self, key: str, kind: type, default: Any = None) -> Any:
        value = self.optional(key, kind)
        if value is None:
            value = default
        if value is None:
            raise BadFile(f"{self.file} does not say its {key!r}; it is no language model or it is damaged.")
        return value

    def optional(self, key: str, kind: type) -> Any:
        value = self.pairs.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise BadFile(
                f"{self.file}: {key!r} should be a {kind.__name__}, not {str(value)[:40]!r}. Fetch it again."
            )
        return value
