"""A mixed step agrees with the two predictions it joins, and adds up as packed forwards do."""

from itertools import accumulate

import pytest

from lumen import cost
from lumen.config import CONFIGS
from lumen.hardware import CHIPS

from .test_cost import measured_chip

LLAMA, SMOL, H100 = CONFIGS["llama-3-8b"], CONFIGS["smollm2-135m"], CHIPS["H100 SXM"]


@pytest.mark.parametrize("cache", ["static", "paged"])
@pytest.mark.parametrize("chip, config, dtype", [(H100, LLAMA, "bf16"), (measured_chip(), SMOL, "fp32")])
@pytest.mark.parametrize("context, batch", [(2, 1), (100, 1), (1000, 8), (8000, 64)])
def test_answers_alone_are_a_decode_step(context, batch, chip, config, dtype, cache):
    mixed = cost.predict_mixed(config, chip, [(context - 1, 1)] * batch, dtype, cache=cache)
    decode = cost.predict_decode(config, chip, context, batch, dtype, cache=cache)
    assert mixed.seconds == pytest.approx(decode.seconds, rel=1e-12)
    assert mixed.bound_by == decode.bound_by


@pytest.mark.parametrize("held, count", [(0, 1), (0, 500), (96, 32), (4000, 2)])
@pytest.mark.parametrize("chip, config, dtype", [(H100, LLAMA, "bf16"), (measured_chip(), SMOL, "fp32")])
def test_one_prompt_is_a_prefill(held, count, chip, config, dtype):
    mixed = cost.predict_mixed(config, chip, [(held, count)], dtype)
    prefill = cost.predict_prefill(config, chip, count, dtype=dtype, held=held)
    assert mixed.seconds == pytest.approx(prefill.seconds, rel=1e-12)


def test_answers_ride_along_with_a_prompt():
    """Together they read the weights once: cheaper than one after the other, dearer than the prompt alone."""
    prompt, answers = [(0, 400)], [(1000, 1)] * 8
    together = cost.predict_mixed(LLAMA, H100, prompt + answers).seconds
    apart = [cost.predict_mixed(LLAMA, H100, pieces).seconds for pieces in (prompt, answers)]
    assert max(apart) < together < 0.8 * sum(apart)


def test_chunks_cost_more_than_the_whole_by_what_they_read_again():
    sizes = [512] * 16
    starts = [0, *accumulate(sizes)][:-1]
    chunks = sum(
        cost.predict_mixed(LLAMA, H100, [piece]).seconds for piece in zip(starts, sizes, strict=True)
    )
    whole = cost.predict_mixed(LLAMA, H100, [(0, sum(sizes))]).seconds
    assert whole < chunks < 1.2 * whole


@pytest.mark.parametrize("pieces", [[], [(-1, 1)], [(3, 0)], [(5, 1), (0, 0)]])
def test_nonsense_is_refused_with_a_sentence(pieces):
    with pytest.raises(ValueError, match="needs a piece at least"):
        cost.predict_mixed(LLAMA, H100, pieces)
