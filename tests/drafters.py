"""Drafters for tests: one that knows the answers and errs where it is told to, one that draws from a model."""

from __future__ import annotations

import torch

from lumen.cache import DynamicCache
from lumen.decode import Context, Draft, Drafter
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


class Forest(Scripted):
    """Knows the answers as `Scripted` does; `grow(context, draft)` makes a whole `Draft` of the true continuation."""

    max_nodes = 64

    def __init__(self, answers, max_drafts, grow):
        super().__init__(answers, max_drafts)
        self.grow = grow

    def propose(self, contexts):
        chains = super().propose(contexts)
        return [self.grow(c, list(chain.tokens)) for c, chain in zip(contexts, chains, strict=True)]


def bush(right, size=61):
    """The right token at every depth between two wrong ones; under the elder of them it stands too, one depth below."""
    tokens, parents, above = [], [], -1
    for depth, token in enumerate(right, 1):
        at, last = len(tokens), depth == len(right)
        tokens += [(token + 1) % size, token, (token + 2) % size, token][: 3 if last else 4]
        parents += [above, above, above, at][: 3 if last else 4]
        above = at + 1
    return Draft(tokens, parents=parents)


class TreeModel(Drafter):
    """Trees drawn from a model without a cache, all rows at once: `widths[d]` siblings at depth d, none drawn twice."""

    max_nodes = 64

    def __init__(self, model, widths):
        self.model, self.widths, self.max_drafts = model, widths, len(widths)

    def propose(self, contexts):
        trees = [([], [], []) for _ in contexts]  # tokens, parents, probabilities
        ends = [(i, -1, ()) for i in range(len(contexts))]
        random = torch.Generator().manual_seed(sum(len(c.output) for c in contexts))
        for width in self.widths:
            below = []
            for size in sorted({len(contexts[i].prompt) + len(contexts[i].output) for i, *_ in ends}):
                these = [e for e in ends if len(contexts[e[0]].prompt) + len(contexts[e[0]].output) == size]
                cs = [contexts[i] for i, *_ in these]
                outputs = [[*c.output, *way] for c, (*_, way) in zip(cs, these, strict=True)]
                logits = self.model(
                    torch.tensor([[*c.prompt, *o] for c, o in zip(cs, outputs, strict=True)])
                )[:, -1]
                q = distribution(logits, [c.params for c in cs], [c.prompt for c in cs], outputs)
                for (i, parent, way), row in zip(these, q, strict=True):
                    count = min(width, int((row > 0).sum()))
                    for token in torch.multinomial(row, count, False, generator=random).tolist():
                        tokens, parents, probs = trees[i]
                        below.append((i, len(tokens), (*way, token)))
                        tokens.append(token), parents.append(parent), probs.append(row)
            ends = below
        return [Draft(tokens, torch.stack(probs), parents) for tokens, parents, probs in trees]
