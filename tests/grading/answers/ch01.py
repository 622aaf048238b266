"""Right and wrong answers to the exercises of chapter 01."""

import torch

import lumen
from lumen.grading.proof import Answers


# loop ---------------------------------------------------------------------------------------------
def loop(model, prompt, n, stop_ids):
    cache = lumen.DynamicCache.for_model(model, 1)
    answer, new = [], list(prompt)
    while len(answer) < n:
        hidden = model.hidden(torch.tensor([new]), None, cache)
        token = int(model.head(hidden[:, -1]).argmax())
        if token in stop_ids:
            break
        answer.append(token)
        new = [token]
    return answer


def loop_of_static(model, prompt, n, stop_ids):
    """Another cache, positions given by hand, the full forward, an iterator."""
    if n == 0:
        return []
    cache = lumen.StaticCache.for_model(model, 1, len(prompt) + n)

    def said():
        tokens, start = torch.tensor([prompt]), 0
        for _ in range(n):
            pos = torch.arange(start, start + tokens.shape[1])[None]
            tokens, start = model(tokens, pos, cache)[:, -1:].argmax(-1), start + tokens.shape[1]
            if (token := tokens.item()) in stop_ids:
                return
            yield token

    return list(said())


def loop_without_cache(model, prompt, n, stop_ids):
    answer = []
    for _ in range(n):
        token = int(model(torch.tensor([prompt + answer]))[0, -1].argmax())
        if token in stop_ids:
            break
        answer.append(token)
    return answer


def loop_of_tensors(model, prompt, n, stop_ids):
    """`in` compares a tensor's identity, so no stop id is ever found."""
    cache, answer, new = lumen.DynamicCache.for_model(model, 1), [], list(prompt)
    while len(answer) < n:
        token = model(torch.tensor([new]), None, cache)[0, -1].argmax()
        if token in stop_ids:
            break
        answer.append(token)
        new = [token]
    return answer


def loop_gives_all_again(model, prompt, n, stop_ids):
    cache, tokens = lumen.DynamicCache.for_model(model, 1), list(prompt)
    while len(tokens) < len(prompt) + n:
        token = int(model(torch.tensor([tokens]), None, cache)[0, -1].argmax())
        if token in stop_ids:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def loop_one_too_many(model, prompt, n, stop_ids):
    answer = loop(model, prompt, n, stop_ids)
    if n:
        model.hidden(torch.tensor([[1]]))
    return answer


def loop_keeps_the_stop(model, prompt, n, stop_ids):
    cache, answer, new = lumen.DynamicCache.for_model(model, 1), [], list(prompt)
    while len(answer) < n:
        answer.append(int(model(torch.tensor([new]), None, cache)[0, -1].argmax()))
        if answer[-1] in stop_ids:
            break
        new = answer[-1:]
    return answer


def loop_zero_is_nothing(model, prompt, n, stop_ids):
    cache, answer, new = lumen.DynamicCache.for_model(model, 1), [], list(prompt)
    while len(answer) < n:
        token = int(model(torch.tensor([new]), None, cache)[0, -1].argmax())
        if token and token in stop_ids:
            break
        answer.append(token)
        new = [token]
    return answer


def loop_always_one(model, prompt, n, stop_ids):
    return loop(model, prompt, max(n, 1), stop_ids)


def loop_forever(model, prompt, n, stop_ids):
    cache, answer, new = lumen.DynamicCache.for_model(model, 1), [], list(prompt)
    while True:
        token = int(model(torch.tensor([new]), None, cache)[0, -1].argmax())
        if token in stop_ids:
            return answer
        answer.append(token)
        new = [token]


# three-faults -------------------------------------------------------------------------------------
def mended(step, prompt, n, stop_ids):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        token = step(tokens)
        if token in stop_ids:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def mended_with_for(step, prompt, n, stop_ids):
    answer = []
    for _ in range(n):
        answer.append(step(prompt + answer))
        if {answer[-1]} & set(stop_ids):
            return answer[:-1]
    return answer


def still_a_pass_too_many(step, prompt, n, stop_ids):
    if n == 0:
        return []
    tokens = list(prompt)
    token = step(tokens)
    while token not in stop_ids:
        tokens.append(token)
        token = step(tokens)
        if len(tokens) == len(prompt) + n:
            break
    return tokens[len(prompt) :]


