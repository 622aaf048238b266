"""Chapter 14 says of a state what its formula and the cost model say, and of a measurement what its interval allows."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from pathlib import Path

import pytest

from lumen import cost
from lumen.attention.linear import recall_error
from lumen.bench import Estimate, wilson
from lumen.pages import ch14, ch14_picture, ch14_sparse
from lumen.train import recall as recipe

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "chapters" / "14_sparse_linear.py").read_text("utf8")


def test_half_full_is_where_the_expected_error_is_a_half():
    for dim in (16, 32, 64, 128):
        n = ch14.half_full(dim)
        assert recall_error(n, 0, dim) == pytest.approx(0.5)
        assert 2 * (n - 1) * dim == dim * dim  # one pair less is what fits in as keys and values


def test_the_opening_s_number_is_nobody_s():
    told = ch14.opening()
    assert "for Ann **5550147**" in told and "answers 5550117" in told
    assert "Bob 5550178, Cem 5550193, and for Ann" in told


def test_states_in_tokens_are_the_cost_model_s():
    rows, headers, align = ch14.layers_table()
    assert len(headers) == len(align) == len(rows[0])
    small = recipe.shape("delta-8").with_(linear=None)
    timed = ch14.timed("full")
    for column, config, width in ((1, small, 8), (2, timed, 64)):
        assert rows[0][column] == str(config.num_heads) and rows[1][column] == str(width)
        assert rows[2][column] == str(config.head_dim)
        assert ch14.size(cost.kv_bytes_per_token(config, "fp32") / config.num_layers) == rows[5][column]
    assert rows[6][1:4] == ["4", "32", "1,820"]


def test_the_timed_models_are_the_benchmark_s():
    spec = importlib.util.spec_from_file_location("linear_decode", ROOT / "benchmarks" / "linear_decode.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for kind in script.KINDS:
        assert ch14.timed(kind) == script.config(kind)
    assert set(script.KINDS) == set(ch14.WAYS)


def test_flops_of_a_prompt_cross_once():
    ratios = [flops[1] / flops[0] for flops in map(ch14.prompt_flops, (1, 64, 256, 1024, 4096))]
    assert ratios == sorted(ratios, reverse=True) and ratios[2] > 1 > ratios[4]


def test_the_picture_s_title_is_what_it_draws():
    pairs = ch14_picture.pairs_of(3)
    state = ch14_picture.added([ch14_picture.outer(*pair) for pair in pairs])
    key, value = pairs[1]
    others = [(sum(a * b for a, b in zip(key, k, strict=True)), v) for k, v in (pairs[0], pairs[2])]
    wanted = [y + sum(w * v[j] for w, v in others) for j, y in enumerate(value)]
    assert ch14_picture.asked(key, state) == pytest.approx(wanted)
    drawn = ch14_picture.picture()
    (off,) = set(re.findall(r"off by (\d\.\d\d) of", drawn))
    assert float(off) == pytest.approx(ch14_picture.off(wanted, value) ** 0.5, abs=0.006)
    assert drawn.count("<svg") == 4 and drawn.count('role="img"') == 1


def test_the_maps_read_no_key_ahead_and_what_they_count():
    found = ch14_sparse.patterns(24)
    for name, (words, seen) in found.items():
        assert words and all(any(row) and not any(row[i + 1 :]) for i, row in enumerate(seen)), name
        assert max(map(sum, seen)) <= 16
    drawn = ch14_picture.maps(found)
    shown = re.findall(r">(\d+) % of the pairs<", drawn)
    pairs = 24 * 25 / 2
    assert [int(x) for x in shown] == pytest.approx(
        [100 * sum(map(sum, seen)) / pairs for _, seen in found.values()], abs=0.51
    )


# evidence -----------------------------------------------------------------------------------------
def learned(**hits):
    """Published models that answered so many of 1,024 questions about 4 and about 16 pairs."""
    rows = []
    for name, (few, many) in hits.items():
        accuracy = {str(n): vars(wilson(h, 1024)) for n, h in ((4, few), (8, many), (16, many))}
        rows.append({"name": name.replace("_8", "-8"), "grows": 512, "fixed": 512, "accuracy": accuracy})
    return {"pairs": [4, 8, 16], "window": 16, "models": rows}


def test_models_are_told_apart_by_their_intervals_alone():
    told = ch14.learned_story(learned(linear_8=(1020, 800), gated_8=(1020, 805), delta_8=(1020, 1010)))
    assert "between a state that fades and a state that adds this test shows no difference" in told
    assert "a state that corrects gets 20.5 of a hundred more right than a state that adds" in told
    assert "compared with nobody" not in told and told.count("one training each") == 1
    told = ch14.learned_story(learned(delta_8=(1020, 500), linear_8=(1020, 900)))
    assert "a state that adds gets 39.1 of a hundred more right than a state that corrects" in told


def test_ways_of_telling_are_told_apart_by_intervals():
    share = {(telling, rule): wilson(900, 1000) for telling in ch14.TELLINGS for rule in ch14.RULES}
    assert ch14.told_story(share).count("shows no difference") == 4
    twice = list(ch14.TELLINGS)[2]
    told = ch14.told_story(share | {(twice, "linear"): wilson(500, 1000)})
    assert "Told twice: correcting gets 40.0 of a hundred more right than adding" in told
    rows, headers, align = ch14.told_table(share)
    assert len(rows) == 4 and len(headers) == len(align) == len(rows[0]) == 5


def test_a_model_that_fails_the_shortest_test_is_named():
    told = ch14.learned_story(learned(full=(300, 170), linear_8=(1020, 900)))
    assert "*attention to everything*" in told and "compared with nobody" in told and "state, add" not in told
    assert ch14.LEARNED == 0.9 and "Less than 90 % of 4 pairs" in told


def test_a_window_reaches_back_through_its_layers():
    told = ch14.learned_story(learned(full=(1020, 1010), window=(1000, 600)))
    assert "16 tokens reaches 64 back" in told
    assert "attention to everything gets 40.0 of a hundred more right" in told
    assert "window" not in ch14.learned_story(learned(full=(300, 170), window=(1000, 600)))


def test_the_hybrid_is_compared_with_both_of_its_parts():
    kept = learned(hybrid_8=(1020, 1000), gated_delta_8=(1020, 700), full=(1020, 1001))
    told = ch14.hybrid_story(kept)
    assert (
        "more right than four layers of states" in told and "between four of attention and the hybrid" in told
    )
    assert "98 %" in ch14.hybrid_title(kept)
    told = ch14.hybrid_story(learned(hybrid_8=(1020, 1000), gated_delta_8=(1020, 700), full=(300, 170)))
    assert "four layers of states" in told and "four of attention" not in told
    told = ch14.hybrid_story(learned(hybrid_8=(300, 100), gated_delta_8=(1020, 700)))
    assert "more right" not in told and "no difference" not in told
    rows, headers, _ = ch14.recall_table(kept, ("hybrid-8", "full", "window"))
    assert len(rows) == 2 and len(headers) == len(rows[0]) == 5


def steps(slow):
    """Times of a step of which full attention takes `slow` times a state's behind the long context."""

    dice = random.Random(0)

    def timing(seconds):
        return {"samples": [seconds * (1 + dice.random() / 50) for _ in range(9)]}

    rows = []
    for context, factor in ((512, 1.0), (16_384, slow)):
        seconds = {kind: timing(0.01) for kind in ch14.WAYS} | {"full": timing(0.01 * factor)}
        rows.append({"context": context, "held": dict.fromkeys(ch14.WAYS, 2**20), "seconds": seconds})
    return {"rows": rows}


