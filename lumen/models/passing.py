"""What one forward carries through all layers beside the hidden states: no layer asks a global.

`Channels` is what the caller may say beside tokens, positions and cache. `Pass` is that, with what the model works out
once for all its layers. A new channel is a field here and a line where it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from ..cache.base import Cache
    from .lora import Routed


@dataclass(frozen=True)
class Channels:
    """`model(tokens, pos, cache, Channels(...))`; the empty one changes nothing.

    lora     which low-rank adapter each token uses: `lora.Adapters.route(rows)`
    reduce   adds up what tensor-parallel shards computed, after attention's and the MLP's last matrix
    exit     run the first `exit` layers only, then norm and head (Elhoushi et al. 2024, LayerSkip, section 3.2)
    causal   False lets a token read those behind it too: diffusion models and encoders
    """

    lora: Routed | None = None
    reduce: Callable[[Tensor], Tensor] | None = None
    exit: int | None = None
    causal: bool = True


PLAIN = Channels()


@dataclass(frozen=True)
class Pass:
    """pos (B, T) as the cache lays the tokens out, -1 for padding; `turns` are the rotary (cos, sin), each
    (B, 1, T, head_dim), of the layers that see everything and, if theirs differ, of the windowed ones. Empty with
    learned positions."""

    pos: Tensor
    cache: Cache
    turns: tuple[tuple[Tensor, Tensor], ...] = ()
    channels: Channels = PLAIN

    def linear(self, module: nn.Module, x: Tensor, layer: int, name: str) -> Tensor:
        """`module(x)`, and what the tokens' adapters add to the matrix `name` ("attn.qkv") of this layer."""
        y: Tensor = module(x)
        lora = self.channels.lora
        return y if lora is None else lora.add(y, x, layer, name)

    def reduced(self, y: Tensor) -> Tensor:
        """The sum over tensor-parallel shards; `y` itself where there is one."""
        reduce = self.channels.reduce
        return y if reduce is None else reduce(y)
