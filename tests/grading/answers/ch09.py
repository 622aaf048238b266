"""Right and wrong answers to the exercises of chapter 09."""

from lumen.grading.proof import Submissions

# The plan of one step -------------------------------------------------------------------------------


def one_step_by_recursion(running, waiting, budget, slots, pool, free, size):
    """Written differently: shares first, then a list of those that are not zero; the queue from its head by hand."""
    everybody = list(running) + list(waiting)
    if any(total + left > pool * size + 1 for _, total, _, left in everybody):
        raise ValueError("larger than the pool")
    shares = {row[0]: 1 for row in running if row[1] == row[2] + 1}
    rest = budget - len(shares)
    for name, total, computed, _ in running:
        if name not in shares:
            shares[name] = min(rest, total - computed)
            rest -= shares[name]
    order = [row[0] for row in running]

    def admit(queue, rest, free, seats):
        if not queue or rest <= 0 or seats <= 0:
            return []
        name, total, computed, _ = queue[0]
        blocks = (total + size - 1) // size - computed // size
        if blocks > free:
            return []
        count = min(rest, total - computed)
        return [(name, count), *admit(queue[1:], rest - count, free - blocks, seats - 1)]

    plan = [(name, shares[name]) for name in order if shares[name] > 0]
    return plan + admit(list(waiting), rest, free, slots - len(running))


def one_step_slots_looked_at_once(running, waiting, budget, slots, pool, free, size):
    many = 10**6 if len(running) < slots else slots
    return one_step_by_recursion(running, waiting, budget, many, pool, free, size)


def one_step_hit_at_the_door(running, waiting, budget, slots, pool, free, size):
    """What a hit holds is taken from what the request needs of the whole pool."""
    if any(-(-(total + left - 1) // size) - computed // size > pool for _, total, computed, left in waiting):
        raise ValueError("larger than the pool")
    return one_step_by_recursion(running, waiting, budget, slots, 10**6, free, size)


# A freeze, and the chunk that ends it ---------------------------------------------------------------

RIGHT = {"freeze": 307.7, "free": 153, "chunk": 943, "steps": 7}


# A token too early ----------------------------------------------------------------------------------


def sampled_by_gap(work, requests):
    names = []
    for name, start, count in work:
        prompt, output = requests[name]
        gap = prompt + output - start
        if count >= gap:
            names.append(name)
    return names


def sampled_in_the_order_of_requests(work, requests):
    ends = {name: start + count for name, start, count in work}
    return [name for name in requests if ends.get(name) == sum(requests[name])]


def sampled_one_early(work, requests):
    return [name for name, start, count in work if start + count >= sum(requests[name]) - 1]


# The answer that began again ------------------------------------------------------------------------


def preempt_by_hand(running, waiting, free):
    worst = dict(running[-1])
    blocks, worst["table"], worst["computed"] = worst["table"], [], 0
    before = [r for r in waiting if r["rank"] < worst["rank"]]
    behind = [r for r in waiting if not r["rank"] < worst["rank"]]
    return list(running[:-1]), [*before, worst, *behind], list(free) + list(blocks)


def preempt_sorted(running, waiting, free):
    """The order in which free blocks are listed is free."""
    running, waiting, free = preempt_by_hand(running, waiting, free)
    return running, waiting, sorted(free)


def preempt_in_place(running, waiting, free):
    worst = running.pop()
    free.extend(worst["table"])
    waiting.append({**worst, "computed": 0, "table": []})
    waiting.sort(key=lambda r: r["rank"])
    return running, waiting, free


def preempt_searches_for_ever(running, waiting, free):
    """Where all who wait are better, the search never gets past the last one."""
    worst, at = running[-1], 0
    while waiting and waiting[at]["rank"] < worst["rank"]:
        at = min(at + 1, len(waiting) - 1)
    back = {**worst, "computed": 0, "table": []}
    return running[:-1], [*waiting[:at], back, *waiting[at:]], free + worst["table"]


def server(chip, budget, preemption):
    return lambda: {"chip": chip, "budget": budget, "preemption": preemption}


ANSWERS = {
    "one-step": Submissions(
        right=[one_step_by_recursion],
        wrong=[
            (one_step_slots_looked_at_once, "one slot is left"),
            (one_step_hit_at_the_door, "blocks of the pool"),
        ],
        no_lumen="lumen's schedule is a method of a scheduler with its own queues and pool",
    ),
    "the-freeze": Submissions(
        right=[lambda: dict(RIGHT)],
        wrong=[(lambda: 307.7, "a dict with the keys")],
    ),
    "early-sample": Submissions(
        right=[sampled_by_gap],
        wrong=[
            (sampled_in_the_order_of_requests, "'a' at [0]"),
            (sampled_one_early, "One token is missing"),
        ],
        no_lumen="lumen's samples is a property of one piece of work",
    ),
    "forgotten-answer": Submissions(
        right=[preempt_by_hand, preempt_sorted],
        wrong=[
            (preempt_in_place, "Work on a copy"),
            (preempt_searches_for_ever, "Which condition ends the loop"),
        ],
        no_lumen="lumen's _preempt is a method of a scheduler with its own queues and pool",
    ),
    "chunk-claims": Submissions(
        right=[lambda: ("B", sum(range(16)) / 16), lambda: ["b.", 7.5]],
        wrong=[
            (lambda: ("a", 7.5), "N(N − 1)/2 in all"),
            (lambda: ("c", 7.5), "takes fewer steps"),
            (lambda: ("d", 7.5), "preempts by recomputing"),
        ],
    ),
    "three-limits": Submissions(
        right=[lambda: dict(preemption="swap", budget=512, chip="A100 80GB SXM")],
        wrong=[
            (server("A100 80GB SXM", 1024, "swap"), "that of the last full chunk"),
            (server("A100 80GB SXM", 256, "swap"), "make them fewer"),
            (server("A100 80GB SXM", 512, "recompute"), "over the bus"),
            (server("H100 SXM", 1024, "recompute"), "a cheaper card does, too"),
        ],
    ),
}
