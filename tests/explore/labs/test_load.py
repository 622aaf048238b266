"""The load lab against a real server of a tiny model: every request waits in sight, and nonsense gets a sentence."""

from __future__ import annotations

import pytest

from lumen.explore.labs import load
from tests.server.rig import app_of, byte_tokenizer, live, tiny_engine

TEXT = "It was the best of times, it was the worst of times. " * 40


@pytest.fixture(scope="module")
def server():
    with live(app_of(tiny_engine())) as found:
        yield found


def test_a_run_shows_every_request(server):
    lab = load.LoadLab(server.url, byte_tokenizer(), TEXT)
    records = lab.run(200.0, 9, 12, 4)
    assert len(records) == 9 and all(record.ok for record in records)
    page = lab.report()
    assert page.count("<i ") == 9 and "TTFT p90" in page and "9 requests" in page


def test_a_rate_that_takes_too_long_is_refused(server):
    lab = load.LoadLab(server.url, byte_tokenizer(), TEXT)
    for rate, count in ((0.0, 4), (1.0, 0), (1.0, 65), (0.1, 64)):
        with pytest.raises(ValueError, match="Send fewer, or faster"):
            lab.run(rate, count, 12, 4)


def test_the_widget_sends_and_says_when_nobody_answers(server, monkeypatch):
    pytest.importorskip("ipywidgets")
    monkeypatch.delenv("LUMEN_BOOK", raising=False)
    lab = load.LoadLab(server.url, byte_tokenizer(), TEXT)
    lab.widget(20.0, 4, 12, 4)
    lab.button.click()
    assert "TPOT p50" in lab.out.value and lab.button.description == "Send"
    lab.url = "http://127.0.0.1:9"
    lab.button.click()
    assert "Is the server running there?" in lab.out.value and not lab.button.disabled


def test_the_page_shows_a_recorded_run(server, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    shown = []
    monkeypatch.setattr(load, "show_recorded", lambda sentence, body: shown.append(sentence + body))
    load.load_lab(server.url, byte_tokenizer(), TEXT, rate=100.0, count=5, prompt=12, answer=3)
    assert "Live in Jupyter" in shown[0] and "5 requests at 100 a second" in shown[0]
