"""The live labs, pressed from Python: a small random model is enough to see that they count and say what
happened."""

import pytest

torch = pytest.importorskip("torch")

from lumen.explore.labs import generate, lab, reads  # noqa: E402
from lumen.hardware import Chip  # noqa: E402
from lumen.io.tokenizer import CharTokenizer  # noqa: E402
from lumen.models import GPTlite, Llama, ModelConfig  # noqa: E402

LETTERS = "abcdefgh <"
CHIP = Chip("toy", {"fp32": 1e12}, 1e9, 1e9)


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = ModelConfig("toy", len(LETTERS), 3, 36, 9, 3, 4, 24, 64)
    return Llama(config).eval()


@pytest.fixture
def tokenizer():
    return CharTokenizer(LETTERS)


@pytest.fixture
def shown(monkeypatch):
    seen = []
    for module in (lab, generate, reads):
        monkeypatch.setattr(module, "display", seen.append)
    return seen


def test_generate_lab_streams_and_reports(model, tokenizer, shown, monkeypatch):
    monkeypatch.setattr(generate, "REDRAW_S", 0)
    front = generate.generate_lab(model, tokenizer, prompt="ab <", max_new_tokens=5, chip=CHIP)
    assert len(shown) == 1 and not hasattr(shown[0], "data")  # a widget, not stored HTML
    texts = []
    front.text.observe(lambda change: texts.append(change.new), "value")
    front.button.click()
    assert len(front.completion.tokens) == 5 and front.completion.num_prompt_tokens == 4
    assert len(texts) >= 3 and "ab &lt;" in texts[-1]
    assert "time to first token" in front.numbers.value and "tokens per second" in front.numbers.value
    assert front.button.disabled is False


def test_prediction_is_bytes_over_bandwidth(model, tokenizer):
    front = generate.GenerateLab(model, tokenizer, CHIP)
    weights = sum(p.numel() for p in model.parameters())  # tied: the head's matrix is the embedding
    row, kept = 36, 2 * 3 * 3 * 4  # the new token's embedding; K and V of a token
    assert front.predicted_tpot(10) == pytest.approx(4 * (weights + row + 11 * kept) / 1e9)


@pytest.mark.parametrize("prompt", ["", "a" * 64])
def test_generate_lab_says_what_is_wrong_and_stays_usable(prompt, model, tokenizer, shown):
    front = generate.generate_lab(model, tokenizer, max_new_tokens=5, chip=CHIP)
    front.prompt.value = prompt
    front.button.click()
    assert "<b>" in front.numbers.value and front.button.disabled is False


def test_the_stored_page_holds_a_run_and_no_widget(model, tokenizer, shown, monkeypatch):
    monkeypatch.setenv("LUMEN_BOOK", "1")
    generate.generate_lab(model, tokenizer, prompt="ab", max_new_tokens=3, chip=CHIP)
    reads.cache_reads_lab(model, tokenizer, prompt="ab <b", steps=4)
    for output in shown:
        assert output.data.startswith('<div class="lumen-lab"') and lab.LIVE in output.data
        assert "<b<" not in output.data


def test_without_ipywidgets_the_lab_says_so(model, tokenizer, shown, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    reads.cache_reads_lab(model, tokenizer, prompt="ab")
    assert "pip install ipywidgets" in shown[0].data


def test_recorded_weights_are_those_of_plain_attention(model):
    ids, steps = reads.record(model, [1, 2, 3, 4], 3)
    assert [(s.computed, s.read) for s in steps] == [(4, 0), (1, 4), (1, 5)]
    assert len(ids) == 7
    assert all(torch.allclose(w.sum(-1), torch.ones(9)) for s in steps for w in s.weights)
    # the last step again, without a cache: the same weights in the first layer
    hidden = model.blocks[0].attn_norm(model.embed(torch.tensor([ids[:6]])))
    q, k, _ = model.blocks[0].attn.qkv(hidden).view(1, 6, 15, 4).transpose(1, 2).split([9, 3, 3], 1)
    from lumen.models.layers import rotate

    cos, sin = model.rope_cos[:6][None, None], model.rope_sin[:6][None, None]
    q, k = rotate(q, cos, sin), rotate(k, cos, sin).repeat_interleave(3, 1)
    weights = (q[0, :, -1:] @ k[0].transpose(1, 2))[:, 0].div(2).softmax(-1)
    assert torch.allclose(weights, steps[2].weights[0], atol=1e-5)


def test_recording_changes_no_token(model):
    from lumen import generate

    ids, _ = reads.record(model, [1, 2, 3], 6)
    assert ids[3:] == generate(model, [[1, 2, 3]], 6)[0].tokens


def test_cache_reads_lab_moves_with_its_sliders(model, tokenizer, shown):
    front = reads.cache_reads_lab(model, tokenizer, prompt="abc <", steps=4)
    assert front.rows.value == ""
    front.button.click()
    assert "computes 1 K/V row (orange), reads 5" in front.rows.value
    front.step.value = 1
    assert "computes 5 K/V rows (orange), reads 0" in front.rows.value
    front.step.value = 3
    assert "computes 1 K/V row (orange), reads 6" in front.rows.value
    before = front.rows.value
    front.layer.value, front.head.value = 2, 8
    assert front.rows.value != before and "layer 2, head 8" in front.rows.value
    front.prompt.value = "a" * 41
    front.button.click()
    assert "41 tokens" in front.rows.value


def test_models_with_learned_positions_work_too(tokenizer):
    config = ModelConfig(
        "toy", len(LETTERS), 2, 32, 4, 4, 8, 64, 32, mlp="relu", positions="learned", norm="layer", bias=True
    )
    front = reads.CacheReadsLab(GPTlite(config).eval(), tokenizer)
    front.run("abcd", 2)
    assert "computes 1 K/V row (orange), reads 4" in front.view(2, 1, 3)


def test_heads_are_chosen_by_what_they_read():
    def head(**weights):
        return [weights.get(f"row{i}", 0.0) for i in range(6)]

    both, word, before = head(row0=0.5, row2=0.4), head(row3=0.9), head(row4=0.95)
    sink, itself = head(row0=1.0), head(row5=1.0)
    step = reads.Step(1, 5, [torch.tensor(layer) for layer in ([sink, before], [word, itself], [both, sink])])
    assert reads.chosen(step) == {
        "the first row and a word": (2, 0), "one word": (1, 0), "the row before": (0, 1)
    }  # fmt: skip
    assert reads.chosen(reads.Step(1, 2, [torch.ones(2, 3) / 3])) == {}


def test_no_head_is_shown_twice_and_sinks_are_counted(model, tokenizer):
    front = reads.CacheReadsLab(model, tokenizer)
    front.run("ab <a", 2)
    assert len(set(reads.chosen(front.steps[1]).values())) == 3
    now = torch.stack(front.steps[1].weights)
    assert f"{int((now[..., 0] > 0.5).sum())} of 27 heads" in front.view(2)
    front.run("a", 1)
    assert "of 27 heads" in front.view(1)


def test_cache_reads_lab_refuses_a_head_that_is_not_there(model, tokenizer):
    with pytest.raises(ValueError, match="heads 0 to 8"):
        reads.cache_reads_lab(model, tokenizer, head=9)
