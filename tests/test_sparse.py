"""Sparse attention: every method equals its naive twin over awkward sizes, and reads nothing that it did not choose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from lumen.attention import attention, visible
from lumen.attention.sparse import (
    NSA,
    SLA,
    BigBird,
    BlockMLP,
    Heads,
    bigbird_attention,
    block_means,
    compress,
    dsa_attention,
    dsa_work,
    full_work,
    index_loss,
    longformer_attention,
    moba_attention,
    moba_work,
    naive_bigbird,
    naive_dsa,
    naive_longformer,
    naive_moba,
    naive_nsa,
    naive_sla,
    nsa_attention,
    nsa_work,
    sla_attention,
    window_work,
)
from lumen.attention.sparse import recall as rc
from lumen.attention.sparse.blocks import as_reads, gathered, masked, routed, slots_of, top_blocks
from lumen.attention.sparse.dsa import dsa_tokens, index_scores
from lumen.attention.sparse.moba import moba_blocks
from lumen.attention.sparse.nsa import nsa_blocks
from lumen.attention.sparse.sla import block_classes

from .tiny import relative_error

SIZES = [(1, 1), (1, 65), (63, 63), (65, 65), (5, 70)]
SHAPE = NSA(block=8, stride=4, select=16, count=3, window=10, first=1, local=1)
DIM, VALUE = 60, 12


def drawn(num_q, num_k, batch=4, heads=9, kv_heads=3, dim=DIM, value_dim=VALUE, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    shapes = (batch, heads, num_q, dim), (batch, kv_heads, num_k, dim), (batch, kv_heads, num_k, value_dim)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def rows(num_q, num_k):
    """Four rows: whole, padded on the left, padded on the right, and nothing but padding."""
    held = max(1, num_k * 2 // 3)
    q_pos, k_pos = torch.full((4, num_q), -1), torch.full((4, num_k), -1)
    k_pos[0], k_pos[1, num_k - held :], k_pos[2, :held] = (torch.arange(n) for n in (num_k, held, held))
    for row, n in ((0, num_k), (1, held), (2, held)):
        new = min(num_q, n)
        q_pos[row, slice(0, new) if row == 2 else slice(num_q - new, num_q)] = torch.arange(n - new, n)
    return q_pos, k_pos


def index_of(q, k, seed=1):
    """What an indexer of two heads might have made of the same tokens; weights of both signs."""
    g = torch.Generator().manual_seed(seed)
    shapes = (q.shape[0], 2, q.shape[2], 6), (k.shape[0], k.shape[2], 6), (q.shape[0], q.shape[2], 2)
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(q.dtype) for shape in shapes]


def gates_of(q, seed=2):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(*q.shape[:3], 3, generator=g, dtype=torch.float64).to(q.dtype)


def three(x):
    """Three parts with keys (or values) of their own."""
    return x, x.flip(3) * 0.5, x + 1


def only(out_and_lse):
    return out_and_lse[0]


METHODS = {
    "nsa": lambda f, q, k, v, *pos: f(q, three(k), three(v), *pos, gates_of(q), SHAPE),
    "moba": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, block=16, top_k=2)),
    "dsa": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, *index_of(q, k), top_k=9)),
    "longformer": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, 7, first=3)),
    "bigbird": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, BigBird(8, 1, 1, 2))),
}
BOTH_WAYS = {
    "longformer": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, 7, first=3, causal=False)),
    "bigbird": lambda f, q, k, v, *pos: only(f(q, k, v, *pos, BigBird(8, 1, 1, 2), causal=False)),
    "sla": lambda f, q, k, v, *pos: f(q, k, v, *pos, project_of(v), SLA(8, 0.3, 0.2)),
}
FAST = {
    "nsa": nsa_attention, "moba": moba_attention, "dsa": dsa_attention, "sla": sla_attention,
    "longformer": longformer_attention, "bigbird": bigbird_attention,
}  # fmt: skip
NAIVE = {
    "nsa": naive_nsa, "moba": naive_moba, "dsa": naive_dsa, "sla": naive_sla,
    "longformer": naive_longformer, "bigbird": naive_bigbird,
}  # fmt: skip


def project_of(v):
    return torch.randn(
        v.shape[3], v.shape[3], generator=torch.Generator().manual_seed(3), dtype=torch.float64
    ).to(v.dtype)


@pytest.mark.parametrize(("num_q", "num_k"), SIZES)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_equals_its_naive_twin(method, num_q, num_k):
    """T = 1, 63, 65; D = 60; 9 heads over 3; rows padded left, right, throughout; fewer blocks than asked for."""
    q, k, v = drawn(num_q, num_k)
    q_pos, k_pos = rows(num_q, num_k)
    call = METHODS[method]
    ours, twin = call(FAST[method], q, k, v, q_pos, k_pos), call(NAIVE[method], q, k, v, q_pos, k_pos)
    assert relative_error(ours, twin) < 1e-12
    assert torch.isfinite(ours).all() and not ours[3].any() and ours[0].any()
    single = [x.float() for x in (q, k, v)]
    assert relative_error(call(FAST[method], *single, q_pos, k_pos), twin) < 1e-5


@pytest.mark.parametrize(("num_q", "num_k"), SIZES)
@pytest.mark.parametrize("method", BOTH_WAYS)
def test_in_both_directions_too(method, num_q, num_k):
    q, k, v = drawn(num_q, num_k)
    q_pos, k_pos = rows(num_q, num_k)
    call = BOTH_WAYS[method]
    ours, twin = call(FAST[method], q, k, v, q_pos, k_pos), call(NAIVE[method], q, k, v, q_pos, k_pos)
    assert relative_error(ours, twin) < 1e-12
    assert torch.isfinite(ours).all() and not ours[3].any() and ours[0].any()


COVERED = {
    "moba": lambda q, k, v, *pos: only(moba_attention(q, k, v, *pos, block=16, top_k=5)),
    "dsa": lambda q, k, v, *pos: only(dsa_attention(q, k, v, *pos, *index_of(q, k), top_k=65)),
    "nsa, selected": lambda q, k, v, *pos: nsa_attention(
        q,
        [k] * 3,
        [v] * 3,
        *pos,
        torch.tensor([0, 1.0, 0]).to(q).expand(*q.shape[:3], 3),
        NSA(8, 4, 16, 5, 9),
    ),
    "nsa, window": lambda q, k, v, *pos: nsa_attention(
        q,
        [k] * 3,
        [v] * 3,
        *pos,
        torch.tensor([0, 0, 1.0]).to(q).expand(*q.shape[:3], 3),
        NSA(8, 4, 16, 5, 65),
    ),
    "longformer": lambda q, k, v, *pos: only(longformer_attention(q, k, v, *pos, 4, first=65)),
    "bigbird": lambda q, k, v, *pos: only(bigbird_attention(q, k, v, *pos, BigBird(8, 1, 1, 9))),
}


@pytest.mark.parametrize("num_q", [1, 65])
@pytest.mark.parametrize("method", COVERED)
def test_a_budget_for_everything_is_full_attention(method, num_q):
    q, k, v = drawn(num_q, 65)
    pos = rows(num_q, 65)
    assert relative_error(COVERED[method](q, k, v, *pos), attention(q, k, v, *pos)) < 1e-12


def test_sla_with_all_blocks_critical_is_full_attention_and_with_none_but_one_is_not():
    q, k, v = drawn(65, 65)
    pos = rows(65, 65)
    wanted = attention(q, k, v, *pos, causal=False)
    assert relative_error(sla_attention(q, k, v, *pos, project_of(v), SLA(8, 1.0, 0.0)), wanted) < 1e-12
    assert relative_error(sla_attention(q, k, v, *pos, project_of(v), SLA(8, 0.0, 0.0)), wanted) > 0.1


@pytest.mark.parametrize("method", [*METHODS, "sla"])
def test_slots_in_any_order_are_the_same_attention(method):
    """Positions are data: blocks are of positions, not of slots."""
    q, k, v = drawn(63, 63)
    q_pos, k_pos = rows(63, 63)
    order = torch.randperm(63, generator=torch.Generator().manual_seed(0))
    index_q, index_k, index_w = index_of(q, k)
    mixed = k[:, :, order], v[:, :, order], q_pos, k_pos[:, order]
    if method == "dsa":
        wanted = dsa_attention(q, k, v, q_pos, k_pos, index_q, index_k, index_w, top_k=9)[0]
        ours = dsa_attention(q, *mixed, index_q, index_k[:, order], index_w, top_k=9)[0]
    else:
        call = (METHODS | BOTH_WAYS)[method]
        wanted, ours = call(FAST[method], q, k, v, q_pos, k_pos), call(FAST[method], q, *mixed)
    assert relative_error(ours, wanted) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_what_lies_ahead_changes_nothing(method):
    """Causal at block edges: keys from position 37 on are others, queries below it answer as before. NSA would fail by
    a compressed block that is read before it is complete, MoBA by the mean of a block that is not past."""
    q, k, v = drawn(65, 65, batch=1)
    pos = torch.arange(65)[None]
    later_k, later_v = k.clone(), v.clone()
    later_k[:, :, 37:], later_v[:, :, 37:] = 30 * k[:, :, 37:].flip(2), -v[:, :, 37:]
    call = METHODS[method]
    before, after = call(FAST[method], q, k, v, pos, pos), call(FAST[method], q, later_k, later_v, pos, pos)
    assert relative_error(after[:, :, :37], before[:, :, :37]) < 1e-12
    assert relative_error(after[:, :, 37:], before[:, :, 37:]) > 0.1


@pytest.mark.parametrize("method", METHODS)
def test_a_decode_step_is_the_prefill_s_last_row(method):
    q, k, v = drawn(65, 65, batch=1)
    pos = torch.arange(65)[None]
    call = METHODS[method]
    whole = _whole(method, q, k, v, pos)
    for t in (0, 7, 8, 31, 47, 64):
        if method == "nsa":
            step = nsa_attention(
                q[:, :, t : t + 1], three(k[:, :, : t + 1]), three(v[:, :, : t + 1]),
                pos[:, t : t + 1], pos[:, : t + 1], gates_of(q)[:, :, t : t + 1], SHAPE,
            )  # fmt: skip
        elif method == "dsa":
            index_q, index_k, index_w = index_of(q, k)
            step, _ = dsa_attention(
                q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], pos[:, t : t + 1], pos[:, : t + 1],
                index_q[:, :, t : t + 1], index_k[:, : t + 1], index_w[:, t : t + 1], top_k=9,
            )  # fmt: skip
        else:
            at = pos[:, t : t + 1], pos[:, : t + 1]
            step = call(FAST[method], q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], *at)
        assert relative_error(step, whole[:, :, t : t + 1]) < 1e-12, t


def _whole(method, q, k, v, pos):
    return METHODS[method](FAST[method], q, k, v, pos, pos)


# what is kept between steps ----------------------------------------------------------------------
def test_compressed_keys_are_kept_and_only_the_new_block_is_made():
    """Rows of unlike length: a block that one row lacks is made again, and those that all have are not."""
    _, k, v = drawn(1, 40, batch=2)
    k_pos = torch.stack([torch.arange(40), torch.arange(40) - 9])  # the second row is padded on the left
    k_pos[k_pos < 0] = -1
    torch.manual_seed(0)
    squeeze = BlockMLP(8, DIM).double(), BlockMLP(8, VALUE).double()
    shape, made = NSA(8, 4, 16, 3, 9), []

    def counted(x):
        made.append(x.shape[2])
        return squeeze[0](x)

    held = None
    for end in range(10, 41):
        early = torch.where(torch.arange(40) < end, k_pos, -1)[:, :end]
        held = compress(k[:, :, :end], v[:, :, :end], early, shape, (counted, squeeze[1]), held)
        fresh = compress(k[:, :, :end], v[:, :, :end], early, shape, squeeze)
        assert torch.equal(held.pos, fresh.pos)
        real = (held.pos >= 0)[:, None, :, None]
        for kept, wanted in ((held.k, fresh.k), (held.v, fresh.v)):
            assert torch.allclose(kept * real, wanted * real, rtol=1e-12)
    assert held.pos.tolist() == [[7, 11, 15, 19, 23, 27, 31, 35, 39], [7, 11, 15, 19, 23, 27, -1, -1, -1]]
    assert max(made[5:]) <= 4, "the blocks that only the longer row has, and one more"


def test_moba_with_kept_means_reads_chosen_blocks_alone():
    q, k, v = drawn(1, 64, batch=1)
    pos = torch.tensor([[63]]), torch.arange(64)[None]
    means = block_means(k, slots_of(pos[1], 8))
    wanted, _ = moba_attention(q, k, v, *pos, block=8, top_k=3)
    ours, _ = moba_attention(q, k, v, *pos, block=8, top_k=3, means=means)
    assert torch.equal(ours, wanted)
    with pytest.raises(ValueError, match="block_means"):
        moba_attention(q, k, v, *pos, block=16, top_k=3, means=means)


# what is skipped ---------------------------------------------------------------------------------
@pytest.mark.parametrize("order", ["gathered", "routed"])
def test_a_block_that_nobody_reads_is_not_touched(order):
    """Its keys and values are NaN, which would reach the output through a mask (0 x NaN)."""
    q, k, v = drawn(3, 64, batch=1)
    q_pos, k_pos = torch.tensor([[40, 50, 63]]), torch.arange(64)[None]
    slots = slots_of(k_pos, 8)
    chosen = torch.tensor([[5, 0], [6, -1], [7, 3]]).expand(1, 3, -1, -1)
    unread = torch.isin(k_pos[0] // 8, torch.tensor([1, 2, 4]))
    k[:, :, unread], v[:, :, unread] = float("nan"), float("nan")
    if order == "gathered":
        out, lse = gathered(q, k, v, q_pos, slots, chosen)
    else:
        out, lse = routed(q, k, v, q_pos, slots, as_reads(chosen.repeat_interleave(3, 1), 8))
    clean_k, clean_v = k.nan_to_num(0.0), v.nan_to_num(0.0)
    seen = as_reads(chosen, 8)[..., k_pos[0] // 8] & visible(q_pos, k_pos)
    wanted, whole = masked(q, clean_k, clean_v, seen)
    assert torch.isfinite(out).all() and relative_error(out, wanted) < 1e-12
    assert torch.allclose(lse, whole, rtol=1e-12)


def test_blocks_that_lie_ahead_are_not_computed_with():
    """All blocks are asked for: of block i, the queries from its first position on are brought to it, and no others."""
    q, k, v = drawn(64, 64, batch=1)
    pos = torch.arange(64)[None]
    reads = torch.ones(1, 9, 64, 8, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        out, _ = routed(q, k, v, pos, slots_of(pos, 8), reads)
    assert counter.get_total_flops() == 2 * 9 * sum((64 - 8 * i) * 8 for i in range(8)) * (DIM + VALUE)
    assert relative_error(out, attention(q, k, v, pos, pos)) < 1e-12


def test_padding_reads_no_block_and_the_draw_of_a_query_stays():
    shape = BigBird(8, 1, 1, 2)
    assert not shape.reads(3, torch.tensor([[-1, 3]]), 2)[:, :, 0].any()
    assert all(shape.blocks(h, 7, 8) == shape.blocks(h, 7, 30) for h in range(9))
    assert len({tuple(shape.blocks(h, 20, 30)) for h in range(9)}) > 1, "heads draw apart"


def test_an_open_place_is_minus_one_and_no_block_is_read_twice():
    q, k, _ = drawn(65, 65)
    q_pos, k_pos = rows(65, 65)
    slots = slots_of(k_pos, 16)
    _, nsa = nsa_blocks(q, compress(k, k, k_pos, SHAPE), q_pos, slots, SHAPE)
    for chosen in (moba_blocks(q, block_means(k, slots), q_pos, slots, 4), nsa):
        own = (q_pos // 16)[:, None, :, None]
        assert ((chosen >= -1) & ((chosen <= own) | (chosen < 0))).all()
        assert (chosen[3] == -1).all(), "padding reads nothing"
        count = as_reads(chosen, 5).sum(-1)
        assert torch.equal(count, (chosen >= 0).sum(-1)), "none twice"
        assert torch.equal(
            count[0], torch.minimum(own[0, ..., 0] + 1, torch.tensor(chosen.shape[3])).expand_as(count[0])
        )


def test_equal_scores_go_to_the_earlier_block():
    scores = torch.tensor([0.0, 2.0, 0.0, 0.0, 5.0])
    allowed = torch.tensor([True, True, True, True, False])
    assert top_blocks(scores, allowed, 3).tolist() == [1, 0, 2]
    assert top_blocks(scores, allowed, 3, torch.tensor([False, False, False, True, True])).tolist() == [
        3,
        1,
        0,
    ]
    assert top_blocks(scores, allowed & (scores > 9), 2).tolist() == [-1, -1]


# against others ----------------------------------------------------------------------------------
def test_any_mask_equals_torch():
    q, k, v = drawn(9, 31)
    seen = torch.rand(4, 9, 9, 31, generator=torch.Generator().manual_seed(0)) < 0.2
    out, lse = masked(q, k, v, seen)
    many_k, many_v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
    wanted = F.scaled_dot_product_attention(q, many_k, many_v, attn_mask=seen).nan_to_num(0.0)
    assert relative_error(out, wanted) < 1e-12
    scores = (q @ many_k.transpose(2, 3) / DIM**0.5).masked_fill(~seen, float("-inf"))
    assert torch.allclose(lse, scores.logsumexp(-1), rtol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_equal_torch_s_flexattention(causal):
    """MoBA's and BigBird's choice, handed to an implementation that is not ours."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (x.float() for x in drawn(64, 64, batch=2, value_dim=DIM))
    pos = torch.arange(64).expand(2, -1)
    shape = BigBird(8, 1, 1, 2)
    reads = shape.reads(9, pos, 8, causal)
    if causal:
        reads = as_reads(moba_blocks(q, block_means(k, slots_of(pos, 8)), pos, slots_of(pos, 8), 3), 8)
    number = torch.arange(64) // 8

    def score(score, b, h, i, j):
        seen = reads[b, h, i, number[j]] & ((j <= i) | (not causal))
        return torch.where(seen, score, -float("inf"))

    wanted = flex_attention(q, k, v, score_mod=score, enable_gqa=True)
    if causal:
        ours, _ = moba_attention(q, k, v, pos, pos, block=8, top_k=3)
    else:
        ours, _ = bigbird_attention(q, k, v, pos, pos, shape, causal=False)
    assert relative_error(ours, wanted) < 1e-5


