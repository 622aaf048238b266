"""SmolLM2-135M itself against Hugging Face transformers on the same weights, read by transformers' own GGUF loader."""

from __future__ import annotations

import pytest
import torch

from lumen import assets
from lumen.cache import DynamicCache, StaticCache
from lumen.decode import generate

from .tiny import relative_error

NEAR_TIE = 1e-3  # a top-2 gap below this may flip under another order of additions


@pytest.fixture(scope="module")
def reference():
    """transformers' model from the GGUF: its dequantiser, its un-permuting, its forward."""
    from transformers import AutoModelForCausalLM

    file = assets.path("smollm2-135m")
    theirs = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=torch.float32)
    return theirs.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    play, _ = assets.shakespeare()
    return torch.tensor([tokenizer.encode(play[:4000])[:512]])


def test_logits_equal_hugging_face_over_512_tokens(model, reference, tokens):
    assert tokens.shape == (1, 512)
    with torch.no_grad():
        assert relative_error(model(tokens), reference(tokens).logits) < 1e-4


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_cached_logits_equal_hugging_face_in_awkward_chunks(model, reference, tokens, kind):
    cache = DynamicCache.for_model(model, 1) if kind == "dynamic" else StaticCache.for_model(model, 1, 130)
    with torch.no_grad():
        parts = [model(part, None, cache) for part in tokens[:, :130].split([1, 63, 64, 1, 1], 1)]
        assert relative_error(torch.cat(parts, 1), reference(tokens[:, :130]).logits) < 1e-4


def test_128_greedy_tokens_equal_hugging_face(model, tokenizer, reference):
    prompt = tokenizer.apply_chat([{"role": "user", "content": "Explain why the sky is blue, step by step."}])
    (ours,) = generate(model, [prompt], 128, eos_ids=())
    sequence = torch.tensor([prompt + ours.tokens])
    with torch.no_grad():
        logits = reference(sequence).logits[0, len(prompt) - 1 : -1]
    best = logits.topk(2, -1)
    for step, token in enumerate(ours.tokens):
        gap = float(best.values[step, 0] - best.values[step, 1])
        assert token == int(best.indices[step, 0]) or gap < NEAR_TIE, f"step {step}: gap {gap}"
    theirs = reference.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt)),  # left to itself it takes id 2, the pad id, for padding
        max_new_tokens=128,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
    )[0, len(prompt) :].tolist()
    first = next((i for i, (a, b) in enumerate(zip(ours.tokens, theirs, strict=True)) if a != b), None)
    assert first is None or float(best.values[first, 0] - best.values[first, 1]) < NEAR_TIE


def test_a_batch_of_unequal_prompts_answers_as_each_alone(model, tokenizer):
    """T2 on the real model: greedy rows of a padded batch equal single runs, up to near-ties."""
    texts = ["The capital of France is", "Water boils at", "Once upon a time there was a small"]
    prompts = [tokenizer.encode(t) for t in texts]
    together = generate(model, prompts, 16, eos_ids=())
    for prompt, result in zip(prompts, together, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + result.tokens]))[0, len(prompt) - 1 : -1]
        best = logits.topk(2, -1)
        for step, token in enumerate(result.tokens):
            gap = float(best.values[step, 0] - best.values[step, 1])
            assert token == int(best.indices[step, 0]) or gap < NEAR_TIE


def test_it_answers_a_question(model, tokenizer):
    prompt = tokenizer.apply_chat([{"role": "user", "content": "What is the capital of France?"}])
    (answer,) = generate(model, [prompt], 40, tokenizer=tokenizer)
    assert "Paris" in answer.text and answer.finish_reason == "stop"
