"""`make` sets up once, says what is missing and how to cure it, and notices a changed pin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import environment
import pytest
import repo


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A tree whose .venv exists, with pip replaced by a list of its calls."""
    for name in ("requirements.txt", "pyproject.toml"):
        shutil.copy(repo.ROOT / name, tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").touch()
    calls = []
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "STAMP", tmp_path / ".venv/lumen-installed")
    monkeypatch.setattr(environment, "pip", lambda *arguments: calls.append(arguments))
    return SimpleNamespace(root=tmp_path, calls=calls)


def test_nothing_is_installed_twice(tree):
    environment.install()
    assert len(tree.calls) == 2
    environment.install()
    assert len(tree.calls) == 2


def test_a_changed_pin_is_installed_and_a_linter_setting_is_not(tree):
    environment.install()
    project = tree.root / "pyproject.toml"
    project.write_text(project.read_text("utf8").replace("line-length = 110", "line-length = 111"), "utf8")
    environment.install()
    assert len(tree.calls) == 2
    with (tree.root / "requirements.txt").open("a") as pins:
        pins.write("attrs==1.0\n")
    environment.install()
    assert len(tree.calls) == 4


def test_torch_index_is_the_readers_choice(tree, monkeypatch):
    monkeypatch.setenv("TORCH_INDEX", "https://example.org/whl")
    environment.install()
    assert tree.calls[0][-2:] == ("--extra-index-url", "https://example.org/whl")


def test_an_old_python_gets_a_sentence(monkeypatch):
    monkeypatch.setattr(environment.sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit, match=r"3\.11 or newer(?s:.*)Cure: .*make PYTHON=python3\.11 book"):
        environment.check_python()


@pytest.mark.parametrize(
    ("need", "cure"), [("need_compiler", "apt-get install g"), ("browser", "apt-get install chromium")]
)
def test_a_missing_program_gets_a_sentence(monkeypatch, tmp_path, need, cure):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(SystemExit, match=cure):
        getattr(environment, need)()


def test_chromium_can_be_named(monkeypatch):
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert environment.browser() == sys.executable


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_so_when_there_is_no_python():
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", "-C", str(repo.ROOT), "PYTHON=python-that-is-not-there", "env"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert 'No Python called "python-that-is-not-there"' in done.stdout
    assert "Cure:" in done.stdout