def test_longformer_equals_hugging_face():
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    torch.manual_seed(0)
    config = LongformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        num_hidden_layers=1,
        attention_window=[8],
        attention_probs_dropout_prob=0.0,
    )
    theirs = LongformerSelfAttention(config, 0).eval().requires_grad_(False)
    for name in ("query", "key", "value"):
        getattr(theirs, f"{name}_global").load_state_dict(getattr(theirs, name).state_dict())
    x = torch.randn(2, 32, 24)
    whole = (torch.arange(32) < 3).expand(2, -1)
    wanted = theirs(x, torch.where(whole, 10000.0, 0.0), torch.zeros(2, 32, dtype=torch.bool), whole, True)[0]
    q, k, v = (getattr(theirs, n)(x).unflatten(-1, (3, 8)).transpose(1, 2) for n in ("query", "key", "value"))
    pos = torch.arange(32).expand(2, -1)
    ours, _ = longformer_attention(q, k, v, pos, pos, 5, first=3, causal=False)
    assert relative_error(ours.transpose(1, 2).flatten(2), wanted) < 1e-5


# gradients ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("method", ["nsa", "moba"])
def test_gradients_equal_those_of_the_twin(method):
    """Both are made to be trained with."""
    q_pos, k_pos = rows(33, 33)
    grads = []
    for f in (FAST[method], NAIVE[method]):
        given = [x.requires_grad_() for x in drawn(33, 33)]
        out = METHODS[method](f, *given, q_pos, k_pos)
        (out * torch.arange(VALUE)).sum().backward()
        grads.append([x.grad for x in given])
    for ours, twin in zip(*grads, strict=True):
        assert torch.isfinite(ours).all() and relative_error(ours, twin) < 1e-10


