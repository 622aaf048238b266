"""One version an engine, in one file: what chapters say "In production" is what `engines.yml` says."""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

import check_engines
import pytest
import yaml

from lumen.pages import engines as module
from lumen.pages.engines import Engine, engines, parse, production_markdown

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "lumen/pages/data/engines.yml"

# Chapters whose "In production" still names other versions. It may only shrink: a swept chapter must leave.
NOT_YET: set[str] = set()

VERSION = r"\d+\.\d+(?:\.\d+)?(?:rc\d+|\.post\d+)?"


def production(text: str) -> str:
    """The section "In production" of a chapter, code cells included."""
    start = text.find("## In production")
    if start < 0:
        return ""
    end = text.find("\n# ## ", start + 5)
    return text[start : end if end > 0 else len(text)]


def versions(line: str, name: str) -> list[str]:
    """What in a line is a version and not another number: in an address, after v, after the name, in three parts."""
    found = re.findall(rf"https?://[^\s)]*?/v?({VERSION})/", line)
    bare = re.sub(r"\(?https?://[^\s)]*\)?", " ", line)
    found += re.findall(rf"\bv({VERSION})\b", bare)
    found += re.findall(rf"{re.escape(name)}\]? +v?({VERSION})\b", bare)
    found += re.findall(r"(?<!since )\b(\d+\.\d+\.\d+(?:rc\d+)?|\d+\.\d+rc\d+)\b", bare)
    found += [m for cell in bare.split("|") for m in re.findall(rf"^\s*({VERSION})(?=,| and |\s*$)", cell)]
    return found


def wrong(text: str) -> list[str]:
    """Versions in "In production" that are not the file's, a sentence each."""
    out = []
    for line in production(text).splitlines():
        named = [e for e in engines().values() if e.version and e.name.lower() in line.lower()]
        if "semantic router" in line.lower():
            named = [e for e in named if e.key != "vllm"]
        for version in dict.fromkeys(v for e in named for v in versions(line, e.name)):
            good = {e.version for e in named} | {e.docs.rstrip("/").split("/")[-1].lstrip("v") for e in named}
            if not any(g == version or g.startswith(version + ".") for g in good):
                out.append(f"{version} in: {line[:90]}")
    return out


CHAPTERS = sorted((ROOT / "chapters").glob("*.py"))
PAGES = sorted((ROOT / "lumen/pages").glob("ch*.py"))


def rows_of(text: str) -> str:
    """The rows of `production_table` in a page's module, as a section that `wrong` reads."""
    found = re.search(r"^PRODUCTION\b.*?^[\])]", text, re.M | re.S)
    return f"# ## In production\n{found[0]}\n\n# ## Recap\n" if found else ""


@pytest.mark.parametrize("path", PAGES, ids=[p.stem for p in PAGES])
def test_rows_of_a_table_type_no_version(path):
    assert not wrong(rows_of(path.read_text("utf-8")))


def test_a_version_typed_into_a_row_is_seen():
    row = 'PRODUCTION = (\n    ("vllm", "slots, vLLM 0.9.1", "`--x`", "https://docs.vllm.ai/en/v0.8.1/x/"),\n)\n'
    assert len(wrong(rows_of(row))) == 2


@pytest.mark.parametrize("path", CHAPTERS, ids=[p.stem for p in CHAPTERS])
def test_a_chapter_names_the_file_s_versions(path):
    found = wrong(path.read_text("utf-8"))
    if path.stem in NOT_YET:
        assert found, f"{path.stem} is swept: take it out of NOT_YET in {Path(__file__).name}"
    else:
        assert not found, "versions that are not engines.yml's: " + "; ".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "# | vLLM | x | [docs](https://docs.vllm.ai/en/v0.8.1/serving/), March 2025 |",
        "# | vLLM 0.15 | x | y |",
        "# | [vLLM](https://docs.vllm.ai/en/latest/) | x | 0.14 and 0.16, 2026 |",
        "# | TensorRT-LLM | x | [docs](https://nvidia.github.io/TensorRT-LLM/1.0.0rc6/commands/) |",
        "# | [RedisVL](https://redis.io/x) | `distance_threshold` | 0.9.1 |",
        "# | vLLM | x | [docs](https://docs.vllm.ai/x), v0.17, 2026 |",
    ],
)
def test_an_old_version_is_seen(line):
    assert wrong(f"# ## In production\n{line}\n#\n# ## Recap\n")
    assert not wrong(f"# ## Elsewhere\n{line}\n#\n# ## Recap\n")


