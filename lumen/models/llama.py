"""Llama and its family: RMSNorm, rotary positions, grouped-query attention, gated MLP or experts.

SmolLM2, Llama 2 and 3, Mistral, Mixtral, Qwen 2 and 3 and Gemma 3 are this model with other options in its
`ModelConfig`. Touvron et al. 2023, LLaMA, section 2.2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..config import ModelConfig
from .layers import Block, Decoder, make_norm
from .rope import rope_at, rope_table


class Llama(Decoder):
    """The decoder. Weights are random until `lumen.models.weights.load_hf_state` fills them."""

    def __init__(self, config: ModelConfig, block: Callable[[ModelConfig, int], nn.Module] = Block):
        if not config.gated or (config.positions, config.norm) != ("rope", "rms"):
            raise ValueError(
                f"Llama is RMSNorm + RoPE + a gated MLP such as SwiGLU; {config.name!r} asks for "
                f"{config.norm}, {config.positions}, {config.mlp}."
            )
        super().__init__(config, block, make_norm)
        self.rope_cos: Tensor
        self.rope_sin: Tensor
        self.local_cos: Tensor
        self.local_sin: Tensor
        for name, table in self._tables().items():
            self.register_buffer(name, table, persistent=False)

    def _tables(self) -> dict[str, Tensor]:
        tables = dict(zip(("rope_cos", "rope_sin"), rope_table(self.config), strict=True))
        if self.config.local_theta is not None:
            tables |= dict(zip(("local_cos", "local_sin"), rope_table(self.config, local=True), strict=True))
        return tables

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Llama:
        """Moves to devices take the rotary tables along; changes of dtype leave them in fp32."""
        super()._apply(fn, recurse)
        if self.rope_cos.dtype != torch.float32:
            for name, table in self._tables().items():
                setattr(self, name, table.to(self.rope_cos.device))
        return self

    def embedded(self, tokens: Tensor, pos: Tensor) -> Tensor:
        x: Tensor = self.embed(tokens)
        scale = self.config.embed_scale
        return (
            x if scale == 1.0 else x * x.new_tensor(scale)
        )  # rounded to the model's dtype, as Gemma was trained

    def turns(self, pos: Tensor, endless: bool = False) -> tuple[tuple[Tensor, Tensor], ...]:
        at, two = pos.clamp(min=0)[:, None], self.config.local_theta is not None
        if endless:  # past the tables, too
            return tuple(rope_at(self.config, at, local) for local in ((False, True) if two else (False,)))
        turns = ((self.rope_cos[at], self.rope_sin[at]),)
        return (*turns, (self.local_cos[at], self.local_sin[at])) if two else turns
