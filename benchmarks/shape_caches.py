"""How much memory does oneDNN keep for shapes that it has met, and do the two variables of SECURITY.md bound it?

    python benchmarks/shape_caches.py

The products of one layer of SmolLM2-135M with 1, 2, ... 256 rows, the token budgets that a server's steps may have, in
the layout that oneDNN packed (`lumen.models.kernels.packed`). Twice, each in a process of its own: with the caches as
they are, and with 16 entries each. What is counted is resident memory, once malloc has given back what it holds ready.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from memory import resident
from soak import BOUNDS

from lumen import bench
from lumen.models.kernels import can_pack, packed
from lumen.models.linear import Linear

SHAPES = ((576, 576), (576, 192), (576, 1536), (1536, 576))  # in, out: q and o, k and v, gate and up, down
ROWS, LOOK = 256, 32
BOUND = {name: value for name, value in BOUNDS.items() if name.endswith("CAPACITY")}


def grown() -> list[int]:
    """Bytes that stay behind after 32, 64, ... rows of every shape, in this process."""
    layers = [Linear(width, out, bias=False).requires_grad_(False) for width, out in SHAPES]
    for layer in layers:
        packed(layer, torch.randn(ROWS + 1, layer.in_features))
    before, looks = resident(), []
    for rows in range(1, ROWS + 1):
        for layer in layers:
            packed(layer, torch.randn(rows, layer.in_features))
        if rows % LOOK == 0:
            looks.append(resident() - before)
    return looks


def apart(env: dict[str, str]) -> list[int]:
    """`grown` in a process of its own."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ours = {name: value for name, value in os.environ.items() if name not in BOUND}
    found = subprocess.run(
        [sys.executable, "-c", "import json, shape_caches; print(json.dumps(shape_caches.grown()))"],
        env=ours | env | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(bytes_) for bytes_ in json.loads(found.stdout)]


def main() -> int:
    if not can_pack():
        print("This torch has no oneDNN: nothing to measure.")
        return 0
    whole, bounded = apart({}), apart(BOUND)
    for rows, a, b in zip(range(LOOK, ROWS + 1, LOOK), whole, bounded, strict=True):
        print(
            f"{rows:4} rows, {rows * len(SHAPES):5} shapes: {a / 1e6:6.1f} MB as it is, {b / 1e6:6.1f} MB bounded"
        )
    data = {
        "shapes": SHAPES,
        "rows": [*range(LOOK, ROWS + 1, LOOK)],
        "bytes": whole,
        "bytes_bounded": bounded,
    }
    print("wrote", bench.evidence("shape_caches", data, seed=0).name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
