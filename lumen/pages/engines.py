"""The engines that chapters name under "In production", each with one version and the day it was looked up.

`data/engines.yml` is the only place where a version stands. A chapter gives what an engine calls its idea and
where that is described; version, address and date come from here, so that they cannot differ by chapter.

>>> from lumen.pages.engines import production_table
>>> production_table([("vllm", "slots of a step", "`--max-num-seqs`", "cli/serve/")])
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

ALLOWED = {"name", "package", "version", "docs_version", "checked", "docs", "releases"}


@dataclass(frozen=True)
class Engine:
    """One engine or tool. `version` is empty where there is no numbered release; `checked` is when it was read."""

    key: str
    name: str
    checked: datetime.date
    docs: str
    releases: str
    version: str = ""
    package: str = ""

    def link(self, path: str = "") -> str:
        """Address of a page of the documentation. A whole address is left as it is."""
        return path if path.startswith("https://") else self.docs + path.lstrip("/")

    @property
    def title(self) -> str:
        """Name and version: "vLLM 0.33.0"."""
        return f"{self.name} {self.version}".rstrip()


def parse(raw: Mapping[str, Any]) -> dict[str, Engine]:
    """The engines of a parsed file. Raises `ValueError`, a sentence that names the entry and what it lacks."""
    found = {}
    for key, row in raw.items():
        if not isinstance(row, Mapping):
            raise ValueError(f"engines.yml: {key} is no entry with name, checked, docs and releases.")
        missing = {"name", "checked", "docs", "releases"} - set(row)
        if missing or set(row) - ALLOWED:
            odd = ", ".join(sorted(set(row) - ALLOWED))
            raise ValueError(
                f"engines.yml: {key} lacks {', '.join(sorted(missing)) or 'nothing'}"
                + (f" and has {odd}, which nobody reads." if odd else ".")
            )
        if not isinstance(row["checked"], datetime.date):
            raise ValueError(f"engines.yml: {key}: checked must be a day, got {row['checked']!r}.")
        version = row.get("version", "")
        if not isinstance(version, str):
            raise ValueError(f"engines.yml: {key}: write the version in quotes, 1.10 is no number.")
        if bool(version) != ("package" in row):
            raise ValueError(f"engines.yml: {key}: a version and the package that has it go together.")
        docs = row["docs"].format(version=version, docs_version=row.get("docs_version", version))
        if not docs.startswith("https://") or not row["releases"].startswith("https://"):
            raise ValueError(f"engines.yml: {key}: docs and releases are https addresses.")
        found[key] = Engine(
            key, row["name"], row["checked"], docs, row["releases"], version, row.get("package", "")
        )
    return found


@cache
def engines() -> dict[str, Engine]:
    """All engines by key, in the order of the file."""
    import yaml

    return parse(yaml.safe_load(files("lumen.pages").joinpath("data/engines.yml").read_text("utf-8")))


def production_markdown(
    rows: Sequence[Sequence[str]],
    headers: tuple[str, str, str] = ("engine", "what", "flag or file"),
    *,
    of: Mapping[str, Engine] | None = None,
) -> str:
    """The Markdown of `production_table`."""
    from lumen.explore.prose.show import table_markdown

    known = engines() if of is None else of
    lines, used = [], []
    for row in rows:
        if len(row) != 4:
            raise ValueError(f"A row is (engine, what, flag or file, path in its docs), got {tuple(row)!r}.")
        key, what, flag, path = row
        if key not in known:
            raise ValueError(f"There is no engine {key!r} in engines.yml; it has {', '.join(known)}.")
        used.append(known[key])
        lines.append([f"[{known[key].title}]({known[key].link(path)})", what, flag])
    if not used:
        raise ValueError("A table of engines needs a row.")
    days = sorted({engine.checked for engine in used})
    when = _day(days[0]) if len(days) == 1 else f"{_day(days[0])} to {_day(days[-1])}"
    shown = f'<div class="stack">\n\n{table_markdown(lines, headers)}\n\n</div>'  # cards on a phone
    return shown + f"\n\nNewest releases, and documentation as read, on {when}."


def production_table(
    rows: Sequence[Sequence[str]],
    headers: tuple[str, str, str] = ("engine", "what", "flag or file"),
    *,
    of: Mapping[str, Engine] | None = None,
) -> None:
    """Show what engines call an idea and where it is set, with version, link and date from `engines.yml`.

    rows: (engine key, what it does there, flag or file, path in its documentation or a whole address). Cells
    are inline Markdown. `of` replaces the file's engines, for tests.
    """
    from lumen.explore.prose.show import markdown

    markdown(production_markdown(rows, headers, of=of))


def _day(day: datetime.date) -> str:
    return f"{day.day} {day:%B %Y}"
