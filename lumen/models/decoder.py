"""What every decoder of the course answers to: `forward`, `hidden` and `head` over (tokens, pos, cache).

    embedded(tokens, pos)   (B, T) -> (B, T, D)
    blocks                  each (B · T, D) -> (B · T, D)
    norm, head              (B, T, D) -> (B, T, V)

`features` hands out what chosen layers gave on the way (EAGLE-3), `stretch` runs a range of layers from hidden states
(pipelines, early exit). All of them begin and end one forward of the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..cache.base import NoCache
from ..config import ModelConfig
from ..inputs import shown
from .linear import Linear
from .passing import PLAIN, Channels, Pass

if TYPE_CHECKING:
    from ..cache.base import Cache


class Decoder(nn.Module):
    """A stack of blocks between an embedding and a head. `block(config, layer)` makes each of them."""

    def __init__(
        self,
        config: ModelConfig,
        block: Callable[[ModelConfig, int], nn.Module],
        norm: Callable[[ModelConfig], nn.Module],
    ):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        self.blocks = nn.ModuleList(block(config, layer) for layer in range(config.num_layers))
        self.norm = norm(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed.weight

    def embedded(self, tokens: Tensor, pos: Tensor) -> Tensor:
        """What the first layer reads. (B, T) -> (B, T, D)."""
        raise NotImplementedError

    def turns(self, pos: Tensor, endless: bool = False) -> tuple[tuple[Tensor, Tensor], ...]:
        """Rotary (cos, sin) of these positions, worked out once for all layers; none with learned positions. `endless`:
        they may be past those that the model knows."""
        return ()

    def hidden(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        channels: Channels = PLAIN,
    ) -> Tensor:
        """Final hidden states, normalised, ready for `head`. tokens (B, T) int64 -> (B, T, D).

        `pos` (B, T) holds absolute positions and -1 for padding; None means the next T positions of each row.
        With a cache the new keys and values are stored, and its `lengths` move on. Raises `CacheFull` before
        anything is written.
        """
        return self.features(tokens, pos, cache, (), channels)[0]

    def features(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        layers: Sequence[int] = (),
        channels: Channels = PLAIN,
    ) -> tuple[Tensor, list[Tensor]]:
        """`hidden`, and what each of `layers` gave, before the next one and not normalised, each (B, T, D).

        Drafters learn from them: Li et al. 2025, EAGLE-3, section 3.1.
        """
        last = self.config.num_layers if channels.exit is None else channels.exit
        if any(not 0 <= layer < last for layer in layers):
            raise ValueError(
                f"Features come from layers 0 to {last - 1} of this forward, not {list(layers)}."
            )
        pos, at = self._begin(tokens, pos, cache, channels)
        x, kept = self._run(self.embedded(tokens, pos), at, 0, last, layers)
        at.cache.advance(pos)
        return self.norm(x), kept

    def stretch(
        self,
        x: Tensor,
        pos: Tensor,
        cache: Cache | None,
        first: int,
        last: int,
        channels: Channels = PLAIN,
    ) -> Tensor:
        """Layers `first` up to but not including `last`, from hidden states to hidden states, neither normalised.

        x (B, T, D), pos (B, T). `stretch(embedded(tokens, pos), ..., 0, n)`, then `norm`, is `hidden`.
        """
        if not 0 <= first <= last <= self.config.num_layers:
            raise ValueError(
                f"{self.config.name} has layers 0 to {self.config.num_layers - 1}; {first} to {last} are none."
            )
        if x.dim() != 3 or x.shape[:2] != pos.shape:
            raise ValueError(f"x {tuple(x.shape)} must be (B, T, D) over pos {tuple(pos.shape)}.")
        pos, at = self._begin(x[..., 0], pos, cache, channels)
        x, _ = self._run(x, at, first, last)
        at.cache.advance(pos)
        return x

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of any selection of hidden states. (..., D) -> (..., V)."""
        return self.lm_head(hidden)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run two tokens: what is done once, such as packing weights, is done now and not while a request waits."""
        self(torch.zeros((1, 2), dtype=torch.int64, device=next(self.parameters()).device))

    def forward(
        self,
        tokens: Tensor,
        pos: Tensor | None = None,
        cache: Cache | None = None,
        channels: Channels = PLAIN,
    ) -> Tensor:
        """Logits of every new token. tokens (B, T) int64 -> (B, T, V). See `hidden` for `pos` and `cache`."""
        return self.head(self.hidden(tokens, pos, cache, channels))

    def _run(
        self, x: Tensor, at: Pass, first: int, last: int, keep: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """x (B, T, D) through a range of layers, and what those of `keep` gave."""
        shape, kept = x.shape, {}
        x = x.flatten(0, 1)
        for layer in range(first, last):
            x = self.blocks[layer](x, at, layer)
            if layer in keep:
                kept[layer] = x.view(shape)
        return x.view(shape), [kept[layer] for layer in keep]

    def _begin(
        self, tokens: Tensor, pos: Tensor | None, cache: Cache | None, channels: Channels
    ) -> tuple[Tensor, Pass]:
        """Check what came from outside and begin the cache's forward; nothing is written yet."""
        if tokens.dim() != 2 or tokens.shape[1] < 1:
            raise ValueError(f"tokens must be (B, T) with T at least 1, got {tuple(tokens.shape)}.")
        if pos is None:
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            pos = steps.expand(tokens.shape) if cache is None else cache.lengths[:, None] + steps
        if pos.shape != tokens.shape:
            held = "" if cache is None else f"; the cache holds {cache.lengths.shape[0]} rows"
            raise ValueError(
                f"pos must have the shape of tokens {tuple(tokens.shape)}, got {tuple(pos.shape)}{held}."
            )
        check_channels(channels, pos, self.config)
        state = NoCache() if cache is None else cache
        endless = state.traits.endless
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            # On a GPU this look would stall the stream; generate() checks there.
            check_range(tokens, pos, self.config, endless)
        state.begin(pos)
        if self.config.linear is not None and pos.device.type == "cpu" and not torch.compiler.is_compiling():
            check_order(pos)
        laid = state.laid_out(pos)
        return pos, Pass(laid, state, self.turns(laid, endless), channels)


