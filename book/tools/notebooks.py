"""Keep chapters/*.ipynb and solutions/*.ipynb in step with their text, and run what changed.

    python book/tools/notebooks.py                     sync all, run those whose code or evidence changed
    python book/tools/notebooks.py 04_kv_cache         only this one, in both folders
    python book/tools/notebooks.py --force 02_roofline run it although its code did not change
    python book/tools/notebooks.py --no-run            sync the text; outputs of changed notebooks are dropped
    python book/tools/notebooks.py --keep 02_roofline  sync; unchanged cells keep older outputs, and --check says so
    python book/tools/notebooks.py --check             change nothing, exit 1 when one is out of step (CI)

A notebook's metadata holds the hash of the code that made its outputs, of the evidence files that it read and of its
modules in lumen/pages, so "changed" is exact: the notebook's prose can be mended without a run, and outputs of other
code, older evidence or other sentences are never shown, unless `--keep` asks for it (tests/book/not_yet.py names them).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import nbformat
import repo
import sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from tqdm import tqdm

CELL_TIMEOUT_S = 1800  # ends what hangs; a busy machine is no failure


def texts(names: list[str]) -> list[Path]:
    """Text notebooks of the course, or those with these slugs (a path's stem counts as a slug)."""
    found = [p for kind in ("chapters", "solutions") for p in sorted((repo.ROOT / kind).glob("[0-9]*.py"))]
    wanted = {Path(n).stem for n in names}
    if missing := wanted - {p.stem for p in found}:
        raise sync.NotebookError(f"no notebook {', '.join(sorted(missing))} in chapters/ or solutions/")
    return [p for p in found if not wanted or p.stem in wanted]


def load(path: Path) -> NotebookNode | None:
    return nbformat.read(path, as_version=4) if path.exists() else None


def save(path: Path, text: str) -> bool:
    """Write `text` if it differs, whole or not at all; say whether it was written."""
    if path.exists() and path.read_text("utf8") == text:
        return False
    part = path.with_suffix(path.suffix + ".tmp")
    part.write_text(text, "utf8")
    part.replace(path)
    return True


def dumps(notebook: NotebookNode) -> str:
    nbformat.validate(notebook)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


# A wrong solution stops, no bars in outputs, labs store a recorded run instead of widgets.
FOR_KERNELS = {"LUMEN_STRICT": "1", "TQDM_DISABLE": "1", "LUMEN_BOOK": "1"}


def run(notebook: NotebookNode, folder: Path, label: str) -> None:
    """Execute in a fresh kernel whose working directory is `folder`; raises CellExecutionError."""
    bar = tqdm(total=sum(c.cell_type == "code" for c in notebook.cells), desc=label, unit="cell")
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        on_cell_executed=lambda cell, cell_index, execute_reply: bar.update(),
    )
    try:
        client.execute(env={**os.environ, **FOR_KERNELS})
    finally:
        bar.close()


def _text(path: Path) -> str:
    """What a file says, "" where there is none."""
    return path.read_text("utf8") if path.is_file() else ""


def stamp(notebook: NotebookNode) -> str:
    """The hash of the code, of the evidence that it reads, its pages and questions, and its set; no file is empty."""
    room = repo.ROOT / "lumen"
    modules = sync.page_modules(notebook, lambda name: _text(room / name))
    pages = [room / name for name in modules]
    read = sync.evidence_names(notebook, map(_text, pages))
    files = [repo.ROOT / "book" / "evidence" / f"{name}.json" for name in read] + pages
    files += [repo.ROOT / "lumen" / "grading" / "sets" / name for name in sync.graded_sets(notebook)]
    return sync.source_hash(notebook, [file.read_bytes() if file.is_file() else b"" for file in files])


def build(path: Path, force: bool, execute: bool, keep: bool = False) -> str:
    """Bring one notebook up to date; returns what was done in words ("" when nothing)."""
    kind, name, target = path.parent.name, path.stem, path.with_suffix(".ipynb")
    text = sync.fill(path.read_text("utf8"), kind, name)
    new, old = sync.parse(text), load(target)
    wanted, done = stamp(new), ""
    if sync.ran(old, wanted) and not force:
        sync.carry(new, old)
        new.metadata["lumen"] = {"source_hash": wanted}
    elif keep and old is not None:
        sync.carry_unchanged(new, old)
        new.metadata["lumen"] = old.metadata.get("lumen", {})  # the older hash: it stays out of step
        for cell in new.cells:  # older outputs prove nothing: nbval runs the cells and compares none
            cell.metadata["tags"] = [t for t in cell.metadata.get("tags", []) if t != "nbval-check-output"]
    elif execute:
        start = time.perf_counter()
        run(new, path.parent, f"{kind}/{name}")
        done = f"ran in {time.perf_counter() - start:.0f} s"
        new.metadata["lumen"] = {"source_hash": wanted}
    sync.tidy(new)
    wrote = [save(path, text), save(target, dumps(new))]
    return done or ("synced" if any(wrote) else "")


def problems(path: Path) -> list[str]:
    """What is out of step between a text and its notebook, each as a sentence."""
    kind, name, target = path.parent.name, path.stem, path.with_suffix(".ipynb")
    where = f"{kind}/{name}"
    text = path.read_text("utf8")
    try:
        filled = sync.fill(text, kind, name)
    except (ValueError, KeyError) as error:
        return [f"{where}: {error}"]
    if filled != text:
        return [f"{where}.py: badge row, set-up cell or header differ from the template"]
    new, old = sync.parse(text), load(target)
    if old is None:
        return [f"{where}.ipynb does not exist"]
    wanted = stamp(new)
    if not sync.ran(old, wanted):
        return [f"{where}.ipynb: its outputs come from other code or other evidence; run `make notebooks`"]
    sync.carry(new, old)
    new.metadata["lumen"] = {"source_hash": wanted}
    sync.tidy(new)
    return [] if dumps(new) == target.read_text("utf8") else [f"{where}.ipynb differs from {where}.py"]


def strays(root: Path) -> list[str]:
    """Notebooks without a text: nobody can review them."""
    found = [p for kind in ("chapters", "solutions") for p in sorted((root / kind).glob("*.ipynb"))]
    return [f"{p.relative_to(root)} has no .py beside it" for p in found if not p.with_suffix(".py").exists()]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args(argv)
    try:
        paths = texts(args.names)
    except sync.NotebookError as error:
        print(error)
        return 1
    if args.check:
        found = [p for path in paths for p in problems(path)] + strays(repo.ROOT)
        print(*found or [f"{len(paths)} notebooks in step"], sep="\n")
        if found:
            print("Cure: make notebooks")
        return int(bool(found))
    failed = 0
    for path in tqdm(paths, desc="notebooks", unit="notebook", disable=len(paths) < 2):
        try:
            if done := build(path, args.force, not args.no_run, args.keep):
                tqdm.write(f"{path.relative_to(repo.ROOT)}: {done}")
        except (ValueError, KeyError, CellExecutionError) as error:
            failed += 1
            tqdm.write(f"{path.relative_to(repo.ROOT)}: {error}")
    print(f"{len(paths) - failed} of {len(paths)} notebooks in step")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
