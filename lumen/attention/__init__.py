"""Attention: one mask rule, and the ways to compute it."""

from .core import Mask, attend_with, attention, mask_for, visible, weigh_with

__all__ = ["Mask", "attend_with", "attention", "mask_for", "visible", "weigh_with"]
