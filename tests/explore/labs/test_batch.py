"""The batch lab and the queue that it serves, over a tiny model: steps counted by hand, and a page that holds them."""

from __future__ import annotations

import pytest

from lumen import bench, generate
from lumen.explore.labs import batch
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits
from tests.tiny import tiny_llama


class Letters:
    def encode(self, text):
        return [ord(letter) % 20 for letter in text]


@pytest.fixture
def model():
    return tiny_llama()


LENGTHS = [2, 6, 3]


@pytest.mark.parametrize("policy, steps", [("static", 9), ("dynamic", 9), ("continuous", 6)])
def test_a_queue_is_served_as_the_policy_says(model, policy, steps):
    prompts = [[1, 2, 3], [4], [5, 6]]
    ticks = iter(range(1000))
    engine = Engine(model, num_blocks=8, prefix="none", limits=Limits(2, 64, policy, max_wait=0.0))
    queue = [Request(str(i), p, n) for i, (p, n) in enumerate(zip(prompts, LENGTHS, strict=True))]
    served = bench.serve_queue(engine, queue, clock=lambda: next(ticks))
    alone = [generate(model, [p], n, eos_ids=())[0].tokens for p, n in zip(prompts, LENGTHS, strict=True)]
    assert list(served.answers.values()) == alone
    assert (len(served.steps), served.seconds, served.tokens) == (steps, steps, 11)
    assert served.utilisation == pytest.approx(11 / (2 * steps))
    third = 3 if policy == "continuous" else 7  # its first token: after two steps, or after six
    assert served.ttft == {"0": 1, "1": 1, "2": third}
    seats = {name: slot for slot, name, _ in served.cells()}
    assert seats == {"0": 0, "1": 1, "2": 0} and len(served.cells()) == 11


def test_a_queue_needs_requests_and_an_idle_engine(model):
    engine = Engine(model, num_blocks=8)
    with pytest.raises(ValueError, match="a request at least"):
        bench.serve_queue(engine, [])
    engine.add(Request("a", [1], 2))
    with pytest.raises(ValueError, match="nothing to do"):
        bench.serve_queue(engine, [Request("b", [1], 2)])


def test_the_widget_serves_and_can_be_pressed_again(model, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    lab = batch.BatchLab(model, Letters())
    lab.widget("static", 2, 3, 0.0)
    lab.button.click()
    assert (
        "2 slots over 20 steps, 75 % of them used" in lab.out.value
    )  # three answers of 10: two together, then one
    lab.policy.value, lab.slots.value = "continuous", 1
    lab.button.click()
    assert "1 slot over 30 steps" in lab.out.value and not lab.button.disabled


def test_the_page_shows_a_recorded_run(model, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    shown = []
    monkeypatch.setattr(batch, "show_recorded", lambda sentence, body: shown.append(sentence + body))
    batch.batch_lab(model, Letters(), slots=2, requests=5)
    assert "Live in Jupyter" in shown[0] and "5 requests, 2 slots, continuous batching" in shown[0]
    assert "steps of static batching" in shown[0]


def test_static_steps_are_counted_as_the_engine_takes_them(model):
    lab = batch.BatchLab(model, Letters())
    steps = len(lab.run("static", 2, 5, 1.0).steps)
    assert f">{steps}</div>" in lab.report().split("steps of static batching")[1]
    lab.run("continuous", 2, 5, 1.0)
    assert f">{steps}</div>" in lab.report().split("steps of static batching")[1]
