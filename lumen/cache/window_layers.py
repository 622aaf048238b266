"""The cache of a model that was trained with windows: rings where a layer sees a window, everything where it sees all.

layer     0       1       2                 Gemma 3 (two of its six kinds of place), window 4, capacity 1000
sees      4     all       4
holds  ring 4   1000   ring 4               lossless: what has left a ring no query of that layer could read
"""

from __future__ import annotations

from ..inputs import whole
from ..parts import Window
from .base import Cache
from .dense import StaticCache
from .layered import LayeredCache
from .traits import HasShape
from .window import WindowCache


def trained_windows(model: HasShape, rows: int, capacity: int, rewind: int = 0) -> Cache:
    """An empty cache on the model's device and in its dtype; `capacity` positions bind in the layers that see all.

    `rewind`: how many positions a row can go back, paid for in slots of the rings (speculation takes back drafts).
    A layer whose keys others read keeps what the furthest-sighted of them sees.
    """
    config, weight = model.config, next(model.parameters())
    if config.linear is not None:
        raise ValueError(
            f"{config.name} carries states in its linear layers; make its cache with `cache_for`."
        )
    rewind = whole(rewind, "rewind", 0, 2**24)
    sight = [
        [
            config.window_of(reader)
            for reader in range(config.num_layers)
            if config.cache_layer(reader) == layer
        ]
        for layer in config.storing_layers
    ]
    widths = [None if None in seen else max(w for w in seen if w is not None) for seen in sight]
    parts: dict[int | None, Cache] = {}
    for width in dict.fromkeys(widths):
        layers = config.with_(num_layers=widths.count(width), kv_from=(), full_layers=(), window=width)
        if width is None:
            parts[width] = StaticCache(layers, rows, capacity, weight.dtype, weight.device)
        else:
            parts[width] = WindowCache(layers, rows, Window(width), rewind, weight.dtype, weight.device)
    if len(parts) == 1:
        return parts[widths[0]]
    counted = {width: iter(range(widths.count(width))) for width in parts}
    return LayeredCache([(parts[width], next(counted[width])) for width in widths])
