"""The light core: chapters ask for what they need, everything that is imported is declared, and a gap has a cure."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import repo
import tomllib
from packaging.requirements import Requirement

from lumen.extras import EXTRAS, extra

PROJECT = tomllib.loads((repo.ROOT / "pyproject.toml").read_text("utf8"))["project"]
BUILDER = {
    "docutils",
    "myst_nb",
    "sphinx",
}  # lumen/explore/sphinx_ext.py runs inside the book's builder alone
# Modules of an extra, and what these bring that a lean Colab reader should not wait for.
MODULES = {
    "semantic": {"faiss", "sentence_transformers", "transformers", "sklearn", "scipy"},
    "serve": {"anyio", "prometheus_client", "starlette", "uvicorn"},
}

BLOCKED = """
import ast, sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for statement in ast.parse(Path({file!r}).read_text("utf8")).body:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        exec(compile(ast.Module([statement], []), {file!r}, "exec"))
import lumen.cli
lumen.cli.parser()
"""


def without(blocked: set[str], file: Path) -> subprocess.CompletedProcess[str]:
    script = BLOCKED.format(blocked=blocked, file=str(file))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def dist(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def needed(lines: list[str]) -> set[str]:
    return {dist(Requirement(line).name) for line in lines}


def test_the_extras_of_the_package_are_those_of_its_sentences() -> None:
    declared = {name: needed(lines) for name, lines in PROJECT["optional-dependencies"].items()}
    assert declared == {name: set(packages) for name, (_, packages) in EXTRAS.items()}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    known = packages_distributions()
    imported = set()
    for file in (repo.ROOT / "lumen").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            imported |= {name.split(".")[0] for name in names}
    outside = imported - sys.stdlib_module_names - BUILDER - {"lumen"}
    found = {dist(known[name][0]) for name in outside if name in known} | {
        n for n in outside if n not in known
    }
    extras = set().union(*(needed(lines) for lines in PROJECT["optional-dependencies"].values()))
    core = needed(PROJECT["dependencies"])
    assert found - core - extras - {"triton"} == set(), "imported and not declared"
    assert core - found == set(), "declared and not imported"


@pytest.mark.parametrize(
    "file",
    sorted((repo.ROOT / "chapters").glob("[0-9]*.py")),
    ids=lambda p: p.stem,
)
def test_a_chapter_imports_nothing_that_its_set_up_did_not_ask_for(file: Path) -> None:
    """Its import statements, in a fresh process in which other chapters' packages are not to be found."""
    mine = repo.chapter(file.stem).extras
    blocked = set().union(*(modules for name, modules in MODULES.items() if name not in mine))
    done = without(blocked, file)
    assert done.returncode == 0, done.stderr[-800:]


def test_the_blocker_blocks() -> None:
    chapter = next((repo.ROOT / "chapters").glob("07_*.py"))
    assert (
        "faiss" in without({"faiss"}, chapter).stderr or without(MODULES["semantic"], chapter).returncode == 1
    )


def test_a_missing_extra_gets_a_sentence() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"needs not_there.*Cure: pip install faiss"),
        extra("semantic"),
    ):
        import not_there  # noqa: F401


@pytest.mark.parametrize(
    ("blocked", "code", "cure"),
    [
        ("faiss", "import lumen.semantic.index as i; i.build(i.IndexSpec(), __import__('numpy').eye(4))", "faiss-cpu"),
        ("sentence_transformers", "import lumen.semantic as s; s.MiniLM('.')", "sentence-transformers"),
        ("starlette", "import lumen.server.app", "starlette"),
        ("uvicorn", "from lumen.cli import main; raise SystemExit(main(['serve', '--port', '0']))", "uvicorn"),
    ],
)  # fmt: skip
def test_every_door_to_an_extra_says_what_to_install(
    blocked: str, code: str, cure: str, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text("import lumen.extras\n")
    script = BLOCKED.format(blocked={blocked}, file=str(tmp_path / "code.py")) + code
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode != 0 and "Cure: pip install" in done.stderr and cure in done.stderr
    assert "lumen.cli" not in code or "Traceback" not in done.stderr
