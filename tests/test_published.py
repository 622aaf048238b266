"""Published measurements: whole, sourced, converted right, and predicted unseen."""

from __future__ import annotations

import copy
import dataclasses
import statistics
from importlib.resources import files

import pytest
import yaml

from lumen import cost
from lumen.config import CONFIGS
from lumen.cost.published import THIRD, Measurement, misses, parse, published, summary
from lumen.explore.figures import published as figures
from lumen.hardware import CHIPS

RAW = yaml.safe_load(files("lumen.cost").joinpath("data/published.yml").read_text("utf-8"))
ROWS = misses()


def find(name: str) -> Measurement:
    return next(m for m in published() if m.id == name)


# -- the file ----------------------------------------------------------------------------------------------------


def test_many_chips_models_batches_formats_and_phases():
    found = published()
    assert len(found) >= 40
    assert len({m.chip for m in found}) >= 10 and len({m.model for m in found}) >= 6
    assert {m.phase for m in found} == {"decode", "prefill", "answer"}
    assert {m.batch for m in found} >= {1, 8, 64, 256, 1024}
    assert {"bf16", "fp8", "int8", "q4_0"} <= {str(m.weights) for m in found}
    assert len({m.source.url for m in found}) >= 8


@pytest.mark.parametrize("source", RAW["sources"], ids=[s["key"] for s in RAW["sources"]])
def test_every_source_has_url_date_version_and_says_what_is_unsaid(source):
    assert source["url"].startswith("https://") and str(source["date"])[:2] == "20"
    for key in ("title", "version", "varied", "unsaid"):
        assert len(str(source[key])) > 3
    assert source["entries"]


@pytest.mark.parametrize("row", ROWS, ids=[r.measurement.id for r in ROWS])
def test_a_miss_of_more_than_a_third_says_what_the_bound_leaves_out(row):
    assert abs(row.signed) <= THIRD or row.measurement.leaves_out


def test_shapes_have_the_parameters_that_their_names_say():
    size = {m.model: cost.parameters(m.config).total / 1e9 for m in published()}
    assert size["llama-3-405b"] == pytest.approx(405.9, abs=0.1)
    assert size["falcon-180b"] == pytest.approx(179.5, abs=0.1)
    assert size["mixtral-8x7b"] == pytest.approx(12.9, abs=0.1), "the parameters that one token uses"
    assert size["nemotron-super-49b"] == pytest.approx(49.9, abs=0.1)


# -- conversions, recomputed by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("gpt-fast-7b-bf16", 1 / 104.9),  # one user: a token is a step
        ("b200-49b-fp8", 0.0134),
        ("trt-h100-7b-first-2048", 0.036),
        ("lc-4090-8b-f16-pp", 1024 / 9056.26),  # a prefill of 1,024 tokens
        ("mi300x-405b-b256", 17.75 / 128),  # a whole answer of 128 tokens, 256 users at once
        ("trt-a100-7b-b384", 384 / 5586),  # tokens of all users
        ("trt-h100-70b-b64", 64 / (2 * 547)),  # tokens of each of two chips
    ],
)
def test_published_values_become_seconds_of_a_step(name, seconds):
    assert find(name).seconds == pytest.approx(seconds, rel=1e-12)


# -- predictions, unseen -----------------------------------------------------------------------------------------


def test_the_bound_is_bytes_over_bandwidth_at_batch_one():
    m = find("gpt-fast-7b-bf16")
    config, chip = CONFIGS["llama-2-7b"], CHIPS["A100 80GB SXM"]
    weights = (cost.parameters(config).total - config.vocab_size * config.hidden_size) * 2
    by_hand = (weights + cost.kv_bytes(config, 105, 1, "bf16")) / chip.bandwidth
    assert m.bound() == pytest.approx(by_hand, rel=0.002)
    assert find("gpt-fast-7b-tp8").bound() == pytest.approx(m.bound() / 8, rel=1e-6)


def test_an_answer_is_a_prefill_and_its_steps():
    m = dataclasses.replace(find("trt-a100-7b-b60"), output=300)
    args = (m.batch, "fp16")
    steps = [cost.predict_decode(m.config, m.together(), 128 + i, *args).seconds for i in range(1, 300)]
    whole = cost.predict_prefill(m.config, m.together(), 128, *args).seconds + sum(steps)
    assert m.bound() == pytest.approx(whole / 300, rel=1e-4)


def test_nothing_is_faster_than_its_bound():
    """If one were, either the entry or the datasheet would be wrong: as a check of 59 transcriptions, it bites."""
    assert min(row.ratio for row in ROWS) > 1
    assert max(row.ratio for row in ROWS) < 10
    assert 1.3 < statistics.median(row.ratio for row in ROWS) < 2.5


