"""The training loop does what its recipe says, number for number, and stops and goes on without a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from lumen.train.loop import Recipe, fingerprint, learning_rate, train
from lumen.train.text import batch_at, encode, loss_of, validation_loss, window_losses

from ..tiny import tiny_gpt

RECIPE = Recipe(steps=7, batch=3, context=11, peak_lr=3e-3, final_lr=1e-4, warmup=2, seed=5)
TEXT = torch.randint(0, 61, (300,), generator=torch.Generator().manual_seed(0))


class Stopped(Exception):
    """Somebody pulled the plug."""


def trained(state, recipe=RECIPE, seed=0, stop=None, **options):
    """A tiny gptlite after the recipe; `stop` ends it at that step."""
    model = tiny_gpt(seed=seed)

    def loss(step):
        if step == stop:
            raise Stopped
        return loss_of(model, batch_at(TEXT, recipe, step))

    train(model, loss, recipe, state, **options)
    return model


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_every_bit_is_that_of_the_loop_written_out(tmp_path):
    """The loop that trained the shipped gptlite, line by line: a change here would train another model."""
    model = tiny_gpt().train().requires_grad_(True)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=3e-3, betas=(0.9, 0.95),
    )  # fmt: skip
    for step in range(7):
        dice = torch.Generator().manual_seed(5 * 1_000_003 + step)
        starts = torch.randint(len(TEXT) - 11 - 1, (3,), generator=dice).tolist()
        rows = torch.stack([TEXT[s : s + 12] for s in starts])
        rate = (
            3e-3 * (step + 1) / 2
            if step < 2
            else 1e-4 + 0.5 * (3e-3 - 1e-4) * (1 + math.cos(math.pi * ((step - 2) / 5)))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    made = trained(tmp_path / "state.pt")
    assert same(made, model) and not made.training


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(tmp_path, stop):
    whole = trained(tmp_path / "whole.pt", save_every=3)
    with pytest.raises(Stopped):
        trained(tmp_path / "state.pt", stop=stop, save_every=3)
    assert (tmp_path / "state.pt").exists() == (stop >= 3)
    seen = []
    model = tiny_gpt()

    def loss(step):
        seen.append(step)
        return loss_of(model, batch_at(TEXT, RECIPE, step))

    train(model, loss, RECIPE, tmp_path / "state.pt", save_every=3)
    assert seen == list(range(stop - stop % 3, 7)) and same(model, whole)
    again = trained(tmp_path / "state.pt", stop=0)  # finished: nothing is run
    assert same(again, whole) and not list(tmp_path.glob("*.tmp"))


def test_a_state_of_another_recipe_or_start_is_passed_over(tmp_path):
    state = tmp_path / "state.pt"
    trained(state)
    assert same(trained(state, seed=1), trained(tmp_path / "fresh.pt", seed=1))
    other = replace(RECIPE, peak_lr=1e-3)
    assert same(trained(state, other, seed=1), trained(tmp_path / "fresh1.pt", other, seed=1))


def test_a_state_of_before_recipes_had_a_place_in_the_stream_is_taken(tmp_path):
    state = tmp_path / "state.pt"
    whole = trained(state)
    old = torch.load(state, weights_only=True)
    del old["start"], old["recipe"]["first"]
    torch.save(old, state)
    assert same(trained(state, stop=0), whole)


@pytest.mark.parametrize("damage", [b"", b"not a state", "cut", {"step": 3}, {"recipe": 7}, [1]])
def test_a_file_that_is_no_state_is_refused_and_kept(tmp_path, damage):
    state = tmp_path / "state.pt"
    if damage == "cut":
        trained(state)
        damage = state.read_bytes()[:-2000]
    state.write_bytes(damage) if isinstance(damage, bytes) else torch.save(damage, state)
    held = state.read_bytes()
    with pytest.raises(ValueError, match=r"state\.pt is no state of a training run .*delete it"):
        trained(state)
    assert state.read_bytes() == held


def test_a_loss_that_is_no_number_ends_the_run_and_not_the_weights(tmp_path):
    model = tiny_gpt()

    def loss(step):
        value = loss_of(model, batch_at(TEXT, RECIPE, step))
        return value * math.nan if step == 4 else value

    with pytest.raises(FloatingPointError, match=r"nan at step 4\. Lower peak_lr .* of step 3 is kept"):
        train(model, loss, RECIPE, tmp_path / "state.pt", save_every=3)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 3


def test_training_that_goes_on_sees_what_came_next():
    later = replace(RECIPE, first=1500)
    assert torch.equal(batch_at(TEXT, later, 2), batch_at(TEXT, RECIPE, 1502))
    assert not torch.equal(batch_at(TEXT, later, 0), batch_at(TEXT, RECIPE, 0))


def test_the_rate_climbs_and_falls():
    rates = [learning_rate(RECIPE, step) for step in range(8)]
    assert rates[:3] == pytest.approx([1.5e-3, 3e-3, 3e-3]) and math.isclose(rates[7], 1e-4)
    assert all(a > b for a, b in pairwise(rates[2:]))
    assert learning_rate(replace(RECIPE, warmup=0), 0) == pytest.approx(3e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"steps": 0}, {"steps": True}, {"batch": 1.5}, {"context": -1}, {"warmup": -1}, {"first": -1}, {"peak_lr": 0.0},
        {"peak_lr": math.inf}, {"peak_lr": math.nan}, {"final_lr": 0.0}, {"final_lr": 1.0}, {"weight_decay": -0.1},
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match=r"Recipe\.|A learning rate falls"):
        replace(RECIPE, **changes)


def test_a_text_that_is_too_short_is_refused():
    assert batch_at(TEXT[:13], RECIPE, 0).shape == (3, 12)
    with pytest.raises(ValueError, match="12 tokens has no window of 11"):
        batch_at(TEXT[:12], RECIPE, 0)
    with pytest.raises(ValueError, match="11 tokens has no window of 11"):
        window_losses(tiny_gpt(), TEXT[:11], 11)


def test_windows_do_not_overlap_and_their_mean_is_the_loss():
    model = tiny_gpt(torch.float64).train()
    losses = window_losses(model, TEXT, 7)
    assert len(losses) == 42 and model.training
    for window in (0, 31, 32, 41):  # either side of what one forward takes
        part = TEXT[7 * window : 7 * window + 8]
        chances = model(part[None, :-1])[0].log_softmax(-1)
        assert torch.allclose(losses[window], -chances[torch.arange(7), part[1:]].mean())
    assert validation_loss(model, TEXT, 7) == pytest.approx(float(losses.mean()), abs=1e-12)
    assert torch.allclose(
        window_losses(model, TEXT, 7, 5), losses[[0, 10, 20, 30, 41]]
    )  # over all of the text
    assert torch.allclose(window_losses(model, TEXT, 7, 1), losses[:1])


def test_a_fingerprint_sees_every_number():
    model = tiny_gpt()
    assert fingerprint(model) == fingerprint(tiny_gpt()) != fingerprint(tiny_gpt(seed=1))
    before = fingerprint(model)
    model.blocks[1].mlp.up.bias[3] += 1e-6
    assert fingerprint(model) != before
    assert fingerprint(tiny_gpt(torch.bfloat16))


def test_characters_become_their_places():
    assert encode("baab", "abc").tolist() == [1, 0, 0, 1]
