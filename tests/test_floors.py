"""The map of rooms in `lumen/README.md` is what import-linter checks, and import-linter finds what it should."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
import repo
import tomllib

README = repo.ROOT / "lumen" / "README.md"
CONTRACTS = tomllib.loads((repo.ROOT / "pyproject.toml").read_text("utf8"))["tool"]["importlinter"][
    "contracts"
]


def drawn(picture: str) -> list[list[str]]:
    """The floors of a picture, highest first: the first word of each line, between lines of ─."""
    floors = re.split(r"^─.*\n", picture, flags=re.M)
    return [[line.split()[0] for line in floor.splitlines()] for floor in floors]


def test_the_map_draws_the_contracts():
    pictures = [drawn(p) for p in re.findall(r"```\n(.*?)```", README.read_text("utf8"), re.S)]
    assert pictures == [[floor.split(" | ") for floor in c["layers"]] for c in CONTRACTS]
    assert all(c["exhaustive"] for c in CONTRACTS)  # so every room is on the map


@pytest.fixture
def checked(tmp_path):
    """A copy of the package that may be broken, and what import-linter says of it."""
    shutil.copytree(
        repo.ROOT / "lumen",
        tmp_path / "lumen",
        ignore=lambda _, names: [n for n in names if "." in n and n[-3:] != ".py"],
    )
    shutil.copy(repo.ROOT / "pyproject.toml", tmp_path)

    def run() -> tuple[int, str]:
        code = "from importlinter.cli import lint_imports_command as run; run()"
        done = subprocess.run(
            [sys.executable, "-c", code, "--no-logo", "--no-cache"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout

    return tmp_path / "lumen", run


def test_an_import_upward_is_found_wherever_it_hides(checked):
    lumen, run = checked
    assert run()[0] == 0
    hidden = {
        "cache/pool.py": "\n\ndef late():\n    from lumen.serve import engine\n\n    return engine\n",
        "timing.py": "\nfrom typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from lumen.bench import Name\n",
        "loadgen/sse.py": "\nfrom ..server.api import sse\n",
        "explore/prose/show.py": "\nfrom lumen.explore.figures.theme import palette\n",
    }
    for name, text in hidden.items():
        with (lumen / name).open("a") as file:
            file.write(text)
    (lumen / "attic.py").write_text('"""A room that nobody put on a floor."""\n')
    code, said = run()
    assert code == 1
    for who, whom in (
        ("cache.pool", "serve.engine"),
        ("timing", "bench"),
        ("loadgen.sse", "server.api.sse"),
        ("explore.prose.show", "explore.figures.theme"),
    ):
        assert f"lumen.{who} -> lumen.{whom}" in said
    assert "attic" in said
