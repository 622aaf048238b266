"""Several low-rank adapters in one batch: which of them changes a matrix is chosen token by token.

    y = W x + B A x        A (rank, inputs), B (outputs, rank); Hu et al. 2021, LoRA, section 4.1

The adapters of a matrix stand under each other, A (adapters · rank, inputs) and B (outputs, adapters · rank): every
token is multiplied by all of them, and what is not its own adapter's is set to zero in between. Two plain products, no
look at the device, one shape however tokens choose. The arithmetic grows with the number of adapters held; a kernel
that reads each token's own (Sheng et al. 2023, S-LoRA, section 5) does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..config import ModelConfig
from .describe import layer_matrices
from .passing import Channels

Adapter = Mapping[str, tuple[Tensor, Tensor]]


class NoAdapters:
    """The null object: the model as it is. Names become numbers, and numbers what a forward is told."""

    names: tuple[str, ...] = ()

    def number(self, name: str | None) -> int:
        """An adapter's place in the bank, -1 for None. ValueError for a name that is not here."""
        if name is None:
            return -1
        if name not in self.names:
            held = ", ".join(map(repr, self.names)) or "none; hand over adapters=… beside the model"
            raise ValueError(f"There is no adapter {name!r} here. There are: {held}.")
        return self.names.index(name)

    def beside(self, channels: Channels, rows: Sequence[Sequence[int]], device: torch.device) -> Channels:
        """`channels` with each token's adapter, `rows` (B, T) of numbers; as they are where nobody has one."""
        return channels


NO_ADAPTERS = NoAdapters()


class Adapters(NoAdapters):
    """A bank of adapters for one model, by name. Each maps "blocks.3.attn.qkv" to (A, B); scale B beforehand.

    Ranks may differ, and an adapter need not change every matrix. Raises ValueError for a name or shape that the model
    does not have.
    """

    def __init__(self, config: ModelConfig, adapters: Mapping[str, Adapter]):
        if not adapters:
            raise ValueError("A bank holds one adapter at least; a model without any needs no bank.")
        self.names, self.count = tuple(adapters), len(adapters)
        ranks = [max((a.shape[0] for a, _ in adapter.values()), default=0) for adapter in adapters.values()]
        self.owner = torch.repeat_interleave(torch.arange(self.count), torch.tensor(ranks))
        self.down: dict[str, Tensor] = {}
        self.up: dict[str, Tensor] = {}
        shapes = {
            f"blocks.{i}.{name}": shape
            for i in range(config.num_layers)
            for name, shape in layer_matrices(config, i).items()
            if ".experts." not in name
            and name != "attn.kv_up"  # absorbed, it is no product that could be added to
        }
        first = 0
        for (called, adapter), rank in zip(adapters.items(), ranks, strict=True):
            for name, (a, b) in adapter.items():
                self._check(called, name, a, b, shapes)
                if name not in self.down:
                    outputs, inputs = shapes[name]
                    self.down[name] = a.new_zeros(len(self.owner), inputs)
                    self.up[name] = b.new_zeros(outputs, len(self.owner))
                self.down[name][first : first + a.shape[0]] = a
                self.up[name][:, first : first + a.shape[0]] = b
            first += rank

    @staticmethod
    def _check(called: str, name: str, a: Tensor, b: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> None:
        if name not in shapes:
            raise ValueError(
                f"Adapter {called!r} changes {name!r}, which is no matrix that adapters reach here. "
                f"Those are {', '.join(sorted({n.split('.', 2)[2] for n in shapes}))} of each block."
            )
        outputs, inputs = shapes[name]
        if (
            a.dim() != 2
            or b.dim() != 2
            or (b.shape[0], a.shape[1]) != (outputs, inputs)
            or len(a) != b.shape[1]
        ):
            raise ValueError(
                f"Adapter {called!r}, {name}: A must be (rank, {inputs}) and B ({outputs}, rank), "
                f"got {tuple(a.shape)} and {tuple(b.shape)}."
            )

    def beside(self, channels: Channels, rows: Sequence[Sequence[int]], device: torch.device) -> Channels:
        if all(number < 0 for row in rows for number in row):
            return channels
        return replace(channels, lora=self.route(torch.tensor(rows, device=device)))

    def route(self, rows: Tensor) -> Routed:
        """Tokens (B, T) to adapters: `rows` holds numbers from 0, -1 for the model as it is."""
        if rows.dim() != 2 or rows.is_floating_point() or rows.dtype == torch.bool:
            raise ValueError("Adapter numbers come as whole numbers of shape (B, T), one for each token.")
        if rows.numel() and not -1 <= int(rows.min()) <= int(rows.max()) < self.count:
            raise ValueError(
                f"Adapter numbers go from -1 (none) to {self.count - 1}, got {int(rows.min())} to {int(rows.max())}."
            )
        return Routed(self, rows, rows.reshape(-1, 1) == self.owner.to(rows.device))


@dataclass(frozen=True)
class Routed:
    """A bank with its tokens' choice, `rows` (B, T): `own` (B · T, all ranks) marks each token's own rows of A."""

    bank: Adapters
    rows: Tensor
    own: Tensor

    def add(self, y: Tensor, x: Tensor, layer: int, name: str) -> Tensor:
        """y (B · T, outputs) and what the tokens' adapters add to it for x (B · T, inputs)."""
        full = f"blocks.{layer}.{name}"
        if full not in self.bank.down:
            return y
        inner = linear(x, self.bank.down[full]).masked_fill(~self.own, 0.0)
        return y + linear(inner, self.bank.up[full])
