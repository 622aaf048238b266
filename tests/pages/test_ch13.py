"""Chapter 13 says of a cache what the formats say, and of a measurement what its interval allows."""

from __future__ import annotations

import dataclasses
import math

import pytest

from lumen import cost
from lumen.bench import Estimate, wilson
from lumen.cache.quant_format import QUANT_FORMATS
from lumen.pages import ch13


@pytest.mark.parametrize(("name", "bits"), [("int8", 8.25), ("int4", 5), ("kivi", 5), ("kivi-2", 3)])
def test_bits_of_a_number_count_its_scales(name, bits):
    """By the chapter's formula, n + 16 s / g: one scale for a head of 64, or two numbers for each 32."""
    assert ch13.bits_of(QUANT_FORMATS[name]) == pytest.approx(bits)


def test_bytes_and_users_are_those_of_the_server():
    rows = {row[0]: row for row in ch13.bytes_table()[0]}
    plain = cost.kv_bytes_per_token(ch13.MODEL, "bf16")
    assert rows["16 bits"][4] == f"{int(2**30 // (ch13.LENGTH * plain))}"
    assert rows["2 bits, KIVI"][3] == "19 %" and rows["8 bits"][3] == "52 %"
    users = [int(row[4]) for row in rows.values()]
    assert users == sorted(users[:3]) + users[3:] and users[1] >= 1.8 * users[0]


def test_a_window_reaches_what_worked_numbers_say():
    """K11: Mistral's 32 layers of 4,096. The product counts each window's own token in every layer."""
    assert 32 * 4096 - ch13.reach(32, 4096) == 31
    assert "131,041" in ch13.reach_story()
    assert ch13.reach(1, 7) == 7 and ch13.reach(3, 1) == 1


def test_a_step_gains_what_it_no_longer_reads():
    rows = {(row[0], row[1]): row[3] for row in ch13.step_table()[0]}
    weights, cache = cost.weight_bytes(ch13.BIG, "bf16"), cost.kv_bytes(ch13.BIG, 131072, dtype="bf16")
    assert rows["1", "131,072"] == f"{(weights + cache) / (weights + cache / 5):.2f} ×"
    assert rows["1", "512"] == "1.00 ×"


def test_a_sink_that_is_not_at_the_front_is_named():
    most = [(0, "", 0.5), (25, " the", 0.2), (25, " the", 0.3), (7, " a", 0.3), (30, ".", 0.02)]
    told = ch13.places_story([0.2, 0.4], [0.3, 0.3], 32, [0.3, 0.2], most)
    assert "in 2 layers the most read key is that of “the”, token 26" in told
    assert ch13.elsewhere([(0, "", 0.5), (3, ".", 0.3), (30, ".", 0.02)]) == ""


@pytest.mark.parametrize(
    ("said", "begun", "right"),
    [(" 90870.", 5, True), (" 908.\n", 3, False), (" 9087", 4, False), (" 90871.", 4, False), ("", 0, False),
     (" 908705", 5, False), (" the 90870", 0, False)],
)  # fmt: skip
def test_an_answer_is_the_number_and_no_longer_one(said, begun, right):
    assert ch13.digits(said, "90870") == begun
    assert ch13.right_answers({("x", 1.0): [said]}, ["90870"]) == {("x", 1.0): [right]}


NUMBERS = ["48173", "90870", "12345"]
GOOD = [f" {number}." for number in NUMBERS]
POOR = [" 1.", " 2.", " 3."]


def said(snap=" 908."):
    rules = ("newest", "newest, half", "sinks", "random", "key norm", "h2o", "snapkv", "snapkv, wide", "told")
    found = {(name, share): POOR for name in rules for share in (0.5, 0.2)}
    found |= {("full", 1.0): GOOD, ("told", 0.2): GOOD, ("kivi", 1.0): GOOD, ("kivi-2", 1.0): POOR}
    found["snapkv", 0.2] = [" 1.", snap, " 3."]
    return found


def test_answers_are_counted_rule_by_rule():
    rows, headers, align = ch13.found_table(said(), NUMBERS)
    assert len(rows) == 9 and all(len(row) == len(headers) == len(align) for row in rows)
    assert rows[-1] == ["told where the number is", "0 of 3", "0.0", "3 of 3", "5.0"]


