"""The matrices of a decoder, read off its description: parameters, bytes, FLOPs and times follow from this list."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, get_args

from lumen.formats import bytes_per_value
from lumen.models.describe import Part, weights

if TYPE_CHECKING:
    from lumen.config import ModelConfig


@dataclass(frozen=True)
class Matmul:
    """One weight matrix as the model multiplies by it: (rows, inputs) x (inputs, outputs), in `count` layers.

    `part` is "projections" (q, k, v, o), "mlp" or "head". q, k, v are one matrix here, and so are gate and
    up: that is how the model runs them, and it changes no count. Experts count each; a token uses `used` of
    the `count`, all of them in a dense model.
    """

    name: str
    part: str
    inputs: int
    outputs: int
    count: int
    used: int

    @property
    def weights(self) -> int:
        """Weights in all its layers together."""
        return self.inputs * self.outputs * self.count

    @property
    def active(self) -> int:
        """Weights that one token multiplies by."""
        return self.inputs * self.outputs * self.used

    def read(self, rows: int) -> float:
        """Weights that a step of `rows` tokens reads: all, or those of the experts that some token chose.

        Of E experts, k a token, B tokens read E (1 - (1 - k/E)^B): the mean when tokens choose evenly and each for
        itself. Real routers favour some experts and read fewer.
        """
        if self.used == self.count:
            return self.weights
        return self.weights * (1 - (1 - self.used / self.count) ** rows)


def matmuls(config: ModelConfig) -> list[Matmul]:
    """Every weight matrix that a forward multiplies by, in the order of the forward."""
    found: dict[tuple[str, str, int, int], list[float]] = {}
    for w in weights(config):
        if w.matrix:
            outputs, inputs = w.shape
            counted = found.setdefault((w.matrix, w.part, inputs, outputs), [0, 0.0])
            counted[0] += 1
            counted[1] += w.used / w.copies
    found.setdefault(
        ("head", "head", config.hidden_size, config.vocab_size), [1, 1.0]
    )  # the embedding, if tied
    return [Matmul(*key, int(count), round(used)) for key, (count, used) in found.items()]


@dataclass(frozen=True)
class Parameters:
    """Parameters by part. A tied head has none of its own: `head` is 0 and `embedding` holds the matrix.

    `convolutions` are those in front of linear layers, whose rates of decay count among the biases.

    A mixture of experts counts all its experts, its router among the `mlp`; `idle` of them a token does not use.
    """

    embedding: int
    positions: int
    projections: int
    mlp: int
    biases: int
    norms: int
    head: int
    convolutions: int = field(default=0, kw_only=True)
    idle: int = field(default=0, kw_only=True)

    @property
    def total(self) -> int:
        """All parameters: what `sum(p.numel() for p in model.parameters())` gives."""
        return sum(astuple(self)) - self.idle

    @property
    def active(self) -> int:
        """Parameters that one token uses; all of them in a dense model."""
        return self.total - self.idle


def parameters(config: ModelConfig) -> Parameters:
    """How many parameters the model has, part by part; exact for every `ModelConfig`.

    >>> from lumen.config import CONFIGS
    >>> parameters(CONFIGS["llama-2-7b"]).total
    6738415616
    """
    counts = dict.fromkeys(get_args(Part), 0)
    for w in weights(config):
        counts[w.part] += w.size
    return Parameters(**counts, idle=sum(m.weights - m.active for m in matmuls(config)))


def weight_storage(config: ModelConfig, dtype: object = "bf16") -> float:
    """Bytes that the weights occupy in memory: parameters x bytes per value. [B]"""
    return parameters(config).total * bytes_per_value(dtype)


def weight_bytes(config: ModelConfig, dtype: object = "bf16", batch: int = 1) -> float:
    """Bytes of weights that one decode step reads. [B]

    Every matrix once, the head once even when it is the embedding, biases and norms, and of the embedding
    (and of learned positions) one row a sequence. An untied model reads less than it stores: the rest of
    its embedding lies still. Weights, biases and embedding rows count at `dtype`. Of a mixture's experts
    those that some token chose (`Matmul.read`).
    """
    parts = parameters(config)
    matrices = sum(m.read(batch) for m in matmuls(config))
    rows = batch * config.hidden_size * (2 if config.positions == "learned" else 1)
    others = parts.biases + parts.norms + parts.convolutions
    return (matrices + others + rows) * bytes_per_value(dtype)
