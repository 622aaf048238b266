"""What a lab's button does: busy while it works, a sentence for what was asked wrongly, never left switched off."""

from types import SimpleNamespace

import pytest

from lumen.explore.labs.lab import on_press


@pytest.fixture
def front():
    pressed = []
    return SimpleNamespace(
        button=SimpleNamespace(disabled=False, description="Run", on_click=pressed.append),
        out=SimpleNamespace(value="the run before"),
        press=lambda: pressed[0](None),
    )


def test_a_press_shows_what_the_work_returns_and_is_busy_meanwhile(front):
    seen = []

    def work() -> str:
        seen.append((front.button.disabled, front.button.description, front.out.value))
        return "<p>done</p>"

    on_press(front.button, front.out, work, "Running…")
    front.press()
    assert seen == [(True, "Running…", "")]
    assert (front.button.disabled, front.button.description, front.out.value) == (False, "Run", "<p>done</p>")


def test_a_value_error_is_a_sentence_and_its_text_no_html(front):
    def work() -> str:
        raise ValueError("give a prompt, not <nothing>")

    on_press(front.button, front.out, work)
    front.press()
    assert front.out.value == "<b>give a prompt, not &lt;nothing&gt;</b>"
    assert (front.button.disabled, front.button.description) == (False, "Run")


def test_a_fault_is_raised_and_the_button_works_again(front):
    on_press(front.button, front.out, lambda: str(1 / 0))
    with pytest.raises(ZeroDivisionError):
        front.press()
    assert not front.button.disabled
