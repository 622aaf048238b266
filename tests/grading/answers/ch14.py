"""Answers to the exercises of chapter 14 that neither the solution nor a slip of the set gives."""

import numpy as np
import torch

from lumen.grading.proof import Submissions

RIGHT_BYTES = {"state": 2.05, "tokens": 1048, "snapshots": 2.30}


def memory_by_rows(q, k, v, decay, beta, pos, state):
    """Each row's tokens by themselves, as matrices: S <- (I - beta k kᵀ) decay S + beta k vᵀ."""
    outs, state = torch.zeros_like(v), state.clone()
    for row in range(len(q)):
        for t in (pos[row] >= 0).nonzero()[:, 0].tolist():
            key, strength = k[row, t], beta[row, t]
            keep = torch.eye(len(key), dtype=q.dtype) - strength * torch.outer(key, key)
            state[row] = keep @ (decay[row, t] * state[row]) + strength * torch.outer(key, v[row, t])
            outs[row, t] = q[row, t] @ state[row]
    return outs, state


def memory_in_numpy(q, k, v, decay, beta, pos, state):
    outs, s = np.zeros(v.shape), state.numpy().copy()
    q, k, v, decay, beta = (x.numpy() for x in (q, k, v, decay, beta))
    for b, t in zip(*np.nonzero(pos.numpy() >= 0), strict=True):
        s[b] *= decay[b, t]
        s[b] += np.outer(k[b, t], beta[b, t] * (v[b, t] - k[b, t] @ s[b]))
        outs[b, t] = q[b, t] @ s[b]
    return outs, s


def pads_skipped_at_the_front(q, k, v, decay, beta, pos, state):
    """Right for left padding alone: from the first token of a row on everything counts."""
    started = (pos >= 0).cumsum(1) > 0
    return memory_by_rows(q, k, v, decay, beta, torch.where(started, 0, -1), state)


def adds(q, k, v, decay, beta, pos, state):
    """No correction: gated linear attention."""
    outs, state = torch.zeros_like(v), state.clone()
    for row in range(len(q)):
        for t in (pos[row] >= 0).nonzero()[:, 0].tolist():
            state[row] = decay[row, t] * state[row] + beta[row, t] * torch.outer(k[row, t], v[row, t])
            outs[row, t] = q[row, t] @ state[row]
    return outs, state


def map_by_doubling(k, v, decay, beta, chunk):
    """All chunks first: systems inverted by doubling, the last chunk filled with tokens that do nothing."""
    short, pad, size = -len(k) % chunk, torch.nn.functional.pad, k.shape[1]
    k, v = (pad(x, (0, 0, 0, short)).unflatten(0, (-1, chunk)) for x in (k, v))
    share, beta = (pad(x, (0, short)).unflatten(0, (-1, chunk)) for x in (decay.log(), beta))
    since, beta = share.cumsum(1), beta[..., None]
    between = (since[..., None] - since[:, None]).tril().exp()
    power = -(beta * (k @ k.mT) * between).tril(-1)
    inverse = torch.eye(chunk, dtype=k.dtype) + power
    for _ in range(max(0, chunk - 1).bit_length()):
        power = power @ power
        inverse = inverse + power @ inverse
    left = (k * (since[:, -1:] - since).exp()[..., None]).mT @ inverse
    keeps = since[:, -1, None, None].exp() * torch.eye(size, dtype=k.dtype) - left @ (
        beta * since.exp()[..., None] * k
    )
    adds = left @ (beta * v)
    keep, add = keeps[0], adds[0]
    for then, more in zip(keeps[1:], adds[1:], strict=True):
        keep, add = then @ keep, then @ add + more
    return keep, add


def map_in_numpy(k, v, decay, beta, chunk):
    """From the end: the maps of the chunks behind are known, and each goes on the right."""
    k, v, decay, beta = (x.numpy() for x in (k, v, decay, beta))
    keep, add = np.eye(k.shape[1]), np.zeros((k.shape[1], v.shape[1]))
    for at in reversed(range(0, len(k), chunk)):
        a, c, g, e = (x[at : at + chunk] for x in (k, v, np.log(decay), beta[:, None]))
        s = np.cumsum(g)
        share = np.tril(np.exp(np.minimum(s[:, None] - s, 0)))
        w = np.linalg.solve(
            np.eye(len(a)) + np.tril(e * (a @ a.T) * share, -1), e * np.c_[c, -np.exp(s)[:, None] * a]
        )
        left = (a * np.exp(s[-1] - s)[:, None]).T
        add = add + keep @ left @ w[:, : v.shape[1]]
        keep = keep @ (np.exp(s[-1]) * np.eye(k.shape[1]) + left @ w[:, v.shape[1] :])
    return keep, add


