"""The budget lab over a tiny model: the live front, the recorded page, and a budget that is really kept."""

from __future__ import annotations

import pytest

from lumen.explore.labs import budget
from tests.tiny import tiny_llama


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(budget, "CONTEXT", 5)
    monkeypatch.setattr(budget, "AFTER", 8)
    return tiny_llama(max_positions=4096)


def test_a_smaller_budget_takes_more_steps_and_the_runs_are_listed(model):
    lab = budget.BudgetLab(model)
    steps = {}
    for size in (2048, 32):
        done = lab.run(size, 100, 2)
        steps[size] = sum(any(n > 1 for _, n in pieces) for *_, pieces in done.steps)
        assert max(sum(n for _, n in pieces) for *_, pieces in done.steps) <= size
    assert steps == {2048: 1, 32: 4}
    text = lab.report()
    assert text.count("<li>") == 2 and "budget 2048" in text and 'role="img"' in text


def test_the_widget_runs_and_says_what_is_wrong(model, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    lab = budget.BudgetLab(model)
    lab.widget(64, 128, 2)
    lab.button.click()
    assert "longest gap" in lab.out.value and lab.button.description == "Run"
    monkeypatch.setattr(lab, "run", lambda *_: (_ for _ in ()).throw(ValueError("too <long>")))
    lab.button.click()
    assert "too &lt;long&gt;" in lab.out.value and not lab.button.disabled


def test_the_page_shows_a_recorded_run(model, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    shown = []
    monkeypatch.setattr(budget, "show_recorded", lambda sentence, body: shown.append(sentence + body))
    budget.budget_lab(model, budget=32, length=64, answers=2)
    assert "Live in Jupyter" in shown[0] and "budget 32" in shown[0] and "budget 2048" in shown[0]
