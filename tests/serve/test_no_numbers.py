"""Logits that are no numbers, and answers to which nothing is allowed, in `generate` and in the engine."""

from __future__ import annotations

import math

import pytest
import torch

from lumen.decode import generate
from lumen.sampling import NoToken, SamplingParams
from lumen.serve.engine import Engine
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits

from ..tiny import tiny_llama

POISON = 13  # a token whose embedding is damaged


def damaged(value: float):
    """A model that computes NaN for every row that has read token 13, and nothing wrong for any other."""
    model = tiny_llama(torch.float64, tied=False)
    with torch.no_grad():
        model.embed.weight[POISON, 3] = value
    return model


@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_row_without_numbers_ends_alone_and_leaves_clean_blocks(value, prefix):
    """Freed blocks hold NaN unless they are wiped, and their next owner reads them behind its mask: 0 times NaN."""
    model, params = damaged(value), SamplingParams(temperature=0.7, seed=5)
    ban = SamplingParams(temperature=0.7, seed=5, logit_bias={POISON: -math.inf})
    engine = Engine(model, num_blocks=9, block_size=4, prefix=prefix, limits=Limits(2, 40))
    for round in range(3):
        engine.add(Request(f"sick {round}", [5, POISON, 7, 8, 9, 1, 2, 3], 6, params))
        engine.add(Request(f"well {round}", [5, 9, 2, round], 9, ban))
    tokens, ends = {}, {}
    for delta in engine.stream():
        tokens.setdefault(delta.request_id, []).extend(delta.tokens)
        ends[delta.request_id] = delta.finish_reason, delta.stop_reason
        engine.scheduler.audit()
    for round in range(3):
        assert tokens[f"sick {round}"] == [] and ends[f"sick {round}"][0] == "error"
        assert "no numbers" in ends[f"sick {round}"][1]
        (want,) = generate(model, [[5, 9, 2, round]], 9, ban, eos_ids=())
        assert tokens[f"well {round}"] == want.tokens and ends[f"well {round}"] == ("length", None)
    assert all(plane.isfinite().all() for plane in engine.store.planes)
    assert engine.kv_usage == 0 and not engine.runner._rows


def test_generate_names_the_row_and_the_token():
    model, forced = damaged(math.nan), SamplingParams(temperature=0, logit_bias={POISON: 1e6})
    with pytest.raises(NoToken, match=r"Row 1, token 1: .*no numbers"):
        generate(model, [[5], [6]], 4, [SamplingParams(temperature=0), forced], eos_ids=())
    with pytest.raises(NoToken, match=r"Row 0, token 0: .*no numbers"):
        generate(model, [[POISON]], 4, eos_ids=())


def test_an_answer_that_is_forbidden_every_token_ends_with_a_sentence():
    model = tiny_llama(torch.float64)
    nothing = {token: -math.inf for token in range(97)}
    engine = Engine(model, num_blocks=20, block_size=4)
    engine.add(Request("bias", [5], 4, SamplingParams(logit_bias=nothing)))
    ends_only = {token: -math.inf for token in range(97) if token != 2}
    engine.add(
        Request("least", [5], 4, SamplingParams(logit_bias=ends_only), frozenset([2]), min_new_tokens=2)
    )
    engine.add(Request("free", [5, 9], 4))
    ends = {d.request_id: (d.finish_reason, d.stop_reason) for d in engine.stream() if d.finish_reason}
    (want,) = generate(model, [[5, 9]], 4, eos_ids=())
    assert ends["free"] == ("length", None) and len(want.tokens) == 4
    for name in ("bias", "least"):
        assert ends[name][0] == "error" and "allowed no token at all" in ends[name][1]
    assert engine.kv_usage == 0


class Broken:
    """A matcher that fails at its second token, with an exception of no particular kind."""

    def __init__(self):
        self.count = 0

    def allowed(self):
        self.count += 1
        if self.count == 3:
            raise KeyError("secret detail")
        return None

    def advance(self, token):
        return True

    def rollback(self, count):
        pass


def test_generate_hands_a_stranger_s_exception_on():
    with pytest.raises(KeyError, match="secret detail"):
        generate(tiny_llama(), [[5]], 4, eos_ids=(), constraint=Broken)


def test_what_cannot_even_begin_changes_nothing():
    def unmade():
        raise OSError("no such grammar")

    engine = Engine(tiny_llama(), num_blocks=20, block_size=4)
    with pytest.raises(OSError, match="no such grammar"):
        engine.add(Request("x", [5], 4, constraint=unmade))
    assert not engine.has_work and not engine.num_waiting and not engine.runner._rows
