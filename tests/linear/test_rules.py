"""Linear attention's four rules: recurrent = chunked = step by step = what transformers computes (T59)."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lumen.attention.linear import chunked, recall_error, recurrent, short_conv, simulated_recall

from ..tiny import relative_error

RULES = ("linear", "gated", "gated a channel", "delta", "gated delta", "gated delta a channel")


def draws(seed=0, dtype=torch.float32):
    stream = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=stream).to(dtype)


def inputs(rule, batch=2, heads=3, length=65, dim=60, width=37, dtype=torch.float32, strong=False):
    """q, k, v and what the rule takes beside them: keys of length 1, decay from almost none to almost all."""
    draw = draws(dtype=dtype)
    q, k, v = (
        draw(batch, heads, length, dim),
        draw(batch, heads, length, dim),
        draw(batch, heads, length, width),
    )
    steer = {}
    if "gated" in rule:
        shape = (batch, heads, length, dim) if "channel" in rule else (batch, heads, length)
        steer["log_decay"] = -(draw(*shape) * (4 if strong else 2) - (0 if strong else 2)).exp()
    if "delta" in rule:
        steer["beta"] = draw(batch, heads, length).sigmoid()
    return (q * dim**-0.5, F.normalize(k, dim=-1), v), steer


def part(steer, span):
    return {name: value[:, :, span] for name, value in steer.items()}


@pytest.mark.parametrize(
    "length, chunk", [(1, 64), (2, 1), (63, 16), (63, 64), (64, 64), (65, 64), (130, 16)]
)
@pytest.mark.parametrize("rule", RULES)
def test_chunks_equal_the_loop(rule, length, chunk):
    """Behind a state that is already there, and with values of another width than keys."""
    qkv, steer = inputs(rule, length=length)
    state = draws(1)(2, 3, 60, 37)
    y, after = chunked(*qkv, **steer, state=state, chunk=chunk)
    expected, left = recurrent(*qkv, **steer, state=state)
    assert y.shape == (2, 3, length, 37) and after.shape == (2, 3, 60, 37)
    assert relative_error(y, expected) < 1e-5 and relative_error(after, left) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_a_text_in_pieces_equals_the_text(rule):
    """Step by step, and in chunks of any sizes, each behind the state of the last."""
    qkv, steer = inputs(rule, length=70, dtype=torch.float64)
    expected, left = recurrent(*qkv, **steer)
    for form, sizes in ((recurrent, [1] * 70), (recurrent, [33, 37]), (chunked, [1, 6, 40, 23])):
        state, rows, start = None, [], 0
        for size in sizes:
            span = slice(start, start + size)
            y, state = form(*(x[:, :, span] for x in qkv), **part(steer, span), state=state)
            rows.append(y)
            start += size
        assert relative_error(torch.cat(rows, 2), expected) < 1e-12
        assert relative_error(state, left) < 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_decay_however_strong_overflows_nowhere(rule):
    """exp of a whole chunk's decay is 0 here, and its inverse infinite: only differences may be raised."""
    qkv, steer = inputs(rule, length=64, strong=True)
    y, state = chunked(*qkv, **steer)
    expected, left = recurrent(*qkv, **steer)
    assert relative_error(y, expected) < 1e-5 and relative_error(state, left) < 1e-5
    if "gated" in rule:
        assert float(steer["log_decay"].sum(2).min()) < -150, "or this is no test"


def padded(qkv, steer, where):
    """Each token's column in a rectangle of 20, of which `where` holds those of 11 real tokens; the rest is NaN."""

    def spread(x):
        wide = x.new_full((*x.shape[:2], 20, *x.shape[3:]), math.nan)
        wide[:, :, where] = x
        return wide

    pos = torch.full((2, 20), -1)
    pos[:, where] = torch.arange(len(where))
    return [spread(x) for x in qkv], {name: spread(x) for name, x in steer.items()}, pos


PLACES = {"right": range(11), "left": range(9, 20), "inside": [0, 1, 3, 6, 7, 8, 12, 13, 14, 18, 19]}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("rule", RULES)
def test_padding_neither_adds_nor_decays(rule, where):
    """T59, fla #1272, transformers #48256: the loop's state is the one without padding, to the last bit."""
    qkv, steer = inputs(rule, length=11)
    expected, left = recurrent(*qkv, **steer)
    wide, told, pos = padded(qkv, steer, list(PLACES[where]))
    for form, exact in ((recurrent, True), (chunked, False)):
        y, state = form(*wide, **told, pos=pos)
        assert torch.isfinite(y).all() and not y[:, :, pos[0] < 0].any()
        assert relative_error(y[:, :, pos[0] >= 0], expected) < 1e-5
        assert relative_error(state, left) < 1e-5
        assert not exact or torch.equal(state, left)


