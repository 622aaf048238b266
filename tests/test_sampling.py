"""Filters one by one, their order, and the draw: by rule where it is exact, by distribution where it is random."""

from __future__ import annotations

import math

import pytest
import torch

from lumen.sampling import NoToken, SamplingParams, distribution, draw, generators
from lumen.sampling.sampler import GREEDY, LARGE, SMALL


def kept(logits, **settings) -> list[set[int]]:
    """Which tokens of each row can be drawn."""
    probs = distribution(torch.as_tensor(logits, dtype=torch.float32), SamplingParams(**settings))
    return [set(row.nonzero().flatten().tolist()) for row in probs]


@pytest.mark.parametrize(
    "p, wanted", [(0.8, {0, 1}), (0.6, {0, 1}), (0.4, {0}), (0.0, {0}), (1.0, {0, 1, 2, 3})]
)
def test_top_p_at_the_edges(p, wanted):
    """T27, transformers #18976, llama.cpp #1953: the token that crosses the threshold is kept, and one always is."""
    assert kept([[math.log(x) for x in (0.5, 0.3, 0.1, 0.1)]], top_p=p) == [wanted]


def test_top_k_keeps_exactly_k_among_equals():
    """T28, gpt-fast: `logits < kth` keeps all three of [3, 3, 3, 0]."""
    assert kept([[3.0, 3.0, 3.0, 0.0]], top_k=2) == [{0, 1}]
    assert kept([[3.0, 3.0, 3.0, 0.0]], top_k=99) == [{0, 1, 2, 3}]


def test_penalties_make_used_tokens_less_likely_whatever_the_sign():
    """T29, transformers #2302, vLLM #1424: repetition sees prompt and output, presence and frequency the output."""
    logits = torch.tensor([[-1.0, 1.0, 0.5, 0.5]])
    plain = distribution(logits, SamplingParams())[0]
    repeated = distribution(logits, SamplingParams(repetition_penalty=2.0), prompt=[[0]], output=[[1]])[0]
    odds = lambda p, i: float(p[i] / p[3])  # noqa: E731
    assert odds(repeated, 0) == pytest.approx(odds(plain, 0) * math.exp(-1.0), rel=1e-5)  # -1 -> -2
    assert odds(repeated, 1) == pytest.approx(odds(plain, 1) * math.exp(-0.5), rel=1e-5)  # 1 -> 0.5
    assert odds(repeated, 2) == pytest.approx(odds(plain, 2), rel=1e-5)
    used = SamplingParams(presence_penalty=0.3, frequency_penalty=0.2)
    both = distribution(logits, used, prompt=[[0, 0, 2]], output=[[1, 1, 1]])[0]
    assert odds(both, 1) == pytest.approx(odds(plain, 1) * math.exp(-0.3 - 0.6), rel=1e-5)
    assert odds(both, 0) == pytest.approx(odds(plain, 0), rel=1e-5)


def test_min_p_and_typical_by_hand():
    logits = [[math.log(x) for x in (0.5, 0.3, 0.15, 0.05)]]
    assert kept(logits, min_p=0.3) == [{0, 1, 2}]  # threshold 0.15, and 0.15 is not below it
    assert kept(logits, min_p=0.31) == [{0, 1}]
    # entropy 1.142 nats; surprises 0.69, 1.20, 1.90, 3.00: the second token is the most typical, then the first
    assert kept(logits, typical_p=0.2) == [{1}]
    assert kept(logits, typical_p=0.7) == [{0, 1}]


@pytest.mark.parametrize(
    "settings", [{"top_k": 7}, {"top_p": 0.6}, {"min_p": 0.1}, {"typical_p": 0.5}, {"temperature": 0.3}]
)
def test_each_filter_equals_hugging_face(settings):
    """Against transformers' logits processors on random logits (no ties, where the two may differ by design)."""
    from transformers.generation import logits_process as hf

    theirs = {
        "top_k": lambda v: hf.TopKLogitsWarper(v),
        "top_p": lambda v: hf.TopPLogitsWarper(v),
        "min_p": lambda v: hf.MinPLogitsWarper(v),
        "typical_p": lambda v: hf.TypicalLogitsWarper(v),
        "temperature": lambda v: hf.TemperatureLogitsWarper(v),
    }
    ((name, value),) = settings.items()
    logits = 3 * torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    expected = theirs[name](value)(None, logits.clone()).softmax(-1)
    assert torch.allclose(distribution(logits, SamplingParams(**settings)), expected, atol=1e-6)


def test_order_is_temperature_before_the_filters():
    """At temperature 2 the flat tail enters the nucleus; llama.cpp, which divides last, would keep two tokens."""
    logits = [[math.log(x) for x in (0.6, 0.3, 0.06, 0.04)]]
    assert kept(logits, top_p=0.85) == [{0, 1}]
    assert kept(logits, temperature=2.0, top_p=0.85) == [{0, 1, 2}]


