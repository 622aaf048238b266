"""Answers to the exercises of chapter 13 that neither the solution nor a slip of the set gives."""

import itertools
import math

import numpy as np
import torch

from lumen.grading.proof import Submissions


def token_by_token(held, new, group, bits):
    """No piece is joined: each token goes to the rest, and a rest that is full closes. In numpy."""
    codes, step, low = ([part.numpy() for part in one] for one in held[:3])
    rest = list(held[3].numpy())
    width = held[3].shape[1]
    for key in new.numpy():
        rest.append(key)
        if len(rest) == group:
            block = np.stack(rest)
            least, spread = block.min(0), np.ptp(block, 0) / (2**bits - 1)
            spread = np.where(spread == 0, 1.0, spread)
            codes.append(np.rint((block - least) / spread).astype(np.uint8))
            step.append(spread[None])
            low.append(least[None])
            rest = []
    return (
        np.array(codes, dtype=np.uint8).reshape(-1, group, width),
        np.array(step).reshape(-1, 1, width),
        np.array(low).reshape(-1, 1, width),
        np.array(rest).reshape(-1, width),
    )


def rest_in_place(held, new, group, bits):
    """Right, but the codes that were handed in are written over."""
    out = token_by_token(held, new, group, bits)
    held[3].zero_()
    return out


def nothing_whole(held, new, group, bits):
    """The rest is rounded, too, on scales of its own."""
    codes, step, low, rest = map(torch.as_tensor, token_by_token(held, new, group, bits))
    if len(rest):
        least = rest.amin(0)
        spread = ((rest.amax(0) - least) / (2**bits - 1)).clamp(min=1e-9)
        rest = ((rest - least) / spread).round() * spread + least
    return codes, step, low, rest


def without_a_ring(q, k, v, newest, sinks, slope):
    """A list of positions from which the oldest one that is no sink is taken."""
    held, outs = [], []
    for t in range(len(q)):
        held.append(t)
        if len(held) > sinks + newest:
            del held[sinks]
        far = t - torch.tensor(held)
        outs.append((k[held] @ q[t] / q.shape[1] ** 0.5 - slope * far).softmax(0) @ v[held])
    return torch.stack(outs)


def ring_by_modulus(q, k, v, newest, sinks, slope):
    """Another phase of the ring, and positions reckoned back from t."""
    size, outs = sinks + newest, []
    slots = torch.arange(size)
    keys, values = k.new_zeros(size, k.shape[1]), v.new_zeros(size, v.shape[1])
    for t in range(len(q)):
        slot = t if t < sinks else sinks + t % newest
        keys[slot], values[slot] = k[t], v[t]
        lap = t - (t - (slots - sinks)) % newest
        at = torch.where(slots < sinks, slots, lap)
        blank = (at > t) | ((slots >= sinks) & (at < sinks))
        scores = (keys @ q[t] / q.shape[1] ** 0.5 - slope * (t - at)).masked_fill(blank, -math.inf)
        outs.append(scores.softmax(0) @ values)
    return torch.stack(outs)


def distance_in_cache(q, k, v, newest, sinks, slope):
    """StreamingLLM's way, which is not asked: the distance is that inside the cache."""
    held, outs = [], []
    for t in range(len(q)):
        held = [*held, t] if len(held) < sinks + newest else [*held[:sinks], *held[sinks + 1 :], t]
        far = torch.arange(len(held) - 1, -1, -1)
        outs.append((k[held] @ q[t] / q.shape[1] ** 0.5 - slope * far).softmax(0) @ v[held])
    return torch.stack(outs)


def beside_the_key(q, k, v, budget, recent):
    """Slots: key, value, account and position side by side, thrown away together; numpy."""
    slots, outs = [], []
    for t, queries in enumerate(q.numpy()):
        slots.append([k[t].numpy(), v[t].numpy(), 0.0, t])
        scores = queries @ np.stack([slot[0] for slot in slots]).T / math.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        outs.append(weights @ np.stack([slot[1] for slot in slots]))
        for slot, got in zip(slots, weights.sum(0), strict=True):
            slot[2] += got
        if len(slots) > budget:
            slots.pop(min(range(len(slots) - recent), key=lambda i: slots[i][2]))
    return np.stack(outs), {slot[3] for slot in slots}


def mean_over_heads(q, k, v, budget, recent):
    """The mean over heads is the sum over their number: the same key leaves."""
    held, outs, account = torch.zeros(len(q), dtype=torch.bool), [], torch.zeros(len(q)).double()
    for t in range(len(q)):
        held[t] = True
        weights = (q[t] @ k.T / q.shape[2] ** 0.5).masked_fill(~held, -math.inf).softmax(-1)
        outs.append(weights @ v)
        account += weights.mean(0)
        if held.sum() > budget:
            safe = torch.arange(len(q)) > t - recent
            held[account.masked_fill(safe | ~held, math.inf).argmin()] = False
    return torch.stack(outs), held.nonzero().flatten().flip(0)


def each_head_by_itself(q, k, v, budget, recent):
    """Every query head keeps keys of its own; what is returned is the first one's."""
    each = [beside_the_key(q[:, [h]], k, v, budget, recent) for h in range(q.shape[1])]
    return np.concatenate([out for out, _ in each], 1), each[0][1]


def no_positions(q, k, v, budget, recent):
    return beside_the_key(q, k, v, budget, recent)[0]


