"""Are the versions in `lumen/pages/data/engines.yml` still the newest? Asks PyPI, prints, and never fails.

    python book/tools/check_engines.py

A newer release is a line of output (on GitHub a warning), not an error: whether the flags that chapters name are
still right is for somebody who reads the release notes. Without a network it says so and ends well.
"""

from __future__ import annotations

import datetime
import json
import os
import urllib.request
from collections.abc import Callable

from lumen.pages.engines import Engine, engines

STALE_DAYS = 120  # after so long a version that is still the newest deserves a look at its documentation


def newest(package: str) -> str:
    """The newest release of a package on PyPI, pre-releases left out (PyPI's own `info.version`)."""
    with urllib.request.urlopen(f"https://pypi.org/pypi/{package}/json", timeout=20) as answer:
        return json.load(answer)["info"]["version"]


def report(
    known: dict[str, Engine], ask: Callable[[str], str] = newest, today: datetime.date | None = None
) -> list[str]:
    """One line for each engine that has moved, could not be asked, or was looked at long ago."""
    today = datetime.date.today() if today is None else today
    lines = []
    for engine in known.values():
        if engine.package:
            try:
                found = ask(engine.package)
            except (OSError, ValueError, KeyError) as error:
                lines.append(f"{engine.name}: PyPI could not be asked ({type(error).__name__}).")
                continue
            if found != engine.version:
                lines.append(
                    f"{engine.name}: {engine.version} in engines.yml, {found} on PyPI. {engine.releases}"
                )
                continue
        if (today - engine.checked).days > STALE_DAYS:
            lines.append(
                f"{engine.name}: last looked at on {engine.checked}; read {engine.docs} and set `checked`."
            )
    return lines


def main() -> None:
    lines = report(engines())
    mark = "::warning::" if os.environ.get("GITHUB_ACTIONS") else ""
    for line in lines:
        print(mark + line)
    print(f"{len(engines())} engines looked at, {len(lines)} to see to.")


if __name__ == "__main__":
    main()
