"""Build the HTML with every warning an error, check its links, say where it is; nothing is built twice.

    python book/tools/build_book.py [--force]

Sphinx is called through Jupyter Book as `jupyter-book build . --all -W -n --keep-going`.
The outcome is remembered as a hash of all that the pages are made of, kept beside the HTML and written only
after the link checker passed.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import check_site
import coursemap
import repo

OUT = repo.ROOT / "book/_build"
HTML = OUT / "html"
STAMP = OUT / "built-from"
INPUTS = (
    "_config.yml",
    "book/*.md",
    "_toc.yml",
    "book/static/**/*",
    "book/tools/check_site.py",
    "book/tools/glossary_links.py",
    "book/tools/sharing.py",
    "book/tools/repo.py",
    "book/evidence/*.json",
    "chapters/*.ipynb",
    "exercises/*.ipynb",
    "solutions/*.ipynb",
    "lumen/explore/**/*.py",
    "lumen/explore/static/*",
    "lumen/pages/*.py",
    "lumen/quizzes/*.py",
)
MADE_BY = ("jupyter-book", "sphinx", "myst-nb", "sphinx-book-theme", "pydata-sphinx-theme", "plotly")


def inputs(root: Path) -> str:
    """Hash of everything the pages are made of: names, contents and the versions of the builders."""
    digest = hashlib.sha256(" ".join(f"{p} {version(p)}" for p in MADE_BY).encode())
    for path in sorted({p for pattern in INPUTS for p in root.glob(pattern)}):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def where() -> str:
    page = HTML / "index.html"
    return f"Open {page}\n  (file://{page}), or run `make serve` and open http://127.0.0.1:8000"


def main(force: bool) -> int:
    coursemap.main(check=False)
    state = inputs(repo.ROOT)
    if not force and HTML.is_dir() and STAMP.exists() and STAMP.read_text() == state:
        print(f"book: nothing changed since the last build\n{where()}")
        return 0
    STAMP.unlink(missing_ok=True)
    start = time.perf_counter()
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", ".", "--path-output", "book"]
    failed = subprocess.run([*command, "--all", "-W", "-n", "--keep-going"], cwd=repo.ROOT).returncode
    if failed:
        print("book: Sphinx found the faults listed above; each warning is an error here")
        return 1
    if check_site.main(str(HTML)):
        return 1
    STAMP.write_text(state)
    print(f"book: built in {time.perf_counter() - start:.0f} s\n{where()}")
    return 0


if __name__ == "__main__":
    sys.exit(main("--force" in sys.argv[1:]))
