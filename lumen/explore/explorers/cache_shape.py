"""The cache-shape explorer: heads or latents, layers that share, context and format, beside published models."""

from __future__ import annotations

from collections.abc import Sequence

from lumen import cost
from lumen.cost.ledger import Held, Layers, ledger
from lumen.explore.explorers.cache_size import FORMATS
from lumen.explore.explorers.roofline import closest
from lumen.explore.explorers.widget import JSWidget

CONTEXTS = tuple(2**i for i in range(8, 21))
HEADS, WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128), (32, 64, 96, 128, 192, 256)
RANKS, ROPES = (64, 128, 256, 512, 1024, 2048), (0, 32, 64, 128)
LAYERS, SHARING = (6, 12, 24, 28, 32, 36, 48, 61, 64, 80, 96, 126), (1, 2, 3, 4)


def stored(scheme: str, *, heads: int = 1, width: int = 1, rank: int = 1, rope: int = 0) -> int:
    """Numbers of a token in a layer that stores. The twin of `stored` in cache_shape.js."""
    if scheme not in ("heads", "latent"):
        raise ValueError(f"a token leaves heads or a latent, not {scheme!r}")
    return 2 * heads * width if scheme == "heads" else rank + rope


def own(layers: int, sharing: int, numbers: int) -> Held:
    """A model of the reader's, each `sharing` of its layers reading one cache."""
    return Held("yours", "", (Layers(-(-layers // sharing), numbers),), "")


def holds(model: Held, context: int, bytes_each: float, memory: float) -> dict[str, float]:
    """Bytes of a first token and of a user, and the users that fit. The twin of `holds` in cache_shape.js."""
    return {
        "token": model.bytes(1, bytes_each),
        "user": model.bytes(context, bytes_each),
        "users": model.users(memory, context, bytes_each),
    }


class CacheShape(JSWidget):
    """Choose what a token leaves in the cache, and see users and bytes beside published models.

    `memory` is what the caches may take [B]; weights are left out.

    >>> CacheShape(context=32768)
    """

    module = "cache_shape.js"
    label = "cache-shape explorer"

    def __init__(
        self,
        models: Sequence[Held] | None = None,
        *,
        heads: int = 8,
        width: int = 128,
        layers: int = 32,
        rank: int = 512,
        rope: int = 64,
        context: int = 131_072,
        memory: float = 80e9,
        title: str = "What does a token leave behind?",
        lead: str = "Bars: the cache of one user, yours and published ones, on a logarithmic axis.",
    ) -> None:
        if not memory > 0:
            raise ValueError(f"the caches need some memory, got {memory}")
        some = list(ledger() if models is None else models)
        if not some:
            raise ValueError(
                "beside which models? Give one at least, or leave `models` out for the course's ledger"
            )
        super().__init__(
            title=title,
            lead=lead,
            models=[
                {"name": m.name, "kind": m.kind, "layers": [[p.count, p.numbers, p.window] for p in m.layers]}
                for m in some
            ],
            formats=[{"name": n, "label": text, "bytes": cost.bytes_per_value(n)} for n, text in FORMATS.items()],
            scales={
                "heads": list(HEADS), "width": list(WIDTHS), "rank": list(RANKS), "rope": list(ROPES),
                "layers": list(LAYERS), "sharing": list(SHARING), "context": list(CONTEXTS),
            },
            start={
                "heads": closest(HEADS, heads), "width": closest(WIDTHS, width), "rank": closest(RANKS, rank),
                "rope": closest(ROPES, rope), "layers": closest(LAYERS, layers), "sharing": 1,
                "context": closest(CONTEXTS, context),
            },
            memory=memory,
        )  # fmt: skip
