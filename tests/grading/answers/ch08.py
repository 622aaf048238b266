"""Right and wrong answers to the exercises of chapter 08."""

import random

import torch

from lumen import cost
from lumen.config import CONFIGS
from lumen.grading.proof import Submissions
from lumen.hardware import CHIPS

# A step for sixteen -------------------------------------------------------------------------------

W, KAPPA, BANDWIDTH = 15e9, 131_072, 3.35e12
ALONE, TOGETHER = (1e3 * (W + batch * 4096 * KAPPA) / BANDWIDTH for batch in (1, 16))
RIGHT = {
    "alone": ALONE,
    "together": TOGETHER,
    "gain": 16 * ALONE / TOGETHER,
    "ceiling": BANDWIDTH / (4096 * KAPPA),
}


def by_hand():
    cache = 4096 * 128 * 1024  # bytes of one sequence
    alone, together = ((15e9 + users * cache) / 3.35e12 * 1000 for users in (1, 16))
    return dict(alone=alone, together=together, gain=16 / (together / alone), ceiling=3.35e12 / cache)


def but(name, value):
    return lambda: {**RIGHT, name: value}


# The loop with a door -----------------------------------------------------------------------------


def timeline(lengths, slots, static=False):
    if slots < 1 or min(lengths, default=1) < 1:
        raise ValueError("no")
    waiting, running, steps = list(enumerate(lengths)), [], []
    while waiting or running:
        if not running or not static:
            free = slots - len(running)
            running += waiting[:free]
            waiting = waiting[free:]
        steps.append(sorted(name for name, _ in running))
        running = [(name, left - 1) for name, left in running if left > 1]
    return steps


def timeline_by_ends(lengths, slots, static=False):
    """Written differently: when each request starts and ends, then a list of who covers each step."""
    if slots < 1 or any(n <= 0 for n in lengths):
        raise ValueError("no")
    free, spans = [0] * slots, []
    for at, n in enumerate(lengths):
        if static and at % slots == 0:
            free = [max(free)] * slots
        slot = free.index(min(free))
        spans.append((free[slot], free[slot] + n))
        free[slot] += n
    last = max((end for _, end in spans), default=0)
    return [[i for i, (start, end) in enumerate(spans) if start <= step < end] for step in range(last)]


def stays_too_long(lengths, slots, static=False):
    if slots < 1 or min(lengths, default=1) < 1:
        raise ValueError("no")
    return timeline([n + 1 for n in lengths], slots, static)


def everybody_at_once(lengths, slots, static=False):
    return timeline(lengths, max(len(lengths), 1), static)


def always_continuous(lengths, slots, static=False):
    return timeline(lengths, slots, False)


def takes_no_slot(lengths, slots, static=False):
    return timeline(lengths, max(1, slots), static)


def below_zero(lengths, slots, static=False):
    if slots < 1 or 0 in lengths:
        raise ValueError("no")
    return timeline([max(1, n) for n in lengths], slots, static)


def only_zero_slots(lengths, slots, static=False):
    if slots == 0:
        raise ValueError("no")
    return timeline(lengths, max(1, slots), static)


def nobody_first(lengths, slots, static=False):
    return timeline(lengths, slots, static) if lengths else []


def closed_by_default(lengths, slots, static=True):
    return timeline(lengths, slots, static)


def skips_the_empty(lengths, slots, static=False):
    if slots < 1:
        raise ValueError("no")
    return timeline([max(1, n) for n in lengths], slots, static)


# A row without pads -------------------------------------------------------------------------------


def pack(prompts):
    tokens = torch.cat([torch.tensor(prompt) for prompt in prompts])
    pos = torch.tensor([p for prompt in prompts for p in range(len(prompt))])
    blocks = [torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril() for prompt in prompts]
    return tokens, pos, torch.block_diag(*blocks).bool()


def pack_by_loops(prompts):
    flat = [(row, p, token) for row, prompt in enumerate(prompts) for p, token in enumerate(prompt)]
    mask = torch.zeros(len(flat), len(flat), dtype=torch.bool)
    for i, (row, p, _) in enumerate(flat):
        for j, (other, q, _) in enumerate(flat):
            mask[i, j] = row == other and q <= p
    return torch.tensor([t for *_, t in flat]), torch.tensor([p for _, p, _ in flat]), mask


def pack_causal(prompts):
    tokens, pos, mask = pack(prompts)
    return tokens, pos, torch.ones_like(mask).tril()


def pack_positions(prompts):
    tokens, pos, _ = pack(prompts)
    return tokens, pos, pos[:, None] >= pos[None]


def pack_both_ways(prompts):
    tokens, pos, mask = pack(prompts)
    return tokens, pos, mask | mask.T


def pack_one_count(prompts):
    tokens, _, mask = pack(prompts)
    return tokens, torch.arange(len(tokens)), mask


def pack_blind(prompts):
    tokens, pos, mask = pack(prompts)
    return tokens, pos, mask & ~torch.eye(len(tokens), dtype=torch.bool)


# The neighbour's die ------------------------------------------------------------------------------


def draws(requests, slots):
    streams = [random.Random(seed) for seed, _ in requests]  # one for each request
    waiting, running = list(range(len(requests))), []
    drawn = [[] for _ in requests]
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        for name in running:
            drawn[name].append(streams[name].random())
        running = [name for name in running if len(drawn[name]) < requests[name][1]]
    return drawn


def draws_without_a_loop(requests, slots):
    return [[stream.random() for _ in range(n)] for stream, n in ((random.Random(s), n) for s, n in requests)]


