"""The conversion lab pressed from Python: what it converts, what it refuses, what the book stores of it."""

import pytest

torch = pytest.importorskip("torch")

import lumen  # noqa: E402
from lumen.explore.labs import convert, lab  # noqa: E402
from lumen.models import build  # noqa: E402


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, convert):
        monkeypatch.setattr(module, "display", seen.append)
    for name, small in (("SEEN", 2), ("WINDOWS", 2), ("LETTERS", 5)):
        monkeypatch.setattr(convert, name, small)
    return seen


@pytest.fixture(scope="module")
def toy():
    """gptlite's alphabet and positions on two layers of four heads, at random."""
    model, tokenizer = lumen.load("gptlite", "cpu", torch.float32)
    torch.manual_seed(0)
    small = model.config.with_(name="toy", num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=4, head_dim=8,
                               intermediate_size=32)  # fmt: skip
    return build(small).eval().requires_grad_(False), tokenizer


@pytest.mark.parametrize(
    ("way", "size", "stored"),
    [
        ("heads, mean", 4, 128),
        ("heads, random", 1, 32),
        ("layers", 2, 64),
        ("latent, plain", 8, 16),
        ("latent", 8, 16),
    ],
)
def test_every_way_stores_what_it_says(toy, shown, way, size, stored):
    done = convert.ConvertLab(*toy).run(way, size)
    assert done.stored == stored and 0 < done.loss < 100 and len(done.text) == 5


@pytest.mark.parametrize(
    ("way", "size", "why"),
    [
        ("heads, mean", 3, "a size of 1, 2, 4; got 3"),
        ("layers", 3, "a size of 1, 2; got 3"),
        ("latent", 33, "a size of 1 to 32; got 33"),
        ("shuffle", 1, "choose from: heads, mean"),
    ],
)
def test_what_there_is_not_gets_a_sentence(toy, way, size, why):
    front = convert.ConvertLab(*toy)
    with pytest.raises(ValueError, match=why):
        front.run(way, size)
    assert front.runs == []


def test_the_widget_runs_and_keeps_the_runs_before(toy, shown):
    front = convert.convert_lab(*toy, size=4)
    assert len(shown) == 1 and not hasattr(shown[0], "data")
    front.button.click()
    front.size.value = 2
    front.button.click()
    assert "<li>4 heads, mean" in front.out.value and front.button.disabled is False
    front.size.value = 3
    front.button.click()
    assert "a size of 1, 2, 4" in front.out.value


def test_the_book_stores_recorded_runs_and_no_widget(toy, shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    convert.convert_lab(*toy, recorded=(("heads, mean", 1), ("latent", 8)))
    page = shown[0].data
    assert "the runs recorded" in page and "1 head, mean" in page and "latent of 8" in page
