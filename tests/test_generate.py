"""The one loop: equal to the loop written out by hand, exact about where it stops, calm about bad input."""

from __future__ import annotations

import pytest
import torch

from lumen.cache import BlockStore, CacheFull, DynamicCache, HashPrefix, StaticCache
from lumen.decode import generate, pad
from lumen.sampling import SamplingParams

from .tiny import tiny_gpt, tiny_llama

PROMPTS = [[5, 9, 2, 7, 1], [11], [7, 0, 21, 60, 2, 9, 33]]


def by_hand(model, prompt, n):
    """Greedy decoding without a cache, without a batch, without the loop under test."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


class Letters:
    """A tokenizer for tests: token i is the letter chr(97 + i % 26)."""

    def encode(self, text):
        return [ord(c) - 97 for c in text]

    def stream(self, skip_special=True):
        return self

    def feed(self, token):
        return chr(97 + token % 26)

    def finish(self):
        return ""


def count_forwards(model, monkeypatch):
    calls = []
    original = model.hidden
    monkeypatch.setattr(model, "hidden", lambda *a: calls.append(a[0].shape) or original(*a))
    return calls


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt])
@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
@pytest.mark.parametrize("cache", ["default", "dynamic", "static"])
def test_greedy_equals_the_loop_by_hand(make, chunk, cache):
    model = make(torch.float64)
    prompts = [[t % 61 for t in p] for p in PROMPTS]
    made = {
        "default": None,
        "dynamic": DynamicCache.for_model(model, 3),
        "static": StaticCache.for_model(model, 3, 30),
    }
    done = generate(model, prompts, 12, eos_ids=(), cache=made[cache], prefill_chunk=chunk)
    for prompt, result in zip(prompts, done, strict=True):
        assert result.tokens == by_hand(model, prompt, 12)
        assert (result.finish_reason, result.num_prompt_tokens) == ("length", len(prompt))
        assert len(result.token_times) == 12 and result.ttft < result.token_times[-1] and result.tpot > 0


def test_rows_stop_at_their_own_end_and_leave_the_others_alone():
    """T38: the end token at a different place in each row; it is not part of the answer."""
    model = tiny_llama(torch.float64)
    free = [by_hand(model, p, 12) for p in PROMPTS]
    ends = {free[0][3], free[1][7]}
    done = generate(model, PROMPTS, 12, eos_ids=ends)
    for tokens, result in zip(free, done, strict=True):
        stop = next((i for i, t in enumerate(tokens) if t in ends), None)
        assert result.tokens == tokens[:stop]
        assert result.finish_reason == ("length" if stop is None else "stop")


def test_the_model_decides_the_default_end_tokens():
    model = tiny_llama(torch.float64)
    first = by_hand(model, PROMPTS[0], 1)[0]
    model.config = model.config.with_(eos_ids=(first,))
    (result,) = generate(model, PROMPTS[:1], 12)
    assert (result.tokens, result.text, result.finish_reason) == ([], "", "stop")
    assert result.ttft is not None and result.tpot is None


@pytest.mark.parametrize("n", [0, 1, 2])
def test_exactly_n_tokens_and_not_one_forward_too_many(monkeypatch, n):
    """Worked number 9 and 11: n = 0 ends, and n tokens cost one prefill and n - 1 decode steps."""
    model = tiny_llama()
    calls = count_forwards(model, monkeypatch)
    (result,) = generate(model, [PROMPTS[0]], n, eos_ids=())
    assert len(result.tokens) == n and len(calls) == n
    assert calls[:1] == [torch.Size([1, 5])][:n] and all(shape == (1, 1) for shape in calls[1:])


def test_the_loop_ends_as_soon_as_every_row_has(monkeypatch):
    model = tiny_llama(torch.float64)
    first = {by_hand(model, p, 1)[0] for p in PROMPTS}
    calls = count_forwards(model, monkeypatch)
    generate(model, PROMPTS, 50, eos_ids=first)
    assert len(calls) == 1


@pytest.mark.parametrize("stop, keep", [("{2}{3}", 2), ("{0}", 0), ("zzzz", 12)])
def test_stop_strings_end_the_text_before_them(stop, keep):
    model = tiny_llama(torch.float64)
    tokens = by_hand(model, PROMPTS[0], 12)
    letters = [chr(97 + t % 26) for t in tokens]
    wanted = "".join(letters)
    stop = stop.format(*letters)
    cut = wanted.find(stop)
    shown = []
    (result,) = generate(
        model,
        PROMPTS[:1],
        12,
        eos_ids=(),
        tokenizer=Letters(),
        stop=[stop],
        on_token=lambda r, t, text: shown.append(text),
    )
    assert result.text == (wanted if cut < 0 else wanted[:cut]) == "".join(shown)
    assert result.finish_reason == ("length" if cut < 0 else "stop")


def test_every_token_is_streamed_once_and_in_order():
    model = tiny_llama(torch.float64)
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    done = generate(model, PROMPTS, 6, eos_ids=(), on_token=lambda row, token, _: seen[row].append(token))
    assert [seen[i] for i in range(3)] == [r.tokens for r in done]


def test_an_exception_in_the_callback_reaches_the_caller():
    def stop_it(row, token, text):
        raise RuntimeError("client gone")

    with pytest.raises(RuntimeError, match="client gone"):
        generate(tiny_llama(), PROMPTS, 6, on_token=stop_it)


def test_a_seeded_request_samples_the_same_alone_and_in_a_batch():
    model = tiny_llama(torch.float64)
    mine = SamplingParams(temperature=0.8, top_p=0.9, seed=3)
    (alone,) = generate(model, PROMPTS[2:], 10, mine, eos_ids=())
    crowd = generate(model, PROMPTS, 10, [SamplingParams(seed=1), SamplingParams(), mine], eos_ids=())
    assert alone.tokens == crowd[2].tokens
    again = generate(model, PROMPTS, 10, SamplingParams(temperature=0.8, seed=4), eos_ids=())
    assert again[2].tokens != alone.tokens


def test_penalties_see_prompt_and_output():
    """With the end of a loop forbidden by a large penalty, no token is ever repeated."""
    model = tiny_llama(torch.float64)
    (result,) = generate(
        model, [[5, 9]], 40, SamplingParams(temperature=0.0, repetition_penalty=1e9), eos_ids=()
    )
    assert len({5, 9, *result.tokens}) == 42


@pytest.mark.parametrize("size", [47, 48, 49])
def test_the_last_position_can_be_used_and_not_the_one_after(size):
    model = tiny_gpt()
    prompt = [1] * (size - 3)
    if size + 1 <= 49:
        assert len(generate(model, [prompt], 4)[0].tokens) == 4
    else:
        with pytest.raises(ValueError, match=r"48 positions\. Ask for 3 at most"):
            generate(model, [prompt], 4)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (([5, 9], 3), "brackets"),
        (("hello", 3), "brackets"),
        ((["hello"], 3), "tokenizer"),
        (([[]], 3), "empty"),
        (([[97]], 3), "vocabulary"),
        (([[-1]], 3), "vocabulary"),
        (([[1]], -1), "max_new_tokens"),
        (([[1]], 2.0), "max_new_tokens"),
        (([[1]], 64 + 1), "Ask for 64 at most"),
        (([[1], [2]], 3, [SamplingParams()]), "1 sampling parameters for 2 prompts"),
    ],
)
def test_bad_input_gets_a_sentence_before_the_first_forward(monkeypatch, arguments, sentence):
    model = tiny_llama()
    calls = count_forwards(model, monkeypatch)
    with pytest.raises(ValueError, match=sentence):
        generate(model, *arguments)
    assert calls == []


def test_no_prompts_give_no_completions():
    assert generate(tiny_llama(), [], 5) == []


def test_a_used_or_too_small_cache_is_refused():
    model = tiny_llama()
    used = DynamicCache.for_model(model, 1)
    model(torch.tensor([[1]]), cache=used)
    with pytest.raises(ValueError, match="must be empty"):
        generate(model, [[1]], 3, cache=used)
    with pytest.raises(ValueError, match="must be empty and have 2 rows"):
        generate(model, [[1], [2]], 3, cache=DynamicCache.for_model(model, 1))
    small = StaticCache.for_model(model, 1, 8)
    with pytest.raises(CacheFull, match="takes 9 positions; this cache reserves 8"):
        generate(model, [[1, 2, 3]], 7, eos_ids=(), cache=small)
    assert small.lengths.tolist() == [0]
    assert len(generate(model, [[1, 2, 3]], 6, eos_ids=(), cache=small)[0].tokens) == 6


def test_padding_is_told_by_position_not_by_token():
    tokens, pos = pad([[0, 0, 4], [7]], "left")
    assert tokens.tolist() == [[0, 0, 4], [0, 0, 7]] and pos.tolist() == [[0, 1, 2], [-1, -1, 0]]
    tokens, pos = pad([[0, 0, 4], [7]])
    assert tokens.tolist() == [[0, 0, 4], [7, 0, 0]] and pos.tolist() == [[0, 1, 2], [0, -1, -1]]
    for wrong in ([], [[]]):
        with pytest.raises(ValueError, match="one token at least"):
            pad(wrong)
    with pytest.raises(ValueError, match="side"):
        pad([[1]], "both")


def test_extra_keeps_tenants_apart_in_a_prefix_cache():
    """The same prompt under another adapter or tenant is computed again, and its answer is kept under that name."""
    model = tiny_llama(torch.float64)
    store = BlockStore.for_model(model, 40, 4)
    store.prefix = HashPrefix(store.pool)
    prompt, held = list(range(1, 14)), []
    for extra in [("a",), ("b",), ("a",), ("b",), ()]:
        with store.rows(1) as cache:
            (done,) = generate(model, [prompt], 5, eos_ids=(), cache=cache, extra=extra)
        held.append(done.num_cached_tokens)
        assert done.tokens == by_hand(model, prompt, 5)
    assert held == [0, 0, 12, 12, 0]