def test_a_number_that_breaks_off_is_shown_where_there_is_one():
    stayed = {(name, 0.5): 0.5 for name in ("random", "h2o", "snapkv")}
    assert "answers “908.” where prompt 2 hides 90870" in ch13.found_story(said(), NUMBERS, stayed, 1)
    for snap in (" 908.", " 2."):  # the control stands there either way
        assert "a pool of 13, it finds 0 of 3" in ch13.found_story(said(snap), NUMBERS, stayed, 1)
    assert "answers “" not in ch13.found_story(said(snap=" 2."), NUMBERS, stayed, 1)
    right = ch13.right_answers(said(), NUMBERS)
    assert "told where to look 3" in ch13.takeaway(right) and "in two bits, 19 %, 0" in ch13.takeaway(right)


# the published run --------------------------------------------------------------------------------
def ratio(value):
    return dataclasses.asdict(Estimate(value, value * 0.99, value * 1.01, 32, "×"))


def spaced(cell):
    """A cell whose blanks may break."""
    return cell.replace("\N{NO-BREAK SPACE}", " ")


def published():
    """A run of three kinds in the benchmark's form: two lengths, of which quest was asked one; two depths."""
    texts = [
        {"kind": kind, "share": share, "bytes": {"held": held, "read": read}, "ratio": ratio(value),
         "perplexity": ratio(30 * value), "losses": [math.log(30 * value)] * 4}
        for kind, share, held, read, value in (
            ("full", 1.0, 1.0, 1.0, 1.0), ("int8", 1.0, 0.52, 0.52, 1.001), ("kivi-2", 1.0, 0.19, 0.19, 1.4),
            ("quest", 0.2, 1.06, 0.3, 1.05), ("snapkv", 0.2, 0.21, 0.21, 1.6), ("snapkv", 0.5, 0.5, 0.5, 1.1),
            ("int4", 1.0, 0.31, 0.31, 1.2), ("int4, rotated", 1.0, 0.31, 0.31, 1.1), ("sinks", 0.2, 0.2, 0.2, 1.3),
            ("h2o", 0.2, 0.2, 0.2, 1.6), ("snapkv, wide", 0.2, 0.21, 0.21, 1.6))
    ]  # fmt: skip
    asked = {
        ("full", 1.0): [True] * 4, ("int8", 1.0): [True] * 4, ("kivi-2", 1.0): [False] * 4, ("quest", 0.2): [True] * 4,
        ("h2o", 0.2): [False] * 4, ("snapkv, wide", 0.2): [True, False, True, False],
        ("snapkv", 0.2): [True, True, False, False], ("snapkv", 0.5): [True] * 4, ("random", 0.5): [False] * 4,
    }  # fmt: skip
    hidden = [
        {"kind": kind, "share": share, "length": length, "question_seen": seen, "right": right if seen else [False] * 4}
        for (kind, share), right in asked.items()
        for length in (512, 1024)
        for seen in (True, False)
        if length == 512 or kind != "quest"
    ]  # fmt: skip
    pairs = [["snapkv", "random", ratio(0.5), "reversed"], ["snapkv", "sinks", ratio(1.0), "open"]]
    ranking = {
        "share": 0.5,
        "order": ["random", "snapkv"],
        "published": ["snapkv", "random"],
        "pairs": pairs,
    }
    kept = {"0.5": {"snapkv": 67, "random": 8}, "0.1": {"snapkv": 24, "random": 0}}
    return {
        "perplexity": texts, "needles": hidden, "ranking": [ranking], "published": {"kept": kept, "source": "a plot"},
        "setting": {"passages": 8, "prompt": 512, "scored": 128, "depths": [0.25, 0.75], "lengths": [512, 1024],
                    "stretch": 32},
    }  # fmt: skip


def test_kinds_are_compared_where_all_were_asked():
    assert ch13.common_lengths(published()) == [512]
    found = ch13.needles_of(published(), "snapkv", 0.2, lengths=[512])
    assert found == wilson(2, 4)
    assert ch13.needles_of(published(), "window", 0.2) is None


def test_the_table_has_a_row_for_each_kind_at_its_share():
    rows, headers, align = ch13.equal_table(published())
    assert [row[0] for row in rows] == [
        "everything", "8 bits", "Quest", "4 bits by token, rotated", "4 bits by token", "2 bits, KIVI", "SnapKV", "H2O",
        "SnapKV, pooled over 13",
    ]  # fmt: skip
    assert spaced(rows[2][1]) == "106 %, read 30 %"
    assert [spaced(cell) for cell in rows[1][1:3]] == ["52 %", "1.001 (0.991 to 1.011)"]
    assert spaced(rows[8][1]) == "21 %"
    assert all(len(row) == len(headers) == len(align) == 5 for row in rows)


