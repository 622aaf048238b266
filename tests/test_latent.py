"""Multi-head latent attention: read either way it equals a literal twin, at every position, in every cache (T14)."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lumen.cache import BlockStore, DecodeBatch, DynamicCache, NoCache, PackedCache, Segment, StaticCache
from lumen.config import ModelConfig
from lumen.cost import kv_bytes
from lumen.decode import generate
from lumen.models.counts import absorbs, expand_flops, pair_flops
from lumen.models.lora import Adapters
from lumen.models.observe import observe
from lumen.models.passing import Pass
from lumen.models.shard import shard_config
from lumen.parts import Latent
from lumen.serve.engine import Engine
from lumen.serve.request import Request

from .tiny import relative_error, tiny_gpt, tiny_latent, tiny_llama

CLOSE = 1e-12
PROMPT = [5, 9, 2, 7, 1, 3, 3, 8, 30, 12, 4, 44, 17, 60, 21, 6, 50]  # positions 0 to 16
SHAPES = {
    "as DeepSeek-V2-Lite": Latent(11, 6, 5),
    "queries compressed, as V3": Latent(11, 6, 5, query_rank=14),
    "values wider than keys": Latent(13, 2, 17),
    "no norms, two rotary keys": Latent(9, 8, normed=False, repeats=2),
    "rank 1": Latent(1, 2, 1, 1),
}


def read_by(model, absorb):
    """The model, all layers of it reading in this way."""
    for block in model.blocks:
        block.attn.absorb = absorb
    return model


def twin(attn, config, x, pos):
    """DeepSeek-V2, section 2.1, equations 9 to 19, a query and a head at a time. x (T, D), pos (T,) -> (T, D)."""
    latent, heads, nope = config.latent, config.num_heads, config.head_dim
    value = latent.value or nope

    def turned(channels, position):
        pairs = latent.rope // latent.repeats // 2
        angles = torch.tensor([position * config.rope_theta ** (-i / pairs) for i in range(pairs)]).double()
        turns = torch.polar(torch.ones_like(angles), angles).repeat(latent.repeats)
        return torch.view_as_real(torch.complex(channels[0::2], channels[1::2]) * turns).flatten()

    def normed(channels, norm):
        return (
            channels / (channels.square().mean() + 1e-6).sqrt() * norm.weight if latent.normed else channels
        )

    out, latents, keys = [], [], []
    for t, row in enumerate(x @ attn.down.weight.mT):
        first = len(row) - latent.rank - latent.rope
        latents.append(normed(row[first : first + latent.rank], attn.kv_norm))
        keys.append(turned(row[first + latent.rank :], int(pos[t])))
        q = row[:first]
        if latent.query_rank:
            q = attn.q_up.weight @ normed(q, attn.q_norm)
        y = []
        for q_head, up in zip(
            q.split(nope + latent.rope), attn.kv_up.weight.split(nope + value), strict=True
        ):
            asked = torch.cat([q_head[:nope], turned(q_head[nope:], int(pos[t]))])
            scores = [asked @ torch.cat([up[:nope] @ c, key]) for c, key in zip(latents, keys, strict=True)]
            weights = (torch.stack(scores) / (nope + latent.rope) ** 0.5).softmax(0)
            y.append(sum(w * (up[nope:] @ c) for w, c in zip(weights, latents, strict=True)))
        assert len(y) == heads
        out.append(attn.out.weight @ torch.cat(y))
    return torch.stack(out)


@pytest.mark.parametrize("absorb", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_equal_the_literal_twin(shape, absorb):
    """Rows of one and of several tokens, from position 0 and from 17, where a wrong scale can no longer hide."""
    model = read_by(tiny_latent(torch.float64, latent=SHAPES[shape]), absorb)
    attn = model.blocks[1].attn
    for length, start in ((1, 0), (5, 0), (3, 17)):
        x = torch.randn(2, length, 72, generator=torch.Generator().manual_seed(length), dtype=torch.float64)
        pos = torch.arange(start, start + length).expand(2, -1)
        cache = NoCache()
        cache.begin(pos)
        got = attn(x.flatten(0, 1), Pass(pos, cache, model.turns(pos)), 1).view(x.shape)
        for row in range(2):
            # tables of angles are kept in fp32
            assert relative_error(got[row], twin(attn, model.config, x[row], pos[row])) < 1e-6


def fed_dense(make):
    def feed(model, chunks):
        cache = make(model)
        return torch.cat([model(torch.tensor([chunk] * 2), None, cache) for chunk in chunks], 1)[1]

    return feed


def fed_packed(model, chunks):
    """Beside a stranger that takes as many tokens, in blocks of 4."""
    store, start, out = BlockStore.for_model(model, 30, 4), 0, []
    for chunk in chunks:
        segments = [Segment(range(10, 20), start, len(chunk)), Segment(range(10), start, len(chunk))]
        cache = PackedCache(store, segments)
        out.append(model(torch.tensor([[*chunk[::-1], *chunk]]), cache.pos, cache)[0, len(chunk) :])
        start += len(chunk)
    return torch.cat(out)


def fed_decode_batch(model, chunks):
    """Prompts go through packed forwards, single tokens through the batch of fixed shape."""
    store, start, out = BlockStore.for_model(model, 30, 4), 0, []
    batch = DecodeBatch(store, 3, 10)
    for chunk in chunks:
        segments = [Segment(range(10, 20), start, len(chunk)), Segment(range(10), start, len(chunk))]
        if len(chunk) > 1:
            cache = PackedCache(store, segments)
            out.append(model(torch.tensor([[*chunk[::-1], *chunk]]), cache.pos, cache)[0, len(chunk) :])
        else:
            batch.load(segments)
            out.append(model(torch.tensor([chunk * 2 + [0]]), batch.pos, batch)[0, 1:2])
        start += len(chunk)
    return torch.cat(out)


KINDS = {
    "dynamic": fed_dense(lambda m: DynamicCache.for_model(m, 2)),
    "static": fed_dense(lambda m: StaticCache.for_model(m, 2, 20)),
    "paged": fed_dense(lambda m: BlockStore.for_model(m, 14, 3).rows(2)),
    "packed": fed_packed,
    "decode batch": fed_decode_batch,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("absorb", [False, True, None])
def test_every_cache_gives_what_none_gives_at_positions_0_and_17(kind, absorb):
    """The first token alone, prompts in one go or in chunks, answers token by token: read in either way, or both."""
    model, ids = tiny_latent(torch.float64), [*PROMPT, 11, 2]
    expected = read_by(model, False)(torch.tensor([ids]))[0]
    for cuts in ([1, 16, 1, 1], [17, 1, 1], [5, 7, 5, 2]):
        chunks = [list(chunk) for chunk in torch.tensor(ids).split(cuts)]
        got = KINDS[kind](read_by(model, absorb), [[int(i) for i in chunk] for chunk in chunks])
        assert relative_error(got[0], expected[0]) < CLOSE and relative_error(got[17], expected[17]) < CLOSE
        assert relative_error(got, expected) < CLOSE


def test_answers_of_the_engine_are_those_of_generate():
    model, prompts = tiny_latent(torch.float64), [PROMPT, [3], PROMPT[:6]]
    engine = Engine(model, num_blocks=40, block_size=4)
    answers: dict[str, list[int]] = {str(i): [] for i in range(3)}
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), tuple(prompt), 9, eos_ids=()))
    for delta in engine.stream():
        answers[delta.request_id] += delta.tokens
    for i, done in enumerate(generate(model, prompts, 9, eos_ids=())):
        assert answers[str(i)] == done.tokens


def test_a_token_takes_rank_and_rope_numbers_however_many_heads_there_are():
    model = tiny_latent()
    cache = StaticCache.for_model(model, 2, 9)  # and the slot that padding is written to
    assert cache.nbytes == 2 * 10 * 3 * (11 + 6) * 4 == kv_bytes(model.config, 10, batch=2, dtype="fp32")


# Which way, and what it costs


def counted(model, held, new):
    """FLOPs of `new` tokens behind `held`, as torch counts them."""
    cache = StaticCache.for_model(model, 1, held + new)
    with torch.inference_mode():
        if held:
            model(torch.zeros(1, held, dtype=torch.int64), None, cache)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, new, dtype=torch.int64), None, cache)
    return counter.get_total_flops()


@pytest.mark.parametrize("new", [1, 12, 14, 30])
def test_the_way_that_is_chosen_takes_fewer_flops_behind_a_long_context(new):
    """132 / 10 = 13.2 new tokens are the even point of this shape."""
    model, held = tiny_latent(torch.float64, max_positions=400), 300
    expanded, absorbed = (counted(read_by(model, absorb), held, new) for absorb in (False, True))
    assert absorbs(model.config, new) == (new <= 13) == (absorbed < expanded)
    assert counted(read_by(model, None), held, new) == min(absorbed, expanded)


def test_a_published_shape_absorbs_up_to_171_tokens():
    v3 = ModelConfig(
        "v3", 129280, 61, 7168, 128, 128, 128, 18432, 4096, latent=Latent(512, 64, query_rank=1536)
    )
    assert pair_flops(v3, False) == 2 * 128 * (192 + 128) and pair_flops(v3, True) == 2 * 128 * (576 + 512)
    assert expand_flops(v3) == 2 * 512 * 128 * 256
    assert absorbs(v3, 170) and not absorbs(v3, 171)
    assert absorbs(v3.with_(latent=Latent(96, 64)), 10**9), "of a small rank wide pairs are the narrow ones"
    assert expand_flops(v3.with_(latent=None)) == 0 and pair_flops(v3.with_(latent=None)) == 4 * 128 * 128


def test_a_packed_step_counts_its_sequences_and_not_its_tokens():
    """Every token is a row of its own there: a prompt of 30 tokens would be absorbed like 30 answers."""
    model = tiny_latent(torch.float64)
    store, seen = BlockStore.for_model(model, 40, 4), []
    for segments in (
        [Segment(range(9), 0, 30)],
        [Segment(range(10 * i, 10 * i + 9), 5, 1) for i in range(4)],
    ):
        cache = PackedCache(store, segments)
        laid = cache.laid_out(cache.pos)
        assert cache.num_sequences(laid) == len(segments)
        attend = cache.attend
        cache.attend = lambda layer, q, *args, attend=attend, **rest: (
            seen.append(q.shape[3]) or attend(layer, q, *args, **rest)
        )
        model(torch.zeros_like(cache.pos), cache.pos, cache)
    assert seen == [7 + 6] * 3 + [11 + 6] * 3  # heads' queries expanded, latents' absorbed


# What is refused


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Latent(0, 4), "has channels"),
        (lambda: Latent(8, 3), "even number of rotary"),
        (lambda: Latent(8, 6, repeats=2), "even number of rotary"),
        (lambda: Latent(8, 4, value=0), "Latent.value"),
        (lambda: Latent(8, 4, query_rank=-1), "Latent.query_rank"),
        (lambda: tiny_llama(latent=Latent(8, 0)), "rope positions and 0"),
        (lambda: tiny_gpt(latent=Latent(8, 4)), "learned positions and 4"),
        (lambda: tiny_llama(latent=Latent(8, 4), qk_norm=True), "qk_norm"),
        (lambda: observe(tiny_latent(), torch.tensor([[1, 2]]), [0]), "stores latents"),
        (lambda: tiny_llama(latent=Latent(8, 4), kv_from=(0, 0, 0)), "kv_from"),
        (
            lambda: shard_config(tiny_latent().config.with_(intermediate_size=99), 3),
            "one latent for all heads",
        ),
        (
            lambda: Adapters(
                tiny_latent().config, {"x": {"blocks.0.attn.kv_up": (torch.ones(1, 11), torch.ones(108, 1))}}
            ),
            "no matrix that adapters reach",
        ),
    ],
)
def test_what_cannot_be_gets_a_sentence(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_value_as_wide_as_the_key_is_said_in_one_way():
    config = tiny_llama().config
    assert config.with_(latent=Latent(9, 4, 8)) == config.with_(latent=Latent(9, 4))
