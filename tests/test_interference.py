"""A long prompt meets answers under way: budgets are kept, nobody's answer changes, every token has its time."""

from __future__ import annotations

import pytest
import torch

from lumen.bench.interference import meet
from lumen.decode import generate

from .tiny import tiny_llama

PROMPTS = [[5, 9, 2, 7], [3] * 9, list(range(10, 21))]
LONG = [(7 * i) % 97 for i in range(40)]


@pytest.mark.parametrize("budget", [4, 7, 13, 100])
def test_each_budget_gives_the_same_answers_and_keeps_its_limit(budget):
    model = tiny_llama(torch.float64, max_positions=256)
    run = meet(model, PROMPTS, LONG, budget, before=2, after=12, block_size=4)
    chunks = -(-len(LONG) // (budget - len(PROMPTS)))
    assert max(sum(count for _, count in pieces) for *_, pieces in run.steps) <= budget
    of_prompt = [count for *_, pieces in run.steps[:chunks] for _, count in pieces if count > 1]
    assert sum(of_prompt) in (len(LONG), len(LONG) - 1) or budget == 4  # a chunk of one is not told apart
    assert run.ttft == pytest.approx(run.steps[chunks - 1][1], abs=1e-6)
    assert [len(line) for line in run.times] == [13] * 3 and len(run.gaps) == 36
    assert run.alone and min(run.alone) > 0
    if budget == 100:  # the first of two tokens comes out of the prompts' own step
        assert len(run.alone) == 1
    assert min(run.gaps) > 0 and all(line[0] <= 0 < line[1] for line in run.times)
    for prompt, tokens in zip([*PROMPTS, LONG], run.answers, strict=True):
        (want,) = generate(model, [prompt], len(tokens), eos_ids=())
        assert tokens == want.tokens


def test_a_budget_that_leaves_nothing_for_the_prompt_gets_a_sentence():
    with pytest.raises(ValueError, match="leaves nothing"):
        meet(tiny_llama(), PROMPTS, LONG, 3)
