"""Answers to the exercises of chapter 12 that neither the solution nor a slip of the set gives."""

import numpy as np
import torch
import torch.nn.functional as F

from lumen.grading.proof import Submissions

RIGHT_USERS = {"own heads": 4.00e6, "every chip": 16, "a chip each": 128}


# pool-the-heads -----------------------------------------------------------------------------------
def pool_by_matrix(weight, bias, heads, held, count):
    """The merge is a matrix itself: a one for each query row, shares for the others. Through numpy."""
    if count not in [n for n in range(1, held + 1) if held % n == 0]:
        raise ValueError("uneven")
    w = weight.numpy()
    width, size = len(w) // (heads + 2 * held), held // count
    share = np.kron(np.kron(np.eye(count), np.full((1, size), 1 / size)), np.eye(width))
    turn = np.zeros(((heads + 2 * count) * width, len(w)))
    turn[: heads * width, : heads * width] = np.eye(heads * width)
    turn[heads * width :, heads * width :] = np.kron(np.eye(2), share)
    return turn @ w, None if bias is None else turn @ bias.numpy()


def pool_head_by_head(weight, bias, heads, held, count):
    """Heads by their number. Floors an uneven group, and so drops heads."""
    width, size = weight.shape[0] // (heads + 2 * held), held // count

    def head(rows, i):
        return rows[i * width : (i + 1) * width]

    def merged(rows):
        new = [head(rows, i) for i in range(heads)]
        for start in (heads, heads + held):
            for g in range(count):
                group = [head(rows, start + g * size + j) for j in range(size)]
                new.append(sum(group) / size)
        return torch.cat(new)

    return merged(weight), None if bias is None else merged(bias)


def pool_head_by_head_checked(weight, bias, heads, held, count):
    if not 0 < count <= held or held % count:
        raise ValueError(count)
    return pool_head_by_head(weight, bias, heads, held, count)


def pool_as_one_stack(weight, bias, heads, held, count):
    """Keys and values as one stack of heads in 2 · count groups, in place: right, but for what was handed in."""
    if count < 1 or held % count:
        raise ValueError(count)
    width, size = len(weight) // (heads + 2 * held), held // count

    def merged(rows):
        for start in range(heads * width, len(rows), size * width):
            group = rows[start : start + size * width].unflatten(0, (size, width))
            group[0] = group.mean(0)
        keep = [h * width + d for h in range(heads) for d in range(width)]
        keep += [h * width + d for h in range(heads, heads + 2 * held, size) for d in range(width)]
        return rows[keep]

    return merged(weight), None if bias is None else merged(bias)


def pool_asserted(weight, bias, heads, held, count):
    assert count > 0 and held % count == 0
    return pool_head_by_head(weight, bias, heads, held, count)


