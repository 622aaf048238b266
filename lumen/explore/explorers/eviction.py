"""The eviction explorer: which keys a rule keeps of a real prompt, and how much of the answer's attention they hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lumen.explore.explorers.widget import JSWidget

if TYPE_CHECKING:
    from lumen.models.decoder import Decoder

RULES = {
    "newest": "newest",
    "sinks": "first 4, newest",
    "h2o": "H2O",
    "snapkv": "SnapKV",
    "quest": "Quest",
}
SINKS, OBSERVES, KERNEL, PAGE = (
    4,
    8,
    5,
    8,
)  # tokens; of SnapKV the window and the width of its maximum, of Quest a page
DIGITS = 4  # of a weight; two keys whose weights agree so far are one to a reader
Scores = Mapping[str, Sequence[float]]
"""Of one key/value head, key by key: "read" by all queries of the prompt, "observed" by its last `OBSERVES`, "asked" by
the answer's queries (shares that add up to 1); page by page: "bounds" of what the prompt's last query can score."""


def worth(rule: str, scores: Scores, budget: int) -> list[float]:
    """What each key is worth to a rule that keeps single keys: `lumen.cache.evict_rules` on one head, without torch."""
    count = len(scores["read"])
    if rule == "newest":
        return [float(i) for i in range(count)]
    if rule == "sinks":
        return [math.inf if i < SINKS else float(i) for i in range(count)]
    if rule == "h2o":
        return [math.inf if i >= count - budget // 2 else x for i, x in enumerate(scores["read"])]
    if rule == "snapkv":
        before, half = count - OBSERVES, KERNEL // 2
        seen = scores["observed"]
        pooled = [max(seen[max(0, i - half) : min(before, i + half + 1)], default=0.0) for i in range(before)]
        return pooled + [math.inf] * OBSERVES
    raise ValueError(f"no rule {rule!r} that keeps single keys; there are {', '.join(RULES)}")


def kept(rule: str, scores: Scores, budget: int) -> list[int]:
    """The positions that are kept, or read in Quest's case, in order. The twin of `kept` in eviction.js.

    Of equals the later one stays. ValueError for a rule that there is not.
    """
    count = len(scores["read"])
    if rule == "quest":
        bounds, last = scores["bounds"], (count - 1) // PAGE
        pages = sorted(range(last + 1), key=lambda p: (p == last, bounds[p], p), reverse=True)
        chosen = pages[: max(1, budget // PAGE)]
        return sorted(i for p in chosen for i in range(p * PAGE, min((p + 1) * PAGE, count)))
    value = worth(rule, scores, budget)
    return sorted(sorted(range(count), key=lambda i: (value[i], i), reverse=True)[:budget])


def held(scores: Scores, some: Sequence[int]) -> float:
    """The share of the answer's attention that falls on these keys. The twin of `held` in eviction.js."""
    return math.fsum(scores["asked"][i] for i in some)


def best(scores: Scores, budget: int) -> float:
    """The same for the keys that the answer reads most: no rule can keep more with so many."""
    return math.fsum(sorted(scores["asked"], reverse=True)[:budget])


