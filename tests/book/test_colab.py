"""On a machine like Colab, the set-up cell brings lumen and leaves torch and numpy exactly as they were.

What is imitated: a virtual environment that has torch, numpy and ipykernel with their dependencies, and
nothing else of ours; it holds hard links to the files of the environment that runs the tests, so nothing is
downloaded for them. The set-up cell then installs a wheel built from this tree (LUMEN_SOURCE) with the real
pip and a real resolution of dependencies. What is not shown: Colab's own Python, CUDA build and its other
packages; the weekly `drift` workflow takes the newest torch instead.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import nbformat
import pytest
import repo
import templates
from nbclient import NotebookClient
from nbformat import v4
from packaging.requirements import Requirement

PREINSTALLED = ("torch", "numpy", "ipykernel", "pip")
UNTOUCHED = ("torch", "numpy")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="hard links and paths as on Linux and macOS"),
]


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """The distributions `names` and all that they require on this machine, extras aside."""
    found, queue = {}, list(names)
    while queue:
        name = queue.pop()
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue
        key = dist.metadata["Name"].lower()
        if key not in found:
            found[key] = dist
            needs = [Requirement(r) for r in dist.requires or ()]
            queue += [r.name for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found


def link(source: Path, target: Path) -> None:
    """A hard link, which survives if the other name is removed; a copy across file systems."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def files(dist: Distribution) -> dict[str, Path]:
    """Files of a distribution inside site-packages, by relative name."""
    return {str(f): Path(str(f.locate())) for f in dist.files or () if ".." not in f.parts}


def fingerprint(site: Path) -> dict[str, str]:
    """Version, and a hash of names, sizes and times of all files, of what must stay as it was."""
    prints = {}
    for name in UNTOUCHED:
        digest = hashlib.sha256(distribution(name).version.encode())
        for relative in sorted(files(distribution(name))):
            path = site / relative
            state = path.stat() if path.exists() else None
            digest.update(f"{relative} {state and (state.st_size, state.st_mtime_ns)}\n".encode())
        prints[name] = digest.hexdigest()
    return prints


@pytest.fixture(scope="module")
def colab(tmp_path_factory):
    """(python, site-packages) of the imitated machine."""
    root = tmp_path_factory.mktemp("colab")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    python = root / "venv/bin/python"
    site = next((root / "venv/lib").glob("python*")) / "site-packages"
    for dist in closure(PREINSTALLED).values():
        for relative, path in files(dist).items():
            if path.exists():
                link(path, site / relative)
    return python, site


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this tree, built from a copy so that no build folder is left behind."""
    root = tmp_path_factory.mktemp("wheel")
    tree = root / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repo.ROOT / name, tree)
    shutil.copytree(repo.ROOT / "lumen", tree / "lumen", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", root, tree], check=True)
    return next(root.glob("lumen_inference-*.whl"))


def run(python: Path, notebook: nbformat.NotebookNode, folder: Path, monkeypatch) -> str:
    """Execute `notebook` with the interpreter `python` in `folder`; returns what its cells printed."""
    spec = folder / "kernels/colab"
    spec.mkdir(parents=True, exist_ok=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (spec / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Colab", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(folder))
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="colab", timeout=1800, resources=resources).execute()
    return "".join(o.get("text", "") for c in notebook.cells for o in c.get("outputs", ()))


def test_the_set_up_cell_brings_lumen_and_touches_neither_torch_nor_numpy(
    colab, wheel, tmp_path, monkeypatch
):
    python, site = colab
    monkeypatch.setenv("LUMEN_SOURCE", wheel.as_uri())
    monkeypatch.delenv("PYTHONPATH", raising=False)
    absent = subprocess.run([python, "-c", "import lumen"], cwd=tmp_path, capture_output=True)
    assert absent.returncode, "the imitated machine already has lumen"
    before = fingerprint(site)

    probe = "import sys; print('torch', sys.modules['torch'].__version__, lumen.__file__)"
    cells = [v4.new_code_cell(templates.setup("01_prefill_decode")), v4.new_code_cell(probe)]
    said = run(python, v4.new_notebook(cells=cells), tmp_path, monkeypatch)
    assert distribution("torch").version in said
    assert str(site / "lumen") in said
    assert fingerprint(site) == before
    heavy = [name for name in ("faiss", "sklearn", "scipy", "transformers") if (site / name).exists()]
    assert not heavy, f"this chapter has no use for {heavy}"

    # A real notebook from top to bottom, away from the tree: the wheel brings all that it imports and reads.
    for notebook in sorted((repo.ROOT / "solutions").glob("*.ipynb"))[:1]:
        monkeypatch.setenv("LUMEN_STRICT", "1")
        run(python, nbformat.read(notebook, as_version=4), tmp_path, monkeypatch)
    assert fingerprint(site) == before


def test_the_package_asks_for_no_version_of_torch_or_numpy():
    """With a bound, pip would replace what Colab has, and the runtime would need a restart."""
    needs = {r.name: r for r in map(Requirement, distribution("lumen-inference").requires or ())}
    for name in UNTOUCHED:
        assert not needs[name].specifier, f"pyproject.toml bounds {name}: {needs[name]}"
