"""Drafters for tests: they know the answers and err where they are told to, or draw trees from a model."""

from __future__ import annotations

import torch

from lumen.decode import Draft, Drafter
from lumen.sampling import distribution


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