def test_order_is_penalties_before_temperature_and_bias_before_penalties():
    logits = torch.tensor([[1.0, 0.0]])
    p = distribution(logits, SamplingParams(temperature=0.5, repetition_penalty=2.0), prompt=[[0]])[0]
    assert float((p[0] / p[1]).log()) == pytest.approx(1.0)  # (1 / 2) / 0.5
    settings = SamplingParams(logit_bias={0: -3.0}, repetition_penalty=2.0)
    p = distribution(logits, settings, prompt=[[0]])[0]
    assert float((p[0] / p[1]).log()) == pytest.approx(-4.0)  # (1 - 3) * 2


def test_rows_keep_their_own_settings():
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    rows = [GREEDY, SamplingParams(top_k=3), SamplingParams(temperature=0.7, top_p=0.5), SamplingParams()]
    together = distribution(logits, rows)
    for i, settings in enumerate(rows):
        assert torch.allclose(together[i], distribution(logits[i : i + 1], settings)[0], atol=1e-7)
    assert together[0].max() == 1 and together[0].argmax() == logits[0].argmax()
    assert torch.allclose(together.sum(-1), torch.ones(4))


def test_half_precision_logits_are_lifted_to_fp32():
    assert distribution(torch.randn(1, 9, dtype=torch.bfloat16), SamplingParams()).dtype == torch.float32


@pytest.mark.parametrize("temperature", [1e-9, 1e-6])
def test_a_tiny_temperature_is_greedy_not_nan(temperature):
    probs = distribution(torch.tensor([[5.0, 4.0, -80.0]]), SamplingParams(temperature=temperature))
    assert probs.tolist() == [[1.0, 0.0, 0.0]]


def test_forbidden_tokens_are_never_drawn_and_forced_ones_always():
    logits = torch.zeros(1, 5)
    assert kept(logits, logit_bias={2: float("-inf")}) == [{0, 1, 3, 4}]
    probs = distribution(logits, SamplingParams(logit_bias={3: 100.0}))
    assert float(probs[0, 3]) == pytest.approx(1.0)


def test_draws_follow_the_distribution():
    """Chi-square over 20,000 draws of 8 tokens, at the 1 - 1e-6 quantile: one false alarm in a million runs."""
    logits = torch.tensor([[2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, -9.0]])
    settings = SamplingParams(temperature=0.9, top_k=7, seed=11)
    probs = distribution(logits, settings)
    (stream,) = generators([settings])
    n = 20_000
    drawn = draw(probs.expand(n, -1), [stream] * n)
    counts = torch.bincount(drawn, minlength=8).double()
    assert counts[7] == 0, "removed by top-k"
    expected = probs[0, :7].double() * n
    chi2 = float(((counts[:7] - expected) ** 2 / expected).sum())
    assert chi2 < 38.3  # 6 degrees of freedom, P = 1e-6


def test_first_tokens_of_samples_from_one_prompt_differ():
    """T31, nanochat: n samples of one prompt must not share their first draw."""
    probs = distribution(torch.zeros(64, 1000), SamplingParams())
    drawn = draw(probs, generators([SamplingParams()] * 64)).tolist()
    assert len(set(drawn)) > 40  # all equal by luck: 1000 ** -63


def test_a_neighbour_never_changes_a_draw():
    """A seeded request draws the same tokens alone, in a batch, and in another row of it."""
    probs = distribution(torch.randn(3, 100, generator=torch.Generator().manual_seed(2)), SamplingParams())
    mine = SamplingParams(seed=5)
    alone = draw(probs[:1], generators([mine]))
    crowd = draw(probs[[1, 0, 2]], generators([SamplingParams(), mine, SamplingParams(seed=9)]))
    assert alone[0] == crowd[1]


def test_the_last_token_with_mass_is_reachable_and_the_edge_is_safe():
    probs = torch.tensor([[0.0, 1.0, 0.0]])
    for seed in range(50):
        assert draw(probs, generators([SamplingParams(seed=seed)])).tolist() == [1]


NUMBERS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
)  # fmt: skip


@pytest.mark.parametrize(
    "settings, sentence",
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": -0.2}, "min_p"),
        ({"typical_p": 2.0}, "typical_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"logit_bias": {1: math.nan}}, "logit_bias"),
        *(
            ({name: bad}, name)
            for name in NUMBERS
            for bad in (1e39, -1e39, math.nan, -math.inf, "1", None, True)
        ),
        ({"temperature": 1e-300}, "greedy"),
        ({"repetition_penalty": 1e-39}, "repetition_penalty"),
        ({"logit_bias": {1: math.inf}}, "logit_bias"),
        ({"logit_bias": {1: 1e39}}, "token 1"),
        ({"logit_bias": {1: "5"}}, "logit_bias"),
    ],
)
def test_settings_out_of_range_get_a_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        SamplingParams(**settings)


