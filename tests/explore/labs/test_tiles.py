"""The tiles lab pressed from Python: what it counts, what it refuses, what the book stores of it."""

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import lab, tiles  # noqa: E402


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, tiles):
        monkeypatch.setattr(module, "display", seen.append)
    return seen


def test_it_counts_tiles_and_bytes_and_equals_torch():
    front = tiles.TilesLab("cpu")
    front.run(100, 32, 50, causal=False)
    assert (front.found["tiles"], front.found["skipped"]) == (4 * 2, 0)
    each = 4 * 9 * 64 * 100
    assert front.found["moved"] == 2 * each + 4 * 9 * 100 + 4 * 2 * each
    assert front.found["held"] == 4 * 9 * 32 * 50 and front.found["error"] < 1e-5
    front.run(100, 50, 50)
    assert (front.found["tiles"], front.found["skipped"]) == (3, 1)


def test_the_widget_runs_and_reports(shown):
    front = tiles.tiles_lab(tokens=64, block_q=16, block_k=16)
    assert len(shown) == 1 and not hasattr(shown[0], "data")
    front.button.click()
    assert "bytes moved" in front.numbers.value and front.button.disabled is False
    front.tokens.value, front.block_q.value, front.block_k.value = 8192, 1, 1
    front.button.click()
    assert "more than 20,000 tiles" in front.numbers.value


@pytest.mark.parametrize(
    ("sizes", "why"), [((0, 1, 1), "8,192"), ((9000, 64, 64), "8,192"), ((10, 0, 4), "4,096")]
)
def test_a_size_out_of_its_limits_gets_a_sentence(sizes, why):
    with pytest.raises(ValueError, match=why):
        tiles.TilesLab("cpu").run(*sizes)


def test_the_book_stores_recorded_runs_and_no_widget(shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    monkeypatch.setattr(tiles, "RECORDED", ((16, 16), (64, 64)))
    tiles.tiles_lab(tokens=64)
    page = shown[0].data
    assert "Live in Jupyter" in page and page.count("<tr>") == 3 and ">16 × 16</td>" in page
