"""How a notebook begins: its seed, the style of its figures, and the line it prints about itself."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from lumen.explore.figures.theme import setup_plotly
from lumen.runtime import default_dtype, device, processor_name, seed_everything

SHOWN = ("lumen-inference", "torch", "transformers")


@dataclass(frozen=True)
class Session:
    """What a notebook runs on. `device` and `dtype` are torch objects; `versions` maps package to version."""

    name: str
    device: Any
    dtype: Any
    seed: int
    threads: int
    processor: str
    versions: dict[str, str]

    def __str__(self) -> str:
        parts = [self.processor, f"{self.threads} threads" if self.device.type == "cpu" else ""]
        parts += [str(self.dtype).removeprefix("torch."), f"Python {platform.python_version()}"]
        parts += [f"{package} {number}" for package, number in self.versions.items()]
        return f"{self.name}: " + " · ".join(p for p in parts if p) + f" · seed {self.seed}"


def setup(name: str, seed: int = 0) -> Session:
    """Prepare a notebook: seed, figure style, and one printed line that says what its numbers were measured on."""
    import torch

    seed_everything(seed)
    setup_plotly()
    on = device()
    versions = {}
    for package in SHOWN:
        if package == "transformers" and "transformers" not in sys.modules:
            continue
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "from source"
    session = Session(
        name, on, default_dtype(on), seed, torch.get_num_threads(), processor_name(on), versions
    )
    print(session)
    return session