def check_channels(channels: Channels, pos: Tensor, config: ModelConfig) -> None:
    """What the caller says beside tokens fits them and the model, or a sentence."""
    if channels.exit is not None and not 1 <= channels.exit <= config.num_layers:
        raise ValueError(
            f"{config.name} can stop after 1 to {config.num_layers} layers, not {channels.exit}."
        )
    if config.linear is not None and not channels.causal:
        raise ValueError(
            f"{config.name} has linear layers, whose states go from left to right; ask for causal=True."
        )
    if channels.lora is not None and channels.lora.rows.shape != pos.shape:
        raise ValueError(
            f"One adapter number for each token {tuple(pos.shape)}, got {tuple(channels.lora.rows.shape)}."
        )


def check_order(pos: Tensor) -> None:
    """What a state sums up comes in the order of its positions: pos (B, T) rises along each row, -1 anywhere."""
    highest = pos.cummax(1).values
    if bool(((pos >= 0) & (pos < highest)).any()):
        row = int(((pos >= 0) & (pos < highest)).any(1).int().argmax())
        raise ValueError(
            f"Row {row} has its new tokens at positions {shown(pos[row].tolist())}, and a state takes them in order "
            "only. Sort each row's tokens by position; padding may stand anywhere."
        )


def check_range(tokens: Tensor, pos: Tensor, config: ModelConfig, endless: bool = False) -> None:
    """Token ids inside the vocabulary and positions inside the model's range, or a sentence. A cache that is `endless`
    keeps all distances small, and then positions have no end.

    Hidden states in the place of tokens (floating point) have no vocabulary to be outside of.
    """
    if not tokens.is_floating_point():
        low, high = (int(bound) for bound in torch.aminmax(tokens))
        if low < 0 or high >= config.vocab_size:
            raise ValueError(
                f"Token id {low if low < 0 else high} is outside the vocabulary of {config.name} "
                f"(0 to {config.vocab_size - 1}). Was the text encoded by another model's tokenizer?"
            )
    last = int(pos.max())
    if last >= config.max_positions and not endless:
        raise ValueError(
            f"Position {last} is past the last one that {config.name} knows ({config.max_positions - 1}). "
            "Shorten the prompt or ask for fewer new tokens."
        )
