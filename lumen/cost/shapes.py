"""The matrices of a decoder, listed once: parameters, bytes, FLOPs and times are read off this list."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from lumen.formats import bytes_per_value

if TYPE_CHECKING:
    from lumen.config import ModelConfig


@dataclass(frozen=True)
class Matmul:
    """One weight matrix as the model multiplies by it: (rows, inputs) x (inputs, outputs), in `count` layers.

    `part` is "projections" (q, k, v, o), "mlp" or "head". q, k, v are one matrix here, and so are gate and
    up: that is how the model runs them, and it changes no count.
    """

    name: str
    part: str
    inputs: int
    outputs: int
    count: int

    @property
    def weights(self) -> int:
        """Weights in all its layers together."""
        return self.inputs * self.outputs * self.count


def matmuls(config: ModelConfig) -> list[Matmul]:
    """Every weight matrix that a forward multiplies by, in the order of the forward."""
    width, layers, mlp = config.hidden_size, config.num_layers, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    up = 2 * mlp if config.mlp == "swiglu" else mlp
    return [
        Matmul("qkv", "projections", width, queries + 2 * keys, layers),
        Matmul("out", "projections", queries, width, layers),
        Matmul("up", "mlp", width, up, layers),
        Matmul("down", "mlp", mlp, width, layers),
        Matmul("head", "head", width, config.vocab_size, 1),
    ]


@dataclass(frozen=True)
class Parameters:
    """Parameters by part. A tied head has none of its own: `head` is 0 and `embedding` holds the matrix."""

    embedding: int
    positions: int
    projections: int
    mlp: int
    biases: int
    norms: int
    head: int

    @property
    def total(self) -> int:
        """All parameters: what `sum(p.numel() for p in model.parameters())` gives."""
        return sum(astuple(self))


def parameters(config: ModelConfig) -> Parameters:
    """How many parameters the model has, part by part; exact for every `ModelConfig`.

    >>> from lumen.config import CONFIGS
    >>> parameters(CONFIGS["llama-2-7b"]).total
    6738415616
    """
    width = config.hidden_size
    table = matmuls(config)
    embedding = config.vocab_size * width
    shifted = config.norm == "layer" and config.bias
    per_norm = 2 * width if shifted else width
    return Parameters(
        embedding=embedding,
        positions=config.max_positions * width if config.positions == "learned" else 0,
        projections=sum(m.weights for m in table if m.part == "projections"),
        mlp=sum(m.weights for m in table if m.part == "mlp"),
        biases=sum(m.outputs * m.count for m in table if m.part != "head") if config.bias else 0,
        norms=(2 * config.num_layers + 1) * per_norm,
        head=0 if config.tied else embedding,
    )


def weight_storage(config: ModelConfig, dtype: object = "bf16") -> float:
    """Bytes that the weights occupy in memory: parameters x bytes per value. [B]"""
    return parameters(config).total * bytes_per_value(dtype)


def weight_bytes(config: ModelConfig, dtype: object = "bf16", batch: int = 1) -> float:
    """Bytes of weights that one decode step reads. [B]

    Every matrix once, the head once even when it is the embedding, biases and norms, and of the embedding
    (and of learned positions) one row a sequence. An untied model reads less than it stores: the rest of
    its embedding lies still. Weights, biases and embedding rows count at `dtype`.
    """
    parts = parameters(config)
    matrices = sum(m.weights for m in matmuls(config))
    rows = batch * config.hidden_size * (2 if config.positions == "learned" else 1)
    return (matrices + parts.biases + parts.norms + rows) * bytes_per_value(dtype)
