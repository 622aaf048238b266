"""The chip under this process, measured once and kept in `$LUMEN_CACHE` (default ~/.cache/lumen)."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from lumen.assets import cache_dir
from lumen.hardware.chip import Achieved, Chip, Curve
from lumen.hardware.identity import cpu_name, gpu_name, memory_bytes, versions

LAYOUT = 7  # of the kept file; a change makes older files be measured again
BUDGET_S = 15.0
# The most important first: a slow machine has no time for all.
ROWS = (1, 8, 2, 4, 32, 16, 3, 512, 64, 128, 4096)
GPU_ROWS = (*ROWS, 256, 1024, 2048)
BAR = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}"


def measure(refresh: bool = False, threads: int | None = None, *, progress: bool = True) -> Chip:
    """Measure this machine, or return what was kept for the same processor, threads and torch.

    `threads` is the number torch computes with, by default what it uses now. `refresh` measures again. The
    device is that of `lumen.device()`. Takes about 15 s and 2 GiB; on a machine busy with other things
    up to 30 s with fewer samples, and `Chip.note` names what was cut short. How sure each rate is stands in
    `Chip.uncertainty`. A kept file that cannot be read is measured again, with a warning.
    """
    import torch

    from lumen.timing import threads as with_threads

    device, name, count, key = _machine(threads)
    path = kept_at(key)
    if not refresh and path.is_file():
        try:
            return _read(path, key)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            warnings.warn(
                f"The kept measurement {path.name} cannot be used ({error}); measuring this machine again.",
                stacklevel=2,
            )
    with with_threads(count), torch.inference_mode():
        chip = _measure(device, name, count, progress)
    _keep(path, key, chip)
    return chip


def kept(threads: int | None = None) -> Chip | None:
    """What `measure` would return without measuring; None when there is nothing kept that can be used."""
    *_, key = _machine(threads)
    try:
        return _read(kept_at(key), key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(chip: Chip, threads: int | None = None) -> Chip:
    """Keep `chip` as what was measured here, and return it: for who measured several times and knows better."""
    *_, key = _machine(threads)
    _keep(kept_at(key), key, chip)
    return chip


def _machine(threads: int | None) -> tuple[Any, str, int, dict[str, Any]]:
    """The device, its name, torch's threads, and the key of its measurement."""
    import torch

    from lumen.runtime import device as chosen_device

    device = chosen_device()
    count = threads or torch.get_num_threads()
    name = (gpu_name() or cpu_name()) if device.type == "cuda" else cpu_name()
    return (
        device,
        name,
        count,
        {"device": name, "threads": count, "torch": versions()["torch"], "layout": LAYOUT},
    )


def kept_at(key: dict[str, Any]) -> Path:
    """The file that keeps the measurement of `key`."""
    words = re.sub(r"[^a-z0-9.]+", "-", " ".join(str(value) for value in key.values()).lower()).strip("-")
    return cache_dir() / "chips" / f"{words}.json"


def _measure(
    device: Any,
    name: str,
    count: int,
    progress: bool,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> Chip:
    import torch

    from lumen.hardware import probes, starts, working_set
    from lumen.hardware.products import Layers
    from lumen.hardware.reads import Reads
    from lumen.hardware.sampling import Budget

    on_gpu = device.type == "cuda"
    rows = GPU_ROWS if on_gpu else ROWS
    last, read = working_set.last_cache(device), working_set.beyond_cache(device)
    with tqdm(
        total=100, desc="measuring this machine", leave=False, disable=hidden(progress), bar_format=BAR
    ) as bar:
        budget = Budget(budget_s, clock, lambda share: bar.update(int(100 * share) - bar.n))
        reads, look_s = Reads(), budget_s / 25
        reads.look(device, budget, 2 * look_s)
        formats = {"fp32": torch.float32}
        base = probes.quick_rate(device, torch.float32, budget)
        for short, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            # slower than fp32: emulated, not worth anyone's time
            if probes.quick_rate(device, dtype, budget) > base:
                formats[short] = dtype
        sure: dict[str, float] = {}
        curves: dict[str, Achieved] = {}
        peaks: dict[str, float] = {}
        for short, dtype in formats.items():
            if curves and budget.spent > budget_s:
                budget.cut.append(f"{short}: left out")
                continue
            if short == "fp32":
                warm = starts.warm_start(device, dtype, budget, budget_s / 15)
            seconds = max(0.0, (budget_s - budget.spent) / (len(formats) - len(curves)) - look_s)
            curves[short], products, spread = probes.achieved(Layers(device, dtype), rows, budget, seconds)
            peaks[short] = products.peak
            sure |= {f"{short} {what}": share for what, share in spread.items()}
            if short == "fp32":
                cold = products.between
            if budget.spent < budget_s - look_s / 2:
                reads.look(device, budget, look_s)
        bar.update(100 - bar.n)
    sure |= {"bandwidth": reads.uncertainty, "overhead": warm.spread}
    if cold.curve:
        sure["cold overhead"] = cold.uncertainty
    fastest = max(reads.best, key=reads.best.__getitem__)
    looks = len(reads.looks)
    note = f"torch {torch.__version__}; bandwidth: best of {looks} looks, by {fastest.replace('_', ' ')}"
    if read < 4 * last:
        note += f"; {read / 2**20:.0f} MiB read in turn, only {read / last:.1f} times the last cache"
    if budget.cut:
        note += "; cut short: " + ", ".join(budget.cut)
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else memory_bytes()
    return Chip(
        name=name if on_gpu else f"{name}, {count} thread{'s' if count > 1 else ''}",
        flops=peaks,
        bandwidth=reads.best[fastest],
        memory=float(memory),
        overhead_s=warm.median,
        cold_overhead=cold.curve,
        cache_bytes=float(last),
        source="lumen.hardware.measure",
        kind="measured",
        note=note,
        asynchronous=on_gpu,
        achieved=curves,
        details={f"read_{kind}": rate for kind, rate in reads.best.items()} | {"seconds": budget.spent},
        uncertainty=sure,
    )


def hidden(progress: bool) -> bool:
    """Whether to show no bar: what the caller said, or the reader (`TQDM_DISABLE=1`, which tqdm heeds only unasked)."""
    return not progress or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")


def _keep(path: Path, key: dict[str, Any], chip: Chip) -> None:
    from lumen.files import write_atomic

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
    fields["cold_overhead"] = _curve(fields["cold_overhead"])
    chip = Chip(**fields)
    rates = [chip.bandwidth, chip.memory, chip.overhead_s, *chip.flops.values()]
    if not all(isinstance(rate, float) and rate >= 0 for rate in rates) or chip.bandwidth == 0:
        raise ValueError("it holds rates that are not positive numbers")
    return chip


def _curves(fields: dict[str, Any]) -> Achieved:
    return Achieved(**{field.name: _curve(fields[field.name]) for field in dataclasses.fields(Achieved)})


def _curve(points: list[list[float]]) -> Curve:
    return tuple((int(size), float(rate)) for size, rate in points)
