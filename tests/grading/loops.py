"""Loops that keep what `lumen.grading.kinds.loop` asks for, and wrong ones with the sentence each must be told."""

import torch

import lumen
from lumen.grading.kinds import loop as says


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


def bent(
    again=False, cache=True, pieces=False, tensors=False, falsy=False, keeps=False, extra=False,
    warms=False, late=False, skips=False, cuts=False, prompts=False,
):  # fmt: skip
    """The solution with one habit."""

    def loop(model, prompt, n, stop_ids):
        kept, answer, new = lumen.DynamicCache.for_model(model, 1) if cache else None, [], list(prompt)
        if pieces and n:
            for token in prompt[:-1]:
                model(torch.tensor([[token]]), None, kept)
            new = prompt[-1:]
        if warms and n and len(prompt) > 1:  # all but the last token of the prompt first
            model(torch.tensor([prompt[:-1]]), None, kept)
            new = prompt[-1:]
        if prompts and stop_ids & set(prompt):
            return []
        passes = 0
        while (passes if skips else len(answer)) < n:
            token, passes = model(torch.tensor([new]), None, kept)[0, -1].argmax(), passes + 1
            token = token if tensors else int(token)
            if token in stop_ids and not (falsy and not token) and not (late and passes == n) and not cuts:
                if not skips:
                    return answer + [token] * keeps
            else:
                answer.append(token)
            new = [*prompt, *answer] if again or not cache else [token]
        if cuts:
            return answer[: next((i for i, token in enumerate(answer) if token in stop_ids), n)]
        if extra and n:
            model(torch.tensor([new]), None, kept)
        return answer

    return loop


def mended_with_for(step, prompt, n, stop_ids):
    answer = []
    for _ in range(n):
        answer.append(step(prompt + answer))
        if {answer[-1]} & set(stop_ids):
            return answer[:-1]
    return answer


def half_mended(falsy=False, late=False, waste=False, always=False, unseen=False):
    """Two of the three faults put right, or a new one."""

    def loop(step, prompt, n, stop_ids):
        tokens = list(prompt)
        while late or len(tokens) < len(prompt) + n:
            token = step(tokens)
            ends = (token in stop_ids and not (falsy and not token)) or (always and not token)
            if ends and not (unseen and len(tokens) == len(prompt) + n - 1):
                return tokens[len(prompt) :]
            tokens.append(token)
            if len(tokens) >= len(prompt) + n:
                break
        if waste and n:
            step(tokens)
        return tokens[len(prompt) :]

    return loop


def at_least_one(model, prompt, n, stop_ids):
    return bent()(model, prompt, max(n, 1), stop_ids)


def some_stop_ids(loop, some):
    """`loop` with the part of the stop ids that `some` takes of their list."""
    return lambda speaker, prompt, n, stop_ids: loop(speaker, prompt, n, set(some(list(stop_ids))))


def cut_at_the_end(step, prompt, n, stop_ids):
    answer = []
    for _ in range(n):
        answer.append(step(prompt + answer))
    return answer[: next((i for i, token in enumerate(answer) if token in stop_ids), n)]


def skips_stop_ids(step, prompt, n, stop_ids):
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(step(tokens))
    return [token for token in tokens[len(prompt) :] if token not in stop_ids]


def eager(step, prompt, n, stop_ids):
    if n == 0:
        step(prompt)
    return half_mended()(step, prompt, n, stop_ids)


def nothing_for_none(step, prompt, n, stop_ids):
    return half_mended()(step, prompt, n, stop_ids) if n else None


SOME = {  # parts of the stop ids: in the order of the set, and by size
    "the first": lambda ids: ids[:1],
    "the last": lambda ids: ids[-1:],
    "two": lambda ids: ids[:2],
    "the largest": lambda ids: sorted(ids)[-1:],
    "the smaller two": lambda ids: sorted(ids)[:2],
}


OF_A_MODEL = [
    (bent(cache=False), says.ROWS),
    (bent(tensors=True), says.TENSORS),
    (bent(again=True), says.TWICE),
    (bent(pieces=True), says.PIECES),
    (bent(extra=True), says.PASS),
    (bent(keeps=True), says.STOP),
    (bent(falsy=True), says.ZERO),
    (lambda *a: a[1] + bent()(*a), says.PROMPT),
    (at_least_one, says.NONE),
    (bent(late=True), says.LAST),
    (bent(skips=True), says.SKIPPED),
    (bent(cuts=True), says.LATER),
    (bent(prompts=True), says.BEFORE),
]
OF_A_STEP = [
    (half_mended(waste=True), says.PASS),
    (half_mended(falsy=True), says.ZERO),
    (half_mended(late=True), says.NONE),
    (half_mended(always=True), "Here 0 is a token like any other"),
    (some_stop_ids(half_mended(), SOME["the largest"]), says.ONE),
    (half_mended(unseen=True), says.LAST),
    (skips_stop_ids, says.SKIPPED),
    (cut_at_the_end, says.LATER),
    (eager, says.NOTHING),
    (nothing_for_none, "Nothing came back"),
]
