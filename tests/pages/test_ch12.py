"""Chapter 12 says of a cache what the cost model says, and of a measurement what its interval allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lumen import cost
from lumen.bench import Estimate
from lumen.cost.ledger import ledger
from lumen.models.counts import absorbs
from lumen.pages import ch12_bytes, ch12_latents, ch12_losses, ch12_picture, ch12_steps
from lumen.pages.comparing import faster, loses

TEXT = (Path(__file__).parents[2] / "chapters" / "12_fewer_kv_heads.py").read_text("utf8")


def test_the_numbers_of_the_opening_are_those_of_the_cost_model():
    opening = TEXT.split("By the end you can")[0]
    assert re.findall(r"(\d+) KiB", opening) == [
        f"{cost.kv_bytes_per_token(m) / 2**10:.0f}" for m in (ch12_bytes.OLD, ch12_bytes.NEW)
    ]
    assert (
        "4 times fewer" in ch12_bytes.opening()
        and "2 GiB" in ch12_bytes.opening()
        and "1 GiB" in ch12_bytes.opening()
    )


def test_the_shape_of_deepseek_is_that_of_the_ledger():
    (held,) = (row for row in ledger() if row.name == "deepseek-v3")
    assert cost.kv_bytes_per_token(ch12_bytes.V3) == held.bytes(1)


def test_ways_cross_where_the_engine_changes_its_way():
    crossing = ch12_latents.even(ch12_bytes.V3)
    assert absorbs(ch12_bytes.V3, int(crossing)) and not absorbs(ch12_bytes.V3, int(crossing) + 1)
    below, above = (ch12_latents.flops_a_key(ch12_bytes.V3, n) for n in (int(crossing), int(crossing) + 1))
    assert below[1] <= below[0] and above[1] > above[0]
    assert ch12_latents.forecast(1) < 1 < ch12_latents.forecast(512)


@pytest.mark.parametrize(
    ("chips", "old", "new"), [(1, 32, 8), (3, 11, 3), (8, 4, 1), (16, 2, 1), (32, 1, 1), (64, 1, 1)]
)
def test_a_head_is_not_cut(chips, old, new):
    """Heads that a chip holds."""
    for model, heads in ((ch12_bytes.OLD, old), (ch12_bytes.NEW, new)):
        each = cost.kv_bytes_per_token(model) / model.num_kv_heads
        assert ch12_bytes.on_each(model, chips) == heads * each
    assert ch12_bytes.on_each(ch12_bytes.V3, chips) == cost.kv_bytes_per_token(ch12_bytes.V3)


def test_the_picture_counts_and_says_what_it_shows():
    drawn = ch12_picture.picture(8, 32)
    assert "8 heads ask; a token leaves 512, 128 or 64 numbers" in drawn
    assert drawn.count("<circle") == 24 and drawn.count("<rect") == 8 + 2 + 1
    (label,) = re.findall(r'aria-label="([^"]*)"', drawn)
    assert all(panel.name in label for panel in ch12_picture.PANELS)
    same = ch12_picture.picture(8, 32, (ch12_picture.PANELS[1], ch12_picture.LATENT))
    assert "a token leaves 128 numbers in" in same and same.count("<rect") == 2 + 1
    with pytest.raises(ValueError, match="cannot share 8 evenly"):
        ch12_picture.picture(9, 32)


def est(value, reach=0.01):
    return {"value": value, "low": value - reach, "high": value + reach, "n": 944, "unit": "nats"}


def kept(pooled=0.1, first=0.1, fresh=0.1, slow=2.0, reach=0.02, caches=None):
    """Published losses of these excesses over the control, and steps in which all heads take `slow` times as long,
    known to a share of `reach`. `caches`: attention alone, keys from memory over keys in the caches."""
    recipe = {"steps": 150, "first": 1500}
    rows = [
        {"name": name, "numbers_per_token": 768, "before": est(3.0), "after": est(1.46 + far), "recipe": recipe,
         "above_control": est(far), "start_above_gptlite": est(1.6)}
        for name, far in (("control", 0.0), ("gqa2", pooled), ("gqa2-first", first), ("gqa2-fresh", fresh))
    ]  # fmt: skip
    config = {
        "name": "mha", "vocab_size": 4096, "num_layers": 4, "hidden_size": 1024, "num_heads": 16, "num_kv_heads": 16,
        "head_dim": 64, "intermediate_size": 2816, "max_positions": 8192,
    }  # fmt: skip
    steps = [
        {"name": name, "config": dict(config), "bytes_per_token": 32768, "steps": [
            {"context": c, "measured_s": t, "low_s": (1 - reach) * t, "high_s": (1 + reach) * t, "n": 24,
             "predicted_s": t, "predicted_attention_s": t / 2, "gain": ratio(slow if c > 256 else 1.0, reach)}
            for c, t in ((256, 0.01), (8192, 0.01 * factor))]}
        for name, factor in [("mha", slow), *((one, 1.0) for one in ("gqa4", "mqa", "mla", "cla2", "gqa4-cla2"))]
    ]  # fmt: skip
    data = {"losses": rows, "steps": steps}
    if caches is not None:
        seconds = {"value": 0.001, "low": 0.0009, "high": 0.0011, "n": 12, "unit": "s"}
        data["attention"] = [
            {"name": name, "context": 8192, "flops": 10**8, "memory_over_caches": ratio(caches, reach)}
            | dict.fromkeys(("whole", "pieces", "kept"), seconds)
            for name in ch12_steps.HEADS
        ]
    return data


def ratio(value, reach):
    return {"value": value, "low": value * (1 - reach), "high": value * (1 + reach), "n": 12, "unit": "×"}


def test_a_baseline_is_judged_by_its_interval():
    told = ch12_losses.trained_story(kept(pooled=0.1, first=0.105, fresh=0.3))
    assert (
        "The mean against the first of each four: −0.00500 nats" in told and "one seed cannot decide" in told
    )
    assert (
        "the mean loses less than a random start" in told and "10 % of what gptlite was trained for" in told
    )
    told = ch12_losses.trained_story(kept(pooled=0.3, first=0.1, fresh=0.3))
    assert "The mean loses more than the first of each four" in told


def test_what_training_did_to_the_control_is_judged_by_its_pairs():
    data = kept()
    assert "do to gptlite itself" not in ch12_losses.trained_story(data)  # no pairs: nothing is said
    data["losses"][0]["trained"] = est(0.0)
    assert (
        "between the control behind them and gptlite before them there is no difference"
        in ch12_losses.trained_story(data)
    )


@pytest.mark.parametrize(
    ("slow", "reach", "words"),
    [
        (2.0, 0.02, "2.00 times as fast"),
        (1.0, 0.02, "no difference"),
        (1.2, 0.5, "no difference"),
        (0.5, 0.02, "slower"),
    ],
)
def test_steps_and_their_title_are_judged_by_their_intervals(slow, reach, words):
    data = kept(slow=slow, reach=reach)
    short, long = ch12_steps.steps_story(data).split("At 8,192 tokens")
    assert "this run shows no difference" in short and words in long
    title = ch12_steps.steps_figure(data).layout.title.text.replace("<br>", " ")
    assert words in title.split("256 tokens")[1] and "no difference" in title.split("256 tokens")[0]


def test_the_first_row_has_its_forecast_and_misses_do_not_cancel():
    data = kept(slow=2.0)
    assert ch12_steps.steps_table(data)[0][0][-1] == "20 ms"
    for row, factor in ((0, 1.2), (1, 0.8), (2, 1.2)):
        for step in data["steps"][row]["steps"]:
            step["predicted_s"] = factor * step["measured_s"]
    told = ch12_steps.misses_story(data)
    assert (
        "took 0.83 to 1.25 times what it forecasts, half of them off by a factor of more than 1.20" in told
        and "0.83 for `mha` and 1.25 for `gqa4`" in told
    )
    assert "is not explained" in told and "is not explained" not in ch12_steps.misses_story(
        data | kept(caches=2.0)
    )


@pytest.mark.parametrize(
    ("caches", "reach", "words"),
    [
        (2.0, 0.02, "2.00 times as long"),
        (1.0, 0.02, "no difference"),
        (1.5, 0.6, "no difference"),
        (0.5, 0.02, "failed"),
    ],
)
def test_the_control_of_attention_alone_is_judged_by_its_interval(caches, reach, words):
    data = kept(slow=2.0, caches=caches, reach=reach)
    told = ch12_steps.alone_story(data)
    assert told.count(words) == 3 and "predicted" in told
    rows, headers, align = ch12_steps.alone_table(data)
    assert len(rows) == 3 and len(headers) == len(align) == len(rows[0]) == 5


def test_a_measured_operator_takes_the_place_of_its_forecast():
    """Steps of 20 and 10 ms, half of each attention; measured 1 ms in each of four layers."""
    record = kept(slow=2.0, caches=1.0)
    own, fewer = (ch12_steps.replaced_step(record, name) for name in ("mha", "gqa4"))
    assert own / fewer == pytest.approx((10 + 4) / (5 + 4))


def test_layers_that_share_hold_less_and_read_as_much():
    data = kept(slow=1.0)
    data["steps"][4]["config"] |= {"kv_from": [0, 0, 2, 2]}
    told = ch12_steps.layers_read(data)
    assert "reads 100 % of them" in told and "holds 50 %" in told and "no difference" in told
    assert "2.00 times as fast" in ch12_steps.layers_read(kept(slow=2.0))


def test_left_is_a_share_of_the_start():
    assert ch12_losses.left_of(ch12_losses.losses_of(kept(pooled=0.16))["gqa2"]) == pytest.approx(0.1)


def test_a_table_has_a_row_for_what_is_published_and_none_else():
    rows, headers, align = ch12_losses.losses_table(kept(), ("control", "gqa2", "mqa"))
    assert [row[0] for row in rows] == ["gptlite, not converted", "2 heads, mean"]
    assert len(headers) == len(align) == len(rows[0]) == len(rows[1]) == 5


def test_nothing_is_missing_where_a_variant_ends_ahead():
    row = {"above_control": est(-0.004), "start_above_gptlite": est(0.1)}
    assert ch12_losses.left_of(row) == 0.0


def test_trained_latents_stand_beside_heads_of_as_many_bytes():
    data = kept(pooled=0.1)
    assert ch12_losses.latents_trained(data) == ""
    for name, start, end in (("mla128", 0.0004, 0.0007), ("mla64", 0.006, 0.49), ("mqa", 1.8, 0.5)):
        data["losses"].append(
            data["losses"][1]
            | {"name": name, "start_above_gptlite": est(start, 1e-5), "above_control": est(end, 1e-5)}
        )
    told = ch12_losses.latents_trained(data)
    assert "a latent of 128 loses less than two pooled heads" in told and "one seed" in told
    assert "a latent of 64 against one head: −0.01" in told


def test_a_step_that_does_not_grow_has_no_rate():
    data = kept(slow=2.0)
    data["steps"][3]["config"] |= {"latent": {"rank": 256, "rope": 32}}
    assert "GFLOP/s" not in ch12_latents.latents_lose(data)  # 10 ms at both contexts
    data["steps"][3]["steps"][1]["measured_s"] = data["steps"][3]["steps"][1]["high_s"] = 0.02
    assert "grows by 10 ms" in ch12_latents.latents_lose(data) and "GFLOP/s" in ch12_latents.latents_lose(
        data
    )


def test_like_is_compared_with_like_in_the_takeaway():
    """Whitened latents with heads aligned by text, plain ones with heads aligned by their matrices."""
    by_weights, aligned = [2.0, 2.1, 2.2], [1.55, 1.65, 1.75]
    ranks = {
        64: {"whitened": [1.4, 1.5, 1.6], "plain": [1.5, 1.6, 1.7]},
        32: {"whitened": [1.7, 1.6, 1.7], "plain": [1.8, 1.9, 2.0]},
    }
    assert (
        ch12_losses.enough(ranks, "whitened", aligned) == 64
        and ch12_losses.enough(ranks, "plain", by_weights) == 32
    )
    told = ch12_losses.takeaway(ranks, by_weights, aligned, 64)
    assert "seen the text, a latent of 64" in told and "of the weights alone, a latent of 32" in told
    told = ch12_losses.takeaway({64: ranks[32]}, aligned, aligned, 64)
    assert "no difference to see" in told and "latent of" not in told


def test_a_table_puts_like_beside_like():
    base, ranks = [1.0, 1.1, 1.2], {128: {"whitened": [1.001, 1.1, 1.2], "plain": [1.01, 1.12, 1.215]}}
    rows, *_ = ch12_losses.latent_table(ranks, base, [2.5, 2.7, 2.75], [1.9, 2.1, 2.15], 128, 4096)
    assert [row[0] for row in rows] == ["the weights alone", "4,096 characters of text"]
    assert (
        rows[0][1].startswith("+0.015")
        and rows[0][2].startswith("+1.550")
        and rows[1][2].startswith("+0.950")
    )
    told = ch12_losses.latent_story(ranks, base, [1.9, 2.1, 2.15], 128)
    assert "no difference to see" in told and "that latent loses less than the aligned heads" in told


def test_draws_are_told_by_their_mean_and_a_small_one_is_no_answer():
    plain, aligned = [2.0, 3.0, 4.1], [1.5, 2.6, 3.5]

    def draws(*by):
        return [[loss + x for loss in plain] for x in by]

    found = ch12_losses.over_draws(draws(0.1, 0.2, 0.3), plain)
    assert found.value == pytest.approx(0.2) and found.n == 3 and found.low > 0
    told = ch12_losses.bases_story([1.0, 2.0, 3.0], plain, aligned, aligned, draws(0.02, 0.03, 0.04))
    assert (
        "no difference of 0.1 nats" in told
        and "Turned at random, 3 draws" in told
        and "part of what hurts" in told
    )
    assert (
        re.search(r"saves 4\d % of what pooling had cost", told) and "Between alignment by text and" in told
    )
    told = ch12_losses.bases_story([1.0, 2.0, 3.0], plain, plain, plain, draws(0.4, 0.5, 0.6))
    assert "loses more than one pooled as trained" in told and "part of what hurts" not in told


def test_numbers_of_gptlite_in_sentences_are_those_of_its_configuration():
    small = ch12_bytes.SMALL
    assert f"{2 * small.num_kv_heads * small.head_dim} numbers" in ch12_bytes.made_of(2, 128)
    assert "Two heads leave 128 numbers" in ch12_losses.converted(4096, 2, 128)
    assert "4,096 characters" in ch12_losses.converted(4096, 2, 128)


def test_comparisons_are_symmetric_and_name_both():
    three = [Estimate(x, x - 0.1, x + 0.1, 12, "×") for x in (2.0, 1.0, 0.5)]
    told = [faster(one, "a", "b") for one in three]
    assert (
        "a is 2.00 times as fast as b" in told[0]
        and "no difference" in told[1]
        and "a is 50 % slower" in told[2]
    )
    told = [loses(Estimate(x, x - 0.1, x + 0.1, 12, "nats"), "a", "b") for x in (0.5, 0.0, -0.5)]
    assert (
        "a loses more than b" in told[0] and "no difference" in told[1] and "a loses less than b" in told[2]
    )
