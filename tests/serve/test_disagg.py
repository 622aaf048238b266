"""Two processes, one answer: prefill and decode apart give the tokens that one engine gives."""

from __future__ import annotations

import pytest
import torch

from lumen.decode import generate
from lumen.sampling import SamplingParams
from lumen.serve.disagg import Pool, serve
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..tiny import tiny_llama


def load():
    return tiny_llama(torch.float64)


def load_nothing():
    raise OSError("there is no such model")


def asked():
    prompts = [[5, 9, 2], list(range(1, 18)), [7], [3] * 16]
    params = [None, SamplingParams(seed=3), SamplingParams(temperature=1.3, top_k=9, seed=4), None]
    return [
        Request(str(i), p, 1 if i == 2 else 12, q)
        for i, (p, q) in enumerate(zip(prompts, params, strict=True))
    ]


@pytest.mark.parametrize(("layerwise", "sizes"), [(True, (3, 5)), (False, (16, 1)), (True, (4, 4))])
def test_answers_equal_generate_for_any_block_sizes(layerwise, sizes):
    """The decode pool is too small for all at once, so handed-over requests also wait and are preempted."""
    result = serve(
        load,
        asked(),
        prefill=Pool(-(-20 // sizes[0]), sizes[0]),
        decode=Pool(-(-40 // sizes[1]), sizes[1]),
        layerwise=layerwise,
        limits=Limits(3, 8),
        arrivals=[0.0, 0.0, 0.02, 0.01],
    )
    model = load()
    for request in asked():
        params = request.params or SamplingParams(temperature=0)
        (want,) = generate(model, [request.prompt], request.max_new_tokens, params, eos_ids=())
        assert result.answers[request.id] == want.tokens
        assert len(result.token_times[request.id]) == len(want.tokens)
    config = model.config
    for told in result.handovers:
        per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 8
        assert told.num_bytes == per_token * told.num_tokens
        assert told.prefill_s > 0 and told.transfer_s > 0 and told.exposed_s >= 0


def test_what_cannot_work_gets_a_sentence():
    small, large = Pool(2, 4), Pool(20, 4)
    with pytest.raises(ValueError, match="prefill pool holds 8"):
        serve(load, asked(), prefill=small, decode=large)
    with pytest.raises(ValueError, match="whole pool has 8"):
        serve(load, asked(), prefill=large, decode=small)
    with pytest.raises(ValueError, match="ids must differ"):
        serve(load, [*asked(), *asked()], prefill=large, decode=large)
    with pytest.raises(ValueError, match="arrivals"):
        serve(load, asked(), prefill=large, decode=large, arrivals=[0.0])
    with pytest.raises(RuntimeError, match="no such model"):
        serve(load_nothing, asked(), prefill=large, decode=large)
    with pytest.raises(TimeoutError, match="raise timeout"):
        serve(load, asked(), prefill=large, decode=large, timeout=0.05)
