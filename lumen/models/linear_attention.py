"""A layer that mixes tokens by a state instead of attention: gated delta net, and the three rules it grew out of.

    q, k, v    one matrix, a short convolution, SiLU; queries and keys of length 1 (rule "linear": elu + 1)
    a, b       how fast a head forgets, exp(-A softplus(a + dt)), and how strongly it writes, sigmoid(b)
    S          a state a head: `lumen.attention.linear`, by chunks, and token by token in a decode step
    out        RMSNorm of each head, times SiLU of a gate z, then the second matrix

Yang et al. 2025, Gated DeltaNet, section 3.4, as Qwen3-Next has it. "gated" leaves the correction out (Yang et al.
2024, gated linear attention; Dao and Gu 2024, Mamba-2), "delta" the decay (Yang et al. 2024, DeltaNet), "linear" both:
there weights are elu(q)+1 times elu(k)+1, divided by their sum (Katharopoulos et al. 2020, equations 5 to 7).

What the layer leaves behind its last token, the state and the convolution's last tokens, lies in the cache: no keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention.linear import chunked, recurrent, short_conv
from ..config import ModelConfig
from .linear import Linear
from .passing import Pass

EPS = 1e-6  # below the squared length of a query or key, as in fla and transformers


class LinearAttention(nn.Module):
    """The mixer of a linear layer. `proj` holds the rows of q, k, v, z, b and a, one weight read for all."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__()
        if config.linear is None or not config.is_linear(layer):
            raise ValueError(
                f"{config.name} has attention in layer {layer}; name the layer in `linear.layers`."
            )
        self.shape, self.place, self.eps = config.linear, config.cache_place(layer), config.norm_eps
        shape = self.shape
        self.widths = [shape.channels, shape.heads * shape.value_dim]
        self.widths += [shape.heads] * shape.corrects + [shape.heads] * shape.decays
        self.proj = Linear(config.hidden_size, sum(self.widths), bias=False)
        self.conv = nn.Parameter(
            torch.empty(shape.channels, 1, shape.conv).uniform_(-1, 1) * shape.conv**-0.5
        )
        if (
            shape.decays
        ):  # so that heads begin with memories from one token to hundreds: Mamba-2's initial values
            step = torch.empty(shape.heads).uniform_(-6.9, -2.3).exp()  # 0.001 to 0.1
            self.dt_bias = nn.Parameter(step + (-torch.expm1(-step)).log())  # softplus of it is the step
            self.a_log = nn.Parameter(torch.empty(shape.heads).uniform_(1, 16).log())
        self.norm = nn.Parameter(torch.ones(shape.value_dim))
        self.out = Linear(shape.heads * shape.value_dim, config.hidden_size, bias=False)

    def forward(self, x: Tensor, at: Pass, layer: int) -> Tensor:
        """x (N, hidden) -> (N, hidden)."""
        length = at.pos.shape[1]
        mixed, gate, *steer = (
            at.linear(self.proj, x, layer, "attn.proj").view(*at.pos.shape, -1).split(self.widths, -1)
        )
        width = 1 if at.cache.stepwise(length) else length
        state, rows = at.cache.state(self.place), []
        for start in range(0, length, width):
            span = slice(start, start + width)
            y, state = self._mix(mixed[:, span], [part[:, span] for part in steer], at.pos[:, span], state)
            at.cache.set_state(self.place, *state)
            rows.append(y)
        y = self._gated(torch.cat(rows, 2).transpose(1, 2), gate).to(x.dtype).reshape(x.shape[0], -1)
        return at.reduced(at.linear(self.out, y, layer, "attn.out"))

    def _mix(
        self, mixed: Tensor, steer: list[Tensor], pos: Tensor, held: tuple[Tensor, ...] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """y (B, H, T, Dv) of some tokens' q k v and of what steers the state (b, a), and what they leave behind."""
        seen = _padded(pos)
        before, state = held or (None, None)
        mixed, before = short_conv(mixed, self.conv[:, 0], state=before, pos=seen)
        q, k, v = self._heads(mixed)
        beta = steer[0].sigmoid().mT if self.shape.corrects else None
        log_decay = self._log_decay(steer[-1]).mT if self.shape.decays else None
        form = recurrent if pos.shape[1] == 1 else chunked
        y, state = form(q, k, v, log_decay=log_decay, beta=beta, state=state, pos=seen)
        if self.shape.rule == "linear":
            y = y[..., :-1] / y[..., -1:].clamp(min=EPS)
        return y, (before, state)

    def _heads(self, mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k (B, H, T, D) as the rule wants them, and v (B, H, T, Dv), in fp32 at least."""
        shape = self.shape
        keys = shape.shared_keys * shape.key_dim
        mixed = mixed.to(torch.promote_types(mixed.dtype, torch.float32))
        q, k, v = (
            part.unflatten(-1, (-1, width)).transpose(1, 2)
            for part, width in zip(
                mixed.split([keys, keys, shape.heads * shape.value_dim], -1),
                (shape.key_dim, shape.key_dim, shape.value_dim),
                strict=True,
            )
        )
        if shape.rule == "linear":
            q, k, v = F.elu(q) + 1, F.elu(k) + 1, F.pad(F.silu(v), (0, 1), value=1.0)
        else:
            q, k, v = _unit(F.silu(q)) * shape.key_dim**-0.5, _unit(F.silu(k)), F.silu(v)
        if shape.heads > shape.shared_keys:
            q, k = (part.repeat_interleave(shape.heads // shape.shared_keys, 1) for part in (q, k))
        return q, k, v

    def _log_decay(self, a: Tensor) -> Tensor:
        """ln of what is left of a head's state, (B, T, H): below 0."""
        kind = torch.promote_types(a.dtype, torch.float32)
        return -self.a_log.to(kind).exp() * F.softplus(a.to(kind) + self.dt_bias.to(kind))

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Each head's output (B, T, H, Dv) at length sqrt(Dv), times SiLU of its gate."""
        y = F.rms_norm(y, (y.shape[-1],), self.norm.to(y.dtype), self.eps)
        return y * F.silu(gate.to(y.dtype)).view(y.shape)


def _unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt()


def _padded(pos: Tensor) -> Tensor | None:
    """The positions, None where nobody is padding and a look costs nothing: a GPU would have to be waited for."""
    if pos.is_cpu and not torch.compiler.is_compiling() and bool((pos >= 0).all()):
        return None
    return pos
