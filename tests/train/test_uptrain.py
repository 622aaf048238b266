"""Uptraining on a small gptlite: every variant converts, learns, is judged as it is shipped, compared in pairs."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest
import torch

from lumen.cost import kv_bytes_per_token
from lumen.io.load import CHECKPOINTS, _gptlite, load, shipped
from lumen.models import GPTlite
from lumen.train import uptrain
from lumen.train.checkpoints import save
from lumen.train.loop import Recipe
from lumen.train.results import Result, apart, average
from lumen.train.text import window_losses

from ..tiny import tiny_gpt

RECIPE = Recipe(steps=3, batch=2, context=12, peak_lr=1e-3, warmup=1, first=9)
ABC = "".join(chr(97 + i) for i in range(26)) + "".join(chr(0x4E00 + i) for i in range(35))
SHARE = {"control": 1, "gqa4": 2, "gqa2": 4, "mqa": 8, "cla2": 2, "gqa2-cla2": 8, "gqa2-first": 4, "gqa2-fresh": 4,
         "cla2-mean": 2, "mla128": 4, "mla64": 8, "mla64-plain": 8}  # fmt: skip


@pytest.fixture(scope="module")
def base() -> GPTlite:
    return tiny_gpt(num_layers=6, num_heads=8, num_kv_heads=8, head_dim=6).half().float()


@pytest.fixture(scope="module")
def text() -> uptrain.Text:
    ids = torch.randint(0, 61, (400,), generator=torch.Generator().manual_seed(0))
    return uptrain.Text(ids[:300], ids[300:], ABC)


@pytest.mark.parametrize("name", uptrain.VARIANTS)
def test_every_variant_is_converted_trained_judged_and_shipped(name, base, text, tmp_path):
    before = {key: value.clone() for key, value in base.state_dict().items()}
    model, result = uptrain.run(name, base, text, RECIPE, tmp_path)
    assert all(torch.equal(before[key], value) for key, value in base.state_dict().items())
    assert result.stored * SHARE[name] == 6 * 2 * 8 * 6 and result.stored == kv_bytes_per_token(
        model.config, "int8"
    )
    assert len(result.before) == len(result.after) == 8 and result.before != result.after
    assert Result.read(tmp_path / f"uptrain-{name}.json") == result
    save(base, ABC, RECIPE, {}, tmp_path / "base.safetensors")
    save(model, ABC, RECIPE, {}, tmp_path / "made.safetensors", tmp_path / "base.safetensors")
    read, tokenizer = _gptlite(tmp_path / "made.safetensors", torch.device("cpu"), torch.float32)
    assert read.config == model.config and tokenizer.characters == ABC
    assert window_losses(read, text.valid, 12).tolist() == pytest.approx(list(result.after), abs=1e-5)


def test_a_finished_run_is_judged_again_and_not_trained_again(base, text, tmp_path, monkeypatch):
    _, result = uptrain.run("gqa2", base, text, RECIPE, tmp_path)
    monkeypatch.setattr(uptrain, "loss_of", None)
    assert uptrain.run("gqa2", base, text, RECIPE, tmp_path)[1] == result


def test_the_table_pairs_what_can_be_paired(base, text, tmp_path):
    for name in ("control", "mqa"):
        uptrain.run(name, base, text, RECIPE, tmp_path)
    found = uptrain.results(tmp_path)
    head, control, mqa = uptrain.table(found)
    assert list(found) == ["control", "mqa"] and "above the control" in head
    assert "+" not in control and "n = 8" in mqa
    found["mqa"] = Result(**{**vars(found["mqa"]), "base": "another gptlite"})
    assert "n = 8" not in uptrain.table(found)[2]


def test_pairs_are_narrower_than_what_they_are_made_of():
    """Windows that differ by 1, models that differ by 0.01: the pairs see it, the two means do not."""
    dice = random.Random(0)
    easy = [dice.gauss(2.0, 1.0) for _ in range(400)]
    a, b = ([loss + shift + dice.gauss(0, 0.02) for loss in easy] for shift in (0.01, 0.0))
    cost = apart(a, b)
    differences = [x - y for x, y in zip(a, b, strict=True)]
    assert cost.value == pytest.approx(statistics.fmean(differences))
    assert cost.high - cost.low == pytest.approx(3.92 * statistics.stdev(differences) / 20)
    assert cost.low > 0 and average(a).low < average(b).value
    with pytest.raises(ValueError, match="the same windows; there are 400 losses and 399"):
        apart(a, b[1:])
    with pytest.raises(ValueError, match="two windows at least"):
        average([1.0])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"before": ["x"], "after": []}', "cut"])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    whole = Result("x", RECIPE, "", 1, (1.0, 2.0), (1.0, 1.5))
    whole.write(tmp_path / "r.json")
    (tmp_path / "r.json").write_text((tmp_path / "r.json").read_text()[:-9] if text == "cut" else text)
    with pytest.raises(ValueError, match=r"r\.json holds no result of uptraining"):
        Result.read(tmp_path / "r.json")


def test_an_unknown_variant_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["uptrain", "gqa3"])
    with pytest.raises(SystemExit):
        uptrain.main()
    assert "gqa3" in capsys.readouterr().err


def test_what_is_shipped_was_made_by_this_recipe():
    made = [name for name in shipped() if name != "gptlite"]
    assert {name.removeprefix("gptlite-") for name in made} <= {*uptrain.SHIPPED}
    for name in made:
        model, tokenizer = load(name, "cpu")
        from lumen.io import safetensors

        _, metadata = safetensors.read(CHECKPOINTS / f"{name}.safetensors")
        assert Recipe(**json.loads(metadata["recipe"])) == uptrain.UPTRAIN
        assert model.config.name == name and tokenizer.vocab_size == model.config.vocab_size
        assert 0 < float(metadata["validation_loss"]) < float(metadata["validation_loss_before"]) < math.inf