def test_the_indexer_s_loss_is_the_divergence():
    q, k, _ = drawn(20, 20)
    q_pos, k_pos = rows(20, 20)
    weights, seen = rc.weights_of(q, k, q_pos, k_pos), visible(q_pos, k_pos)[:, 0]
    target = weights.mean(1)
    exact = torch.where(seen, target.clamp_min(1e-300).log(), -1e4)
    assert abs(float(index_loss(exact, weights, seen))) < 1e-9, "none from itself"
    flat = index_loss(torch.zeros_like(target), weights, seen)
    entropy = -(target * target.clamp_min(1e-300).log()).sum(-1)
    wanted = (seen.sum(-1).clamp_min(1).double().log() - entropy)[seen.any(-1)].mean()
    assert torch.allclose(flat, wanted, rtol=1e-9)


# what it costs -----------------------------------------------------------------------------------
def test_the_counted_flops_are_those_that_torch_counts():
    """A decode step at 1,024 keys in whole tiles: torch's own counter, of what really runs."""
    context, heads = 1024, Heads(9, 3, 16, 16)
    q, k, v = (x.float() for x in drawn(1, context, batch=1, dim=16, value_dim=16))
    pos = torch.tensor([[context - 1]]), torch.arange(context)[None]
    shape = NSA(32, 16, 64, 4, 128)
    held = compress(k, v, pos[1], shape)
    means = block_means(k, slots_of(pos[1], 64))
    index = [x.float() for x in index_of(q, k)]
    gates = gates_of(q)
    runs = {
        full_work(heads, context): lambda: masked(q, k, v, visible(*pos)),
        window_work(heads, context, 128): lambda: longformer_attention(q, k, v, *pos, 128),
        nsa_work(heads, context, shape): lambda: nsa_attention(
            q, [k] * 3, [v] * 3, *pos, gates, shape, held=held
        ),
        moba_work(heads, context, 64, 3): lambda: moba_attention(
            q, k, v, *pos, block=64, top_k=3, means=means
        ),
        dsa_work(heads, context, 50, 2, 6, 4): lambda: dsa_attention(q, k, v, *pos, *index, top_k=50),
    }
    for work, run in runs.items():
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == work.flops


