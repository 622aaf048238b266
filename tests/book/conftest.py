"""A course of one chapter in a temporary folder, and the notebooks of the real one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import repo

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """Root of a small course (one chapter, one solution set) that the tools take for the real one."""
    for kind in ("chapters", "solutions"):
        shutil.copytree(FIXTURES / kind, tmp_path / kind)
    (tmp_path / "book/tools").mkdir(parents=True)
    for path in ("_config.yml", "book/tools/chapters.yml", "book/intro.md"):
        shutil.copy(repo.ROOT / path, tmp_path / path)
    monkeypatch.setattr(repo, "ROOT", tmp_path)
    return tmp_path


def pytest_generate_tests(metafunc):
    """An argument `text`, `published`, `exercise` or `solution` makes a test run once for each such file."""
    patterns = {
        "text": ["chapters/[0-9]*.py", "solutions/[0-9]*.py"],
        "published": ["chapters/*.ipynb", "solutions/*.ipynb", "exercises/*.ipynb"],
        "exercise": ["exercises/*.ipynb"],
        "solution": ["solutions/*.ipynb"],
    }
    for name, globs in patterns.items():
        if name in metafunc.fixturenames:
            found = [p for g in globs for p in sorted(repo.ROOT.glob(g))]
            metafunc.parametrize(name, found, ids=[f"{p.parent.name}/{p.stem}" for p in found])
