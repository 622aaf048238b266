"""How the course writes a share, and that nobody writes it otherwise."""

import re
from pathlib import Path

import pytest

from lumen.bench import percent

ROOT = Path(__file__).parents[2]
TIGHT = re.compile(r"(?<![\w%.{-])[0-9][0-9.,]*%(?![\w(])")  # 23%; not an address (%20), a format or a name
FORMATTED = re.compile(
    r"(?<!%)\{[^{}\n]*:[+,]*(?:\{\w+\})?\.\d%\}"
)  # {share:.0%} writes 23%, and "-0%" for a share of −0.001


@pytest.mark.parametrize(
    ("share", "places", "signed", "text"),
    [
        (0.234, 0, False, "23 %"),
        (0.0712, 1, False, "7.1 %"),
        (12.5, 0, False, "1,250 %"),
        (0.05, 0, True, "+5 %"),
        (-0.05, 0, True, "−5 %"),
        (-0.05, 0, False, "−5 %"),
        (-0.0049, 0, True, "0 %"),  # not "-0 %"
        (0.0049, 0, True, "0 %"),
        (-0.0004, 1, True, "0.0 %"),
        (-0.0006, 1, True, "−0.1 %"),
        (0.0, 0, True, "0 %"),
    ],
)
def test_a_share_has_a_space_a_true_minus_and_no_sign_before_nothing(share, places, signed, text):
    assert percent(share, places, signed=signed) == text


def written() -> list[Path]:
    """What a reader of the course reads, or what writes it."""
    found = [ROOT / "README.md", *(ROOT / "book").glob("*.md")]
    for pattern in (
        "chapters/*.py", "solutions/*.py", "lumen/pages/*.py", "lumen/quizzes/*.py", "lumen/grading/**/*.py",
        "lumen/explore/**/*.py",
    ):  # fmt: skip
        found += ROOT.glob(pattern)
    assert len(found) > 60
    return [path for path in found if path.is_file()]


def test_a_percent_sign_stands_apart_everywhere():
    tight = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in written()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if FORMATTED.search(line)
        or TIGHT.search(re.sub(r"\]\([^)]*\)|https?://\S+|style=\S+|width:\S+", "", line))
    ]
    assert not tight, "write 23 %, with lumen.bench.percent where it is computed:\n" + "\n".join(tight)


@pytest.mark.parametrize(
    "line",
    [
        "of the peak, 23% of it",
        'f"{share:.0%} of it"',
        "f'{a[0] - 1:+.1%}'",
        'f"{part:{sign}.0%}"',
        "# about 77%.",
    ],
)
def test_the_lint_sees_what_it_is_for(line):
    assert TIGHT.search(line) or FORMATTED.search(line)