def test_steps_are_judged_at_both_ends():
    told = ch14.decode_story(steps(4.0))
    assert "takes as long as one with full attention" in told and re.search(
        r"is (3\.9|4\.0)\d times as fast", told
    )
    assert "slower than one with full attention" in ch14.decode_story(steps(0.5))
    rows, headers, align = ch14.decode_table(steps(4.0))
    assert len(headers) == len(align) == len(rows[0]) == 5 and "(1." in rows[0][3]


def chosen(**mass):
    cells = [
        {"selection": name.replace("_", " "), "budget": b, "mass": vars(Estimate(m, m - 0.01, m + 0.01, 8))}
        for name, m in mass.items()
        for b in (128, 256)
    ]  # fmt: skip
    return {"length": 2048, "block": 64, "cells": cells}


SHARES = {
    "heaviest": 0.95, "mean": 0.8, "compressed": 0.8, "bound": 0.83, "newest_and_first": 0.78, "newest": 0.4,
    "random": 0.2, "indexer": 0.9, "indexer_untrained": 0.5,
}  # fmt: skip


def test_selections_are_compared_with_their_baselines():
    told = ch14_sparse.caught_story(chosen(**SHARES), 256)
    assert "keeping the first four beside the newest catches 38.0 points more than the newest alone" in told
    assert "means of smaller pieces and one mean a block are not told apart" in told
    rows, headers, _ = ch14_sparse.caught_table(chosen(**SHARES))
    assert rows[0][1] == "95 %" and len(rows) == 9 and len(headers) == 3


