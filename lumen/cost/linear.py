"""What linear layers cost: a state for each sequence, the same at every length, and a few products with it a token.

No torch. Shapes are `ModelConfig.linear`; a model without linear layers costs 0 here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lumen.formats import bytes_per_value

if TYPE_CHECKING:
    from lumen.config import ModelConfig

STATE = 4.0  # bytes of a number in a state, which is kept in fp32 whatever the model computes in
CHUNK = 64  # tokens of a chunk in prefill


def state_bytes(config: ModelConfig, batch: int = 1, dtype: object = "fp16") -> float:
    """Bytes that `batch` sequences of any length keep in the linear layers: states, and the convolution's last tokens
    in `dtype`. [B]

    >>> from lumen.config import CONFIGS
    >>> from lumen.parts import LinearLayers
    >>> smol = CONFIGS["smollm2-135m"].with_(linear=LinearLayers((0, 1, 2), "gated_delta", 9, 64, 64))
    >>> state_bytes(smol) / 2**10  # KiB, three layers
    462.375
    """
    linear = config.linear
    if linear is None:
        return 0.0
    heads, keys, values = linear.state_shape
    width = bytes_per_value(dtype)
    layer = heads * keys * values * max(STATE, width) + (linear.conv - 1) * linear.channels * width
    return batch * len(linear.layers) * layer


def state_flops(config: ModelConfig, chunk: int | None = None) -> float:
    """FLOPs of a token with the states of all linear layers: read, written, read once more by the delta rule. [FLOP]

    `chunk` tokens at once add the products inside a chunk: scores of q and k, scores times values, and with the delta
    rule the scores of k and k and a triangular system with D + Dv right-hand sides. Decay and convolution are
    elementwise and left out.
    """
    linear = config.linear
    if linear is None:
        return 0.0
    heads, keys, values = linear.state_shape
    products = 6 if linear.corrects else 4
    head = products * keys * values
    if chunk is not None:
        head += 2 * chunk * (keys + values)
        head += chunk * (2 * keys + keys + values) if linear.corrects else 0
    return len(linear.layers) * heads * head
