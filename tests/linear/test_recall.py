"""The recall task and its recipe: what is asked has one right answer, and models differ in their mixers alone."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from lumen import bench
from lumen.models.describe import weights
from lumen.train import recall
from lumen.train.recall_task import NONE, Recall

TASK = recall.TASK


def looked_up(tokens: torch.Tensor) -> torch.Tensor:
    """What a perfect memory answers behind every token (T): the value that stood behind this key first, else 0."""
    told: dict[int, int] = {}
    out = []
    for at, token in enumerate(tokens.tolist()):
        out.append(told.get(token, 0))
        if at % 2 == 0 and token < TASK.keys and at + 1 < len(tokens):
            told.setdefault(token, int(tokens[at + 1]))
    return torch.tensor(out)


class Perfect:
    """A model that looks up."""

    def hidden(self, tokens):
        return torch.stack(
            [torch.nn.functional.one_hot(looked_up(row), TASK.vocab_size) for row in tokens]
        ).float()

    def head(self, hidden):
        return hidden


@pytest.mark.parametrize("pairs, length", [(1, 4), (4, 64), (16, 64), (32, 128), (32, 150)])
def test_every_question_has_one_answer_and_it_was_told(pairs, length):
    tokens, answers = TASK.batch(50, pairs, length, seed=3)
    asked = answers != NONE
    assert asked.sum(1).tolist() == [pairs] * 50 and not asked[:, : 2 * pairs].any()
    for row in range(50):
        keys = tokens[row, 0 : 2 * pairs : 2]
        assert len(set(keys.tolist())) == pairs and int(keys.max()) < TASK.keys
        assert sorted(tokens[row][asked[row]].tolist()) == sorted(keys.tolist())
        assert torch.equal(looked_up(tokens[row])[asked[row]], answers[row][asked[row]])
    rest = tokens[:, 2 * pairs :][~asked[:, 2 * pairs :]]
    assert not rest.numel() or int(rest.min()) >= TASK.keys + TASK.values
    assert int(tokens.max()) < TASK.vocab_size
    assert torch.equal(tokens, TASK.batch(50, pairs, length, seed=3)[0])
    assert not torch.equal(tokens, TASK.batch(50, pairs, length, seed=4)[0])


@pytest.mark.parametrize("pairs, length", [(33, 300), (16, 63), (0, 64)])
def test_what_cannot_be_asked_is_refused(pairs, length):
    with pytest.raises(ValueError, match=r"pairs"):
        TASK.batch(2, pairs, length, 0)
    with pytest.raises(ValueError, match="noise"):
        Recall(noise=0)


def test_a_perfect_memory_is_always_right_and_a_guess_seldom():
    assert recall.accuracy(Perfect(), 8, asked=100).value == 1.0
    guess = recall.accuracy(recall.new_model(recall.shape("linear-4"), 0).eval(), 8, asked=200)
    assert guess.value < 0.1 and guess.n == 200


def test_questions_are_counted_wherever_they_stand():
    """The first question stands near its pairs, where a window still sees them: all must be as likely to count."""

    class Late(Perfect):
        def hidden(self, tokens):
            found = super().hidden(tokens)
            found[:, :24] = 0
            return found

    assert (
        0.35 < recall.accuracy(Late(), 8, asked=400).value < 0.65
    )  # half of the questions lie behind token 24


@pytest.mark.parametrize("name", recall.NAMES)
def test_models_differ_in_what_mixes_and_in_nothing_else(name):
    """Every part but mixers has the same shapes; the description builds."""

    def others(config):
        return [(w.name, w.shape) for w in weights(config) if ".attn." not in w.name]

    assert others(recall.shape(name)) == others(recall.shape("full"))


def test_names_that_stand_for_no_model_are_refused():
    for name in ("full-8", "mamba-8", "delta", "delta-", "delta-0", "hybrid-x", ""):
        with pytest.raises(ValueError):
            recall.shape(name)
    hybrid = recall.shape("hybrid-8")
    assert hybrid.storing_layers == (3,) and hybrid.linear.rule == "gated_delta"


def test_a_run_is_written_resumed_and_published(tmp_path, monkeypatch):
    """Three steps, then three more of six, are six in one go."""
    recipe = replace(recall.RECIPE, steps=4, batch=4, warmup=1)
    model, result = recall.run("delta-8", recipe, tmp_path / "a", asked=16)
    again, same = recall.run("delta-8", recipe, tmp_path / "a", asked=16)  # nothing is left to do
    assert result == same and result.grows == 0 and result.fixed == 4 * 4 * (2 * 8 * 32 + 3 * 96)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert set(result.accuracy) == set(recall.PAIRS) and result.accuracy[4].n == 16
    monkeypatch.setenv("LUMEN_EVIDENCE", str(tmp_path / "evidence"))
    with pytest.raises(ValueError, match="Nothing has been trained"):
        recall.publish(tmp_path / "b")
    (tmp_path / "a" / "recall-delta-8.json").write_text(json.dumps(asdict(result)))
    recall.publish(tmp_path / "a")
    (row,) = bench.load_evidence("recall")["data"]["models"]
    assert row["name"] == "delta-8" and row["accuracy"]["4"]["n"] == 16


def test_a_step_lowers_the_loss_of_its_own_batch():
    model = recall.new_model(recall.shape("gated_delta-4"), 0)
    recipe = replace(recall.RECIPE, batch=8)
    before = recall.loss_of(model, recipe, 0)
    before.backward()
    with torch.no_grad():
        for weight in model.parameters():
            assert weight.grad is not None and torch.isfinite(weight.grad).all()
            weight -= 0.05 * weight.grad
    assert float(recall.loss_of(model, recipe, 0).detach()) < float(before.detach())
