"""Attention: one mask rule, and the ways to compute it."""

from .core import Mask, attend_with, attention, mask_for, visible, weigh_with
from .flash import Traffic, flash_attention, naive_traffic
from .lowbit import lowbit_attention
from .split import merge, split_attention
from .tiles import attend_in_tiles

__all__ = [
    "Mask",
    "Traffic",
    "attend_in_tiles",
    "attend_with",
    "attention",
    "flash_attention",
    "lowbit_attention",
    "mask_for",
    "merge",
    "naive_traffic",
    "split_attention",
    "visible",
    "weigh_with",
]