def test_weights_that_are_all_alike_are_caught_in_proportion():
    assert ch14_sparse.alike(chosen(**SHARES), 2048) == 1.0
    assert 256 / 2048 < ch14_sparse.alike(chosen(**SHARES), 256) < 256 / 1024


def test_all_methods_stand_with_and_without_measurements():
    for given in ((None, None, None), (learned(hybrid_8=(1000, 900)), steps(3.0), chosen(**SHARES))):
        rows, headers, align = ch14_sparse.methods_table(*given)
        assert len(rows) == 16 and all(len(row) == len(headers) == len(align) == 5 for row in rows)
    assert any("80 % of the weight" in row[4] for row in rows) and any("16 pairs" in row[4] for row in rows)


def test_sla_s_classes_add_up():
    told = ch14_sparse.sla_story()
    blocks, critical, negligible, marginal = (
        int(re.search(pattern, told)[1])
        for pattern in (
            r"Of (\d+) blocks",
            r"(\d+) are \*critical",
            r"(\d+) \*negligible",
            r"the (\d+) \*marginal",
        )
    )
    assert critical + negligible + marginal == blocks


def test_the_negative_controls_stand_in_the_text():
    assert len(re.findall(r"Negative control", TEXT)) == 2


def test_earlier_chapters_fill_the_last_column_where_they_are_published(tmp_path, monkeypatch):
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path))
    ratio = vars(Estimate(1.002, 1.001, 1.003, 16))
    kinds = [("int8", 1.0), ("window", 0.2), ("quest", 0.2), ("snapkv", 0.5)]
    texts = [
        {"kind": kind, "share": share, "ratio": ratio, "bytes": {"held": 0.27, "read": 0.21}} for kind, share in kinds
    ]  # fmt: skip
    losses = [{"name": "gqa4", "numbers_per_token": 1536, "above_control": {"value": 0.012}}]
    for name, data in (("smaller_cache", {"perplexity": texts}), ("fewer_kv_heads", {"losses": losses})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"data": data}))
    last = {row[0]: row[4] for row in ch14_sparse.methods_table(None, None, None)[0]}
    assert last["GQA, MQA"] == "+0.012 nats, 1,536 numbers a token" and last["MLA"] == "–"
    assert last["keys in int8, int4, KIVI"] == "perplexity × 1.002 at 27 % held"
    assert last["selection: Quest"] == "perplexity × 1.002 at 21 % read"
    assert last["eviction: H2O, SnapKV"] == "–"