def pool_three_parts(weight, bias, heads, held, count):
    """As many heads of keys as of queries, always."""
    if count < 1 or held % count:
        raise ValueError(count)
    width = len(weight) // (3 * heads)

    def merged(rows):
        q, *both = rows.split(len(rows) // 3)
        return torch.cat(
            [q, *(x.reshape(count, -1, width, *x.shape[1:]).mean(1).flatten(0, 1) for x in both)]
        )

    return merged(weight), None if bias is None else merged(bias)


def pool_by_query_groups(weight, bias, heads, held, count):
    if count < 1 or held % count:
        raise ValueError(count)
    width = len(weight) // (heads + 2 * held)

    def merged(rows):
        q, k, v = rows.split([heads * width, held * width, held * width])
        return torch.cat(
            [q, *(x.unflatten(0, (-1, heads // count, width)).mean(1).flatten(0, 1) for x in (k, v))]
        )

    return merged(weight), None if bias is None else merged(bias)


def pool_to_at_least_one(weight, bias, heads, held, count):
    if held % max(count, 1):
        raise ValueError(count)
    return pool_head_by_head(weight, bias, heads, held, max(count, 1))


# whose-key ----------------------------------------------------------------------------------------
def whose_by_loop(q, k, v):
    out = []
    for i in range(q.shape[1]):
        j = i * k.shape[1] // q.shape[1]
        weights = torch.softmax(q[:, i] @ k[:, j].transpose(-1, -2) / np.sqrt(q.shape[-1]), -1)
        out.append(weights @ v[:, j])
    return torch.stack(out, 1)


def whose_by_torch(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def whose_members_first(q, k, v):
    """Groups are right; stored heads stand where members do. Nine heads on three have shapes that fit."""
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = groups @ k[:, None].mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v[:, None]).flatten(1, 2)


def whose_turned_back_wrongly(q, k, v):
    """Read rightly; the answers come back with members outside."""
    groups = q.unflatten(1, (k.shape[1], -1))
    scores = groups @ k[:, :, None].mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v[:, :, None]).transpose(1, 2).flatten(1, 2)


def whose_softmax(axis):
    def answer(q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        return torch.softmax(q @ k.transpose(2, 3) / np.sqrt(q.shape[-1]), axis) @ v

    return answer


def whose_over_width(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=1 / q.shape[-1], enable_gqa=True)


# absorb-the-latent --------------------------------------------------------------------------------
def absorb_as_one_wide_head(q, q_turned, latents, turned, up_k, up_v):
    """Multi-query attention on what lies in the cache, by torch's own function and a scale."""
    asked = torch.cat([torch.einsum("bhd,hdr->bhr", q, up_k), q_turned], -1)
    cached = torch.cat([latents, turned], -1)
    read = F.scaled_dot_product_attention(
        asked[:, None], cached[:, None], latents[:, None], scale=(q.shape[-1] + q_turned.shape[-1]) ** -0.5
    )[:, 0]
    return (read[:, :, None] @ up_v.mT)[:, :, 0]


def absorb_in_numpy(q, q_turned, latents, turned, up_k, up_v):
    q, q_turned, latents, turned, up_k, up_v = (x.numpy() for x in (q, q_turned, latents, turned, up_k, up_v))
    out = np.zeros((*q.shape[:2], up_v.shape[1]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            s = latents[b] @ (up_k[h].T @ q[b, h]) + turned[b] @ q_turned[b, h]
            w = np.exp((s - s.max()) / np.sqrt(q.shape[-1] + q_turned.shape[-1]))
            out[b, h] = up_v[h] @ (w @ latents[b] / w.sum())
    return out


def absorb_first_row(q, q_turned, latents, turned, up_k, up_v):
    """All users read the first one's cache."""
    rows = len(q)
    return absorb_as_one_wide_head(
        q, q_turned, latents[:1].expand(rows, -1, -1), turned[:1].expand(rows, -1, -1), up_k, up_v
    )


def absorb_first_head(q, q_turned, latents, turned, up_k, up_v):
    """One way into the latents for all heads."""
    return absorb_as_one_wide_head(q, q_turned, latents, turned, up_k[:1].expand_as(up_k), up_v)


def absorb_with_two_scales(q, q_turned, latents, turned, up_k, up_v):
    """Each part of a key over the root of its own width."""
    whole = (q.shape[-1] + q_turned.shape[-1]) ** 0.5
    q, q_turned = q * whole / q.shape[-1] ** 0.5, q_turned * whole / q_turned.shape[-1] ** 0.5
    return absorb_as_one_wide_head(q, q_turned, latents, turned, up_k, up_v)


def absorb_value_wide(q, q_turned, latents, turned, up_k, up_v):
    """The scale from the width of a value, which is that of a key in most models."""
    wide = up_v.shape[1] + turned.shape[-1]
    ratio = ((q.shape[-1] + turned.shape[-1]) / wide) ** 0.5
    return absorb_as_one_wide_head(q * ratio, q_turned * ratio, latents, turned, up_k, up_v)


# which-cache --------------------------------------------------------------------------------------
NATS = {"mha": 0, "mla": 4, "gqa8": 10, "gqa4": 16, "gqa8-cla2": 22, "mqa": 30}


def chosen(context, limit_ms, most, *, split_latents=False, parts=False, strict=False, key=None):
    """In another order and in GB; and mistakes in it."""
    best = None
    for users in (256, 128, 64, 32, 16, 8, 4, 2, 1):
        for chips in (16, 8, 4, 2):
            for name, nats in NATS.items():
                heads = {"mha": 64, "gqa8": 8, "gqa8-cla2": 8, "gqa4": 4, "mqa": 1}.get(name)
                if heads is None:
                    token = 80 * 576 * 2 / (chips if split_latents else 1)
                else:
                    own = heads / chips if parts else max(heads // chips, 1)
                    token = (40 if "cla" in name else 80) * own * 512
                gb = 141 / chips + users * context * token / 1e9
                ms = gb / 3.350
                lossy = nats / 1000 >= most > 0 if strict else nats / 1000 > most
                if lossy or gb > 80 or ms > limit_ms:
                    continue
                cost = key(chips, users, ms) if key else chips * ms / users
                if best is None or cost < best[0]:
                    best = cost, {"users": users, "chips": chips, "cache": name}
    return best[1]


ANSWERS = {
    "latent-users": Submissions(
        right=[RIGHT_USERS, {"a chip each": 128.0, "every chip": np.int64(16), "own heads": 3_997_696}],
        wrong=[
            ({**RIGHT_USERS, "own heads": 4.0}, "the prefix is off"),
            ({**RIGHT_USERS, "a chip each": 1024}, "factor of about 8"),
            ({**RIGHT_USERS, "a chip each": 136}, "Round down on each chip"),
            ({**RIGHT_USERS, "a chip each": 297}, "84 GB of each"),
            ({**RIGHT_USERS, "every chip": 17.4}, "not in GiB"),
            ({**RIGHT_USERS, "own heads": 4_997_120}, "Without the turned part"),
            ({"own heads": 4.0e6}, "a dict with the keys"),
        ],
        stubs=[{**RIGHT_USERS, "every chip": ...}],
    ),
    "pool-the-heads": Submissions(
        right=[pool_by_matrix, pool_head_by_head_checked],
        wrong=[
            (pool_head_by_head, "(65, 7)"),
            (pool_as_one_stack, "argument 1 changed"),
            (pool_asserted, "AssertionError"),
            (pool_to_at_least_one, "into none"),
            (pool_three_parts, "heads + 2 · held"),
            (pool_by_query_groups, "held / count"),
        ],
        lumen=["lumen.models.fewer_heads.fewer_kv_heads"],
    ),
    "whose-key": Submissions(
        right=[whose_by_loop, whose_by_torch],
        wrong=[
            (whose_members_first, "meet its own stored head"),
            (whose_turned_back_wrongly, "9 heads on 3, one query"),
            (whose_softmax(1), "those of the heads do"),
            (whose_softmax(2), "over the keys, the last axis"),
            (whose_over_width, "not by the width"),
        ],
        lumen=["lumen.attention.core.attention"],
    ),
    "absorb-the-latent": Submissions(
        right=[absorb_as_one_wide_head, absorb_in_numpy],
        wrong=[
            (absorb_first_row, "position 0"),
            (absorb_first_head, "its own way into the latents"),
            (absorb_value_wide, "values wider than keys"),
            (absorb_with_two_scales, "added first, then divided"),
        ],
        lumen=["lumen.attention.core.attention"],
    ),
    "cache-claims": Submissions(
        right=[("bde", 82.2), ({"d", "b", "e"}, 82.236842)],
        wrong=[
            (("bd", 82.2), "3 statements are wrong"),
            (("abd", 82.2), "2.25"),
            (("bcd", 82.2), "in the place of H"),
            (("bde", 98.2), "a smaller number"),
            ("bde", "the choice alone"),
        ],
    ),
    "which-cache": Submissions(
        right=[chosen],
        wrong=[
            (lambda *a: chosen(*a, split_latents=True), "202.1, at most 80"),
            (lambda *a: chosen(*a, parts=True), "94.71, at most 80"),
            (lambda *a: chosen(*a, strict=True), "cost 2.217"),
            (lambda *a: chosen(*a, key=lambda chips, users, ms: -users), "cost 1.931"),
            (lambda *a: chosen(*a, key=lambda chips, users, ms: ms), "cost 43.69"),
            (lambda *a: {"cache": "mqa", "chips": 8, "users": 256}, "loses more"),
            ({"cache": "mqa", "chips": 8, "users": 256}, "a function of context"),
        ],
        stubs=[lambda *a: {"cache": ..., "chips": 8, "users": 1}],
    ),
}
