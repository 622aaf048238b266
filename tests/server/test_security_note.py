"""The numbers of SECURITY.md are the server's own, and the note is short."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from lumen.bench import load_evidence
from lumen.server.api.access import OPEN
from lumen.server.api.intake import BODY_SECONDS
from lumen.server.api.options import MOST_CHOICES
from lumen.server.app import Settings
from lumen.server.command import add_parser

NOTE = (Path(__file__).parents[2] / "SECURITY.md").read_text("utf8")


def test_its_numbers_are_the_defaults():
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    options, settings = parser.parse_args(["serve"]), Settings()
    assert f"{options.host} port {options.port} unless" in NOTE and options.api_key is None
    assert f"{options.max_body // 2**20} MiB (`--max-body`) and {BODY_SECONDS:.0f} seconds" in NOTE
    assert f"`n` is {MOST_CHOICES}\n" in NOTE and f"{options.max_queue} sequences may wait" in NOTE
    assert f"{options.patience:.0f} seconds (`--patience`)" in NOTE and not options.allow_origin
    assert OPEN == ("/health", "/metrics") and all(f"`{path}`" in NOTE for path in OPEN)
    ours = (options.max_body, options.max_queue, options.grace, options.patience)
    assert ours == (settings.max_body, settings.max_queue, settings.grace, settings.patience)


def test_every_option_and_file_it_names_exists():
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    known = parser._subparsers._group_actions[0].choices["serve"].format_help()
    assert all(option in known for option in re.findall(r"--[a-z-]+", NOTE))
    files = re.findall(r"`((?:lumen|benchmarks)/[\w/.]+)`", NOTE)
    assert len(files) == 3 and all((Path(__file__).parents[2] / file).is_file() for file in files)


def test_what_onednn_keeps_is_what_was_measured():
    found = load_evidence("shape_caches")["data"]
    whole, shapes, bounded = re.findall(
        r"some (\d+) MB for the ([\d,]+) that.* (\d+) MB with `ONEDNN", NOTE, re.S
    )[0]
    assert found["rows"][-1] * len(found["shapes"]) == int(shapes.replace(",", ""))
    assert found["bytes"][-1] / 1e6 == pytest.approx(int(whole), rel=0.05)
    assert found["bytes_bounded"][-1] / 1e6 == pytest.approx(int(bounded), rel=0.2)


def test_what_requests_leave_in_use_is_what_was_measured():
    """malloc's bytes, and 512 for each piece of Python's: at the upper ends. And what was kept on purpose was found."""
    found = load_evidence("soak")["data"]
    most = int(re.findall(r"leave at most (\d+) bytes each\s+in use", NOTE)[0])
    assert len(found["looks"]) == 100 and not found["faults"]
    ours, planted = found["growth"], found["planted"]
    assert most - 1 < ours["in_use"]["high"] + 512 * ours["python_pieces"]["high"] <= most
    assert any(fault.startswith("in_use") for fault in planted["faults"])
    assert planted["growth"]["in_use"]["low"] >= planted["bytes"]  # a request is one sequence or more
    assert found["unbounded"]["growth"]["in_use"]["low"] > most  # they still filled


def test_it_is_read_in_three_minutes():
    assert len(re.findall(r"\w[\w'./:-]*", NOTE)) <= 620
