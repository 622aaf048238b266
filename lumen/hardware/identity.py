"""What machine and what versions a number was taken on, without naming its host, its user or any path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path


def cpu_name() -> str:
    """The processor's marketing name; where a virtual machine hides which one it is, with its family and model."""
    try:
        name = cpu_of(Path("/proc/cpuinfo").read_text())
    except OSError:
        name = ""
    if name:
        return name
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0 and answer.stdout.strip():
            return answer.stdout.strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def cpu_of(cpuinfo: str) -> str:
    """The name in the text of /proc/cpuinfo, "" when it has none.

    "AMD EPYC" alone may be any of five generations, so a name without a digit gets family and model.
    """
    pairs = [line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line]
    said = {key.strip().lower(): " ".join(value.split()) for key, value in reversed(pairs)}
    name = said.get("model name") or said.get("hardware") or ""
    if name and not any(c.isdigit() for c in name) and "cpu family" in said and "model" in said:
        name += f" (family {said['cpu family']}, model {said['model']})"
    return name


def gpu_name() -> str | None:
    """The current CUDA device's name, None without one. Imports torch."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def memory_bytes() -> float:
    """Main memory that this process may use, a container's limit included; 0 when the system does not say. [B]"""
    try:
        sizes = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    except (AttributeError, OSError, ValueError):
        return 0.0
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(float(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(sizes)


def versions(packages: tuple[str, ...] = ("torch", "numpy", "lumen-inference")) -> dict[str, str]:
    """Versions of Python and of those packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