def test_adding_up_scores_over_blocks_multiplies_nothing():
    heads, shape, context = Heads(32, 8, 128, 128), NSA(), 131_072
    coarse = (context - shape.block) // shape.stride + 1
    keys = coarse + shape.count * shape.select + shape.window
    lean = nsa_work(heads, context, shape, dense_map=False)
    assert lean.flops == heads.attend(keys).flops < nsa_work(heads, context, shape).flops
    assert lean.read == nsa_work(heads, context, shape).read


def test_the_counted_bytes_by_hand():
    heads = Heads(9, 3, 64, 64)  # SmolLM2's layer: 3 x 128 numbers of two bytes a token
    assert full_work(heads, 1000).read == 768_000
    assert window_work(heads, 1000, 512).read == window_work(heads, 512, 512).read == 768 * 512
    coarse = (65536 - 32) // 16 + 1
    assert nsa_work(heads, 65536).read == 768 * (coarse + 16 * 64 + 512)
    assert moba_work(heads, 65536).read == 128 * 384 + 3 * 3 * 512 * 768, "heads of a group fetch apart"
    assert dsa_work(heads, 65536).read == 65536 * 128 + 2048 * 768
    with pytest.raises(ValueError, match="1 or more"):
        full_work(heads, 0)


# what a selection catches ------------------------------------------------------------------------
def test_no_selection_catches_more_than_the_heaviest_and_all_catch_all_with_room():
    q, k, _ = drawn(65, 65)
    q_pos, k_pos = rows(65, 65)
    weights, index = rc.weights_of(q, k, q_pos, k_pos), index_of(q, k)
    some = {
        "newest": lambda n: rc.newest(q_pos, k_pos, n), "first": lambda n: rc.newest(q_pos, k_pos, n, 2),
        "random": lambda n: rc.drawn(q_pos, k_pos, n), "mean": lambda n: rc.by_mean(q, k, q_pos, k_pos, n, 8),
        "bound": lambda n: rc.by_bound(q, k, q_pos, k_pos, n, 8, True),
        "compressed": lambda n: rc.by_compressed(q, k, q_pos, k_pos, n, 8),
        "index": lambda n: rc.by_index(*index, q_pos, k_pos, n), "heaviest": lambda n: rc.heaviest(weights, n),
    }  # fmt: skip
    best = rc.caught(weights, rc.heaviest(weights, 16))
    real = (q_pos >= 0)[:, None].expand_as(best.mass)
    assert torch.equal(best.mass.isnan(), ~real) and torch.equal(best.top.isnan(), ~real)
    for name, select in some.items():
        picked = select(16)
        assert picked.sum(-1).max() <= 16 and not (picked & ~visible(q_pos, k_pos)).any(), name
        few, many = rc.caught(weights, picked, 16), rc.caught(weights, select(72), 16)
        assert (few.mass[real] <= best.mass[real] + 1e-12).all(), name
        assert torch.allclose(many.mass[real], torch.ones(()).double()) and (many.top[real] == 1).all(), name
    assert (best.top[real] == 0).sum() == 0 and rc.caught(weights, some["random"](16)).top[real].mean() < 0.9