def by_hand(q, k, v, sizes, budget):
    """A token at a time over lists; the chunk decides only when keys leave."""
    held, outs = [], []
    ends = set(itertools.accumulate(sizes))
    norms = k.square().sum(1).tolist()
    for t in range(len(q)):
        held.append(t)
        outs.append((k[held] @ q[t] / q.shape[1] ** 0.5).softmax(0) @ v[held])
        if t + 1 in ends:
            held = sorted(held, key=norms.__getitem__)[:budget]
    return torch.stack(outs), tuple(held)


def chunk_in_sight(q, k, v, sizes, budget):
    """All of the chunk is read, its later tokens, too."""
    kept, outs, start = [], [], 0
    for size in sizes:
        held = [*kept, *range(start, start + size)]
        scores = q[start : start + size] @ k[held].T / q.shape[1] ** 0.5
        outs.append(scores.softmax(1) @ v[held])
        kept, start = sorted(held, key=lambda at: k[at].norm().item())[:budget], start + size
    return torch.cat(outs), kept


def mask_only(q, k, v, sizes, budget):
    """One fault left: positions are right, but the eviction still comes first."""
    kept, outs, start = torch.empty(0).long(), [], 0
    for size in sizes:
        new = torch.arange(start, start + size)
        held = torch.cat([kept, new])
        kept = held[k[held].norm(dim=1).argsort()[:budget]]
        scores = (q[new] @ k[kept].T / q.shape[1] ** 0.5).masked_fill(kept > new[:, None], -math.inf)
        outs.append(scores.softmax(1) @ v[kept])
        start += size
    return torch.cat(outs), kept.tolist()


def choose(
    users, context, room, needles, *, bits=True, prompt=True, whole=True, needle=True, strict=False, own=True
):
    """All choices sorted by what they cost; and the parts that one forgets."""
    size = {"fp16": 512, "int8": 260, "kivi": 160, "kivi-2": 96}
    if not bits:
        size = {"fp16": 512, "int8": 256, "kivi": 128, "kivi-2": 64}
    rise, found = (
        dict(zip(size, (0, 0.1, 0.6, 6), strict=True)),
        dict(zip(size, (1, 1, 1, 0.96), strict=True)),
    )
    kept, seen = {1.0: 0, 0.5: 0.4, 0.2: 1.5}, {1.0: 1, 0.5: 0.8, 0.2: 0.45}
    for form, keep in sorted(itertools.product(size, kept), key=lambda one: rise[one[0]] + kept[one[1]]):
        tokens = users * keep * context * size[form]
        if prompt:
            tokens += (1 - keep) * context * (size[form] if own else 512)
        if whole and "kivi" in form:
            tokens += users * 64 * 512
        gib = tokens / 4 / 2**20
        fits = gib < room if strict else gib <= room
        if fits and (not needle or found[form] * seen[keep] * 100 >= needles):
            return {"keep": keep, "form": form}
    return {"keep": 0.2, "form": "kivi-2"}


def without(**left_out):
    return lambda users, context, room, needles: choose(users, context, room, needles, **left_out)


ANSWERS = {
    "keys-in-groups": Submissions(
        right=[token_by_token],
        wrong=[(rest_in_place, "Work on a copy"), (nothing_whole, "fills no group")],
        lumen=["lumen.cache.quant_codes.quantize"],
    ),
    "ring-with-sinks": Submissions(
        right=[without_a_ring, ring_by_modulus],
        wrong=[
            (distance_in_cache, "distance inside the cache"),
            (lambda *a: without_a_ring(*a[:3], a[3] - 1, *a[4:]), "fills it to the last slot"),
        ],
        lumen=["lumen.attention.core.attention"],
    ),
    "heavy-hitters": Submissions(
        right=[beside_the_key, mean_over_heads],
        wrong=[
            (each_head_by_itself, "a third of the keys"),
            (no_positions, "a budget that is never reached"),
        ],
        lumen=["lumen.cache.evict.EvictingCache", "lumen.cache.evict_rules.H2O"],
    ),
    "gone-too-early": Submissions(
        right=[by_hand],
        wrong=[(chunk_in_sight, "never reached"), (mask_only, "what is left after the eviction")],
        lumen=["lumen.attention.core.attention", "lumen.cache.evict.EvictingCache"],
    ),
    "cache-claims": Submissions(
        right=[("ace", 131_040), ("e, c, a", 131_040.0)],
        wrong=[
            (("ac", 131_040), "3 statements are wrong"),
            (("abe", 131_040), "its own scale"),
            (("ade", 131_040), "bounds of the pages"),
            (("ace", 131_072), "one of the 4,096"),
            (("ace", 131_000), "slightly larger"),
            ("ace", "the choice alone"),
        ],
    ),
    "bits-or-keys": Submissions(
        right=[without()],
        wrong=[
            (without(bits=False), "8.05, needles 90: form='int8', keep=1.0"),
            (without(prompt=False), "10.3"),
            (without(whole=False), "5.4"),
            (without(needle=False), "the needle is gone"),
            (without(own=False), "10.5"),
            (without(strict=True), "16, needles 90: form='int8'"),
            (lambda *load: {"form": "int4", "keep": 1.0}, "one of"),
            ({"form": "kivi", "keep": 1.0}, "a function of users"),
        ],
        stubs=[lambda *load: {"form": ..., "keep": 1.0}],
    ),
}