@pytest.mark.parametrize(
    "line",
    [
        "# | vLLM | `sha256` (since 0.8.3), 0.9 of the card | [docs](https://docs.vllm.ai/en/v0.33.0/x/), v0.33 |",
        "# | GPTCache | `similarity_threshold`, 0.8 by default | read in November 2026 |",
        "# | TensorRT-LLM | runs on PyTorch by default since 1.0 | 1.2.1 |",
        "# | TensorRT-LLM | x | [docs](https://nvidia.github.io/TensorRT-LLM/1.2.0/commands/) |",
    ],
)
def test_other_numbers_are_left_alone(line):
    assert not wrong(f"# ## In production\n{line}\n#\n# ## Recap\n")


# -- the file ----------------------------------------------------------------------------------------------------


def test_the_file_is_whole():
    found = engines()
    assert {
        "vllm",
        "sglang",
        "tensorrt-llm",
        "llama.cpp",
        "transformers",
        "lmcache",
        "redisvl",
        "dynamo",
    } <= set(found)
    for engine in found.values():
        assert engine.docs.startswith("https://") and "{" not in engine.docs
        assert engine.checked <= datetime.date.today()
    assert found["vllm"].link("cli/serve/") == f"https://docs.vllm.ai/en/v{found['vllm'].version}/cli/serve/"
    assert found["sglang"].link("https://elsewhere.example/x") == "https://elsewhere.example/x"
    assert "torch" not in {name.split(".")[0] for name in vars(module)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checked": None}, "lacks checked"),
        ({"version": 1.10}, "in quotes"),
        ({"package": None}, "go together"),
        ({"docs": "http://x"}, "https addresses"),
        ({"flags": "--x"}, "nobody reads"),
        ({"checked": "lately"}, "must be a day"),
    ],
)
def test_a_broken_entry_gets_a_sentence(change, says):
    row = dict(yaml.safe_load(FILE.read_text("utf-8"))["vllm"])
    row.update(change)
    with pytest.raises(ValueError, match=rf"^engines\.yml: vllm.*{says}.*\.$"):
        parse({"vllm": {key: value for key, value in row.items() if value is not None}})


# -- the table ---------------------------------------------------------------------------------------------------


def test_the_table_has_version_link_and_date():
    day = datetime.date(2026, 11, 3)
    one = {"x": Engine("x", "Xengine", day, "https://x.example/2.1/", "https://x.example/r", "2.1", "x")}
    text = production_markdown([("x", "slots | places", "`--slots`", "serve/")], of=one)
    assert "[Xengine 2.1](https://x.example/2.1/serve/)" in text
    assert r"slots \| places" in text and "3 November 2026" in text
    with pytest.raises(ValueError, match="no engine 'y'"):
        production_markdown([("y", "a", "b", "c")], of=one)
    with pytest.raises(ValueError, match="A row is"):
        production_markdown([("x", "a", "b")], of=one)


# -- the weekly look ---------------------------------------------------------------------------------------------


def test_the_weekly_look_reports_and_never_fails(monkeypatch, capsys):
    day = datetime.date(2026, 11, 3)
    some = {
        "a": Engine("a", "A", day, "https://a.example/", "https://a.example/r", "1.0", "a"),
        "b": Engine("b", "B", day, "https://b.example/", "https://b.example/r", "2.0", "b"),
        "c": Engine("c", "C", day, "https://c.example/", "https://c.example/r"),
    }

    def ask(package):
        if package == "a":
            raise OSError("no network")
        return "2.1"

    first = check_engines.report(some, ask, day)
    assert first == [
        "A: PyPI could not be asked (OSError).",
        "B: 2.0 in engines.yml, 2.1 on PyPI. https://b.example/r",
    ]
    later = check_engines.report(
        some, lambda package: {"a": "1.0", "b": "2.0"}[package], day.replace(year=2027)
    )
    assert [line.split(":")[0] for line in later] == ["A", "B", "C"] and "2026-11-03" in later[0]

    def offline(*args, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(check_engines.urllib.request, "urlopen", offline)
    check_engines.main()
    assert "engines looked at" in capsys.readouterr().out
    assert sys.exc_info() == (None, None, None)
