"""A disk that fills while weights are written: the old file stays, nothing is left over, one sentence, status 1.

The limit on a file's size (RLIMIT_FSIZE) stands in for the disk, in a process of its own: the system refuses the write
in the middle, as it does on a full disk.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lumen.io import safetensors

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs setrlimit")

LIMITED = """
import resource, sys, types
from pathlib import Path
from lumen import cli
target = Path(sys.argv[1])

def run(options):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    work()

cli.parser = lambda: types.SimpleNamespace(parse_args=lambda: types.SimpleNamespace(run=run))
"""
WAYS = {
    "safetensors.write": """
import torch
from lumen.io import safetensors
def work(): safetensors.write(target / "x.safetensors", {"w": torch.randn(1 << 18)})
""",
    "hf_folder": """
from lumen.io.convert import hf_folder
def work(): hf_folder(Path(sys.argv[2]), "tiny", target)
""",
}


def limited(work: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = LIMITED + work + "\ncli.console()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def left(folder: Path) -> list[str]:
    return sorted(f.name for f in folder.rglob("*") if f.is_file() and f.suffix != ".lock")


def test_weights_that_do_not_fit_leave_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.write(path, {"w": torch.ones(3)})
    before = path.read_bytes()
    ended = limited(WAYS["safetensors.write"], tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.startswith(f"lumen: {path} cannot be written: File too large; free some space")
    assert ended.stderr.count("\n") == 1
    assert path.read_bytes() == before and left(tmp_path) == ["x.safetensors"]


def test_a_folder_that_does_not_fit_is_not_there(tiny_gguf: Path, tmp_path: Path) -> None:
    ended = limited(WAYS["hf_folder"], tmp_path, tiny_gguf)
    assert ended.returncode == 1, ended.stderr
    assert "lumen: Could not write tiny under" in ended.stderr and "LUMEN_CACHE" in ended.stderr
    assert "Traceback" not in ended.stderr and left(tmp_path) == []


def test_the_librarys_words_for_a_full_disk_become_the_systems_error(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from safetensors import SafetensorError

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors, "save_file", full)
    with pytest.raises(OSError, match=r"x\.safetensors cannot be written: No space left") as refused:
        safetensors.write(tmp_path / "x.safetensors", {"w": torch.ones(3)})
    assert refused.value.errno == 28 and left(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="cannot be written"):
        safetensors.write(tmp_path / "file" / "x.safetensors", {"w": torch.ones(3)})
