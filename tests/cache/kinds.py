"""How quantized stores are made, in short, for tests over every kind."""

from __future__ import annotations

from functools import partial

from lumen.cache import QUANT_FORMATS, KiviStore, QuantStore


def quantized(name, **changes):
    """How a quantized store of this format is made for a model."""
    return partial(QuantStore.for_model, form=QUANT_FORMATS[name].with_(**changes))


def kivi(name="kivi", sequences=8, **changes):
    """The same for blocks that are whole until they are full."""
    return partial(KiviStore.for_model, form=QUANT_FORMATS[name].with_(**changes), sequences=sequences)
