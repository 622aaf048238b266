"""Make .venv, install requirements.txt and the package, once: a stamp remembers what was installed.

Run with the reader's own Python (standard library only), because it makes the environment that all else runs
in. The stamp holds a hash of requirements.txt and of the package's part of pyproject.toml: nothing is installed
twice, and a changed pin is installed without being asked.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import programs

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
STAMP = VENV / "lumen-installed"
MINIMUM = (3, 11)  # numpy, scipy and transformers, as pinned, ask for it; the package itself runs on 3.10


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


def need_programs():
    """A compiler and a browser, installed if they can be; the sentence with the cure when not."""
    if not programs.compiler():
        give_up(*programs.NO_COMPILER)
    if not programs.browser(VENV):
        programs.from_npm(VENV, python_of(VENV))
    browser()


def browser():
    """Path of the Chromium that the browser tests drive."""
    return programs.browser(VENV) or give_up(*programs.NO_BROWSER)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--proof", action="store_true", help="also find or fetch what the tests need")
    parser.add_argument("--browser", action="store_true", help="print the path of Chromium and stop")
    args = parser.parse_args()
    if args.browser:
        print(browser())
        sys.exit()
    if args.proof:
        programs.from_system(VENV)
    install()
    if args.proof:
        need_programs()