def draws_common(requests, slots):
    die = random.Random(requests[0][0]) if requests else None
    waiting, running = list(range(len(requests))), []
    drawn = [[] for _ in requests]
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        for name in running:
            drawn[name].append(die.random())
        running = [name for name in running if len(drawn[name]) < requests[name][1]]
    return drawn


def draws_by_seat(requests, slots):
    streams = [random.Random(seed) for seed, _ in requests[:slots]]
    waiting, seats = list(range(len(requests))), [None] * slots
    drawn = [[] for _ in requests]
    while waiting or any(s is not None for s in seats):
        for seat in range(slots):
            if seats[seat] is None and waiting:
                seats[seat] = waiting.pop(0)
        for seat, name in enumerate(seats):
            if name is not None:
                drawn[name].append(streams[seat].random())
                if len(drawn[name]) == requests[name][1]:
                    seats[seat] = None
    return drawn


def draws_by_seed(requests, slots):
    streams = {seed: random.Random(seed) for seed, _ in requests}
    waiting, running = list(range(len(requests))), []
    drawn = [[] for _ in requests]
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        for name in running:
            drawn[name].append(streams[requests[name][0]].random())
        running = [name for name in running if len(drawn[name]) < requests[name][1]]
    return drawn


def draws_with_another_seed(requests, slots):
    """Its own mistake: no sentence of another one."""
    streams = [random.Random(seed + i) for i, (seed, _) in enumerate(requests)]
    return [[stream.random() for _ in range(n)] for stream, (_, n) in zip(streams, requests, strict=True)]


def draws_from_the_global(requests, slots):
    drawn = []
    for seed, tokens in requests:
        random.seed(seed)
        drawn.append([random.random() for _ in range(tokens)])
    return drawn


def draws_anew(requests, slots):
    return [[random.Random(seed).random()] * tokens for seed, tokens in requests]


# A batch that is in time --------------------------------------------------------------------------


def choice(chip, batch):
    return lambda: {"card": chip, "batch": batch}


def searched():
    llama, best = CONFIGS["llama-3-8b"], None
    for name, hourly in {"A100 80GB SXM": 1.8, "H100 SXM": 3.0, "H200 SXM": 3.8}.items():
        batch = cost.max_batch(llama, CHIPS[name], 8192, 0.025, reserve=0.1)
        price = hourly * cost.predict_decode(llama, CHIPS[name], 8192, batch).seconds / batch
        best = min(best or (price, name, batch), (price, name, batch))
    return {"card": best[1], "batch": best[2]}


ANSWERS = {
    "step-for-sixteen": Submissions(
        right=[lambda: dict(RIGHT), by_hand],
        wrong=[
            (but("alone", 1e3 * W / BANDWIDTH), "One user has a cache, too"),
            (but("together", ALONE), "the caches are not"),
            (but("together", 16 * ALONE), "read once for all sixteen"),
            (but("gain", TOGETHER / ALONE), "It makes 16 tokens"),
            (but("gain", 16), "a free ride"),
            (but("ceiling", 16e3 / TOGETHER), "the rate at batch 16"),
            (but("ceiling", BANDWIDTH / W), "the caches remain"),
            (lambda: 7.0, "a dict with the keys"),
        ],
    ),
    "the-door": Submissions(
        right=[timeline, timeline_by_ends],
        wrong=[
            (stays_too_long, "one step too long"),
            (everybody_at_once, "how many may run together"),
            (always_continuous, "only when nobody is left inside"),
            (takes_no_slot, "case: no slot\n"),
            (only_zero_slots, "slots below zero"),
            (nobody_first, "and nobody"),
            (skips_the_empty, "an answer of no tokens"),
            (below_zero, "minus one token"),
            (closed_by_default, "`static` left out"),
        ],
        no_lumen="lumen's scheduler makes plans for sequences over a pool of blocks",
    ),
    "no-pads": Submissions(
        right=[pack, pack_by_loops],
        wrong=[
            (pack_causal, "The second prompt sees the first one"),
            (pack_positions, "Who owns them"),
            (pack_both_ways, "what comes after it"),
            (pack_one_count, "starts at position 0"),
            (pack_blind, "A token sees itself"),
        ],
        no_lumen="lumen's packed cache never builds the mask of the whole row",
    ),
    "the-neighbours-die": Submissions(
        right=[draws, draws_without_a_loop],
        wrong=[
            (draws_common, "One die for all"),
            (draws_by_seat, "of the one before"),
            (draws_by_seed, "with one seed share"),
            (draws_with_another_seed, "0.6229"),
            (draws_from_the_global, "belongs to everybody"),
            (draws_anew, "the same number each time"),
        ],
        no_lumen="lumen's streams are torch generators, kept by the runner",
    ),
    "batching-claims": Submissions(
        right=[lambda: ("b", 1.67), lambda: ("B", 100 / 60)],
        wrong=[
            (lambda: ("a", 100 / 60), "2B operations for 2 bytes"),
            (lambda: ("c", 100 / 60), "twice the bytes"),
            (lambda: ("d", 100 / 60), "many rows by itself"),
            (lambda: ("b", 100 / 47.5), "at the end slots are empty"),
            (lambda: ("b", 0.6), "Static over continuous"),
            (lambda: ("b", 190 / 400), "share of its slots"),
            (lambda: ("b", 2.0), "the longest of the second four"),
        ],
    ),
    "a-batch-in-time": Submissions(
        right=[searched],
        wrong=[
            (choice("A100 80GB SXM", 52), "time per token FAILS: 34"),
            (choice("H100 SXM", 60), "must fit"),
            (choice("H200 SXM", 96), "batch=96"),  # one user short
            (choice("H200 SXM", 103), "time per token FAILS: 26"),  # full
            (choice("H100 SXM", 52), "cost 0.3389"),
        ],
    ),
}