@pytest.mark.parametrize("form", [recurrent, chunked])
@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_rests_keeps_its_state_to_the_last_bit(rule, form):
    """T3, T59: row 1 is all padding beside a row that works."""
    qkv, steer = inputs(rule, length=7)
    state = draws(2)(2, 3, 60, 37)
    pos = torch.tensor([list(range(7)), [-1] * 7])
    _, after = form(*qkv, **steer, state=state, pos=pos)
    assert torch.equal(after[1], state[1]) and not torch.equal(after[0], state[0])


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_states_are_kept_in_fp32_beside_bf16(form):
    """A bf16 state forgets what is smaller than a 256th of it: thousands of tokens add up to nothing."""
    qkv, steer = inputs("gated delta", length=65, dtype=torch.bfloat16)
    y, state = form(*qkv, **steer)
    assert y.dtype == torch.bfloat16 and state.dtype == torch.float32
    exact, left = recurrent(*(x.double() for x in qkv), **{name: x.double() for name, x in steer.items()})
    assert relative_error(state, left) < 1e-5 and relative_error(y, exact) < 5e-3
    assert form(*(x.double() for x in qkv))[1].dtype == torch.float64


@pytest.mark.parametrize("rule", ["delta", "gated delta", "gated a channel"])
def test_both_forms_have_the_same_gradients(rule):
    def gradients(form, **how):
        qkv, steer = inputs(rule, length=21, dim=6, width=5, dtype=torch.float64)
        leaves = [x.requires_grad_() for x in (*qkv, *steer.values())]
        y, state = form(*leaves[:3], **dict(zip(steer, leaves[3:], strict=True)), **how)
        return torch.autograd.grad(y.square().sum() + state.square().sum(), leaves)

    for ours, expected in zip(gradients(chunked, chunk=8), gradients(recurrent), strict=True):
        assert relative_error(ours, expected) < 1e-10


# What others have written


@pytest.mark.parametrize("length", [1, 63, 130])
def test_gated_delta_equals_transformers(length):
    """Qwen3-Next's two forms in plain PyTorch, their layout and their scale of the queries."""
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    (q, k, v), steer = inputs("gated delta", length=length)
    state = draws(1)(2, 3, 60, 37)
    rows = [x.transpose(1, 2) for x in (q, k, v, steer["log_decay"], steer["beta"])]
    for form in (theirs.torch_chunk_gated_delta_rule, theirs.torch_recurrent_gated_delta_rule):
        expected, left = form(*rows, initial_state=state, output_final_state=True)
        for ours in (recurrent, chunked):
            y, after = ours(q * 60**-0.5, k, v, **steer, state=state)
            assert relative_error(y.transpose(1, 2), expected) < 1e-5 and relative_error(after, left) < 1e-5


def test_decay_a_channel_equals_transformers():
    """Kimi Linear: the delta rule under one decay for each key channel."""
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    (q, k, v), steer = inputs("gated delta a channel", length=70)
    rows = [x.transpose(1, 2) for x in (q, k, v, steer["log_decay"], steer["beta"])]
    expected, left = theirs.recurrent_kimi_delta_attention(*rows, None, True)
    for ours in (recurrent, chunked):
        y, after = ours(q * 60**-0.5, k, v, **steer)
        assert relative_error(y.transpose(1, 2), expected) < 1e-5 and relative_error(after, left) < 1e-5


def test_a_fixed_decay_is_attention_with_weights_that_fade():
    """RetNet's parallel form (Sun et al. 2023, equation 5), written out: (q kᵀ ⊙ γ^(i-j)) v."""
    (q, k, v), _ = inputs("linear", length=33, dtype=torch.float64)
    gamma = torch.tensor([0.9, 0.99, 0.5], dtype=torch.float64)
    apart = torch.arange(33)[:, None] - torch.arange(33)
    fade = torch.where(apart >= 0, gamma[:, None, None] ** apart.clamp(min=0), 0.0)
    decay = gamma.log()[None, :, None].expand(2, -1, 33)
    for form in (recurrent, chunked):
        assert relative_error(form(q, k, v, log_decay=decay)[0], (q @ k.mT * fade) @ v) < 1e-12


def test_the_delta_rule_stores_a_value_in_the_place_of_the_old_one():
    """Worked number G3: beta 1 and keys of length 1 give k S = v, also where k had another value before."""
    k = F.normalize(torch.randn(1, 1, 4, 8, dtype=torch.float64), dim=-1)
    k[:, :, 3] = k[:, :, 1]
    v = torch.randn(1, 1, 4, 5, dtype=torch.float64)
    _, state = recurrent(k, k, v, beta=torch.ones(1, 1, 4, dtype=torch.float64))
    assert torch.allclose((k @ state)[0, 0, 3], v[0, 0, 3], atol=1e-12)
    _, added = recurrent(k, k, v)
    assert not torch.allclose((k @ added)[0, 0, 3], v[0, 0, 3], atol=0.1)


