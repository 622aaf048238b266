"""Exercises of chapter 13: keys in groups, a ring with sinks, heavy hitters, an early eviction, claims, a choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lumen.grading import (
    FP64,
    Case,
    Cases,
    Constraint,
    Decision,
    ExerciseSet,
    Number,
    Plan,
    Slip,
    Statements,
)

exercises = ExerciseSet(
    "13",
    "A smaller cache",
    then="chapter 14, sparse and linear attention",
    headers="""
    | id | title | kind | difficulty | importance | minutes | points |
    | keys-in-groups | A channel and its scale | build | 3 | 5 | 15 | 4 |
    | ring-with-sinks | Once around the ring | debug | 3 | 4 | 15 | 3 |
    | heavy-hitters | What was read most | build | 4 | 5 | 20 | 4 |
    | gone-too-early | Gone too early | debug | 4 | 5 | 15 | 3 |
    | cache-claims | Five claims in print | literature | 3 | 4 | 10 | 2 |
    | bits-or-keys | Fewer bits or fewer keys? | decide | 4 | 5 | 15 | 4 |
    """,
)

Made = Callable[[], tuple[Any, ...]]  # the arguments of a case, new each time


def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# build: keys in groups ----------------------------------------------------------------------------
FLAT = "Where a channel does not vary its step is 1: without that, 0 is divided by 0."
Keys = tuple[Tensor, Tensor, Tensor, Tensor]  # codes, step, low, rest


def closed(
    held: Keys, new: Tensor, group: int, bits: int, *, top: int = 0, dim: int = 1, safe: bool = True,
    whole: bool = False, cut: bool = False, late: int = 0, most: int = 99, old: bool = True, front: bool = True,
    alone: bool = False,
) -> Keys:  # fmt: skip
    """Keys come to those that are held; groups close as they fill. And the mistakes that one can make."""
    *codes, rest = held
    keys = torch.cat([rest, new])
    count = min(max(len(new if alone else keys) - late, 0) // group, most)
    parts = [count * group, len(keys) - count * group]
    full, left = keys.split(parts) if front else keys.split(parts[::-1])[::-1]
    groups = full.unflatten(0, (count, group))
    low, high = groups.amin(dim, keepdim=True), groups.amax(dim, keepdim=True)
    if whole and count:  # one scale for all channels of a group
        low, high = low.amin(2, keepdim=True).expand_as(low), high.amax(2, keepdim=True).expand_as(high)
    step = (high - low) / (top or 2**bits - 1)
    step = step.where(step > 0, 1.0) if safe else step
    numbers = (groups - low) / step
    fresh = [(numbers if cut else numbers.round()).to(torch.uint8), step, low]
    both = [torch.cat(pair) for pair in zip(codes, fresh, strict=True)] if old and dim == 1 else fresh
    return both[0], both[1], both[2], left


def _pieces(held: int, new: int, group: int, bits: int, width: int = 6, flat: bool = False) -> Made:
    """`held` tokens have come, `new` come now. `flat`: two channels do not vary, one of them from group 1 on."""

    def make() -> tuple[Any, ...]:
        keys = _normal(held + new, held + new, width) * torch.logspace(-1, 1, width, dtype=torch.float64)
        if flat:
            keys[:, 1], keys[group:, 2] = -3.5, 0.25
        scales = torch.zeros(0, 1, width, dtype=torch.float64)
        none = torch.zeros(0, group, width, dtype=torch.uint8), scales, scales, keys[:0]
        before = tuple(x.clone() for x in closed(none, keys[:held], group, bits))
        return before, keys[held:].clone(), group, bits

    return make


exercises.add(
    "keys-in-groups",
    shows="A group is rounded once, when it is full: one token after another or all at once, the codes are the same, "
    "and never more than a group less one token is whole.",
    forbidden=("lumen.cache.quant_codes.quantize", "lumen.cache.quant_codes.ChannelCodec"),
    check=Cases(
        reference=closed,
        cases={
            "a group fills in one piece": _pieces(0, 4, 4, 4),
            "the last token of a group comes alone": _pieces(7, 1, 4, 4),
            "a token that fills no group": _pieces(12, 1, 8, 4),
            "nothing new": _pieces(6, 0, 4, 2),
            "the very first token": _pieces(0, 1, 8, 2),
            "a piece that fills three groups and begins a fourth": _pieces(3, 11, 4, 2),
            "a piece as long as a group, on top of a rest": _pieces(2, 5, 5, 8),
            "channels that do not vary": Case(args=_pieces(4, 9, 4, 4, flat=True), slip=FLAT),
            "a group of one token": _pieces(2, 3, 1, 4),
            "one channel": _pieces(5, 8, 3, 2, width=1),
            "groups of 32 in 2 bits": _pieces(60, 75, 32, 2, width=16),
        },
        slips=[
            Slip(lambda *a: closed(*a, whole=True), "Each channel has a step and a smallest value of its own."),
            Slip(lambda *a: closed(*a, dim=2), "That scales each token over its channels, as values are. A key's "
                 "scale belongs to a channel, over the tokens of the group."),
            Slip(lambda h, n, g, b: closed(h, n, g, b, top=2**b), "b bits hold the codes 0 to 2^b - 1: that many steps "
                 "lie between the smallest and the largest."),
            Slip(lambda *a: closed(*a, cut=True), "Codes are rounded to the nearest, not cut off."),
            Slip(lambda *a: closed(*a, alone=True), "What fills a group is the rest *and* what is new: tokens that "
                 "come one by one would stay whole for ever."),
            Slip(lambda *a: closed(*a, late=1), "A group is full with its last token, not with the one after it."),
            Slip(lambda *a: closed(*a, most=1), "A long piece may fill several groups."),
            Slip(lambda *a: closed(*a, old=False), "The groups that were closed before belong to the result."),
            Slip(lambda *a: closed(*a, front=False), "Groups are counted from the first token; what stays whole is the "
                 "newest."),
            Slip(lambda *a: closed(*a, safe=False), FLAT),
        ],
        tolerance=FP64,
    ),
)  # fmt: skip


# debug: the ring ----------------------------------------------------------------------------------
def _seen(
    q: Tensor, k: Tensor, v: Tensor, newest: int, sinks: int, slope: float, *, inside: bool = False
) -> Tensor:
    """A full attention under the mask; `inside`: a mistake, distances count what is held."""
    at, sunk = torch.arange(len(q))[:, None], torch.arange(len(k)) < sinks
    far = at - torch.arange(len(k))
    blind = (far < 0) | ((far >= newest) & ~sunk)
    if inside:
        far = far.where(~sunk, at.clamp(max=sinks + newest - 1) - torch.arange(len(k)))
    scores = q @ k.T / q.shape[1] ** 0.5 - slope * far
    return scores.masked_fill(blind, -math.inf).softmax(1) @ v


def ringed(
    q: Tensor, k: Tensor, v: Tensor, newest: int, sinks: int, slope: float, *, apart: bool = True, known: bool = True,
    blank: bool = True, ring: int = 0, bias: bool = True,
) -> Tensor:  # fmt: skip
    """One token after another through a ring behind the sinks, and its faults."""
    size, outs = sinks + newest + ring, []
    at = torch.full((size,), -1)
    keys, values = k.new_zeros(size, k.shape[1]), v.new_zeros(size, v.shape[1])
    for t in range(len(q)):
        slot = t if apart and t < sinks else sinks + (t - sinks) % (size - sinks) if apart else t % size
        keys[slot], values[slot], at[slot] = k[t], v[t], t
        far = t - (at if known else torch.arange(size))
        scores = keys @ q[t] / q.shape[1] ** 0.5 - (slope * far if bias else 0.0)
        if blank:
            scores = scores.masked_fill((at < 0) if known else (far < 0), -math.inf)
        outs.append(scores.softmax(0) @ values)
    return torch.stack(outs)


def _text(tokens: int, newest: int, sinks: int, slope: float = 0.5, width: int = 6) -> Made:
    def make() -> tuple[Any, ...]:
        q, k = _normal(tokens, 2, tokens, width)
        return q, k, _normal(tokens + 1, tokens, width - 1), newest, sinks, slope

    return make


exercises.add(
    "ring-with-sinks",
    shows="A slot is no position: as soon as a ring wraps, who sits where must be written down, and sinks need slots "
    "that no lap passes through.",
    given="ring_broken",
    forbidden=("lumen.attention.core.attention",),
    check=Cases(
        reference=_seen,
        cases={
            "a text shorter than the ring": _text(5, 6, 2),
            "a text that fills it to the last slot": _text(8, 6, 2),
            "one token more": _text(9, 6, 2),
            "no sinks, a slope, three laps": _text(14, 4, 0),
            "sinks, no slope, three laps": _text(20, 5, 2, slope=0.0),
            "sinks and a slope, many laps": _text(30, 4, 3),
            "a ring of one": _text(6, 1, 1),
            "more sinks than ring": _text(13, 2, 5, slope=0.25),
            "a text of one token": _text(1, 3, 2),
            "a text that ends among the sinks": _text(3, 2, 4),
        },
        slips=[
            Slip(lambda *a: ringed(*a, apart=False), "The sinks are overwritten when the ring wraps: only the slots "
                 "behind them may be used again."),
            Slip(lambda *a: ringed(*a, known=False), "The distance is reckoned from the slot. After the first lap "
                 "the token in a slot is a later one."),
            Slip(lambda q, k, v, n, s, b: _seen(q, k, v, n, 0, b), "The first `sinks` tokens stay, whatever comes."),
            Slip(lambda *a: ringed(*a, blank=False), "Slots that nothing was written to are read as keys of zeros."),
            Slip(lambda *a: ringed(*a, ring=1), "The token itself is one of the newest: the ring has one slot too "
                 "many."),
            Slip(lambda *a: _seen(*a, inside=True), "That is the distance inside the cache, as StreamingLLM counts. "
                 "The text's is asked: the query's position less the key's."),
            Slip(lambda *a: ringed(*a, bias=False), "The distance has to be charged: slope times (t - position)."),
        ],
        tolerance=FP64,
    ),
)  # fmt: skip


# build: heavy hitters -----------------------------------------------------------------------------
def hitters(
    q: Tensor, k: Tensor, v: Tensor, budget: int, recent: int, *, early: bool = False, shift: bool = False,
    last: bool = False, heads: int | None = None, sign: int = 1, mean: bool = False, norm: bool = True,
    raw: bool = False, most: bool = False,
) -> tuple[Tensor, list[int]]:  # fmt: skip
    """H2O as a masked full attention: who has gone is masked. And the mistakes that one can make."""
    (tokens, _, width), outs, at = q.shape, [], torch.arange(len(q))
    scores = torch.einsum("thd,sd->ths", q, k) / width**0.5
    held, account = torch.zeros(tokens).bool(), torch.zeros(tokens).double()
    for t in range(tokens):
        held[t] = True
        if early and held.sum() > budget:
            _leave(held, account, t, recent, sign)
        weights = scores[t].masked_fill(~held if norm else at > t, -math.inf).softmax(1) * held
        outs.append(weights @ v)
        got = (scores[t] * held if raw else weights)[:heads]
        got = got.amax(0) if most else got.sum(0)
        account = got if last else account + got
        if held.sum() > budget:
            gone = _leave(held, account / (t + 1 - at).clamp(min=1) if mean else account, t, recent, sign)
            if shift:  # the account at the end is dropped, whoever has gone
                alive = held.nonzero()[:, 0].tolist()
                account[alive] = account[sorted([*alive, gone])[:-1]].clone()
    return torch.stack(outs), held.nonzero()[:, 0].tolist()


def _leave(held: Tensor, account: Tensor, t: int, recent: int, sign: int) -> int:
    free = held & (torch.arange(len(held)) <= t - recent)
    gone = int((sign * account).masked_fill(~free, math.inf).argmin())
    held[gone] = False
    return gone


def _unsorted(result: Any) -> Any:
    """The positions in any order."""
    try:
        out, kept = result
        return out, sorted(int(one) for one in kept)
    except (TypeError, ValueError):
        return result


def sliced(q: Tensor, k: Tensor, v: Tensor, budget: int, recent: int) -> tuple[Tensor, list[int]]:
    """Looks for the one that leaves among `held[:-recent]`: a mistake where `recent` is 0."""
    min(range(budget + 1)[:-recent] if len(q) > budget else [0])
    return hitters(q, k, v, budget, recent)


def _stream(tokens: int, budget: int, recent: int, heads: int = 3, sharp: float = 1.0) -> Made:
    def make() -> tuple[Any, ...]:
        q, k = sharp * _normal(tokens + heads, tokens, heads, 6), _normal(tokens + 50, tokens, 6)
        return q, k, _normal(tokens + 90, tokens, 4), budget, recent

    return make


exercises.add(
    "heavy-hitters",
    shows="Those who stay are scored as a full attention under their mask scores them; only the sum is shorter. An "
    "account has to leave with its key.",
    forbidden=("lumen.cache.evict.EvictingCache", "lumen.cache.evict_rules.H2O"),
    check=Cases(
        reference=hitters,
        cases={
            "a budget that is never reached": _stream(6, 9, 2),
            "a budget that is just reached": _stream(6, 6, 2),
            "one token too many": _stream(8, 7, 2),
            "a third of the keys": _stream(24, 8, 4),
            "sharp attention": _stream(24, 8, 2, sharp=4.0),
            "one query head": _stream(20, 6, 3, heads=1),
            "nine query heads": _stream(18, 5, 2, heads=9),
            "no newest are kept for their age": _stream(20, 5, 0, sharp=2.0),
            "all but one for their age": _stream(20, 5, 4),
            "a budget of one": _stream(9, 1, 0, sharp=3.0),
            "one token": _stream(1, 3, 1),
        },
        slips=[
            Slip(lambda *a: hitters(*a, early=True), "The token reads first, then one leaves: what leaves has still "
                 "been read in this step, and this step counts."),
            Slip(lambda *a: hitters(*a, shift=True), "When a key leaves its account must leave with it, or all later "
                 "keys have a neighbour's account."),
            Slip(lambda *a: hitters(*a, last=True), "What a key gets is *added* to what it had got before."),
            Slip(lambda *a: hitters(*a, heads=1), "All query heads that share the key have a say, not the first "
                 "alone."),
            Slip(lambda q, k, v, b, r: hitters(q, k, v, b, r + 1), "One too many is spared: the token itself is "
                 "one of the `recent`."),
            Slip(lambda q, k, v, b, r: hitters(q, k, v, b, r - 1), "One too few is spared: the `recent` newest are "
                 "safe, the token itself among them."),
            Slip(lambda q, k, v, b, r: hitters(q, k, v, b, 0), "The `recent` newest are safe, whatever they got."),
            Slip(lambda q, k, v, b, r: hitters(q, k, v, b - 1, r), "`budget` keys may stay. One leaves when "
                 "there are more than that."),
            Slip(sliced, "With `recent` = 0 nobody is safe, not even the newest. Beware: `held[:-0]` is empty."),
            Slip(lambda *a: hitters(*a, sign=-1), "The one that was read *least* has to go."),
            Slip(lambda *a: hitters(*a, most=True), "What the heads read is summed; that takes the largest."),
            Slip(lambda *a: hitters(*a, mean=True), "That divides by how many could read it. The sum is asked."),
            Slip(lambda *a: hitters(*a, norm=False), "The weights of those that are held must sum to 1: mask the "
                 "scores, not the weights."),
            Slip(lambda *a: hitters(*a, raw=True), "A key gets weights, which are what the softmax makes, not scores."),
        ],
        tolerance=FP64,
        view=_unsorted,
    ),
)  # fmt: skip


# debug: the eviction ------------------------------------------------------------------------------
def chunked(
    q: Tensor, k: Tensor, v: Tensor, sizes: list[int], budget: int, *, late: bool = True, slots: bool = False,
    never: bool = False, largest: bool = False,
) -> tuple[Tensor, list[int]]:  # fmt: skip
    """A prompt in chunks, of which `budget` keys of a small norm are kept after each, and its faults."""
    kept, outs, start = torch.empty(0).long(), [], 0
    for size in sizes:
        new = torch.arange(start, start + size)
        held = torch.cat([kept, new])
        left = held[k[held].norm(dim=1).argsort(descending=largest)[:budget]].sort().values
        read = held if late else left
        place = torch.arange(len(read)) if slots else read
        scores = (q[new] @ k[read].T / q.shape[1] ** 0.5).masked_fill(place > new[:, None], -math.inf)
        outs.append(scores.softmax(1) @ v[read])
        kept, start = held if never else left, start + size
    return torch.cat(outs), kept.tolist()


def _end(*args: Any) -> tuple[Tensor, list[int]]:
    """Evicts once, behind the last chunk."""
    q, k, v, sizes, budget = args
    out, _ = chunked(q, k, v, sizes, len(k))
    return out, k.norm(dim=1).argsort()[:budget].sort().values.tolist()


def _prompt(sizes: list[int], budget: int, falling: bool = False) -> Made:
    """`falling`: later keys are smaller, so a chunk pushes out all that came before it."""

    def make() -> tuple[Any, ...]:
        tokens = sum(sizes)
        q, k = _normal(tokens + budget, 2, tokens, 6)
        if falling:
            k = k / k.norm(dim=1, keepdim=True) * torch.arange(tokens, 0, -1)[:, None]
        return q, k, _normal(tokens + 7, tokens, 4), list(sizes), budget

    return make


exercises.add(
    "gone-too-early",
    shows="Read first, evict afterwards: a prompt in one piece comes out as if nothing had left. And a position is "
    "what was written down, never where a key stands in memory.",
    given="chunks_broken",
    forbidden=("lumen.attention.core.attention", "lumen.cache.evict.EvictingCache"),
    check=Cases(
        reference=chunked,
        cases={
            "a budget that is never reached": _prompt([4, 3], 10),
            "a prompt in one piece, a budget of a third": _prompt([12], 4),
            "two chunks": _prompt([6, 6], 4),
            "chunks that are longer than the budget": _prompt([7, 7, 5], 3),
            "chunks that are shorter than the budget": _prompt([2, 3, 2, 3, 4], 6),
            "one token after another": _prompt([1] * 9, 4),
            "each chunk pushes out all that came before": _prompt([5, 5, 5], 5, falling=True),
            "a budget of one": _prompt([4, 1, 3], 1),
            "a long prompt, then single tokens": _prompt([16, 1, 1, 1], 8),
        },
        slips=[
            Slip(lambda *a: chunked(*a, late=False), "The chunk reads what is left after the eviction. It has to read "
                 "all that was held, its own keys included, and then they leave."),
            Slip(lambda *a: chunked(*a, slots=True), "The mask takes the place in memory for the position. When keys "
                 "have left, those behind them stand further to the front."),
            Slip(lambda *a: chunked(*a, late=False, slots=True), "Both faults are still there."),
            Slip(lambda *a: chunked(*a, largest=True), "Those of the *smallest* norm stay."),
            Slip(lambda *a: chunked(*a, never=True), "Nothing leaves any more: `budget` keys may stay after each "
                 "chunk."),
            Slip(_end, "Keys leave after each chunk, so that later chunks do not read them; not once at the end."),
            Slip(lambda q, k, v, s, b: chunked(q, k, v, [1] * len(q), b), "Keys leave after each *chunk*, not after "
                 "each token."),
        ],
        tolerance=FP64,
        view=_unsorted,
    ),
)  # fmt: skip


# literature ---------------------------------------------------------------------------------------
LAYERS, WINDOW = 32, 4096
BELOW = "That is one layer. What it reads has itself read further back, in the layer below."

exercises.add(
    "cache-claims",
    shows="What is held, what is read and what can be reached are three quantities; scales have bytes, too.",
    check=Statements(
        false="ace",
        why={
            "a": "Scales have bytes: a step and a smallest value for 32 codes are 32 bits more, 5 bits a number, 31 %.",
            "b": "Where a channel is large for almost every token, its own scale takes the size out, and the others "
            "keep their codes. Values show few such channels.",
            "c": "What left the window is gone. Reading goes on fluently, but only sinks and the newest are in sight.",
            "d": "All keys stay, and the bounds of the pages come on top. What is saved is reading.",
            "e": "Which keys stay is seen from the end of the prompt: until then all of them are held.",
        },
        number=Number(
            LAYERS * (WINDOW - 1),
            unit="positions",
            exact=True,
            slips=[
                Slip(LAYERS * WINDOW, "The token itself is one of the 4,096: a layer goes 4,095 back."),
                Slip(LAYERS * (WINDOW - 1) + 1, "That counts the token itself. How far back, please."),
                Slip(WINDOW, BELOW),
                Slip(WINDOW - 1, BELOW),
                Slip((LAYERS - 1) * (WINDOW - 1), "The first layer reads a window, too: there are 32."),
            ],
        ),
    ),
)

# decide -------------------------------------------------------------------------------------------
HEADS = 32 * 8  # layers and KV heads of Llama-3-8B
PLAIN, OPEN = 512, 64  # bytes of a key and a value in 16 bits; tokens that KIVI leaves whole
FORMS = {"fp16": (512, 0.0, 100), "int8": (260, 0.1, 100), "kivi": (160, 0.6, 100), "kivi-2": (96, 6.0, 96)}
SHARES = {
    1.0: (0.0, 100),
    0.5: (0.4, 80),
    0.2: (1.5, 45),
}  # rise of perplexity, needles found, both in per cent


def cache_gib(choice: dict[str, Any], users: int, context: int) -> float:
    """Caches of `users`, one of whom is still reading a prompt, after the text of the exercise."""
    per_token = FORMS[choice["form"]][0]
    whole = OPEN * PLAIN if choice["form"].startswith("kivi") else 0
    tokens = ((users - 1) * choice["keep"] + 1) * context
    return HEADS * (tokens * per_token + users * whole) / 2**30


def forms_for(users: int, context: int, room: float, needles: float) -> Decision:
    return Decision(
        choices={"form": list(FORMS), "keep": list(SHARES)},
        constraints=[
            Constraint(
                "memory",
                lambda choice: cache_gib(choice, users, context),
                at_most=room,
                unit="GiB",
                slip="Check the scales, the 64 whole tokens of each user under kivi, and the prompt that is still held "
                "whole.",
            ),
            Constraint(
                "needles found",
                lambda choice: FORMS[choice["form"]][2] * SHARES[choice["keep"]][1] / 100,
                at_least=needles,
                unit="%",
                slip="Perplexity hardly sees it, but the needle is gone.",
            ),
        ],
        cost=lambda choice: FORMS[choice["form"]][1] + SHARES[choice["keep"]][0],
        unit="% rise of perplexity",
        within=1e-6,
        dearer="Another choice fits, finds enough and costs less perplexity. A limit that is met exactly is met.",
    )


LOADS = [
    (16, 8192, 16.0, 90),  # exactly what 16 bits take
    (16, 8192, 8.05, 90),  # what codes of 8 bits would take without their steps
    (40, 8192, 14.0, 90),
    (40, 8192, 14.0, 75),
    (40, 8192, 10.5, 75),  # with the prompt that is being read in 8 bits, not in 16
    (40, 8192, 10.3, 80),  # without it
    (40, 8192, 10.0, 90),
    (2, 32_768, 5.0, 70),
    (2, 32_768, 2.1, 70),
    (200, 512, 5.4, 90),  # without the tokens that stay whole
    (64, 16_384, 20.0, 40),
    (100, 4096, 11.0, 40),
]

exercises.add(
    "bits-or-keys",
    shows="Scales, whole tokens and the prompt that is being read are part of the bill. Which choice is best follows "
    "from losses that you have to measure, and perplexity is only one of them.",
    check=Plan(forms_for, ("users", "context", "room", "needles"), LOADS),
)