def map_by_states(k, v, decay, beta, chunk):
    """Runs the chunks twice: the unit matrix through them without values, and nothing with them."""
    outs = []
    for values, state in (
        (torch.zeros(len(k), k.shape[1], dtype=k.dtype), torch.eye(k.shape[1], dtype=k.dtype)),
        (v, torch.zeros(k.shape[1], v.shape[1], dtype=k.dtype)),
    ):
        for at in range(0, len(k), chunk):
            a, c, g, e = (x[at : at + chunk] for x in (k, values, decay.log(), beta[:, None]))
            s = g.cumsum(0)
            share = (s[:, None] - s).tril().exp()
            system = torch.eye(len(a), dtype=k.dtype) + (e * (a @ a.T) * share).tril(-1)
            u = torch.linalg.inv(system) @ (e * (c - s.exp()[:, None] * (a @ state)))
            state = s[-1].exp() * state + (a * (s[-1] - s).exp()[:, None]).T @ u
        outs.append(state)
    return tuple(outs)


def one_chunk(k, v, decay, beta, chunk):
    """Right, by one system over the whole text."""
    return map_by_states(k, v, decay, beta, len(k))


def unit_keys(k, v, decay, beta, chunk):
    """Keys brought to length 1, which nobody asked for."""
    return map_by_states(torch.nn.functional.normalize(k, dim=-1), v, decay, beta, chunk)


def clamped(k, v, decay, beta, chunk):
    """Shares as quotients of products, kept from 0 by a clamp: two tokens far down fade by nothing."""
    keep, add = torch.eye(k.shape[1], dtype=k.dtype), torch.zeros(k.shape[1], v.shape[1], dtype=k.dtype)
    for at in range(0, len(k), chunk):
        a, c, g, e = (x[at : at + chunk] for x in (k, v, decay, beta[:, None]))
        p = g.cumprod(0).clamp_min(1e-300)
        system = torch.eye(len(a), dtype=k.dtype) + (e * (a @ a.T) * (p[:, None] / p)).tril(-1)
        w = torch.linalg.solve(system, e * torch.cat([c, -p[:, None] * a], 1))
        left = (a * (p[-1] / p)[:, None]).T
        here = p[-1] * torch.eye(k.shape[1], dtype=k.dtype) + left @ w[:, v.shape[1] :]
        keep, add = here @ keep, here @ add + left @ w[:, : v.shape[1]]
    return keep, add


def forty_rounds(k, v, decay, beta, chunk):
    """The system by forty rounds of putting in, which is too few for a long chunk."""
    keep, add = torch.eye(k.shape[1], dtype=k.dtype), torch.zeros(k.shape[1], v.shape[1], dtype=k.dtype)
    for at in range(0, len(k), chunk):
        a, c, g, e = (x[at : at + chunk] for x in (k, v, decay.log(), beta[:, None]))
        s = g.cumsum(0)
        lower = -(e * (a @ a.T) * (s[:, None] - s).tril().exp()).tril(-1)
        sides = e * torch.cat([c, -s.exp()[:, None] * a], 1)
        w = sides
        for _ in range(40):
            w = sides + lower @ w
        left = (a * (s[-1] - s).exp()[:, None]).T
        here = s[-1].exp() * torch.eye(k.shape[1], dtype=k.dtype) + left @ w[:, v.shape[1] :]
        keep, add = here @ keep, here @ add + left @ w[:, : v.shape[1]]
    return keep, add


def side_by_side(k, v, decay, beta, chunk):
    """All chunks at once, but each token of theirs by itself."""
    short, pad, size = -len(k) % chunk, torch.nn.functional.pad, k.shape[1]
    k, v = (pad(x, (0, 0, 0, short)).unflatten(0, (-1, chunk)) for x in (k, v))
    g = pad(decay, (0, short), value=1.0).unflatten(0, (-1, chunk))[..., None, None]
    e = pad(beta, (0, short)).unflatten(0, (-1, chunk))[..., None, None]
    both = torch.eye(size, size + v.shape[2], dtype=k.dtype).expand(len(k), -1, -1)
    v = pad(v, (size, 0))
    for t in range(chunk):
        key, faded = k[:, t, :, None], g[:, t] * both
        both = faded + e[:, t] * key * (v[:, t, None] - key.mT @ faded)
    keeps, adds = both[..., :size], both[..., size:]
    keep, add = keeps[0], adds[0]
    for then, more in zip(keeps[1:], adds[1:], strict=True):
        keep, add = then @ keep, then @ add + more
    return keep, add


