"""Right and wrong answers to the exercises of chapter 09."""

from lumen.grading.proof import Answers

# The plan of one step -------------------------------------------------------------------------------


def one_step(running, waiting, budget, slots, pool, free, size):
    for name, total, _, left in [*running, *waiting]:
        if total + left - 1 > pool * size:
            raise ValueError(f"{name} can never fit")
    room = budget - sum(total - computed == 1 for _, total, computed, _ in running)
    plan = []
    for name, total, computed, _ in running:
        gap = total - computed
        count = 1 if gap == 1 else min(gap, room)
        room -= 0 if gap == 1 else count
        if count:
            plan.append((name, count))
    places = slots - len(running)
    for name, total, computed, _ in waiting:
        need = -(-total // size) - computed // size
        if not places or not room or need > free:
            break
        count = min(total - computed, room)
        plan.append((name, count))
        places, room, free = places - 1, room - count, free - need
    return plan


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


def changed(**what):
    """`one_step` with one line of it wrong."""

    def answer(running, waiting, budget, slots, pool, free, size):
        for name, total, _, left in [*running, *waiting]:
            most = total + left - 1
            most = total if what.get("prompt_only") else most + bool(what.get("stores_last"))
            if most > pool * size and not what.get("no_door"):
                raise ValueError(name)
        aside = 0 if what.get("in_order") else sum(t - c == 1 for _, t, c, _ in running)
        room, plan = budget - aside, []
        for name, total, computed, _ in running:
            gap = total - computed
            if gap == 1 and not what.get("in_order"):
                plan.append((name, 1))
                continue
            count = min(gap, room)
            room -= count
            if count or what.get("zeros"):
                plan.append((name, count))
        places = slots - len(running)
        for name, total, computed, _ in waiting:
            need = -(-total // size) - (0 if what.get("hit_twice") else computed // size)
            if what.get("chunk_blocks"):
                need = -(-min(total, computed + room) // size) - computed // size
            if need > free and what.get("passes"):
                continue
            if not places or (not room and not what.get("zeros")) or need > free:
                break
            count = total if what.get("whole") else min(total - computed, room)
            plan.append((name, count))
            places, room, free = places - 1, max(0, room - count), free - need
        return plan

    return answer


# A freeze, and the chunk that ends it ---------------------------------------------------------------

RIGHT = {"freeze": 307.7, "free": 153, "chunk": 943, "steps": 7}


def freeze_computed():
    per_token = 2 * 8e9 / 312e12
    chunk = int(0.05 / per_token) - 32
    return {
        "freeze": 6000 * per_token * 1e3,
        "free": 312e12 / 2039e9,
        "chunk": chunk,
        "steps": -(-6000 // chunk),
    }


def but(name, value):
    return lambda: {**RIGHT, name: value}


# A token too early ----------------------------------------------------------------------------------


def sampled(work, requests):
    return [name for name, start, count in work if start + count == sum(requests[name])]


def sampled_by_gap(work, requests):
    names = []
    for name, start, count in work:
        prompt, output = requests[name]
        gap = prompt + output - start
        if count >= gap:
            names.append(name)
    return names


def sampled_single(work, requests):
    return [name for name, _, count in work if count == 1]


def sampled_at_prompt(work, requests):
    names = []
    for name, start, count in work:
        prompt, _ = requests[name]
        if start + count == prompt or (start >= prompt and count == 1):
            names.append(name)
    return names


def sampled_late(work, requests):
    return [name for name, start, count in work if start + count > sum(requests[name])]


def sampled_all(work, requests):
    return [name for name, *_ in work]


def broken_sampled(work, requests):
    names = []
    for name, start, count in work:
        prompt, _ = requests[name]
        if start + count >= prompt:
            names.append(name)
    return names


# The answer that began again ------------------------------------------------------------------------


def preempt(running, waiting, free):
    *running, worst = running
    back = {**worst, "computed": 0, "table": []}
    return running, sorted([*waiting, back], key=lambda r: r["rank"]), free + worst["table"]


def preempt_by_hand(running, waiting, free):
    worst = dict(running[-1])
    blocks, worst["table"], worst["computed"] = worst["table"], [], 0
    before = [r for r in waiting if r["rank"] < worst["rank"]]
    behind = [r for r in waiting if not r["rank"] < worst["rank"]]
    return list(running[:-1]), [*before, worst, *behind], list(free) + list(blocks)


def preempt_but(**what):
    def answer(running, waiting, free):
        worst = running[-1]
        back = {**worst, "computed": 0, "table": []} | {k: v(worst) for k, v in what.items() if callable(v)}
        queue = [*waiting, back]
        if what.get("place") == "front":
            queue = [back, *waiting]
        elif what.get("place") != "end":
            queue.sort(key=lambda r: r["rank"])
        return list(running[:-1]), queue, [*free, *worst["table"]]

    return answer


def preempt_in_place(running, waiting, free):
    worst = running.pop()
    free.extend(worst["table"])
    waiting.append({**worst, "computed": 0, "table": []})
    waiting.sort(key=lambda r: r["rank"])
    return running, waiting, free


def broken_preempt(running, waiting, free):
    running, waiting = list(running), list(waiting)
    worst = running.pop()
    free = free + worst["table"]
    waiting.append({**worst, "output": [], "computed": 0, "table": []})
    return running, waiting, free


def server(chip, budget, preemption):
    return lambda: {"chip": chip, "budget": budget, "preemption": preemption}


ANSWERS = {
    "one-step": Answers(
        right=[one_step, one_step_by_recursion],
        wrong=[
            (changed(in_order=True), "a prompt eats the token"),
            (changed(zeros=True), "has no place in the plan"),
            (changed(passes=True), "If the head must wait"),
            (changed(whole=True), "more than the budget leaves"),
            (changed(hit_twice=True), "The blocks of the hit are there already"),
            (changed(chunk_blocks=True), "a half-read prompt that gets stuck"),
            (changed(prompt_only=True), "its answer will not"),
            (changed(stores_last=True), "never fed"),
            (changed(no_door=True), "stop everybody behind it"),
        ],
        no_lumen="lumen's schedule is a method of a scheduler with its own queues and pool",
    ),
    "the-freeze": Answers(
        right=[lambda: dict(RIGHT), freeze_computed],
        wrong=[
            (but("freeze", 153.8), "a multiplication and an addition"),
            (but("freeze", 7.85), "one reading of the weights"),
            (but("free", 306), "each of those two bytes"),
            (but("free", 76.5), "the twos cancel"),
            (but("chunk", 975), "tokens of the step, too"),
            (but("steps", 6), "Round up"),
            (but("steps", 1), "rid of"),
            (lambda: 307.7, "a dict with the keys"),
        ],
    ),
    "early-sample": Answers(
        right=[sampled, sampled_by_gap],
        wrong=[
            (sampled_single, "may be a chunk of a prompt"),
            (sampled_at_prompt, "still to read its own answer"),
            (sampled_late, "not one step later"),
            (sampled_all, "nothing to sample"),
        ],
        stubs=[broken_sampled],
        no_lumen="lumen's samples is a property of one piece of work",
    ),
    "forgotten-answer": Answers(
        right=[preempt, preempt_by_hand],
        wrong=[
            (preempt_but(output=lambda r: []), "begins again"),
            (preempt_but(place="end"), "everybody who comes later passes it"),
            (preempt_but(place="front"), "pass a better rank"),
            (preempt_but(computed=lambda r: r["computed"]), "other people's keys"),
            (
                preempt_but(prompt=lambda r: r["prompt"] + r["output"], output=lambda r: []),
                "starts at zero again",
            ),
            (preempt_but(table=lambda r: list(r["table"])), "two requests will share"),
            (preempt_in_place, "Work on a copy"),
        ],
        stubs=[broken_preempt],
        no_lumen="lumen's _preempt is a method of a scheduler with its own queues and pool",
    ),
    "chunk-claims": Answers(
        right=[lambda: ("b", 7.5), lambda: ("B", sum(range(16)) / 16)],
        wrong=[
            (lambda: ("a", 7.5), "N(N − 1)/2 in all"),
            (lambda: ("c", 7.5), "takes fewer steps"),
            (lambda: ("d", 7.5), "preempts by recomputing"),
            (lambda: ("b", 8.5), "own keys are fresh"),
            (lambda: ("b", 8), "read by nobody"),
            (lambda: ("b", 15), "how often the first chunk is read"),
            (lambda: ("b", 120), "A prompt has 16"),
            (lambda: ("b", 6.25), "the claim's number"),
        ],
    ),
    "three-limits": Answers(
        right=[
            server("A100 80GB SXM", 512, "swap"),
            lambda: dict(preemption="swap", budget=512, chip="A100 80GB SXM"),
        ],
        wrong=[
            (server("A100 80GB SXM", 1024, "swap"), "that of the last full chunk"),
            (server("A100 80GB SXM", 256, "swap"), "make them fewer"),
            (server("A100 80GB SXM", 512, "recompute"), "over the bus"),
            (server("H100 SXM", 1024, "recompute"), "a cheaper card does, too"),
        ],
    ),
}