def scores_of(
    model: Decoder, prompt: Sequence[int], answer: Sequence[int], heads: Sequence[tuple[int, int]]
) -> list[dict[str, list[float]]]:
    """What the rules look at, of (layer, key/value head) pairs, when `model` reads `prompt` and then writes `answer`.

    Attention is summed over the query heads that share a key. ValueError for a prompt that is no longer than what
    SnapKV observes, and for an answer of no tokens.
    """
    import torch

    from lumen.attention.core import mask_for, weigh_with
    from lumen.attention.sparse.blocks import upper_bound
    from lumen.models.observe import observe

    count = len(prompt)
    if count <= OBSERVES or not answer:
        raise ValueError(
            f"A prompt has more than {OBSERVES} tokens and an answer one at least, so that there is something to "
            f"choose and somebody to miss it; got {count} and {len(answer)}."
        )
    tokens = torch.tensor([[*prompt, *answer]], device=next(model.parameters()).device)
    given = observe(model, tokens, sorted({layer for layer, _ in heads}))
    found = []
    for layer, head in heads:
        one = given[layer]
        kv_heads = one.k.shape[1]
        _, weights = weigh_with(one.q, one.k, one.v, mask_for(one.pos, one.pos), model.config.query_scale)
        weights = weights[0].unflatten(0, (kv_heads, -1))[head].sum(0)[:, :count]  # (T, prompt), of the group
        asked = weights[count:].sum(0)
        pages = one.k[0, head, :count].split(PAGE)
        low, high = (
            torch.stack([f(page, 0) for page in pages])[None, None] for f in (torch.amin, torch.amax)
        )
        last = one.q[:, :, count - 1 : count].unflatten(1, (kv_heads, -1))[:, head, :, 0][:, None]
        votes = (upper_bound(last, low, high) * one.k.shape[3] ** -0.5).softmax(-1)[0, 0].sum(0)
        parts = {
            "read": weights[:count].sum(0),
            "observed": weights[count - OBSERVES : count].sum(0),
            "asked": asked / asked.sum(),
            "bounds": votes,
        }
        found.append({name: [round(float(x), DIGITS) for x in part] for name, part in parts.items()})
    return found


class Eviction(JSWidget):
    """Choose a head, a rule and a budget, and see which tokens' keys stay and how much the answer reads of them.

    `tokens` are the prompt's in words, `heads` maps a name to that head's `Scores`. Make it with `Eviction.of`.
    """

    module = "eviction.js"
    label = "eviction explorer"

    def __init__(
        self,
        tokens: Sequence[str],
        heads: Mapping[str, Scores],
        *,
        rule: str = "newest",
        budget: int | None = None,
        title: str = "Which keys stay?",
        lead: str = "The stronger the colour, the more the answer's tokens read a token's key. Struck out: gone.",
    ) -> None:
        budgets = list(range(2 * PAGE, len(tokens), PAGE))
        if not heads or not budgets:
            raise ValueError(
                f"The explorer needs a head at least and more than {2 * PAGE} tokens, got {len(heads)} heads and "
                f"{len(tokens)} tokens."
            )
        for name, scores in heads.items():
            lengths = {key: len(scores[key]) for key in ("read", "observed", "asked")}
            if set(lengths.values()) != {len(tokens)} or len(scores["bounds"]) != -(-len(tokens) // PAGE):
                raise ValueError(f"{name} scores {lengths} keys, and there are {len(tokens)} tokens.")
        if rule not in RULES:
            raise ValueError(f"rule is one of {', '.join(RULES)}; got {rule!r}")
        start = min(budgets, key=lambda b: abs(b - (len(tokens) // 4 if budget is None else budget)))
        super().__init__(
            title=title,
            lead=lead,
            tokens=list(tokens),
            heads=[
                {"name": name, **{k: list(v) for k, v in scores.items()}} for name, scores in heads.items()
            ],
            rules=[[key, words] for key, words in RULES.items()],
            rule=rule,
            budgets=[*budgets, len(tokens)],
            budget=start,
        )

    @classmethod
    def of(
        cls,
        model: Decoder,
        tokenizer: Any,
        prompt: str,
        answer: str,
        heads: Sequence[tuple[int, int]],
        **options: Any,
    ) -> Eviction:
        """The explorer of what `model` reads in `prompt` while it writes `answer`. Layers count from 0.

        >>> Eviction.of(model, tokenizer, "My number is 48. My number is", " 48", [(12, 0)])
        """
        read, written = (tokenizer.encode(text, add_special=False) for text in (prompt, answer))
        found = scores_of(model, read, written, heads)
        names = [f"layer {layer + 1}, head {head + 1}" for layer, head in heads]
        return cls([tokenizer.decode([i]) for i in read], dict(zip(names, found, strict=True)), **options)
