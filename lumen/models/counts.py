"""What an eager forward consists of beside its matrices: how many operators, and the bytes the small ones move.

Counted from the configuration alone, no torch. The cost model multiplies by these counts and the probes of
`lumen.hardware` divide by them, so both mean the same thing by "an operator".
"""

from __future__ import annotations

from lumen.config import ModelConfig
from lumen.formats import bytes_per_value


def operators(config: ModelConfig) -> int:
    """Operators that do work in one eager forward (views left out), the matrices among them.

    A layer: four matrices, attention, two cache writes, two norms, two additions, three of RoPE, four biases,
    and the activation function (with a product in SwiGLU). Norms of each head's query and key are two more and
    a concatenation, norms behind attention and MLP two. Around the layers about thirty: look-ups, the mask,
    checks, norm and head. Experts are not counted: how many run depends on the tokens.

    A linear layer has, in the place of attention, cache writes and RoPE, a multiply-add for each tap of its convolution
    and 26 more: SiLU, lengths of queries and keys, the state written and read, norm, gate. Decay is 7, delta 4.
    """
    rope = 3 if config.positions == "rope" else 0
    biases = 4 if config.bias else 0
    activation = 2 if config.gated else 1
    norms = 3 * config.qk_norm + 2 * config.post_norms
    layer, linear = 11 + rope + biases + activation + norms, config.linear
    if linear is None:
        return config.num_layers * layer + 30
    mixing = linear.conv + 26 + 7 * linear.decays + 4 * linear.corrects
    mixed = 8 + mixing + (2 if config.bias else 0) + activation + 2 * config.post_norms
    return (config.num_layers - len(linear.layers)) * layer + len(linear.layers) * mixed + 30


def products(config: ModelConfig) -> int:
    """How many of them multiply by a weight matrix: four a layer and the head."""
    return 4 * config.num_layers + 1


def elementwise_bytes(config: ModelConfig, rows: int, dtype: object = "bf16") -> float:
    """Bytes that eager norms, additions, RoPE, activation functions and reshapes read and write. [B]

    Values a row and layer: two norms 4d, two additions 6d; RoPE on queries and keys, a product 2, a
    concatenation 2, a multiply-add 4; activation function 2F, product with the gate 3F; attention's output
    copied once into rows, 2·H·D. Linear layers: 4 a tap of the convolution, its SiLU, norms and gate.
    """
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rope = 8 * (queries + keys) if config.positions == "rope" else 0
    activation = (5 if config.gated else 2) * config.intermediate_size
    layer = 10 * config.hidden_size + rope + activation + 2 * queries
    linear = config.linear
    if linear is None:
        return rows * config.num_layers * layer * bytes_per_value(dtype)
    mixed = 10 * config.hidden_size + activation + (4 * linear.conv + 6) * linear.channels
    mixed += 8 * linear.heads * linear.value_dim
    values = (config.num_layers - len(linear.layers)) * layer + len(linear.layers) * mixed
    return rows * values * bytes_per_value(dtype)
