"""What stands behind attention in a block: a plain MLP, a gated one, or experts of which each token takes a few.

All answer to `forward(x, at, layer)`, (N, D) -> (N, D), N = B · T tokens. Shazeer 2020, GLU variants, section 2; Jiang
et al. 2024, Mixtral of Experts, section 2.1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig
from ..parts import Experts
from .linear import Linear
from .passing import Pass

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "gelu": F.gelu,
}


class MLP(nn.Module):
    """down(act(up x)): two matrices."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.act = ACTIVATIONS[config.mlp]
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=config.bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        inner = self.act(at.linear(self.up, x, layer, "mlp.up"))
        return at.reduced(at.linear(self.down, inner, layer, "mlp.down"))


class GatedMLP(nn.Module):
    """down(act(gate x) * up x). Gate and up are one matrix, read once."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.act = ACTIVATIONS[config.mlp]
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=config.bias)

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        gate, up = at.linear(self.gate_up, x, layer, "mlp.gate_up").chunk(2, -1)
        return at.reduced(at.linear(self.down, self.act(gate) * up, layer, "mlp.down"))


class Expert(nn.Module):
    """A gated MLP over a list of tokens, (N, D) -> (N, D)."""

    def __init__(self, config: ModelConfig, size: int):
        super().__init__()
        self.act = ACTIVATIONS[config.mlp]
        self.gate_up = Linear(config.hidden_size, 2 * size, bias=False)
        self.down = Linear(size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        y: Tensor = self.down(self.act(gate) * up)
        return y


class Mixture(nn.Module):
    """The experts that the router chose for a token, added up by their weights. Padding is not routed.

    A loop over experts: each reads its own tokens, so that no weight is read for nothing. It asks the device which
    tokens are whose, which a compiled step must not: chapter 26 sorts them instead.
    """

    def __init__(self, config: ModelConfig, experts: Experts):
        super().__init__()
        self.per_token, self.normalised = experts.per_token, experts.normalised
        self.router = Linear(config.hidden_size, experts.count, bias=False)
        self.experts = nn.ModuleList(Expert(config, experts.size) for _ in range(experts.count))

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        scores = at.linear(self.router, x, layer, "mlp.router")
        share, chosen = route(scores, self.per_token, self.normalised)
        chosen = chosen.masked_fill((at.pos < 0).view(-1, 1), -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            if token.numel():
                y.index_add_(0, token, expert(x[token]) * share[token, place, None])
        return at.reduced(y)


def route(scores: Tensor, per_token: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """Weights and numbers of the experts that score highest, each (N, per_token). scores (N, experts).

    The softmax runs over all experts, in fp32 at least; `normalised` divides the chosen weights by their sum.
    """
    chances = scores.to(torch.promote_types(scores.dtype, torch.float32)).softmax(-1)
    share, chosen = chances.topk(per_token, -1)
    if normalised:
        share = share / share.sum(-1, keepdim=True)
    return share.to(scores.dtype), chosen
