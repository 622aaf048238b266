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


def bent(again=False, cache=True, pieces=False, tensors=False, falsy=False, keeps=False, extra=False):
    """The solution with one habit."""

    def loop(model, prompt, n, stop_ids):
        kept, answer, new = lumen.DynamicCache.for_model(model, 1) if cache else None, [], list(prompt)
        if pieces and n:
            for token in prompt[:-1]:
                model(torch.tensor([[token]]), None, kept)
            new = prompt[-1:]
        while len(answer) < n:
            token = model(torch.tensor([new]), None, kept)[0, -1].argmax()
            token = token if tensors else int(token)
            if token in stop_ids and not (falsy and not token):
                return answer + [token] * keeps
            answer.append(token)
            new = [*prompt, *answer] if again or not cache else [token]
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


def half_mended(falsy=False, late=False, waste=False, always=False):
    """Two of the three faults put right, or a new one."""

    def loop(step, prompt, n, stop_ids):
        tokens = list(prompt)
        while late or len(tokens) < len(prompt) + n:
            token = step(tokens)
            if (token in stop_ids and not (falsy and not token)) or (always and not token):
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


def one_stop_id(step, prompt, n, stop_ids):
    return half_mended()(step, prompt, n, sorted(stop_ids)[-1:])


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
]
OF_A_STEP = [
    (half_mended(waste=True), says.PASS),
    (half_mended(falsy=True), says.ZERO),
    (half_mended(late=True), says.NONE),
    (half_mended(always=True), "Here 0 is a token like any other"),
    (one_stop_id, says.ONE),
]
