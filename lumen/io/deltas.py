"""A model stored as what training changed of another: differences in int8, row by row, half the bytes of fp16.

    in the file                                 what it stands for
    name int8 (rows, ...), name.scale (rows,)   the base's tensor + scale · int8
    name fp16                                   itself: a vector, or a tensor that the base has not in this shape

Training moves weights by a small part of their size, and a 127th of the largest move in a row is about what fp16 rounds
off the weight itself. Which file is the base stands in the metadata, with its digest: on another base the same
differences would give a model that nobody trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from . import safetensors
from .errors import BadFile

SCALE = ".scale"


def pack(state: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`state` as it is stored over `base`. Every difference is off by half a step of its row's scale at most."""
    packed = {}
    for name, value in state.items():
        value = value.detach().float()
        under = base.get(name)
        if under is None or under.shape != value.shape or value.dim() < 2:
            packed[name] = value.half()
            continue
        moved = value - under.float()
        scale = moved.flatten(1).abs().amax(1) / 127
        steps = moved / scale.clamp(min=torch.finfo(torch.float32).tiny).view(-1, *[1] * (moved.dim() - 1))
        packed[name], packed[name + SCALE] = steps.round().to(torch.int8), scale
    return packed


def unpack(packed: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that `pack` was given, in fp32. ValueError for a difference that has no base or no scale."""
    state = {}
    for name, value in packed.items():
        if value.dtype == torch.int8:
            under, scale = base.get(name), packed.get(name + SCALE)
            if under is None or scale is None or under.shape != value.shape or scale.shape != value.shape[:1]:
                raise ValueError(f"{name} is a difference without a base or a scale of its shape")
            state[name] = under.float() + value * scale.view(-1, *[1] * (value.dim() - 1))
        elif not name.endswith(SCALE):
            state[name] = value.float()
    return state


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """`(tensors, metadata)` of a character model, whole or stored over a base that lies beside it. Raises BadFile."""
    packed, metadata = safetensors.read(file)
    if "base" not in metadata:
        return packed, metadata
    base = file.parent / f"{Path(metadata['base']).name}.safetensors"
    if not base.exists() or digest(base) != metadata.get("base_sha256"):
        raise BadFile(
            f"{file.name} was made of another {base.name} than the one beside it; run `make checkpoints` to train both "
            "again, or fetch both from one place."
        )
    try:
        return unpack(packed, safetensors.read(base)[0]), metadata
    except ValueError as error:
        raise BadFile(f"{file} cannot be put together ({error}); run `make checkpoints`.") from error


def digest(file: Path) -> str:
    """The file's sha256."""
    return hashlib.sha256(file.read_bytes()).hexdigest()