def test_the_bound_of_a_block_is_one():
    """Quest: no key of a block scores above it. The block with the best key is not always the best by its mean."""
    q, k, _ = drawn(1, 64, batch=1)
    pos = torch.tensor([[63]]), torch.arange(64)[None]
    keys = k.unflatten(2, (8, 8))
    low, high = keys.amin(3), keys.amax(3)
    grouped = q.unflatten(1, (3, 3))
    bound = torch.maximum(
        grouped[:, :, :, :, None] * low[:, :, None, None], grouped[:, :, :, :, None] * high[:, :, None, None]
    )
    largest = (grouped[..., None, :, :] @ keys[:, :, None].transpose(-1, -2)).amax(-1).transpose(-1, -2)
    assert (bound.sum(-1) >= largest).all()
    picked = rc.by_bound(q, k, *pos, 16, 8)
    best = bound.sum(-1).flatten(1, 2)[0, :, 0]
    best[:, 7] = float("inf")
    wanted = best.topk(2, -1).indices
    assert torch.equal(picked[0, :, 0].unflatten(-1, (8, 8)).any(-1), F.one_hot(wanted, 8).sum(1).bool())


def test_the_indexer_reads_tokens_of_the_largest_scores():
    q, k, _ = drawn(30, 30)
    q_pos, k_pos = rows(30, 30)
    index = index_of(q, k)
    chosen = dsa_tokens(*index, q_pos, slots_of(k_pos, 1), 5)[:, 0]
    scores = index_scores(*index)[0].masked_fill(~visible(q_pos, k_pos)[0, 0], float("-inf"))
    for t in range(5, 30):
        if scores[t].topk(6).values.diff().abs().min() > 0:  # a ReLU makes ties
            assert set(chosen[0, t].tolist()) == set(scores[t].topk(5).indices.tolist())


