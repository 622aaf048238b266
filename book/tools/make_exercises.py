"""exercises/*.ipynb from solutions/*.ipynb, with nbgrader's own preprocessors and no database.

    python book/tools/make_exercises.py            write those that changed
    python book/tools/make_exercises.py --check    change nothing, exit 1 when one is stale (CI)

What happens to a cell of the solution:
- tagged `solution-only`: dropped (this and the next but one are what nbgrader_config.py does for teachers, too);
- `### BEGIN SOLUTION` … `### END SOLUTION`: becomes a stub that raises NotImplementedError. It must stand in
  a function: at the left margin the stub would stop Run All, so that is refused;
- tagged `remove-cell` (the text of a task, hidden on the solution page): kept, without the tag;
- outputs are cleared, graded cells are locked, title and badge row say "exercises".
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import nbformat
import repo
import sync
from nbgrader.preprocessors import CheckCellMetadata, ClearHiddenTests, ClearOutput, ClearSolutions, LockCells
from notebooks import dumps, save
from traitlets.config import Config

TEACHERS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "nbgrader_config.py"))
CONFIG = Config()
CONFIG.ClearSolutions.code_stub = {"python": TEACHERS["STUB"]}
STEPS = (TEACHERS["AsExercise"], CheckCellMetadata, LockCells, ClearSolutions, ClearHiddenTests, ClearOutput)


def convert(source: Path) -> str:
    """The text of the exercise notebook made from one solution notebook."""
    notebook, resources = nbformat.read(source, as_version=4), {}
    for step in STEPS:
        notebook, resources = step(config=CONFIG).preprocess(notebook, resources)
    for cell in notebook.cells:
        if cell.cell_type == "code" and re.search(r"^raise NotImplementedError", cell.source, flags=re.M):
            raise sync.NotebookError(
                f"solutions/{source.name}: a solution stands at the left margin in the cell that begins with "
                f"'{cell.source.splitlines()[0]}'; put it into a function, or its stub stops Run All"
            )
    notebook.metadata = nbformat.NotebookNode(sync.METADATA)
    notebook.metadata.pop("jupytext", None)  # generated: no text beside it
    return dumps(notebook)


def main(check: bool) -> int:
    folder, stale = repo.ROOT / "exercises", []
    sources = sorted((repo.ROOT / "solutions").glob("*.ipynb"))
    for source in sources:
        try:
            target, text = folder / source.name, convert(source)
        except sync.NotebookError as error:
            stale.append(str(error))
            continue
        if check:
            if not target.exists() or target.read_text("utf8") != text:
                stale.append(f"exercises/{source.name} is not what solutions/{source.name} gives")
        else:
            folder.mkdir(exist_ok=True)
            if save(target, text):
                print(f"wrote exercises/{source.name}")
    for orphan in sorted(folder.glob("*.ipynb")):
        if not (repo.ROOT / "solutions" / orphan.name).exists():
            stale.append(f"exercises/{orphan.name} has no solution; delete it")
    print(*stale or [f"exercises in step with {len(sources)} solutions"], sep="\n")
    if stale:
        print("Cure: make notebooks")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
