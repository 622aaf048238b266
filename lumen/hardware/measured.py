"""The chip under this process, measured once and kept in `$LUMEN_CACHE` (default ~/.cache/lumen)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from lumen.hardware.chip import Achieved, Chip
from lumen.hardware.identity import cpu_name, gpu_name, memory_bytes, versions

LAYOUT = 4  # of the kept file; a change makes older files be measured again
ROWS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512)
GPU_ROWS = (*ROWS, 1024, 4096)


def measure(refresh: bool = False, threads: int | None = None, *, progress: bool = True) -> Chip:
    """Measure this machine, or return what was kept for the same processor, threads and torch.

    `threads` is the number torch computes with, by default what it uses now. `refresh` measures again. The
    device is that of `lumen.device()`. Takes about 25 s on two cores. A kept file that cannot be read is
    measured again, with a warning.
    """
    import torch

    from lumen.bench.timer import threads as with_threads
    from lumen.runtime import device as chosen_device

    device = chosen_device()
    count = threads or torch.get_num_threads()
    name = (gpu_name() or cpu_name()) if device.type == "cuda" else cpu_name()
    key = {"device": name, "threads": count, "torch": versions()["torch"], "layout": LAYOUT}
    path = kept_at(key)
    if not refresh and path.is_file():
        try:
            return _read(path, key)
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(
                f"The kept measurement {path.name} cannot be used ({error}); measuring this machine again.",
                stacklevel=2,
            )
    with with_threads(count), torch.inference_mode():
        chip = _measure(device, name, count, progress)
    _keep(path, key, chip)
    return chip


def kept_at(key: dict[str, Any]) -> Path:
    """The file that keeps the measurement of `key`."""
    folder = Path(os.environ.get("LUMEN_CACHE") or Path.home() / ".cache" / "lumen")
    words = re.sub(r"[^a-z0-9.]+", "-", " ".join(str(value) for value in key.values()).lower()).strip("-")
    return folder / "chips" / f"{words}.json"


def _measure(device: Any, name: str, count: int, progress: bool) -> Chip:
    import torch

    from lumen.hardware import probes

    on_gpu = device.type == "cuda"
    rows = GPU_ROWS if on_gpu else ROWS
    with tqdm(total=3, desc="measuring this machine", leave=False, disable=not progress) as bar:
        reads = probes.read_bandwidth(device)
        bar.update()
        formats = {"fp32": torch.float32}
        base = probes.quick_rate(device, torch.float32)
        for short, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            if probes.quick_rate(device, dtype) > base:  # slower than fp32: emulated, not worth anyone's time
                formats[short] = dtype
        bar.total += len(formats) - 1
        curves: dict[str, Achieved] = {}
        for short, dtype in formats.items():
            curves[short] = probes.achieved(device, dtype, rows)
            bar.update()
        overhead = probes.operator_overhead(device, torch.float32)
        bar.update()
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else memory_bytes()
    return Chip(
        name=name if on_gpu else f"{name}, {count} thread{'s' if count > 1 else ''}",
        flops={short: max(rate for _, rate in curve.matmul) for short, curve in curves.items()},
        bandwidth=max(reads.values()),
        memory=float(memory),
        overhead_s=overhead,
        source="lumen.hardware.measure",
        kind="measured",
        note=f"torch {torch.__version__}; bandwidth is the faster of a matrix-vector product and a sum",
        asynchronous=on_gpu,
        achieved=curves,
        details={f"read_{kind}": rate for kind, rate in reads.items()},
    )


def _keep(path: Path, key: dict[str, Any], chip: Chip) -> None:
    from lumen.bench.published import write_atomic

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"key": key, "chip": dataclasses.asdict(chip)}, indent=1))
    except OSError as error:
        warnings.warn(
            f"The measurement cannot be kept ({error.strerror}); set LUMEN_CACHE to a writable folder.",
            stacklevel=3,
        )


def _read(path: Path, key: dict[str, Any]) -> Chip:
    kept = json.loads(path.read_text(encoding="utf-8"))
    if kept["key"] != key:
        raise ValueError("it belongs to another machine or version")
    fields = dict(kept["chip"])
    fields["achieved"] = {dtype: _curves(curves) for dtype, curves in fields["achieved"].items()}
    chip = Chip(**fields)
    rates = [chip.bandwidth, chip.memory, chip.overhead_s, *chip.flops.values()]
    if not all(isinstance(rate, float) and rate >= 0 for rate in rates) or chip.bandwidth == 0:
        raise ValueError("it holds rates that are not positive numbers")
    return chip


def _curves(fields: dict[str, Any]) -> Achieved:
    curves = {
        name: tuple((int(x), float(y)) for x, y in fields[name])
        for name in ("matmul", "attention", "cache_read")
    }
    return Achieved(**curves, elementwise=float(fields["elementwise"]))