def test_sla_s_classes_are_shares_of_the_blocks_that_hold_keys():
    q, k, _ = drawn(65, 65)
    pos = rows(65, 65)
    classes = block_classes(q, k, *(slots_of(p, 8) for p in pos), SLA(8, 0.25, 0.5))
    held = [9, 6, 6, 0]
    assert SLA(8, 0.0, 1.0).counts(7) == (1, 6), "one is always critical"
    assert (classes == 1).sum(-1)[:, 0, 0].tolist() == [2, 2, 2, 0]
    assert (classes == 0).sum(-1)[:, 0, 0].tolist() == [n - round(0.25 * n) - round(0.5 * n) for n in held]


# errors ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda q, k, v, p: moba_attention(q, k, v, *p, top_k=0), "own block at least"),
        (lambda q, k, v, p: moba_attention(q, k, v, *p, block=0), "one position at least"),
        (lambda q, k, v, p: moba_attention(q, k[:, :2], v[:, :2], *p), "not a multiple"),
        (lambda q, k, v, p: moba_attention(q, k, v, p[0], p[1].clamp_max(5)), "stand at one position"),
        (lambda q, k, v, p: dsa_attention(q, k, v, *p, *index_of(q, k), top_k=0), "one token at least"),
        (lambda q, k, v, p: dsa_attention(q, k, v, *p, *index_of(q, k)[::-1], top_k=3), "must belong"),
        (lambda q, k, v, p: naive_dsa(q, k, v, *p, *index_of(q, k)[:2], gates_of(q), top_k=3), "must belong"),
        (lambda q, k, v, p: nsa_attention(q, [k] * 2, [v] * 2, *p, gates_of(q), SHAPE), "three parts"),
        (
            lambda q, k, v, p: nsa_attention(q, [k] * 3, [v] * 3, *p, gates_of(q)[..., :2], SHAPE),
            "gates must be",
        ),
        (
            lambda q, k, v, p: nsa_attention(q, [k] * 3, [v, v, v[..., 1:]], *p, gates_of(q), SHAPE),
            "of one shape",
        ),
        (lambda q, k, v, p: longformer_attention(q, k, v, *p, 0), "one token at least"),
        (lambda q, k, v, p: longformer_attention(q, k, v, *p, 3, first=-1), "none at least"),
        (lambda q, k, v, p: bigbird_attention(q, k[0], v, *p), "four dimensions"),
        (lambda q, k, v, p: sla_attention(q, k, v, *p, torch.eye(3), SLA()), "project must be"),
        (lambda q, k, v, p: rc.by_mean(q, k, *p, 8, 8, True), "no room"),
        (lambda q, k, v, p: rc.newest(*p, 0), "one key a query"),
        (
            lambda q, k, v, p: rc.caught(rc.weights_of(q, k, *p), torch.ones(4, 2, 5, 7, dtype=torch.bool)),
            "a divisor",
        ),
        (lambda q, k, v, p: NSA(stride=24), "must divide"),
        (lambda q, k, v, p: NSA(count=2), "no room"),
        (lambda q, k, v, p: NSA(window=0), "whole numbers"),
        (lambda q, k, v, p: BigBird(0), "one position"),
        (lambda q, k, v, p: SLA(64, 0.8, 0.3), "add up to 1"),
    ],
)
def test_what_does_not_belong_together_is_refused(call, why):
    q, k, v = drawn(5, 7)
    with pytest.raises(ValueError, match=why):
        call(q, k, v, (torch.arange(5).expand(4, -1), torch.arange(7).expand(4, -1)))


@pytest.mark.parametrize("method", [*METHODS, "sla"])
def test_a_batch_of_nothing_but_padding_is_zeros(method):
    q, k, v = drawn(5, 7)
    pos = torch.full((4, 5), -1), torch.full((4, 7), -1)
    assert not (METHODS | BOTH_WAYS)[method](FAST[method], q, k, v, *pos).any()
