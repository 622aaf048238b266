"""Drafters for tests: one that knows the answers and errs where it is told to, one that draws from a model."""

from __future__ import annotations

import torch

from lumen.cache import DynamicCache
from lumen.decode.drafter import Context, Draft, Drafter
from lumen.sampling import distribution, draw


class Scripted(Drafter):
    """Guesses the true continuation of each prompt; `bend(row_tokens, place)` turns a draft into another.

    `answers` by prompt. Ignores `room`, so its drafts reach past the end of the answer wherever they can.
    """

    def __init__(self, answers, max_drafts, bend=lambda context, draft: draft):
        self.answers = {tuple(prompt): list(answer) for prompt, answer in answers.items()}
        self.max_drafts, self.bend = max_drafts, bend
        self.asked = 0

    def propose(self, contexts):
        self.asked += 1
        out = []
        for c in contexts:
            rest = self.answers[tuple(c.prompt)][len(c.output) :]
            out.append(Draft(self.bend(c, (rest + [0] * self.max_drafts)[: self.max_drafts])))
        return out


class Model(Drafter):
    """A model of its own with a cache of its own, a row for each key; drafts are drawn from it.

    It is told what was accepted by the next context: what it wrote and what the context says part there.
    """

    def __init__(self, model, max_drafts, seed=0):
        self.model, self.max_drafts = model, max_drafts
        self.random = torch.Generator().manual_seed(seed)
        self.caches: dict[object, tuple[DynamicCache, list[int]]] = {}
        self.most_rewound = 0

    def propose(self, contexts: list[Context]) -> list[Draft]:
        return [self._draft(c) for c in contexts]

    def _draft(self, c: Context) -> Draft:
        known = [*c.prompt, *c.output]
        cache, written = self.caches.setdefault(c.key, (DynamicCache.for_model(self.model, 1), []))
        same = next((i for i, (a, b) in enumerate(zip(written, known, strict=False)) if a != b), len(written))
        same = min(same, len(known) - 1)
        self.most_rewound = max(self.most_rewound, len(written) - same)
        cache.rewind([same])
        del written[same:]
        tokens, probs = [], []
        for _ in range(min(c.room, self.max_drafts)):
            new = [*known, *tokens][len(written) :]
            logits = self.model(torch.tensor([new]), cache=cache)[:, -1]
            written += new
            probs.append(distribution(logits, c.params, [c.prompt], [[*c.output, *tokens]]))
            tokens += draw(probs[-1], [self.random]).tolist()
        return Draft(tokens, torch.cat(probs)) if tokens else Draft()

    def forget(self, key):
        self.caches.pop(key, None)
