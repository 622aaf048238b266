"""How quantized caches spell keys and values: bits, who shares a scale, and the bytes that this makes. No torch.

    int8      codes -127 to 127, one step for a token's head                       symmetric: its error is small anyway
    int4      codes 0 to 15, a step and a smallest value for 32 channels            a group of one sign wastes no code
    kivi      keys: a step and a smallest value for each channel over the tokens of a block; values: as int4;
              the block that is still being filled stays whole
    kivi-2    the same with codes 0 to 3

Keys have channels that are large for every token, values have not: so KIVI gives each channel of the keys its own scale
(Liu et al. 2024, KIVI, section 3.2). Every scale and every smallest value takes two bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..config import ModelConfig
from ..formats import bytes_per_value, grouped_bits
from ..inputs import whole

SCALE_BYTES = 2  # half precision, bfloat16 beside bfloat16
CODE_BITS = (2, 4, 8)


@dataclass(frozen=True)
class QuantFormat:
    """One spelling. `group` channels of a head share a scale, None: all of them; cut to what divides the head's width.

    `symmetric`: signed codes around zero, no smallest value. `per_channel`: keys are scaled channel by channel over the
    tokens of a block. `rotated`: vectors are turned at random before they are rounded, see `quant_rotate`. `tolerance`:
    see `Traits`; over the small models of the contract's tests, any chunking, 0.030, 0.41, 0.20 and 0.92 were seen at
    worst. ValueError for what cannot be.
    """

    name: str
    bits: int
    group: int | None = None
    symmetric: bool = False
    per_channel: bool = False
    rotated: bool = False
    tolerance: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", whole(self.bits, "bits (of a code)", 1))
        if self.bits not in CODE_BITS:
            raise ValueError(
                f"Codes take 2, 4 or 8 bits, so that a byte holds whole ones; got {self.bits}. Choose one of them."
            )
        if self.group is not None:
            object.__setattr__(self, "group", whole(self.group, "group (channels that share a scale)", 1))
        if self.symmetric and self.bits != 8:
            raise ValueError(
                f"Signed codes are kept for 8 bits; with {self.bits} a smallest value makes better use of few codes. "
                "Leave symmetric out."
            )

    def with_(self, **changes: object) -> QuantFormat:
        """A copy with some fields changed; checked like a new one."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def packed(self, width: int) -> int:
        """Bytes that the codes of `width` channels take. ValueError when they end inside a byte."""
        each = 8 // self.bits
        if width % each:
            raise ValueError(
                f"{self.name} packs {each} codes into a byte, and heads of {width} channels end inside one; use int8."
            )
        return width // each

    def groups(self, width: int) -> int:
        """How many groups the channels of a head fall into; none where there are no channels."""
        if width == 0:
            return 0
        size = width if self.group is None or width <= self.group else math.gcd(width, self.group)
        return width // size

    def scales(self, width: int) -> int:
        """Numbers beside the codes of one token's head."""
        return self.groups(width) * (1 if self.symmetric else 2)

    def head_bytes(self, width: int) -> int:
        """One vector of `width` channels, scaled by itself. [B]"""
        return self.packed(width) + self.scales(width) * SCALE_BYTES

    def bytes_per_token(self, config: ModelConfig, block_size: int = 32) -> float:
        """What one token takes in all layers, scales included; `block_size` tokens share those of a channel. [B]"""
        dims = config.cache_dims
        value = 0 if dims.shared else dims.value
        if self.per_channel:
            shared = grouped_bits(8 * self.packed(dims.key), 8 * 2 * SCALE_BYTES * dims.key, block_size) / 8
            head = shared + self.head_bytes(value)
        else:
            head = self.head_bytes(dims.key) + self.head_bytes(value)
        return len(config.storing_layers) * dims.heads * head

    def open_bytes(self, config: ModelConfig, dtype: object, block_size: int = 32) -> float:
        """What a sequence takes beside its blocks: KIVI's block that is being filled, and the one before, whole. [B]"""
        if not self.per_channel:
            return 0.0
        token = len(config.storing_layers) * config.cache_dims.stored * bytes_per_value(dtype)
        return WHOLE_BLOCKS * block_size * token


WHOLE_BLOCKS = 2  # of a sequence, at most: rejected drafts may reach back over one edge of a block

QUANT_FORMATS = {
    each.name: each
    for each in (
        QuantFormat("int8", 8, symmetric=True, tolerance=0.04),
        QuantFormat("int4", 4, group=32, tolerance=0.5),
        QuantFormat("kivi", 4, group=32, per_channel=True, tolerance=0.3),
        QuantFormat("kivi-2", 2, group=32, per_channel=True, tolerance=1.2),
    )
}
