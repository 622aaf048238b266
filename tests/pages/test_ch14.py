"""Chapter 14 says of a state what its formula and the cost model say, and of a measurement what its interval allows."""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
import re
from pathlib import Path

import pytest

from lumen import cost
from lumen.attention.linear import recall_error
from lumen.bench import Estimate, wilson
from lumen.pages import ch14, ch14_picture, ch14_sparse
from lumen.timing import Timing
from lumen.train import recall as recipe

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "chapters" / "14_sparse_linear.py").read_text("utf8")


def test_half_full_is_where_the_expected_error_is_a_half():
    for dim in (16, 32, 64, 128):
        n = ch14.half_full(dim)
        assert recall_error(n, 0, dim) == pytest.approx(0.5)
        assert 2 * (n - 1) * dim == dim * dim  # one pair less is what fits in as keys and values


def test_the_opening_counts_what_other_draws_of_keys_give():
    told = ch14.opening()
    assert "for Ann **5550147**" in told and "answers 5550117" in told
    assert "Bob 5550178, Cem 5550193, and for Ann" in told
    adds, corrects = ch14.drawn("linear"), ch14.drawn("delta")
    for found in (adds, corrects):
        assert sum(found[kind] for kind in ("new", "old", "both", "neither")) == ch14.DRAWS
    assert corrects["new"] == ch14.DRAWS and adds["new"] < ch14.DRAWS / 2
    assert f"digits of both in {adds['both']}" in told and f"come back right in {adds['others']}" in told


def test_states_in_tokens_are_the_cost_model_s():
    rows, headers, align = ch14.layers_table()
    assert len(headers) == len(align) == len(rows[0])
    small = recipe.shape("delta-8").with_(linear=None)
    timed = ch14.timed("full")
    for column, config, width in ((1, small, 8), (2, timed, 64)):
        assert rows[0][column] == str(config.num_heads) and rows[1][column] == str(width)
        assert rows[2][column] == str(config.head_dim)
        assert ch14.size(cost.kv_bytes_per_token(config, "fp32") / config.num_layers) == rows[6][column]
    for column, config in ((1, recipe.shape("delta-8")), (2, ch14.timed("linear"))):
        whole = cost.state_bytes(config, dtype="fp32") / config.num_layers
        token = cost.kv_bytes_per_token(config.with_(linear=None), "fp32") / config.num_layers
        assert rows[7][column] == f"{whole / token:,.1f}"
    assert rows[7][1:4] == ["6.2", "36.5", "1,884.4"]


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
    told = ch14.learned_story(learned(gated_delta_8=(1020, 800), gated_8=(1020, 805), delta_8=(1020, 1010)))
    assert "between a state that fades and adds and one that does both this test shows no difference" in told
    assert "one that corrects gets 20.0 of a hundred more right than a state that fades and adds" in told
    assert "Less than" not in told and told.count("one training each") == 1
    told = ch14.learned_story(learned(delta_8=(1020, 500), gated_8=(1020, 900)))
    assert "a state that fades and adds gets 39.1 of a hundred more right than one that corrects" in told


def test_adding_which_differs_in_more_than_its_rule_is_compared_with_nobody():
    told = ch14.learned_story(learned(delta_8=(1020, 500), linear_8=(1020, 900)))
    assert "more right" not in told and "adds, divided, is compared with nobody" in told
    assert "differ in one thing" not in TEXT


def test_ways_of_telling_are_told_apart_by_intervals():
    share = {(telling, rule): wilson(900, 1000) for telling in ch14.TELLINGS for rule in ch14.RULES}
    slow = {"gated": wilson(440, 1000), "gated_delta": wilson(920, 1000)}
    scene = {"linear": wilson(210, 1000), "delta": wilson(95, 1000)}
    told = ch14.told_story(share, slow, scene)
    assert told.count("shows no difference") == 7
    assert (
        "With $a$ = 0.999: fading and correcting gets 48.0 of a hundred more right than fading first" in told
    )
    assert (
        "adding gets 21.0 of a hundred right" in told and "correcting is not told apart from guessing" in told
    )
    twice = list(ch14.TELLINGS)[2]
    told = ch14.told_story(share | {(twice, "linear"): wilson(500, 1000)}, slow, scene)
    assert "Told twice: correcting gets 40.0 of a hundred more right than adding" in told
    rows, headers, align = ch14.told_table(share)
    assert len(rows) == 5 and len(headers) == len(align) == len(rows[0]) == 5


def test_a_model_that_fails_the_shortest_test_is_named():
    told = ch14.learned_story(learned(full=(300, 170), gated_8=(1020, 900)))
    assert (
        "*attention to everything*" in told and "compared with nobody" in told and "state, fade" not in told
    )
    assert ch14.LEARNED == 0.9 and "Less than 90 % of 4 pairs" in told


def test_a_window_reaches_back_through_its_layers():
    kept = learned(**{"gated_delta-16": (1020, 1010), "window": (1000, 600)})
    told = ch14.learned_story(kept)
    assert "16 tokens, its own among them, reaches at most 60 back" in told
    assert "the state gets 40.0 of a hundred more right than the window" in told
    assert "window" not in ch14.learned_story(
        learned(**{"gated_delta-16": (300, 170), "window": (1000, 600)})
    )


