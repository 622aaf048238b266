"""The matmul lab pressed from Python: it counts bytes and operations, and says what is wrong."""

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import lab, matmul  # noqa: E402
from lumen.hardware import Chip  # noqa: E402

CHIP = Chip("toy", {"fp32": 1e12}, 1e10, 1e9)


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, matmul):
        monkeypatch.setattr(module, "display", seen.append)
    return seen


def test_it_counts_two_operations_a_weight_and_row_and_every_byte_once():
    front = matmul.MatmulLab(CHIP, "cpu", torch.float32)
    front.run(3, 64, 256, cached=True)
    assert front.flops == 2 * 3 * 64 * 256
    assert front.bytes == 4 * (64 * 256 + 3 * 64 + 3 * 256)
    assert front.seconds > 0 and "FLOP per byte" in front.report()


def test_the_widget_measures_and_reports(shown):
    front = matmul.matmul_lab(rows=2, inputs=512, outputs=512, chip=CHIP)
    assert len(shown) == 1 and not hasattr(shown[0], "data")
    front.cached.value = True
    front.button.click()
    assert "share of the roof" in front.numbers.value and front.button.disabled is False


def test_a_size_that_is_too_large_gets_a_sentence():
    with pytest.raises(ValueError, match="16,384"):
        matmul.MatmulLab(CHIP, "cpu", torch.float32).run(1, 576, 10**6)


def test_the_book_stores_a_recorded_run_and_no_widget(shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    monkeypatch.setattr(matmul, "RECORDED", (1, 4))
    matmul.matmul_lab(rows=1, inputs=2048, outputs=2048, chip=CHIP)
    page = shown[0].data
    assert "Live in Jupyter" in page and page.count("<tr>") == 4
    # the page's own words: more rows, and a weight that stays in the cache
    assert "<td>4</td>" in page and "<td>1, same weight</td>" in page


def test_it_multiplies_by_the_kernel_of_a_loaded_model(monkeypatch):
    """Weights made under inference mode cannot be packed: four rows came at half of what the page's circle said."""
    from lumen.hardware import kernel_choice

    seen = []
    monkeypatch.setattr(kernel_choice, "choose", lambda weights, progress: seen.extend(weights))
    matmul.MatmulLab(CHIP, "cpu", torch.float32).run(4, 2048, 2048)
    assert len(seen) > 1 and not any(layer.weight.is_inference() for layer in seen)
    assert len({layer.weight.data_ptr() for layer in seen}) == len(seen), "each from main memory"
