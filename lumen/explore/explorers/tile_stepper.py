"""The tile stepper: attention tile by tile, with the three numbers that a query carries from tile to tile."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from lumen.explore.explorers.widget import JSWidget

SIZES = (1, 2, 4, 8)  # rows and columns of a tile


@dataclass(frozen=True)
class Carried:
    """What a query knows behind a tile: the largest score so far, the sum of exp(score - largest), the values weighted
    so, and the factor that the older sums were multiplied by when this tile came."""

    largest: float
    total: float
    weighted: float
    shrink: float

    @property
    def out(self) -> float:
        return self.weighted / self.total


def walk(scores: Sequence[float], values: Sequence[float], block: int) -> list[Carried]:
    """One query's softmax over `scores`, `block` of them at a time, with one value a key. The twin of `walk` in
    tile_stepper.js. Milakov and Gimelshein 2018, algorithm 3."""
    if block < 1 or len(scores) != len(values) or not scores:
        raise ValueError(
            f"a walk needs as many values as scores, one at least, and tiles of one key at least; got {len(scores)} "
            f"scores, {len(values)} values, tiles of {block}"
        )
    largest, total, weighted, found = -math.inf, 0.0, 0.0, []
    for at in range(0, len(scores), block):
        tile = scores[at : at + block]
        above = max(largest, *tile)
        shrink = math.exp(largest - above)
        weights = [math.exp(score - above) for score in tile]
        total = total * shrink + math.fsum(weights)
        weighted = weighted * shrink + math.fsum(
            w * v for w, v in zip(weights, values[at : at + block], strict=True)
        )
        largest = above
        found.append(Carried(largest, total, weighted, shrink))
    return found


class TileStepper(JSWidget):
    """Step through the tiles of one head's scores. Choose the tile's size, the mask, and the query to watch.

    `size` queries and keys (8 or 16), scores and values drawn with `seed`.

    >>> TileStepper(size=8, block=2)
    """

    module = "tile_stepper.js"
    label = "tile stepper"

    def __init__(
        self,
        size: int = 8,
        block: int = 2,
        *,
        causal: bool = True,
        seed: int = 0,
        title: str = "A softmax in pieces",
        lead: str = "Rows are queries, columns keys. The orange tile is all that exists now.",
    ) -> None:
        if size not in (8, 16):
            raise ValueError(f"size is 8 or 16, so that every cell can be seen; got {size}")
        if block not in SIZES:
            raise ValueError(f"block is one of {', '.join(map(str, SIZES))}; got {block}")
        draw = random.Random(seed)
        super().__init__(
            title=title,
            lead=lead,
            block=block,
            causal=causal,
            sizes=list(SIZES),
            scores=[[round(draw.gauss(0, 2), 1) for _ in range(size)] for _ in range(size)],
            values=[draw.randint(0, 9) for _ in range(size)],
        )
