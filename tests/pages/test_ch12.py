"""Chapter 12 says of a cache what the cost model says, and of a measurement what its interval allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lumen import cost
from lumen.cost.ledger import ledger
from lumen.models.counts import absorbs
from lumen.pages import ch12, ch12_picture

TEXT = (Path(__file__).parents[2] / "chapters" / "12_fewer_kv_heads.py").read_text("utf8")


def test_the_numbers_of_the_opening_are_those_of_the_cost_model():
    opening = TEXT.split("By the end you can")[0]
    assert re.findall(r"(\d+) KiB", opening) == [
        f"{cost.kv_bytes_per_token(m) / 2**10:.0f}" for m in (ch12.OLD, ch12.NEW)
    ]
    assert "4 times fewer" in ch12.opening() and "2 GiB" in ch12.opening() and "1 GiB" in ch12.opening()


def test_the_shape_of_deepseek_is_that_of_the_ledger():
    (held,) = (row for row in ledger() if row.name == "deepseek-v3")
    assert cost.kv_bytes_per_token(ch12.V3) == held.bytes(1)


def test_ways_cross_where_the_engine_changes_its_way():
    crossing = ch12.even(ch12.V3)
    assert absorbs(ch12.V3, int(crossing)) and not absorbs(ch12.V3, int(crossing) + 1)
    below, above = (ch12.flops_a_key(ch12.V3, n) for n in (int(crossing), int(crossing) + 1))
    assert below[1] <= below[0] and above[1] > above[0]
    assert ch12.forecast(1) < 1 < ch12.forecast(512)


@pytest.mark.parametrize(
    ("chips", "old", "new"), [(1, 32, 8), (3, 11, 3), (8, 4, 1), (16, 2, 1), (32, 1, 1), (64, 1, 1)]
)
def test_a_head_is_not_cut(chips, old, new):
    """Heads that a chip holds."""
    for model, heads in ((ch12.OLD, old), (ch12.NEW, new)):
        each = cost.kv_bytes_per_token(model) / model.num_kv_heads
        assert ch12.on_each(model, chips) == heads * each
    assert ch12.on_each(ch12.V3, chips) == cost.kv_bytes_per_token(ch12.V3)


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


def kept(pooled=0.1, first=0.1, fresh=0.1, slow=2.0):
    """Published losses of these excesses over the control, and steps in which all heads take `slow` times as long."""
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
            {"context": c, "measured_s": t, "low_s": 0.98 * t, "high_s": 1.02 * t, "n": 24, "predicted_s": t,
             "gain": {"value": slow if c > 256 else 1.0, "low": (slow if c > 256 else 1.0) * 0.98,
                      "high": (slow if c > 256 else 1.0) * 1.02, "n": 12, "unit": "×"}}
            for c, t in ((256, 0.01), (8192, 0.01 * factor))]}
        for name, factor in (("mha", slow), ("gqa4", 1.0), ("mqa", 1.0), ("mla", 1.0), ("cla2", 1.0))
    ]  # fmt: skip
    return {"losses": rows, "steps": steps}


def test_a_baseline_is_judged_by_its_interval():
    told = ch12.trained_story(kept(pooled=0.1, first=0.105, fresh=0.3))
    assert "between the mean and the first of each four no difference is left" in told
    assert "the mean ends below a random start" in told and "10 % of what gptlite was trained for" in told
    told = ch12.trained_story(kept(pooled=0.3, first=0.1, fresh=0.3))
    assert "the mean ends above the first of each four" in told


def test_steps_are_judged_at_both_ends():
    told = ch12.steps_story(kept(slow=2.0))
    assert re.search(r"At 256 tokens.*?show no difference", told) and "2.00 times as fast" in told
    told = ch12.steps_story(kept(slow=0.5))
    assert "slower" in told.split("At 8,192 tokens")[1]


def test_layers_that_share_hold_less_and_read_as_much():
    data = kept(slow=1.0)
    data["steps"][-1]["config"] |= {"kv_from": [0, 0, 2, 2]}
    told = ch12.layers_read(data)
    assert "reads 100 % of the bytes" in told and "holds 50 %" in told and "no difference" in told
    assert "2.00 times as fast" in ch12.layers_read(kept(slow=2.0))


def test_left_is_a_share_of_the_start():
    assert ch12.left_of(ch12.losses_of(kept(pooled=0.16))["gqa2"]) == pytest.approx(0.1)


def test_a_table_has_a_row_for_what_is_published_and_none_else():
    for missing in (False, True):
        rows, headers, align = ch12.losses_table(kept(), ("control", "gqa2", "mqa"), missing)
        assert [row[0] for row in rows] == ["gptlite, not converted", "2 heads, mean"]
        assert len(headers) == len(align) == len(rows[0]) == 4 + missing
        assert not any("3.0" in cell for row in rows for cell in row)  # the loss that was asked for


def test_the_takeaway_names_the_smallest_latent_that_is_surely_better():
    pooled, ranks = [2.0, 2.1, 2.2], {64: {"whitened": [1.5, 1.7, 1.6]}, 32: {"whitened": [2.1, 2.0, 2.2]}}
    assert ch12.enough(ranks, pooled) == 64 and "a latent of 64 numbers" in ch12.takeaway(ranks, pooled, 128)
    assert ch12.enough({32: ranks[32]}, pooled) is None and "latent of" not in ch12.takeaway({}, pooled, 128)
