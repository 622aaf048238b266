"""The README quotes the evidence files: its measured parts are made from them, and stale ones are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import readme

from lumen import bench
from lumen.bench import Timing

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf8")


def test_it_is_what_the_evidence_says():
    assert not readme.stale(ROOT), "run: python book/tools/readme.py"


def test_every_measured_figure_stands_in_a_measured_part():
    """Numbers with a unit of speed, or "times", are nowhere typed by hand."""
    typed = readme.BLOCK.sub("", README)
    assert not re.findall(r"\d[\d.,]*\s*(?:ms\b|tokens/s|GB/s|times\b|%)", typed)


def test_pictures_exist_and_say_what_they_show():
    pictures = re.findall(r"!\[([^\]]*)\]\(((?!https:)[^)]+)\)", README)  # badges come from elsewhere
    assert pictures
    for words, path in pictures:
        assert len(words) > 20 and (ROOT / path).is_file()


def test_it_fits_one_screen():
    assert len(README.splitlines()) <= 75


@pytest.fixture
def measurements(tmp_path, monkeypatch):
    """A folder with evidence of a machine on which a decode step takes 30 ms."""
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path))
    entries = {}
    for name, seconds in ((readme.ONE, 0.030), (readme.EIGHT, 0.040), (readme.PROMPT, 0.512)):
        samples = [seconds * (1 + 0.01 * (i % 3)) for i in range(12)]
        entries[str(name)] = {"date": "2026-01-01", "median": seconds, "samples": samples}
    bench.evidence("measurements", {"key": {}, "quantities": entries})
    slow, fast = Timing((0.06, 0.061, 0.062) * 4), Timing((0.03, 0.031, 0.032) * 4)
    bench.evidence("vs_hf", {"rows": {"decode": {"lumen": fast, "transformers": slow}}})
    cells = [{"predicted_s": x, "measured": Timing((1.0,))} for x in (0.9, 0.8, 1.1)]
    bench.evidence("cost_model", {"cells": cells})
    return tmp_path


def test_picture_and_figures_follow_the_evidence(measurements):
    assert "30.3 ms in an answer, 5.05 ms when eight" in readme.picture()
    assert "1.01 ms in a prompt of 512" in readme.picture()
    figures = " ".join(readme.figures().split())
    assert "**1.97 times** the speed" in figures and "**10 %** (median of 3 cases, 2 of them" in figures
    drawn = readme.drawing()
    assert drawn.count("<rect") == 4 and ">30.3 ms<" in drawn and "1.01 ms" in drawn
    changed = json.loads((measurements / "measurements.json").read_text())
    for entry in changed["data"]["quantities"].values():
        entry["samples"] = [2 * s for s in entry["samples"]]
    (measurements / "measurements.json").write_text(json.dumps(changed))
    assert "60.6 ms in an answer" in readme.picture() and readme.drawing() != drawn


def test_slower_and_equal_are_said_as_well(measurements):
    for factor, words in ((0.5, "which is slower"), (1.0, "as fast as")):
        theirs = Timing(tuple(0.03 * factor * (1 + i / 500) for i in range(12)))
        bench.evidence("vs_hf", {"rows": {"decode": {"lumen": Timing((0.03,) * 12), "transformers": theirs}}})
        assert words in " ".join(readme.figures().split())


def test_a_stale_readme_is_found(measurements, tmp_path):
    (tmp_path / "book/static").mkdir(parents=True)
    page = tmp_path / "README.md"
    picture = "<!-- measured:picture -->\nold\n<!-- /measured -->\n"
    page.write_text(f"x\n{picture}<!-- measured:figures -->\n<!-- /measured -->\n")
    found = readme.stale(tmp_path)
    assert set(found) == {page, tmp_path / readme.PICTURE}
    for path, text in found.items():
        path.write_text(text)
    assert readme.stale(tmp_path) == {}
    page.write_text(page.read_text().replace("30.3 ms", "30.4 ms"))
    assert set(readme.stale(tmp_path)) == {page}


def test_without_measurements_the_picture_stays(measurements):
    (measurements / "measurements.json").unlink()
    text = "<!-- measured:picture -->\nold\n<!-- /measured -->\n<!-- measured:figures -->\nold\n<!-- /measured -->"
    assert "picture -->\nold\n<" in readme.fill(text) and "figures -->\nold" not in readme.fill(text)
    assert readme.drawing() is None


@pytest.mark.parametrize("page", ["", "<!-- measured:picture -->\n<!-- /measured -->"])
def test_markers_that_are_gone_are_named(page):
    with pytest.raises(ValueError, match=r"README.md lacks .*figures"):
        readme.fill(page)


def test_a_marker_that_nobody_makes_is_named(measurements):
    parts = "".join(f"<!-- measured:{n} -->\n<!-- /measured -->\n" for n in ("picture", "figures", "speed"))
    with pytest.raises(ValueError, match="nothing makes"):
        readme.fill(parts)
