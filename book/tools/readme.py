"""README's figures, sentences and picture, made from the evidence files; a test fails when they are stale.

    python book/tools/readme.py            write what changed
    python book/tools/readme.py --check    change nothing, exit 1 when something is stale

A part of the README between `<!-- measured:NAME -->` and `<!-- /measured -->` belongs to the function NAME here. The
picture book/static/readme.svg is drawn from the published measurement store.
"""

from __future__ import annotations

import re
import statistics
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import repo

from lumen import bench
from lumen.bench import Estimate, Name, Timing, says

PICTURE = "book/static/readme.svg"
BLOCK = re.compile(r"<!-- measured:(\w+) -->\n.*?<!-- /measured -->", re.S)
WIDTH = 118
ONE, EIGHT = (Name("smollm2-135m", "decode", batch, 256) for batch in (1, 8))
PROMPT = Name("smollm2-135m", "prefill", 1, 512)


def per_token() -> tuple[dict[str, Any], dict[str, Estimate]] | None:
    """Milliseconds a token of an answer (one user, eight) and of a prompt, and the file; None before a publication."""
    try:
        record = bench.load_evidence("measurements")
    except bench.NoEvidence:
        return None
    # Whichever kernel multiplied: it is the one that this machine's store found best.
    entries = {
        replace(Name.parse(text), kernel="default"): entry
        for text, entry in record["data"]["quantities"].items()
    }
    if not {ONE, EIGHT, PROMPT} <= set(entries):
        return None
    found = {}
    for label, name, tokens in (
        ("a token of an answer, one user", ONE, 1),
        ("the same, eight users at once", EIGHT, 8),
        ("a token of a prompt of 512", PROMPT, 512),
    ):
        timing = Timing(tuple(entries[name]["samples"]))
        found[label] = Estimate.of(timing.per(tokens)).scaled(1e3, "ms")
    return record, found


def picture() -> str | None:
    """The Markdown of the picture: its text says what it shows."""
    measured = per_token()
    if measured is None:
        return None
    one, eight, prompt = (est.texts()[0] for est in measured[1].values())
    words = (
        f"Measured time of one token of SmolLM2: {one} ms in an answer, {eight} ms when eight users are answered "
        f"at once, {prompt} ms in a prompt of 512 tokens"
    )
    return f"![{words}]({PICTURE})"


def figures() -> str:
    """How fast this is beside transformers, and how well the cost model predicts it."""
    peers, model = bench.load_evidence("vs_hf"), bench.load_evidence("cost_model")
    pair = peers["data"]["rows"]["decode"]
    speed = Estimate.ratio(pair["transformers"]["samples"], pair["lumen"]["samples"])
    interval = "({low} to {high}, n = {n})"
    first = says(
        speed,
        more="SmolLM2 decodes at **{x} times** the speed of Hugging Face transformers " + interval,
        less="SmolLM2 decodes at **{x} times** the speed of Hugging Face transformers, which is slower "
        + interval,
        same="SmolLM2 decodes as fast as in Hugging Face transformers, as far as {n} steps can show",
    )
    cells = model["data"]["cells"]
    errors = [cell["predicted_s"] / cell["measured"]["median"] - 1 for cell in cells]
    median = statistics.median(map(abs, errors))
    short = sum(error < 0 for error in errors)
    dates = sorted({peers["date"], model["date"]})
    return wrapped(
        f"With {peers['threads']} threads of one {peers['cpu']}, in fp32, {first}. The course's cost model predicts "
        f"prefill and decode times to within **{100 * median:.0f} %** (median of {len(cells)} cases, {short} of them "
        f"predicted too short). Raw samples: `book/evidence/`: `vs_hf.json`, `cost_model.json`, {' and '.join(dates)}. "
        "`make bench` repeats both on your machine."
    )


BLOCKS: dict[str, Callable[[], str | None]] = {"picture": picture, "figures": figures}


def fill(text: str) -> str:
    """The README with its measured parts brought up to date; a part whose evidence is not there yet stays."""
    missing = set(BLOCKS) - set(BLOCK.findall(text))
    if missing:
        raise ValueError(f"README.md lacks <!-- measured:NAME --> for: {', '.join(sorted(missing))}")

    def new(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in BLOCKS:
            raise ValueError(f"README.md: nothing makes the part measured:{name}")
        made = BLOCKS[name]()
        return found.group(0) if made is None else f"<!-- measured:{name} -->\n{made}\n<!-- /measured -->"

    return BLOCK.sub(new, text)


def wrapped(text: str) -> str:
    """Lines of the README's width; `code` stays on one line."""
    whole = re.sub(r"`[^`]*`", lambda code: code.group().replace(" ", "\0"), text)
    return textwrap.fill(whole, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def drawing() -> str | None:
    """The picture: three bars with their intervals, black on white, so that it reads in light and dark."""
    measured = per_token()
    if measured is None:
        return None
    record, bars = measured
    left, right, top, step, tall = 250, 620, 64, 52, 26
    most = max(est.high for est in bars.values())
    parts = []
    for i, (label, est) in enumerate(bars.items()):
        y = top + i * step
        at = {
            k: left + (right - left) * v / most
            for k, v in (("x", est.value), ("lo", est.low), ("hi", est.high))
        }
        value = est.texts()[0]
        parts += [
            f'<text x="{left - 12}" y="{y + tall - 8}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{left}" y="{y}" width="{at["x"] - left:.1f}" height="{tall}" fill="{COLORS[i]}"/>',
            f'<path d="M{at["lo"]:.1f} {y + tall / 2}H{at["hi"]:.1f}" stroke="#222" stroke-width="3"/>',
            f'<text x="{at["hi"] + 10:.1f}" y="{y + tall - 8}" font-weight="bold">{value} ms</text>',
        ]
    machine = (
        f"{record['cpu']}, {record['threads']} threads, fp32, {record['date']}; medians and 95 % intervals"
    )
    height = top + len(bars) * step + 26
    words = "; ".join(f"{label}: {est.texts()[0]} ms" for label, est in bars.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" width="720" height="{height}" '
            f'role="img" font-family="Helvetica, Arial, sans-serif" font-size="15" fill="#222">',
            f"<title>{escape(words)}</title>",
            f'<rect width="720" height="{height}" rx="8" fill="#fff"/>',
            '<text x="24" y="36" font-size="19" font-weight="bold">What one token of SmolLM2 costs</text>',
            *parts,
            f'<text x="24" y="{height - 16}" font-size="12" fill="#555">{escape(machine)}</text>',
            "</svg>\n",
        ]
    )


COLORS = ("#d55e00", "#0072b2", "#009e73")  # Okabe and Ito, distinct for colour-blind readers


def stale(root: Path) -> dict[Path, str]:
    """Files that differ from what the evidence says, with what they should hold."""
    text = (root / "README.md").read_text("utf8")
    wanted = {root / "README.md": fill(text)}
    if (drawn := drawing()) is not None:
        wanted[root / PICTURE] = drawn
    return {path: new for path, new in wanted.items() if not path.exists() or path.read_text("utf8") != new}


def main(check: bool) -> int:
    found = stale(repo.ROOT)
    for path, text in found.items():
        print(f"{'stale' if check else 'wrote'} {path.relative_to(repo.ROOT)}")
        if not check:
            path.write_text(text, "utf8")
    if not found:
        print("README in step with the evidence")
    return int(check and bool(found))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
