"""The eviction explorer keeps what the package's rules keep, and shows what a model's attention was."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lumen.cache.evict_rules import H2O, Held, Newest, SinksAndNewest, SnapKV  # noqa: E402
from lumen.explore.explorers import eviction  # noqa: E402

from ...tiny import tiny_llama  # noqa: E402


@pytest.mark.parametrize("budget", [9, 16, 30])
@pytest.mark.parametrize(
    ("name", "rule", "looks"),
    [
        ("newest", Newest(), "read"),
        ("sinks", SinksAndNewest(eviction.SINKS), "read"),
        ("h2o", H2O(), "read"),
        ("snapkv", SnapKV(eviction.OBSERVES, eviction.KERNEL), "observed"),
    ],
)
def test_rules_are_those_of_the_package(name, rule, looks, budget):
    count = 40
    scores = {key: torch.rand(count).tolist() for key in ("read", "observed", "asked")}
    read, pos = torch.tensor(scores[looks])[None, None], torch.arange(count)[None, None]
    keys = torch.zeros(1, 1, count, 4)
    held = Held(keys, keys, pos, read, torch.tensor([count]), budget, 0)
    wanted = rule.score(held)[0, 0].topk(budget).indices.sort().values.tolist()
    assert eviction.kept(name, scores, budget) == wanted


def test_scores_are_the_attention_of_the_model():
    model = tiny_llama()
    draw = torch.Generator().manual_seed(0)
    vocabulary = model.config.vocab_size
    prompt, answer = (torch.randint(vocabulary, (n,), generator=draw).tolist() for n in (21, 3))
    layer, head, group = 1, 1, model.config.num_heads // model.config.num_kv_heads
    (found,) = eviction.scores_of(model, prompt, answer, [(layer, head)])
    assert sum(found["asked"]) == pytest.approx(1.0, abs=1e-2)
    assert sum(found["read"]) == pytest.approx(21 * group, rel=1e-3)  # every query gives a weight of one
    assert sum(found["observed"]) == pytest.approx(eviction.OBSERVES * group, rel=1e-3)
    assert len(found["bounds"]) == 3 and sum(found["bounds"]) == pytest.approx(group, rel=1e-3)


@pytest.mark.parametrize(("prompt", "answer"), [(eviction.OBSERVES, 1), (30, 0)])
def test_too_little_to_look_at_gets_a_sentence(prompt, answer):
    with pytest.raises(ValueError, match="got"):
        eviction.scores_of(tiny_llama(), [1] * prompt, [1] * answer, [(0, 0)])
