"""What a server with a drafter says at /metrics is what vLLM's names mean, and what our load generator reads."""

from __future__ import annotations

import torch

from lumen.loadgen import spec
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.server.metrics import Metrics
from lumen.server.worker import EngineState

from ..drafters import Scripted
from ..tiny import tiny_llama


def scraped(engine: Engine) -> dict[str, float]:
    state = EngineState(engine.num_running, engine.num_waiting, engine.kv_usage, engine.counters)
    return spec.read(Metrics("tiny", lambda: state).text().decode())


def test_drafts_are_counted_under_vllms_names():
    model = tiny_llama(torch.float64)
    plain = Engine(model, num_blocks=20, block_size=4)
    plain.add(Request("x", [5, 9, 2], 12))
    answer = [t for d in plain.stream() for t in d.tokens]
    assert scraped(plain) == {}, "no drafter, no series"
    wrong = (answer[4] + 1) % 97
    drafter = Scripted({(5, 9, 2): [*answer[:4], wrong, *answer[5:]]}, 3)
    engine = Engine(model, num_blocks=20, block_size=4, drafter=drafter)
    engine.add(Request("x", [5, 9, 2], 12))
    before = scraped(engine)
    assert [t for d in engine.stream() for t in d.tokens] == answer
    found = spec.difference(before, scraped(engine))
    assert found["spec_decode_num_drafts"] == engine.counters.num_drafts
    assert found["spec_decode_draft_tokens"] == engine.counters.draft_tokens
    assert found["spec_decode_accepted_tokens"] == engine.counters.accepted_tokens
    assert len(found["spec_decode_per_position_acceptance_rates"]) == 3
    total = sum(found["spec_decode_per_position_acceptance_rates"]) * engine.counters.num_drafts
    assert round(total) == engine.counters.accepted_tokens
    assert 1 + engine.counters.accepted_tokens + engine.counters.num_drafts == 12, (
        "each pass adds its kept ones and one"
    )
