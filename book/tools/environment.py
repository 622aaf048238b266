"""Make .venv, install requirements.txt and the package, once: a stamp remembers what was installed.

Run with the reader's own Python (standard library only), because it makes the environment that all else runs
in. The stamp holds a hash of requirements.txt and of the package's part of pyproject.toml: nothing is installed
twice, and a changed pin is installed without being asked.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "lumen-installed"
MINIMUM = (3, 11)  # numpy, scipy and transformers, as pinned, ask for it; the package itself runs on 3.10
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def give_up(what, cure):
    sys.exit(f"\n{what}\n  Cure: {cure}\n")


def python_of(venv):
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def wanted():
    """What the environment should hold, as one hash: the pins, and how the package is built and what it asks for."""
    import tomllib  # Python 3.11, which check_python has seen to

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))
    package = {key: project.get(key) for key in ("build-system", "project")}
    package["setuptools"] = project.get("tool", {}).get("setuptools")
    pins = (ROOT / "requirements.txt").read_text("utf8")
    return hashlib.sha256(json.dumps([pins, package], sort_keys=True).encode()).hexdigest()


def check_python():
    if sys.version_info[:2] < MINIMUM:
        have, need = sys.version.split()[0], ".".join(map(str, MINIMUM))
        give_up(
            f"This is Python {have}; the pinned requirements need {need} or newer.",
            f"install a newer Python and name it: make PYTHON=python{need} book",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        give_up(
            "This Python cannot make virtual environments (its venv module is missing).",
            "on Debian or Ubuntu: apt-get install python3-venv",
        )


def pip(*arguments):
    command = [str(python_of(VENV)), "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, cwd=ROOT).returncode:
        give_up(
            "pip could not install the requirements (its message is above).",
            "check the network and the free disk space (8 GB are safe), then run the same command again",
        )


def install():
    check_python()
    if STAMP.exists() and STAMP.read_text() == wanted():
        print("environment: .venv is up to date")
        return
    if not python_of(VENV).exists():
        print("environment: making .venv", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    print("environment: installing requirements.txt and the package (minutes the first time)", flush=True)
    index = os.environ.get("TORCH_INDEX")
    pip("install", "-r", "requirements.txt", *(["--extra-index-url", index] if index else []))
    pip("install", "--no-deps", "--editable", ".")
    STAMP.write_text(wanted())


def need_compiler():
    """torch.compile builds C++ on the CPU."""
    name = os.environ.get("CXX", "")
    if not any(shutil.which(c) for c in (name, "g++", "clang++", "c++") if c):
        give_up(
            "No C++ compiler was found; torch.compile needs one on the CPU.",
            "on Debian or Ubuntu: apt-get install g++; on macOS: xcode-select --install; or set CXX",
        )


def browser():
    """Path of the Chromium that the browser tests drive."""
    named = os.environ.get("CHROMIUM", "")
    mac = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"
    for candidate in (named, *BROWSERS, mac):
        if candidate and shutil.which(candidate):
            return shutil.which(candidate)
    give_up(
        "No Chromium was found; the browser tests drive one.",
        "on Debian: apt-get install chromium fonts-liberation; or set CHROMIUM=/path/to/chrome",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--proof", action="store_true", help="also look for what the tests need")
    parser.add_argument("--browser", action="store_true", help="print the path of Chromium and stop")
    args = parser.parse_args()
    if args.browser:
        print(browser())
        sys.exit()
    if args.proof:
        need_compiler()
        browser()
    install()
