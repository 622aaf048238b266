"""What a kind of cache promises, and small questions that every kind asks: do the positions fit, how wide is a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from ..parts import Window

if TYPE_CHECKING:
    from ..config import ModelConfig

Expand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""What a layer makes of the stored k and v (B, Hkv, S, ...) before it reads them, such as MLA's heads from latents."""


class HasShape(Protocol):
    """All that a cache must know of a model to be made for it. Models call caches, so caches know no models."""

    config: ModelConfig

    def parameters(self) -> Iterator[Tensor]:
        """Its weights; the cache takes the first one's device and dtype."""


@dataclass(frozen=True)
class Traits:
    """What a kind promises. `Traits()` is a lossless kind that forgets whatever it is told to.

    `tolerance`: relative error of logits against the forward without a cache; 0 is lossless up to rounding, inf
    promises nothing. `kept`: queries read a window and sinks of what stands before them, and `tolerance` is against the
    forward without a cache that reads so. `endless`: no distance exceeds what is kept, so the positions that a model
    knows are no limit to its text. `max_rewind`: how many positions a row can go back; None is all of them, 0 none.
    `per_head`: heads choose their keys, so k_pos may be (B, Hkv, S). `same_positions`: every layer holds the same
    positions, so one mask serves all layers of a forward. `weighs`: the kind is handed the attention weights, see
    `Cache.weigh`. `readable`: what is held can be read without storing, see `Cache.read`.
    """

    tolerance: float = 0.0
    max_rewind: int | None = None
    per_head: bool = False
    same_positions: bool = True
    weighs: bool = False
    readable: bool = True
    kept: Window | None = None
    endless: bool = False

    @property
    def lossless(self) -> bool:
        return self.tolerance == 0.0 and self.kept is None

    @property
    def takes_trees(self) -> bool:
        """A `Tree` reads and stores nothing, and nobody would tell the kind how much each key was read."""
        return self.readable and not self.weighs


def refuse_repeats(pos: Tensor) -> None:
    """ValueError when two new tokens of a row stand at one position: pos (B, T), -1 may repeat."""
    ordered = pos.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if bool(twice.any()):
        row, column = twice.nonzero()[0].tolist()
        raise ValueError(
            f"Row {row} has two new tokens at position {int(ordered[row, column])}, and one would overwrite the other. "
            "Pass the branches of a draft tree through `Tree(cache, parents)`; otherwise give each token its own."
        )


def refuse_gaps(pos: Tensor, lengths: Tensor) -> None:
    """ValueError when a row's new tokens leave a position out: pos (B, T), lengths (B,). For kinds whose slots are
    positions, where what once stood in the slot that was left out would be read."""
    left_out = pos.amax(1) + 1 - lengths - (pos >= 0).sum(1)
    if bool((left_out > 0).any()):
        row = int((left_out > 0).int().argmax())
        raise ValueError(
            f"Row {row} holds {int(lengths[row])} positions, and its new tokens reach position {int(pos[row].max())} "
            f"but leave {int(left_out[row])} out on the way. Give every position a token, or use a dense cache."
        )


def stored_dims(config: ModelConfig) -> tuple[int, int, int]:
    """What a layer stores of a token: heads, width of a key, width of a value.

    Values that are a part of the keys (MLA) have no width of their own: the layer reads them out by `expand`.
    """
    dims = config.cache_dims
    return dims.heads, dims.key, 0 if dims.shared else dims.value


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`: a view counts as the whole it keeps alive."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
