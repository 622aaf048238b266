"""The figures that the README quotes are those of the evidence files, and its picture is there."""

from __future__ import annotations

import re
from pathlib import Path

from lumen import bench

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf8")


def test_measured_line_is_the_evidence():
    peers, model = bench.load_evidence("vs_hf"), bench.load_evidence("cost_model")
    ratio = peers["data"]["summary"]["ratios"]["decode"]
    error = model["data"]["summary"]["median_error"]
    assert f"**{ratio:.1f} times** the speed" in README
    assert f"to within **{100 * error:.0f} %**" in README
    assert f"`vs_hf.json`, `cost_model.json`, {peers['date']}" in README


def test_pictures_exist_and_say_what_they_show():
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", README)
    assert pictures
    for words, path in pictures:
        assert len(words) > 20 and (ROOT / path).is_file()


def test_it_fits_one_screen():
    assert len(README.splitlines()) <= 60