def test_the_story_names_all_that_find_most_and_pairs_what_it_compares():
    told = ch13.equal_story(published())
    assert "4 bits by token is worse than 4 bits by token, rotated, 1.09 times as high" in told
    assert "Every needle was found by none of them" in told and "prompts of 512 tokens" in told
    assert "the needles they find 0 % (0 to 49) and 50 % (15 to 85)" in told
    assert "nothing that this run can show lies between H2O and SnapKV, pooled over 13" in told
    assert "the rotation saves" in told
    assert ch13.paired(published(), "h2o", "random") is None


def test_a_long_prompt_leaves_out_what_a_short_one_holds_beside():
    kivi = {"kind": "kivi", "share": 1.0, "bytes": {"held": 0.42}}
    assert ch13.long_share(kivi) == 5 / 16 and "long 31 %" in spaced(kivi_cell())
    assert ch13.long_share({"kind": "snapkv", "share": 0.2, "bytes": {"held": 0.31}}) == 0.2
    assert ch13.long_share({"kind": "window", "share": 0.2, "bytes": {"held": 0.21}}) == 0.21


def kivi_cell():
    run = published()
    run["perplexity"].append({**run["perplexity"][1], "kind": "kivi", "bytes": {"held": 0.42, "read": 0.42}})
    return next(row[1] for row in ch13.equal_table(run)[0] if row[0] == "4 bits, KIVI")


def test_the_figure_keeps_the_order_of_the_table():
    fig = ch13.equal_figure(published())
    names = [row[0] for row in ch13.equal_table(published())[0]]
    assert list(fig.data[0].y) == [name for name in names if name in fig.data[0].y]
    assert list(fig.data[0].x)[:2] == [100, 100]


def test_needles_are_told_apart_by_depth():
    """Needles of one depth stand together: SnapKV found both of the first and none of the second."""
    fig = ch13.grid_figure(published(), ("snapkv",))
    assert list(fig.data[0].y) == [100, 0] and list(fig.data[0].x) == [0.25, 0.75]
    assert "finds 50 %" in fig.layout.title.text.replace("<br>", " ")


def test_the_question_in_sight_and_not():
    rows, headers, _ = ch13.unseen_table(published())
    assert [spaced(cell) for cell in rows[0][:3]] == ["SnapKV", "100 % / 0 %", "67"] and len(headers) == 5
    assert rows[-1][0] == "SnapKV, pooled over 13" and rows[-1][2] == "–"
    told = ch13.order_story(published())
    assert "scores of 100: a plot. Of 2 pairs of rules" in told
    assert "orders 0 the same way by more than its interval, 1 the other way" in told


@pytest.mark.parametrize(
    ("value", "words"), [(1.4, "rises by 40.0 %"), (1.0005, "no difference"), (0.9, "falls")]
)
def test_a_perplexity_is_judged_by_its_interval(value, words):
    ratio = Estimate(value, value * 0.999, value * 1.001, 16, "×")
    assert words in ch13.perplexity_change(ch13.rise(ratio), "8 bits")


@pytest.mark.parametrize(
    ("low", "high", "words"), [(0.999, 1.004, "is kept"), (1.001, 1.008, "open"), (1.006, 1.008, "is missed")]
)
def test_the_target_of_eight_bits_is_judged_by_its_interval(low, high, words):
    assert words in ch13.target(ch13.rise(Estimate((low + high) / 2, low, high, 16, "×")))


def test_a_page_without_the_run_says_how_to_make_it(monkeypatch, tmp_path):
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path))
    assert ch13.published() is None and ch13.sinks_published() == ""
    assert "benchmarks/smaller_cache.py" in ch13.NOT_PUBLISHED


def test_a_rise_has_its_interval():
    found = ch13.rise(Estimate(0.998, 0.992, 1.004, 16, "×"))
    assert (found.value, found.low, found.high) == pytest.approx((-0.2, -0.8, 0.4))
    assert ch13.rise_title(Estimate(0.998, 0.992, 1.004, 16, "×")).endswith("by −0.8 % to +0.4 %")


def test_quest_is_told_with_its_needles_where_there_are_some():
    weights = {"bound": [0.8, 0.6], "best": [0.9, 0.9], "newest": [0.4, 0.2]}
    alone = ch13.quest_story(weights, None)
    assert "hold 70 %" in alone and "Read are 26 % of the bytes" in alone and "published" not in alone
    assert "published run: 100 % (51 to 100) with 20 % of the pages." in ch13.quest_story(
        weights, published()
    )
