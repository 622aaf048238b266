"""The samples lab, pressed from Python with a small random model."""

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import lab, samples  # noqa: E402
from lumen.io.tokenizer import CharTokenizer  # noqa: E402
from lumen.models import Llama, ModelConfig  # noqa: E402

LETTERS = "abcdefgh <"


@pytest.fixture
def front(monkeypatch):
    torch.manual_seed(0)
    model = Llama(ModelConfig("toy", len(LETTERS), 3, 36, 9, 3, 4, 24, 64)).eval()
    shown = []
    for module in (lab, samples):
        monkeypatch.setattr(module, "display", shown.append)
    made = samples.samples_lab(model, CharTokenizer(LETTERS), prompt="abc <b", tokens=5, block_size=4)
    made.shown = shown
    return made


def test_counts_are_those_of_copy_on_write(front):
    done = front.run("abc <b", rows=3, tokens=5, block_size=4)  # 6 tokens: one full block, one half full
    assert done.copies == 2 and done.separate == 3 * 3
    assert done.shared == 1 + 3 * 2  # the full one once; the half-full one and the next for each
    assert len(done.texts) == 3 and all(len(text) == 5 for text in done.texts)


def test_a_prompt_that_fills_its_blocks_needs_no_copy(front):
    assert front.run("abcdefgh", rows=3, tokens=2, block_size=4).copies == 0


@pytest.mark.parametrize("rows, size", [(1, 4), (4, 1), (2, 64)])
def test_the_shared_rows_say_what_separate_runs_say(front, rows, size):
    from lumen import SamplingParams, generate

    done = front.run("abcab", rows, 6, size)
    ids = front.tokenizer.encode("abcab")
    params = [SamplingParams(temperature=0.8, seed=seed) for seed in range(rows)]
    apart = generate(front.model, [ids] * rows, 6, params, tokenizer=front.tokenizer, eos_ids=())
    assert [c.text for c in apart] == done.texts


def test_the_widget_draws_and_says_what_is_wrong(front):
    front.button.click()
    assert "blocks, separate rows" in front.out.value and front.button.disabled is False
    front.prompt.value = ""
    front.button.click()
    assert "<b>The prompt has 0 tokens" in front.out.value and front.button.disabled is False


def test_the_stored_page_holds_a_run_and_no_widget(front, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    samples.samples_lab(front.model, front.tokenizer, prompt="ab <b", tokens=3)
    assert lab.LIVE in front.shown[-1].data and "<b " not in front.shown[-1].data.split("</p>")[1]