@pytest.mark.parametrize("form", [recurrent, chunked])
def test_shapes_that_do_not_belong_together_are_refused(form):
    (q, k, v), steer = inputs("gated delta", length=5)
    for wrong in (
        lambda: form(q[:, :1], k, v),
        lambda: form(q, k, v[:, :, :4]),
        lambda: form(q[0], k[0], v[0]),
        lambda: form(q[:, :, :0], k[:, :, :0], v[:, :, :0]),
        lambda: form(q, k, v, beta=steer["beta"][..., None]),
        lambda: form(q, k, v, log_decay=torch.zeros(2, 3, 5, 37)),
        lambda: form(q, k, v, state=torch.zeros(2, 3, 37, 60)),
        lambda: form(q, k, v, pos=torch.zeros(5)),
    ):
        with pytest.raises(ValueError, match=r"must be|takes q and k"):
            wrong()
    with pytest.raises(ValueError, match="one token at least"):
        chunked(q, k, v, chunk=0)


# The short convolution


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_a_short_convolution_equals_torch_in_pieces_and_whole(taps, length):
    draw = draws(dtype=torch.float64)
    x, weight = draw(2, 12, 5), draw(5, taps)
    expected = F.conv1d(F.pad(x.mT, (taps - 1, 0)), weight[:, None], groups=5).mT
    state, rows = None, []
    for piece in x.split(length, 1):
        y, state = short_conv(piece, weight, state=state)
        rows.append(y)
    assert relative_error(torch.cat(rows, 1), expected) < 1e-12
    assert (
        torch.equal(state, F.pad(x, (0, 0, taps - 1, 0))[:, 12:])
        and state.untyped_storage().nbytes() == 8 * state.numel()
    )


@pytest.mark.parametrize("where", PLACES)
def test_a_short_convolution_sees_across_padding(where):
    draw = draws(dtype=torch.float64)
    x, weight, before = draw(2, 11, 5), draw(5, 4), draw(2, 3, 5)
    expected, left = short_conv(x, weight, state=before)
    wide = torch.full((2, 20, 5), math.nan, dtype=torch.float64)
    at = torch.tensor(list(PLACES[where]))
    wide[:, at] = x
    pos = torch.full((2, 20), -1)
    pos[:, at] = torch.arange(11)
    y, state = short_conv(wide, weight, state=before, pos=pos)
    assert torch.equal(y[:, at], expected) and torch.equal(state, left)
    assert torch.isfinite(y).all()
    _, rested = short_conv(wide, weight, state=before, pos=torch.full((2, 20), -1))
    assert torch.equal(rested, before)


def test_a_convolution_of_another_shape_is_refused():
    x, weight = torch.zeros(2, 3, 5), torch.zeros(5, 4)
    for wrong in (
        lambda: short_conv(x, weight.mT),
        lambda: short_conv(x[0], weight),
        lambda: short_conv(x, weight, state=torch.zeros(2, 4, 5)),
        lambda: short_conv(x, weight, pos=torch.zeros(2, 4)),
    ):
        with pytest.raises(ValueError, match="got"):
            wrong()


# What a state remembers


@pytest.mark.parametrize("delta, decay", [(False, 1.0), (False, 0.95), (True, 1.0), (True, 0.95)])
def test_the_error_of_a_memory_is_the_one_that_was_predicted(delta, decay):
    """2,000 states of 30 pairs in 16 dimensions: the mean of |k S - v|² lies within 5 standard errors of the
    expectation, for five ages; the odds of a false alarm are below 1 in 100,000."""
    pairs, dim, states = 30, 16, 2000
    draw = draws(7, torch.float64)
    keys, values = (F.normalize(draw(states, 1, pairs, width), dim=-1) for width in (dim, 12))
    ones = torch.ones(states, 1, pairs, dtype=torch.float64)
    _, state = chunked(keys, keys, values, log_decay=ones * math.log(decay), beta=ones if delta else None)
    error = (keys @ state - values).square().sum(-1)[:, 0]
    for age in (0, 1, 5, 15, 29):
        seen = error[:, pairs - 1 - age]
        expected = recall_error(pairs, age, dim, delta=delta, decay=decay)
        assert abs(float(seen.mean()) - expected) < 5 * float(seen.std()) / states**0.5 + 1e-12, age


def test_a_memory_without_the_delta_rule_is_wrong_by_the_pairs_over_its_width():
    assert recall_error(33, 7, 16) == pytest.approx(32 / 16)
    assert recall_error(33, 0, 16, delta=True) == pytest.approx(0, abs=1e-12)


def test_recall_falls_with_pairs_and_rises_with_the_state():
    few, many = (simulated_recall(n, 16, 32, 64, trials=60) for n in (4, 64))
    wide = simulated_recall(64, 64, 32, 64, trials=60)
    share = [hits / total for hits, total in (few, many, wide)]
    assert few[1] == 240 and share[0] > 0.9 and share[1] < 0.6 < share[2]
    corrected = simulated_recall(16, 16, 32, 64, delta=True, trials=200)
    assert simulated_recall(16, 16, 32, 64, delta=True, trials=200) == corrected, "a seed is a seed"


@pytest.mark.parametrize(
    "wrong", [{"pairs": 0}, {"age": 4}, {"key_dim": 0}, {"decay": 1.5}, {"decay": -0.1}, {"age": 1.5}]
)
def test_a_memory_that_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        recall_error(**({"pairs": 4, "age": 0, "key_dim": 8} | wrong))
