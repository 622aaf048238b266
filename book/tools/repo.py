"""One place for addresses: the repository's slug and branch (from _config.yml), and every link made of them.

Run it to see them: `python book/tools/repo.py`. Everything else (badge rows, set-up cells, the chapter map,
the table of contents, the tests) asks this module, so moving the course is one edit in _config.yml and one
`make notebooks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("chapters", "exercises", "solutions")
TIERS = {"CPU": "CPU is enough", "T4": "a T4 GPU", "big GPU": "a big GPU (24 GB or more)"}


@dataclass(frozen=True)
class Chapter:
    """One row of chapters.yml; `tier` and `minutes` are empty while the chapter is only planned."""

    slug: str
    title: str
    part: str
    question: str
    tier: str = ""
    minutes: dict[str, int] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    appendix: bool = (
        False  # a page of its part with a number such as 02a, without exercises; not counted as a chapter
    )

    @property
    def number(self) -> str:
        return self.slug.split("_")[0]

    @property
    def label(self) -> str:
        """Number and title as the map and the share card write them: "1 · Prefill and decode"."""
        return f"{self.number.lstrip('0')} · {self.title}"


@cache
def _config() -> dict:
    return yaml.safe_load((ROOT / "_config.yml").read_text("utf8"))["repository"]


def url() -> str:
    """Address of the repository, without a slash at its end."""
    return _config()["url"].rstrip("/")


def branch() -> str:
    return _config()["branch"]


def slug() -> str:
    """`owner/name`."""
    return urlsplit(url()).path.strip("/")


def site() -> str:
    """Address of the published book, with a slash at its end: GitHub Pages of the repository."""
    owner, name = slug().split("/")
    return f"https://{owner}.github.io/{name}/"


def colab(path: str) -> str:
    """Address that opens the notebook `path` (from the root of the repository) in Colab."""
    return f"https://colab.research.google.com/github/{slug()}/blob/{branch()}/{path}"


def github(path: str) -> str:
    """Address of the file `path` on GitHub."""
    return f"{url()}/blob/{branch()}/{path}"


def pip_source() -> str:
    """Where pip finds `lumen` where it is missing."""
    return f"git+{url()}@{branch()}"


def pip_name(extras: tuple[str, ...] = ()) -> str:
    """What pip is asked for, with the extras that a chapter needs: `lumen-inference[semantic]`."""
    return "lumen-inference" + (f"[{','.join(extras)}]" if extras else "")


@cache
def chapters() -> dict[str, Chapter]:
    """All chapters of the course, planned ones too, by slug, in order."""
    rows = {}
    for part in yaml.safe_load((ROOT / "book/tools/chapters.yml").read_text("utf8")):
        for row in part["chapters"]:
            lists = {key: tuple(row.get(key, ())) for key in ("modules", "extras")}
            row = row | lists | {"part": part["part"]}
            rows[row["slug"]] = Chapter(**row)
    return rows


def ready() -> list[Chapter]:
    """The chapters that can be read now, appendices left out."""
    return [row for name, row in chapters().items() if has("chapters", name) and not row.appendix]


def chapter(name: str) -> Chapter:
    if name not in chapters():
        raise KeyError(f"no chapter '{name}': add a row to book/tools/chapters.yml")
    return chapters()[name]


def has(kind: str, name: str) -> bool:
    """Is this notebook part of the course now? Exercises exist as soon as their solutions are written."""
    folder = "solutions" if kind == "exercises" else kind
    return (ROOT / folder / f"{name}.py").exists()


def local(kind: str, name: str, start: str) -> str:
    """Relative link from a page in the folder `start` to the notebook `name` of `kind`."""
    return f"{name}.ipynb" if kind == start else f"{'../' * (start.count('/') + 1)}{kind}/{name}.ipynb"


if __name__ == "__main__":
    print(
        f"repository  {url()} (branch {branch()})\nbook        {site()}\npip         {pip_name()} @ {pip_source()}"
    )
    for name in chapters():
        for kind in KINDS:
            if has(kind, name):
                print(f"{kind:<11} {name:<26} {colab(f'{kind}/{name}.ipynb')}")