@pytest.mark.parametrize("top", [1e4, 3e38, -3e38, 1e-40])
def test_no_setting_within_its_range_makes_a_number_that_is_none(top):
    """Every pair of extremes, on logits up to the largest of fp32: a distribution, or a sentence that says why none."""
    logits = torch.tensor([[top, -top, 0.0, top / 2, 1.0, -math.inf]])
    ends = {
        "temperature": (0, SMALL, LARGE), "top_k": (0, 1, 10**9), "top_p": (0, 1), "min_p": (0, 1), "typical_p": (0, 1),
        "repetition_penalty": (SMALL, LARGE), "presence_penalty": (-LARGE, LARGE), "frequency_penalty": (-LARGE, LARGE),
        "logit_bias": ({0: -LARGE}, {1: LARGE, 2: -math.inf}),
    }  # fmt: skip
    settings = [{name: value} for name, values in ends.items() for value in values]
    for one in settings:
        for other in settings:
            params = SamplingParams(**{**one, **other})
            try:
                probs = distribution(logits, params, [[0, 1]], [[1, 2, 3]])
            except NoToken as error:
                assert abs(top) > 1e30 and "no numbers" in str(error)  # the penalties took them beyond fp32
                continue
            assert probs.isfinite().all() and probs.sum() == pytest.approx(1, abs=1e-5)
            assert probs[0, 5] == 0


def test_logits_that_are_no_numbers_get_a_sentence_and_single_ones_of_minus_infinity_are_fine():
    sound = torch.tensor([0.0, -math.inf, 1.0, -math.inf])
    for params in (SamplingParams(), SamplingParams(temperature=0), SamplingParams(top_p=0.5, min_p=0.1)):
        assert distribution(sound[None], params)[0, 1] == 0
        for bad, words in ((math.nan, "nan"), (math.inf, "inf")):
            for place in range(4):
                logits = torch.stack([sound, sound, sound])
                logits[1, place] = bad
                with pytest.raises(NoToken, match=rf"Row 1 has logits that are no numbers \({words}\)"):
                    distribution(logits, params)
                allowed = torch.arange(4).expand(3, 4) != place  # a mask over it hides nothing
                with pytest.raises(NoToken, match="Row 1"):
                    distribution(logits, params, allowed=allowed)
        with pytest.raises(NoToken, match="Row 0 is allowed no token"):
            distribution(torch.full((1, 4), -math.inf), params)
    forbidden = SamplingParams(logit_bias={0: -math.inf, 2: -math.inf})
    with pytest.raises(NoToken, match="Row 0 is allowed no token"):
        distribution(sound[None], forbidden)


def test_misuse_of_distribution_gets_a_sentence():
    with pytest.raises(ValueError, match=r"\(B, V\)"):
        distribution(torch.zeros(5), SamplingParams())
    with pytest.raises(ValueError, match="2 sampling parameters for 3 rows"):
        distribution(torch.zeros(3, 5), [SamplingParams()] * 2)
    with pytest.raises(ValueError, match="token 5"):
        distribution(torch.zeros(1, 5), SamplingParams(logit_bias={5: 1.0}))


def by_sorting(logits, k, p):
    """Top-k, then top-p, by sorting the whole vocabulary: what the quick filters must equal."""
    order = logits.argsort(descending=True, stable=True)
    keep = order[:k] if k else order
    masked = torch.full_like(logits, float("-inf"))
    masked[keep] = logits[keep]
    order = masked.argsort(descending=True, stable=True)
    probs = masked.softmax(-1)[order]
    inside = probs.cumsum(-1) - probs < p - 1e-6
    inside[0] = True
    return set(order[inside].tolist()) & set(keep.tolist())


@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
@pytest.mark.parametrize("step", [0.0, 0.5])
def test_filters_equal_sorting_the_whole_vocabulary(spread, step):
    """Flat and peaked rows, rows full of equal logits (`step`), sets larger than what is sorted first."""
    generator = torch.Generator().manual_seed(0)
    for vocab in (5, 300, 2000):
        logits = torch.randn(12, vocab, generator=generator) * spread
        logits = (logits / step).round() * step if step else logits
        ks = [0, 1, 3, vocab, vocab + 9, 40] * 2
        ps = [0.3, 0.9, 1.0, 0.999, 0.05, 0.6, 0.95, 0.5, 0.7, 1.0, 0.2, 0.85]
        params = [SamplingParams(top_k=k, top_p=p) for k, p in zip(ks, ps, strict=True)]
        probs = distribution(logits, params)
        for row, k, p in zip(range(12), ks, ps, strict=True):
            # the distribution subtracts the largest logit first, so the reference does too
            want = (
                by_sorting(logits[row] - logits[row].max(), k, p)
                if p < 1
                else by_sorting(logits[row], k, 9.0)
            )
            assert set(probs[row].nonzero().flatten().tolist()) == want, (row, k, p)