def blocks_by_sets(q, k, q_pos, k_pos, block, top):
    """Sets of positions, one query at a time, in numpy."""
    q, k, places = q.numpy(), k.numpy(), k_pos.tolist()
    reads = np.zeros((*q.shape[:2], len(places)), bool)
    shelves = {}
    for slot, at in enumerate(places):
        if at >= 0:
            shelves.setdefault(at // block, []).append(slot)
    for h, t in np.ndindex(*q.shape[:2]):
        at = int(q_pos[t])
        if at < 0:
            continue
        keys = k[h // (len(q) // len(k))]
        liked = sorted(
            (n for n in shelves if n < at // block), key=lambda n: -(keys[shelves[n]].mean(0) @ q[h, t])
        )
        for n in [at // block, *liked[: top - 1]]:
            reads[h, t, [slot for slot in shelves[n] if places[slot] <= at]] = True
    return reads


def group_chooses(q, k, q_pos, k_pos, block, top):
    """The heads of a group choose together, as in NSA."""
    group = len(q) // len(k)
    together = q.unflatten(0, (len(k), group)).mean(1)
    return torch.from_numpy(blocks_by_sets(together, k, q_pos, k_pos, block, top)).repeat_interleave(group, 0)


def best_key(q, k, q_pos, k_pos, block, top):
    """A block counts by its best key, not by its mean."""
    reads = torch.zeros(q.shape[0], q.shape[1], k.shape[1], dtype=torch.bool)
    keys = k.repeat_interleave(len(q) // len(k), 0)
    number = torch.where(k_pos >= 0, k_pos // block, -1)
    for h, t in np.ndindex(*q.shape[:2]):
        at = int(q_pos[t])
        if at >= 0:
            scores = {
                n: float((keys[h, number == n] @ q[h, t]).max())
                for n in set(number.tolist())
                if 0 <= n < at // block
            }
            liked = sorted(scores, key=lambda n: -scores[n])[: top - 1]
            reads[h, t] = torch.isin(number, torch.tensor([at // block, *liked])) & (k_pos <= at)
    return reads


def layers(users, context, gib, ms):
    """From the other end, in bytes."""
    for full in (48, 24, 16, 12, 8, 6, 4, 3, 2, 1):
        kv, states = full * context * 2 * 2 * 256 * 2, (48 - full) * (2**21 + 3 * 8192 * 2)
        if users * (kv + states) <= gib * 2**30 and users * (kv + 2 * states) <= ms * 3.35e9:
            return {"full": full}
    return {"full": 0}


def layers_if(*, states=1, written=2, strict=False, late=False, bytes_of=2_146_304):
    """A slip in what is counted."""

    def choose(users, context, gib, ms):
        fit = [0]
        for full in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48):
            kv, held = users * full * 2048 * context, states * users * (48 - full) * bytes_of
            room, time = gib * 2**30, ms * 3.35e9
            if kv + held < room + (not strict) and kv + written * held < time + (not late):
                fit.append(full)
        return {"full": max(fit)}

    return choose


ANSWERS = {
    "state-or-cache": Submissions(
        right=[RIGHT_BYTES, {"state": 2.0469, "tokens": 1050.0, "snapshots": 2.303}],
        wrong=[
            ({**RIGHT_BYTES, "tokens": 524}, "by a factor of about 2"),
            ({**RIGHT_BYTES, "snapshots": 2.47}, "A GiB has"),
            ({"state": 2.05}, "a dict with the keys"),
        ],
        stubs=[{**RIGHT_BYTES, "snapshots": ...}],
    ),
    "fades-in-silence": Submissions(
        right=[memory_by_rows, memory_in_numpy],
        wrong=[(pads_skipped_at_the_front, "padding on the right"), (adds, "one row of six tokens")],
        lumen=["lumen.attention.linear.recurrent.recurrent", "lumen.attention.linear.chunked.chunked"],
    ),
    "a-text-as-a-map": Submissions(
        right=[map_by_doubling, map_in_numpy, map_by_states],
        wrong=[
            (one_chunk, "Scores of the whole text"),
            (unit_keys, "one chunk of six"),
            (clamped, "a strong gate in one chunk"),
            (forty_rounds, "the whole chunk"),
            (side_by_side, "operations a chunk"),
        ],
        lumen=["lumen.attention.linear.recurrent.recurrent", "lumen.attention.linear.chunked.chunked"],
    ),
    "few-blocks": Submissions(
        right=[blocks_by_sets],
        wrong=[
            (group_chooses, "nine heads on three"),
            (best_key, "sixteen tokens"),
        ],
        lumen=["lumen.attention.sparse.moba.moba_blocks", "lumen.attention.sparse.moba.moba_attention"],
    ),
    "linear-claims": Submissions(
        right=[("ace", 0.5703), ("e, c, a", 0.57)],
        wrong=[
            (("ac", 0.57), "3 statements are wrong"),
            (("abe", 0.57), "The order of additions"),
            (("ade", 0.57), "the correction leaves"),
            (("ace", 0.741), "endless contexts"),
            (("ace", 0.43), "what is left"),
            ("ace", "the choice alone"),
        ],
    ),
    "full-layers": Submissions(
        right=[layers],
        wrong=[
            (layers_if(states=0), "full=16"),
            (layers_if(written=1), "users 24, context 16384"),
            (layers_if(strict=True), "full=24"),
            (layers_if(late=True), "context 292113"),
            (layers_if(bytes_of=2**21), "context 3000"),
            (lambda users, context, gib, ms: {"full": None}, "full=None"),
            (lambda users, context, gib, ms: {"full": 12}, "cost 36"),
            (lambda users, context, gib, ms: {"full": 0}, "ms 10: full=0"),
            (lambda users, context, gib, ms: {"full": 5}, "full=5"),
            ({"full": 12}, "a function of users and context and gib and ms"),
        ],
        stubs=[lambda users, context, gib, ms: {"full": ...}],
    ),
}
