"""Every address that names the repository is right: slug, branch, and a file that is in the tree."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import nbformat
import pytest
import repo

ADDRESS = re.compile(r"https?://[^\s)\"'<>`\]]+")
PAGES = [repo.ROOT / "README.md", *sorted((repo.ROOT / "book").glob("*.md"))]


def prose(path: Path) -> str:
    """All text of a page or of a notebook's cells."""
    if path.suffix == ".ipynb":
        return "\n".join(c.source for c in nbformat.read(path, as_version=4).cells)
    return path.read_text("utf8")


def ours(text: str) -> list[tuple[str, str]]:
    """(address, its path on GitHub: owner/name/...) of the addresses in `text` that mean this repository."""
    found = []
    for address in ADDRESS.findall(text):
        address = address.rstrip(".,;")
        where = urlsplit(address)
        if where.netloc == "colab.research.google.com" and where.path.startswith("/github/"):
            path = where.path.removeprefix("/github/")
        elif (
            where.netloc == "github.com" and where.path.strip("/").split("/")[0] == repo.slug().split("/")[0]
        ):
            path = where.path.strip("/")
        else:
            continue
        found.append((address, path))
    return found


def fault(path: str) -> str | None:
    """What is wrong with `owner/name[@branch]` or `owner/name/blob/branch/file`; None when nothing is."""
    if path in (repo.slug(), f"{repo.slug()}@{repo.branch()}"):
        return None
    workflow = path.removeprefix(f"{repo.slug()}/actions/workflows/").removesuffix("/badge.svg")
    if workflow != path:
        return None if (repo.ROOT / ".github" / "workflows" / workflow).is_file() else "no such workflow"
    start = f"{repo.slug()}/blob/{repo.branch()}/"
    if not path.startswith(start):
        return f"not in {repo.slug()} on branch {repo.branch()}"
    return None if (repo.ROOT / path.removeprefix(start)).is_file() else "no such file"


def check(path: Path) -> None:
    bad = [f"{address}: {fault(p)}" for address, p in ours(prose(path)) if fault(p)]
    assert bad == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages(page):
    check(page)


def test_notebooks(published):
    text = prose(published)
    assert ours(text), "a notebook without its badge row"
    check(published)


def test_relative_links_of_notebooks(published):
    for target in re.findall(r"\]\((?!https?://|#|mailto:|\{)([^)\s#]+)", prose(published)):
        assert (published.parent / target).is_file(), f"{published.name} links to {target}"


def test_the_package_names_the_same_repository():
    assert f'Source = "{repo.url()}"' in (repo.ROOT / "pyproject.toml").read_text("utf8")


@pytest.mark.parametrize(
    "path",
    [
        "someone-else/lumen",
        f"{repo.slug()}/blob/other-branch/README.md",
        f"{repo.slug()}/blob/{repo.branch()}/chapters/99_nothing.ipynb",
        f"{repo.slug()}@other-branch",
    ],
)
def test_a_wrong_link_is_found(path):
    assert fault(path)


def test_a_right_link_passes():
    assert fault(f"{repo.slug()}/blob/{repo.branch()}/README.md") is None
    assert repo.github("README.md") == f"{repo.url()}/blob/{repo.branch()}/README.md"