def still_zero_is_nothing(step, prompt, n, stop_ids):
    tokens = list(prompt)
    while len(tokens) < len(prompt) + n:
        token = step(tokens)
        if token and token in stop_ids:
            break
        tokens.append(token)
    return tokens[len(prompt) :]


def still_no_zero(step, prompt, n, stop_ids):
    tokens = list(prompt)
    while True:
        token = step(tokens)
        if token in stop_ids:
            break
        tokens.append(token)
        if len(tokens) >= len(prompt) + n:
            break
    return tokens[len(prompt) :]


def zero_always_stops(step, prompt, n, stop_ids):
    return mended(step, prompt, n, {*stop_ids, 0})


ANSWERS = {
    "loop": Answers(
        right=[loop, loop_of_static],
        wrong=[
            (loop_without_cache, "went through the model twice"),
            (loop_of_tensors, "The tokens are tensors"),
            (loop_gives_all_again, "they stand in it twice"),
            (loop_one_too_many, "nobody asks what comes after it"),
            (loop_keeps_the_stop, "ends the answer and is not part of it"),
            (loop_zero_is_nothing, "Is id 0 taken for 'nothing'"),
            (lambda *a: a[1] + loop(*a), "without the prompt"),
            (loop_always_one, "goes on"),
            (loop_forever, "Which condition ends the loop"),
        ],
        lumen=["lumen.generate"],
    ),
    "time-per-token": Answers(
        right=[24.4, lambda: 13e9 * 4.5 / 8 / 300e9 * 1e3, 7312.5 / 300],
        wrong=[
            (21.7, "The scales are read too"),
            (86.7, "16 bits a weight"),
            (195, "count the weights in bytes too"),
            (41.0, "tokens per second"),
            (0.215, "Is it what the step waits for"),
            (0.0244, "a factor 1,000"),
            (170.8, "smaller by a factor of about 7"),
        ],
        stubs=[lambda: ...],
    ),
    "prompt-in-answers": Answers(
        right=[2048 / 156, lambda: (2 * 7e9 * 2048 / 312e12) / (14e9 / 2e12), 13],
        wrong=[
            (156, "the reverse"),
            (2048, "Which of the two reads the weights alone"),
            (2048 / 312, "two operations"),
            (2048 / 78, "a decode step reads 14 GB"),
            (91.9, "the prefill in milliseconds"),
        ],
    ),
    "in-print": Answers(
        right=[("bc", 5.45), lambda: ({"b", "c"}, 0.5 + 0.05 * 99), ("CB".lower(), 5.45)],
        wrong=[
            (("ac", 5.45), "14 GB at 2 TB/s"),
            (("cd", 5.45), "5 tokens a second are 200 ms"),
            (("b", 5.45), "2 statements are wrong"),
            (("bc", 5.5), "100 tokens have 99 gaps"),
            (("bc", 5.0), "one gap is too many"),
            (("bc", 4.95), "Those are the gaps"),
            ("bc", "the choice alone"),
        ],
        stubs=[(..., ...)],
    ),
    "three-faults": Answers(
        right=[mended, mended_with_for],
        wrong=[
            (still_a_pass_too_many, "nobody asks what comes after it"),
            (still_zero_is_nothing, "Token 0 is false in Python"),
            (still_no_zero, "0 is never met"),
            (zero_always_stops, "stops too early"),
            (lambda *a: a[1] + mended(*a), "gave: 9 at [0]"),
        ],
        lumen=["lumen.generate"],
    ),
    "chatbot": Answers(
        right=[{"twice": "bandwidth", "batch": 179}, lambda: {"batch": 150, "twice": "bandwidth"}],
        wrong=[
            ({"twice": "flops", "batch": 210}, "Fewer users, or more bandwidth"),
            ({"twice": "flops", "batch": 16}, "more users could share the read"),
            ({"twice": "bandwidth", "batch": 600}, "one of 1 to 512"),
            ({"twice": "both", "batch": 64}, "one of 'flops', 'bandwidth'"),
            ({"twice": "bandwidth"}, "the fields twice\n"),
        ],
        stubs=[{"twice": ..., "batch": 1}],
    ),
}