def test_the_hybrid_is_compared_with_both_of_its_parts():
    kept = learned(hybrid_8=(1020, 1000), gated_delta_8=(1020, 700), full=(1020, 1001))
    told = ch14.hybrid_story(kept)
    assert (
        "more right than four layers of states" in told and "between four of attention and the hybrid" in told
    )
    assert "the hybrid gets 29.3 of a hundred more right than states alone" in ch14.hybrid_title(kept)
    assert "was not trained" in told and "may need no state at all" in told
    failed = learned(hybrid_8=(300, 100), gated_delta_8=(1020, 700))
    assert "not compared" in ch14.hybrid_title(failed) and "more right" not in ch14.hybrid_title(failed)
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
    assert "takes longer than one with full attention: 0.50" in ch14.decode_story(steps(0.5))
    assert "behind 16,384 tokens a step with states takes as long as behind 512" in ch14.recap(
        64, 33, None, steps(4.0), None
    )
    rows, headers, align = ch14.decode_table(steps(4.0))
    assert len(headers) == len(align) == len(rows[0]) == 5 and "(1." in rows[0][3]


def chosen(**mass):
    cells = [
        {"selection": name.replace("_", " "), "budget": b, "mass": vars(Estimate(m, m - 0.01, m + 0.01, 8))}
        for name, m in mass.items()
        for b in (128, 256)
    ]  # fmt: skip
    return {
        "length": 2048,
        "block": 64,
        "cells": cells,
        "recipe": {"steps": 200, "texts": 6, "layers": [2, 9]},
    }


SHARES = {
    "heaviest": 0.95, "mean": 0.8, "compressed": 0.8, "bound": 0.83, "newest_and_first": 0.78, "newest": 0.4,
    "random": 0.2, "indexer": 0.9, "indexer_untrained": 0.5,
}  # fmt: skip


def test_prompts_are_judged_in_times_of_the_prediction():
    def timing(seconds):
        return Timing(tuple(seconds * (1 + i / 100) for i in range(9)))

    flops = ch14.prompt_flops(4096)
    said = flops[1] / flops[0]
    told = ch14.prompts_story({4096: {"states": timing(4 * said), "attention": timing(1.0)}})
    assert "measured is 4.0" in told and "times what the FLOPs say" in told and "too low" not in told


def test_selections_are_compared_with_their_baselines():
    told = ch14_sparse.caught_story(chosen(**SHARES), 256)
    assert "keeping the first four beside the newest catches 38.0 points more than the newest alone" in told
    assert "means of smaller pieces and one mean a block are not told apart" in told
    assert "Where 128 keys are read, none is chosen" in told and "200 steps on 6 other texts" in told
    recap = ch14_sparse.recap_line(chosen(**SHARES))
    assert "look at no key, 78 % (77 to 79)" in recap and "the mean and that rule are not told apart" in recap
    rows, headers, _ = ch14_sparse.caught_table(chosen(**SHARES))
    assert rows[0][1] == "95 %" and len(rows) == 9 and len(headers) == 3


def test_weights_that_are_all_alike_are_caught_in_proportion():
    assert ch14_sparse.alike(chosen(**SHARES), 2048) == 1.0
    assert 256 / 2048 < ch14_sparse.alike(chosen(**SHARES), 256) < 256 / 1024


def test_the_page_says_which_layers_and_queries_were_looked_at():
    spec = importlib.util.spec_from_file_location("sparse_recall", ROOT / "benchmarks" / "sparse_recall.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    queries = inspect.signature(script.of_text).parameters["queries"].default
    assert f"In five of its 30 layers, for each head and {queries} queries" in TEXT
    assert len(script.Recipe().layers) == 5


def test_a_model_that_failed_stands_in_no_last_column():
    rows, *_ = ch14_sparse.methods_table(learned(gated_8=(300, 170), delta_8=(1020, 900)), steps(3.0), None)
    last = {row[0]: row[4] for row in rows}
    assert last["gated: GLA, Mamba-2"] == "–" and last["linear attention"] == "–"
    assert last["gated delta"].startswith("step ×")


def test_all_methods_stand_with_and_without_measurements():
    for given in ((None, None, None), (learned(hybrid_8=(1000, 900)), steps(3.0), chosen(**SHARES))):
        rows, headers, align = ch14_sparse.methods_table(*given)
        assert len(rows) == 17 and all(len(row) == len(headers) == len(align) == 5 for row in rows)
    assert any("80 % (79 to 81) of the weight" in row[4] for row in rows) and any(
        "16 pairs" in row[4] for row in rows
    )


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
    assert last["keys and values in int8, KIVI"] == "perplexity × 1.002 (1.001 to 1.003) at 27 % held"
    assert last["selection: Quest"] == "perplexity × 1.002 (1.001 to 1.003) at 21 % read"
    assert last["eviction: H2O, SnapKV"] == "–"
