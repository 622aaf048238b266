"""How many bits a stored value costs, and what the number formats can hold.

Every byte count in the course goes through `bytes_per_value`, so "4-bit weights" always pays for its scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Plain formats: bits of one value.
PLAIN_BITS: dict[str, float] = {
    "fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16,
    "fp8": 8, "int8": 8, "fp4": 4, "int4": 4, "int2": 2,
}  # fmt: skip

# Block formats: (bits of one code, bits of everything else in a block, values in a block). The GGUF rows
# are the sizes of `gguf.GGML_QUANT_SIZES`; MXFP4: OCP Microscaling specification v1.0 (2023); NVFP4: 16
# values share an E4M3 scale, the one fp32 scale of the whole tensor is not counted.
BLOCKS: dict[str, tuple[float, float, int]] = {
    "q4_0": (4, 16, 32),
    "q4_1": (4, 32, 32),
    "q8_0": (8, 16, 32),
    "q4_k": (4, 8 * (144 - 128), 256),
    "q6_k": (6, 8 * (210 - 192), 256),
    "mxfp4": (4, 8, 32),
    "nvfp4": (4, 8, 16),
}

_ALIASES = {
    "float64": "fp64", "float32": "fp32", "float": "fp32",
    "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "e4m3": "fp8", "e5m2": "fp8", "e2m1": "fp4",
}  # fmt: skip


def dtype_name(dtype: object) -> str:
    """The course's short name of a format: `torch.bfloat16`, "bfloat16" and "bf16" are all "bf16"."""
    name = str(dtype).lower().removeprefix("torch.")
    return _ALIASES.get(name, name)


def bits_per_weight(dtype: object) -> float:
    """Bits that one stored value costs, scales included: "q4_0" is 4.5, not 4. [bits]"""
    name = dtype_name(dtype)
    if name in PLAIN_BITS:
        return PLAIN_BITS[name]
    if name in BLOCKS:
        code, extra, size = BLOCKS[name]
        return grouped_bits(code, extra, size)
    raise ValueError(f"Unknown number format {dtype!r}. Known: {', '.join([*PLAIN_BITS, *BLOCKS])}.")


def bytes_per_value(dtype: object) -> float:
    """Bytes of one value, from a format's name, a torch dtype, or the number of bytes itself. [B]"""
    if isinstance(dtype, (int, float)) and not isinstance(dtype, bool):
        if dtype <= 0:
            raise ValueError(f"A value takes more than 0 bytes, got {dtype}.")
        return float(dtype)
    return bits_per_weight(dtype) / 8


def grouped_bits(code_bits: float, scale_bits: float, group: int) -> float:
    """Bits per weight when `group` weights share `scale_bits` of scales: code + scale/group. [bits]"""
    if group < 1:
        raise ValueError(f"A group holds at least one weight, got {group}.")
    return code_bits + scale_bits / group


def read_speedup(code_bits: float, scale_bits: float, group: int, baseline_bits: float = 16) -> float:
    """How many times fewer bits are read than of `baseline_bits` each: base / (code + scale/group)."""
    return baseline_bits / grouped_bits(code_bits, scale_bits, group)


def two_four_storage(bits: float) -> float:
    """Share of the dense size that 2:4 sparsity stores.

    Of every four values two are kept, with a 2-bit index each:     (2b + 2·2) / 4b: 0.5625 at 16 bits,
    0.625 at 8. Source: NVIDIA A100 white paper, "structured sparsity".
    """
    return (2 * bits + 2 * 2) / (4 * bits)


@dataclass(frozen=True)
class FloatFormat:
    """A binary floating-point format with subnormals.

    `specials` says what the largest exponent is used for: "ieee" (infinities and NaN), "nan" (numbers, but
    the all-ones pattern is NaN: E4M3) or "none" (numbers only: E2M1). Source: OCP 8-bit floating point
    (2023), OCP Microscaling (2023).
    """

    exponent_bits: int
    mantissa_bits: int
    specials: Literal["ieee", "nan", "none"] = "ieee"

    @property
    def bias(self) -> int:
        """The exponent's offset: 2^(e-1) - 1."""
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def largest(self) -> float:
        """The largest finite value, (2 - ulp) · 2^emax, less what the specials take."""
        top = 2**self.exponent_bits - 1 - (self.specials == "ieee")
        ulps = 2**self.mantissa_bits - 1 - (self.specials == "nan")
        return (1 + ulps / 2**self.mantissa_bits) * 2.0 ** (top - self.bias)

    def values(self) -> list[float]:
        """The finite value of every code, both signs, zero twice; for formats of 8 bits at most."""
        if 1 + self.exponent_bits + self.mantissa_bits > 8:
            raise ValueError("Only formats of 8 bits or fewer are listed; wider ones have too many codes.")
        steps = 2**self.mantissa_bits
        positive = [m / steps * 2.0 ** (1 - self.bias) for m in range(steps)]
        for exponent in range(1, 2**self.exponent_bits):
            positive += [(1 + m / steps) * 2.0 ** (exponent - self.bias) for m in range(steps)]
        positive = [v for v in positive if v <= self.largest]
        return [-v for v in reversed(positive)] + positive


FLOATS: dict[str, FloatFormat] = {
    "fp32": FloatFormat(8, 23),
    "bf16": FloatFormat(8, 7),
    "fp16": FloatFormat(5, 10),
    "e5m2": FloatFormat(5, 2),
    "e4m3": FloatFormat(4, 3, "nan"),
    "e2m1": FloatFormat(2, 1, "none"),
}