def test_signed_miss_and_ratio_are_one_thing():
    for row in ROWS:
        assert row.signed == pytest.approx(1 / row.ratio - 1)
        assert row.signed < 0
    assert "times" in str(ROWS[0])


def test_summary_groups_by_chip_and_phase():
    table = summary(ROWS)
    assert sum(line[2] for line in table) == len(ROWS)
    assert [line[3] for line in table] == sorted(line[3] for line in table)
    n, middle, least, most = next(t for t in table if t[:2] == ("MI300X", "answer"))[2:]
    mine = [r.ratio for r in ROWS if r.measurement.chip == "MI300X"]
    assert (n, middle, least, most) == (4, statistics.median(mine), min(mine), max(mine))


# -- faults ------------------------------------------------------------------------------------------------------


def damaged(change):
    raw = copy.deepcopy(RAW)
    change(raw["sources"][0], raw["sources"][0]["entries"][0], raw)
    return raw


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s, e, r: e.update(chip="H1000"), "no chip 'H1000'"),
        (lambda s, e, r: e.update(model="llama-9"), "no model 'llama-9'"),
        (lambda s, e, r: e.update(value=-1), "above zero"),
        (lambda s, e, r: e.update(unit="tokens"), "unit one of"),
        (lambda s, e, r: e.update(weights="int3"), "Unknown number format"),
        (lambda s, e, r: e.update(prompt=5), "no other length"),
        (lambda s, e, r: e.update(chips=2), "split: tensor"),
        (lambda s, e, r: e.update(compute="fp8"), "no rate in fp8"),
        (lambda s, e, r: e.update(leaves_out=["magic"]), "does not explain"),
        (lambda s, e, r: e.update(batch=1.5), "positive integer"),
        (lambda s, e, r: e.update(batch=4096, context=4000), "chips are sold with"),
        (lambda s, e, r: e.update(guess=1), "nobody reads"),
        (lambda s, e, r: e.pop("place"), "lacks place"),
        (lambda s, e, r: s.update(url="README"), "no https address"),
        (lambda s, e, r: s.update(date="lately"), "a date is"),
        (lambda s, e, r: s.update(kind="hearsay"), "kind is one of"),
        (lambda s, e, r: s.pop("unsaid"), "see unsaid"),
        (lambda s, e, r: s["entries"].append(dict(e)), "stands there twice"),
        (lambda s, e, r: r["shapes"]["falcon-180b"].pop("source"), "not where it was read"),
    ],
)
def test_a_damaged_entry_gets_a_sentence(change, says):
    with pytest.raises(ValueError, match=rf"^published\.yml: .*{says}.*\.$"):
        parse(damaged(change))


def test_the_whole_file_parses_when_nothing_is_damaged():
    assert parse(damaged(lambda s, e, r: None)) == published()


# -- figure and tables -------------------------------------------------------------------------------------------


def test_the_figure_states_its_finding_and_shows_every_measurement():
    fig = figures.published_misses()
    title = fig.layout.title.text.replace("<br>", " ")
    assert title.startswith(f"Of {len(ROWS)} published times none is faster than its bound")
    assert f"the median is {statistics.median(r.ratio for r in ROWS):.1f} times" in title
    points = [t for t in fig.data if t.mode == "markers" and t.x != (None,)]
    assert sum(len(t.x) for t in points) == len(ROWS)
    assert sum(t.showlegend is not False for t in fig.data) == 3
    assert fig.layout.xaxis.type == fig.layout.yaxis.type == "log"
    (key,) = [a.text for a in fig.layout.annotations]
    for row in ROWS:
        _, sign, words = figures.family(row.measurement.chip)
        assert f"{sign} {words}" in key
    assert len({symbol for _, symbol, _, _ in figures.FAMILIES}) == len(figures.FAMILIES)
    with pytest.raises(ValueError, match="Cerebras has no symbol yet"):
        figures.family("Cerebras")


def test_the_title_follows_the_data():
    assert "1 are faster" in figures.finding([*ROWS[:3], type(ROWS[0])(ROWS[0].measurement, 1.0, 2.0)])


def test_tables_show_every_group_and_row(monkeypatch):
    folds = []
    monkeypatch.setattr("lumen.explore.figures.published.markdown", folds.append)
    figures.published_table()
    figures.published_rows()
    groups, rows = ([line for line in fold.splitlines() if line.startswith("| ")][2:] for fold in folds)
    assert len(groups) == len(summary(ROWS)) and len(rows) == len(ROWS)
    assert all(row.count("|") <= 6 for row in [*groups, *rows])
    fold = folds[1]
    assert fold.startswith("<details>") and 'class="stack"' in fold, "a fold, and cards on a phone"
    assert all("](https://" in row for row in rows)
    reasons = figures.left_out(ROWS)
    assert reasons and [n for _, n in reasons] == sorted((n for _, n in reasons), reverse=True)
