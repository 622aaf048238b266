"""The scheduler alone: random workloads on tiny pools, with a memory that shows whose token stands in every slot.

The pretend model's next token is a hash of all tokens that it reads through the block table. If a table names a wrong
block, a slot holds somebody else's token, a chunk is skipped or run twice out of order, the answer comes out wrong.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from lumen.cache.held import HOLE, held
from lumen.cache.pool import BlockPool
from lumen.cache.prefix import HashPrefix, NoPrefix
from lumen.cache.radix import RadixPrefix
from lumen.parts import Window
from lumen.serve.request import Request
from lumen.serve.scheduler import Limits, Plan, Scheduler

WORKLOADS = 10_000
EVENTS = [
    "aborted",
    "blocks given back",
    "chunks",
    "drafts",
    "outranked",
    "preempted",
    "several tokens at once",
    "swapped in",
    "swapped out",
    "tokens found",
]


def next_token(read: list[object]) -> int:
    """What the pretend model says after reading these slots. Four tokens, so that answers often begin alike."""
    return hashlib.blake2b(repr(read).encode(), digest_size=1).digest()[0] % 4


def read_last(read: list[object], kept: Window | None) -> list[object]:
    """What the last of these reads of them."""
    last = len(read) - 1
    return [x for p, x in enumerate(read) if kept is None or p > last - kept.newest or p < kept.sinks]


def answer(prompt: list[int], length: int, extra: object = (), kept: Window | None = None) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(next_token(read_last([(t, extra) for t in tokens], kept)))
    return tokens[len(prompt) :]


class Memory:
    """The pool's content: in each slot one token, and for whom it was computed. Runs plans as the real runner does."""

    def __init__(self, pool: BlockPool, kept: Window | None = None):
        self.size, self.kept = pool.block_size, kept
        self.slots: list[object] = [None] * (pool.num_blocks * pool.block_size)
        self.host: dict[str, list[object]] = {}

    def slot(self, blocks, position):
        assert blocks[position // self.size] >= 0, "a block that was given back"
        return blocks[position // self.size] * self.size + position % self.size

    def needed(self, start: int) -> list[int]:
        """Positions before `start` that a query there reads."""
        return [
            p
            for p in range(start)
            if self.kept is None or p > start - self.kept.newest or p < self.kept.sinks
        ]

    def run(self, plan: Plan) -> dict[str, list[int]]:
        for swap in plan.swap_out:
            self.host[swap.sequence.id] = [self.slots[self.slot(swap.blocks, p)] for p in range(swap.length)]
        for swap in plan.swap_in:
            for p, token in enumerate(self.host.pop(swap.sequence.id)):
                self.slots[self.slot(swap.blocks, p)] = token
        for work in plan.work:  # a layer writes all new keys before anybody reads
            for p, token in enumerate(work.sequence.span(work.start, work.count), work.start):
                self.slots[self.slot(work.sequence.table, p)] = (token, work.sequence.request.extra)
        sampled = {}
        for work in plan.work:
            for p in self.needed(work.start):
                assert work.sequence.table[p // self.size] != HOLE, "a chunk has lost what it reads"
            if work.samples:
                table = work.sequence.table
                read = [
                    None if table[p // self.size] == HOLE else self.slots[self.slot(table, p)]
                    for p in range(work.sequence.total)
                ]
                accepted: list[int] = []
                known = len(read) - len(work.sequence.drafts)
                for draft in work.sequence.drafts:
                    if next_token(read_last(read[: known + len(accepted)], self.kept)) != draft:
                        break
                    accepted.append(draft)
                sampled[work.sequence.id] = [
                    *accepted,
                    next_token(read_last(read[: known + len(accepted)], self.kept)),
                ]
        return sampled


def random_workload(seed: int) -> Counter[str]:
    """One workload from start to end; returns what happened in it. Raises at the first thing that is wrong."""
    rng = random.Random(seed)
    size, num_blocks = rng.choice([1, 2, 2, 3, 4]), rng.randint(3, 12)
    pool = BlockPool(num_blocks, size)
    prefix = rng.choice([NoPrefix(), HashPrefix(pool), RadixPrefix(pool)])
    max_seqs = rng.randint(1, 5)
    limits = Limits(
        max_seqs,
        token_budget=max_seqs + rng.choice([0, 1, 3, 50]),
        policy=rng.choice(["continuous", "continuous", "continuous", "static", "dynamic"]),
        preemption=rng.choice(["recompute", "swap"]),
        max_wait=2.0,
        ageing=rng.choice([1.0, 30.0, float("inf")]),
    )
    if limits.policy == "continuous" and rng.random() < 0.3:
        limits = replace(limits, priority_preemption=True)
    kept, room = None, num_blocks * size
    if rng.random() < 0.3:
        sinks = rng.randint(0, min(5, size * (num_blocks - 2)))
        kept = Window(rng.randint(1, (num_blocks - -(-sinks // size) - 1) * size + 1), sinks)
        prefix, room = NoPrefix(), 2 * room  # longer than the pool
    scheduler, memory = Scheduler(pool, prefix, limits, kept), Memory(pool, kept)
    stems = [[rng.randrange(4) for _ in range(room)] for _ in range(2)]
    todo: list[Request] = []
    wanted, done = {}, {}
    for number in range(rng.randint(1, 10)):
        extra = rng.choice([(), (), ("tenant",)])
        if todo and rng.random() < 0.3:  # the next turn of an earlier chat
            before = rng.choice(todo)
            prompt = [*before.prompt, *wanted[before.id]]
        else:
            prompt = rng.choice(stems)[: rng.randint(0, room)]
        prompt = [*prompt, *(rng.randrange(4) for _ in range(rng.randint(0, 2)))][:room] or [3]
        new = rng.randint(1, room - len(prompt) + 1)
        request = Request(
            str(number),
            prompt,
            new,
            priority=rng.randint(0, 2),
            arrival=float(rng.randrange(12)),
            extra=extra,
        )
        todo.append(request)
        wanted[request.id] = answer(prompt, new, extra, kept)
    todo.sort(key=lambda r: r.arrival)
    bound = 60 + 4 * sum(len(r.prompt) + r.max_new_tokens for r in todo) * (1 + len(todo))
    drafting, step = rng.random() < 0.3, 0
    seen: Counter[str] = Counter()
    while todo or scheduler.waiting or scheduler.running:
        assert step < bound, "somebody starves"
        while todo and todo[0].arrival <= step:
            scheduler.add(todo.pop(0))
        if rng.random() < 0.02 and scheduler.waiting + scheduler.running:
            gone = rng.choice(scheduler.waiting + scheduler.running)
            scheduler.finish(gone)
            memory.host.pop(gone.id, None)
            done[gone.id] = None
            seen["aborted"] += 1
        for sequence in scheduler.running:
            if drafting and rng.random() < 0.7:  # in the midst of a prompt as well
                truth = wanted[sequence.id][len(sequence.output) :] + [0] * 3  # over-long as well
                sequence.drafts = [
                    t if rng.random() < 0.7 else 6 - t for t in truth[: rng.randint(0, len(truth))]
                ]
        plan = scheduler.schedule(now=float(step))
        check(plan, scheduler)
        seen["blocks given back"] += sum(HOLE in s.table for s in scheduler.running)
        seen["outranked"] += sum(s.num_preemptions for s in scheduler.waiting) * limits.priority_preemption
        seen["swapped out"] += len(plan.swap_out)
        seen["swapped in"] += len(plan.swap_in)
        seen["chunks"] += sum(not work.samples for work in plan.work)
        seen["drafts"] += sum(len(work.sequence.drafts) for work in plan.work)
        sampled = memory.run(plan)
        seen["several tokens at once"] += sum(len(tokens) > 1 for tokens in sampled.values())
        scheduler.update(plan, sampled)
        for work in plan.work:
            sequence = work.sequence
            assert sequence.output == wanted[sequence.id][: len(sequence.output)], "a wrong token"
            if len(sequence.output) == sequence.request.max_new_tokens:
                scheduler.finish(sequence)
                done[sequence.id] = sequence.output
                seen["tokens found"] += sequence.num_cached_tokens
        scheduler.audit()
        step += 1
    assert set(done) == set(wanted) and not memory.host
    prefix.evict(num_blocks)
    assert pool.num_free == num_blocks, "a block leaked"
    seen["preempted"] = scheduler.num_preemptions
    return seen


def check(plan: Plan, scheduler: Scheduler) -> None:
    assert plan.num_tokens <= scheduler.limits.token_budget
    assert len(scheduler.running) <= scheduler.limits.max_seqs
    for queue in (scheduler.running, scheduler.waiting):
        assert [s.rank for s in queue] == sorted(s.rank for s in queue)
    for work in plan.work:
        assert work.count >= 1 and work.start == work.sequence.computed and work.sequence in scheduler.running
    for s in scheduler.running:
        most = scheduler._keep.most(s.total, max(scheduler._longest, 1 + len(s.drafts)))
        assert len(held(s.table)) <= most, "more blocks than a window takes"
    moved = [s.sequence.id for s in plan.swap_out]
    assert not set(moved) & {w.sequence.id for w in plan.work}


@pytest.mark.parametrize("part", range(8))
def test_random_workloads_on_tiny_pools(part):
    """T20, T21, T25: no wrong token, no leak, no starvation, over policies, preemptions, prefixes, drafts, aborts."""
    share, seen = WORKLOADS // 8, Counter()
    for seed in range(part * share, (part + 1) * share):
        try:
            seen += random_workload(seed)
        except Exception as error:
            raise AssertionError(f"workload {seed}: {error!r}") from error
    assert min(seen[what] for what in EVENTS) > share // 50, f"a path was hardly taken: {seen}"


def make(num_blocks=16, size=4, prefix=None, **limits):
    pool = BlockPool(num_blocks, size)
    return Scheduler(pool, prefix(pool) if prefix else None, Limits(**limits))


def run(scheduler, memory=None):
    """One step with the pretend model; finished requests leave."""
    memory = memory or Memory(scheduler.pool)
    plan = scheduler.schedule()
    sampled = memory.run(plan)
    scheduler.update(plan, sampled)
    for work in plan.work:
        if len(work.sequence.output) >= work.sequence.request.max_new_tokens:
            scheduler.finish(work.sequence)
    return [(w.sequence.id, w.count, w.sequence.id in sampled) for w in plan.work]


@pytest.mark.parametrize("budget, counts", [(4, [4, 4, 2]), (10, [10]), (9, [9, 1]), (100, [10])])
def test_no_sample_before_the_last_chunk(budget, counts):
    """T24, sglang-jax #1551: chunk boundaries inside, at, and one before the prompt's end."""
    scheduler = make(max_seqs=1, token_budget=budget)
    scheduler.add(Request("a", list(range(10)), 2, arrival=0))
    memory = Memory(scheduler.pool)
    seen = [run(scheduler, memory) for _ in range(len(counts) + 1)]
    assert seen == [[("a", n, i == len(counts) - 1)] for i, n in enumerate(counts)] + [[("a", 1, True)]]


def test_running_answers_never_wait_for_a_prompt():
    """Sarathi: every decode has its token in every step, the prompt takes what is left of the budget."""
    scheduler = make(max_seqs=4, token_budget=8)
    memory = Memory(scheduler.pool)
    for name in "ab":
        scheduler.add(Request(name, [1, 2], 9, arrival=0))
    run(scheduler, memory)
    scheduler.add(Request("long", list(range(20)), 2, arrival=0))
    steps = [run(scheduler, memory) for _ in range(4)]
    assert steps[:3] == [[("a", 1, True), ("b", 1, True), ("long", 6, False)]] * 3
    assert steps[3] == [("a", 1, True), ("b", 1, True), ("long", 2, True)]


def test_policies_differ_in_when_they_admit():
    def admitted(policy, **limits):
        scheduler = make(max_seqs=2, token_budget=50, policy=policy, **limits)
        memory, seen = Memory(scheduler.pool), []
        for name, new in [("a", 3), ("b", 1), ("c", 1)]:
            scheduler.add(Request(name, [1, 2], new, arrival=0))
        while scheduler.waiting or scheduler.running:
            seen.append("".join(name for name, *_ in run(scheduler, memory)))
        return seen

    assert admitted("continuous") == ["ab", "ac", "a"]
    assert admitted("static") == ["ab", "a", "a", "c"]
    assert admitted("dynamic", max_wait=0.0) == ["ab", "a", "a", "c"]
    patient = make(max_seqs=2, policy="dynamic", max_wait=1.0)
    patient.add(Request("a", [1], 1, arrival=0.0))
    assert not patient.schedule(now=0.9).work, "waits for company"
    assert patient.schedule(now=1.0).work, "but not for ever"


def test_urgent_requests_come_first_until_the_others_have_waited_long_enough():
    scheduler = make(max_seqs=1, ageing=10.0)
    for name, priority, arrival in [("lazy", 1, 0.0), ("urgent", 0, 5.0), ("later", 0, 11.0)]:
        scheduler.add(Request(name, [1], 1, priority=priority, arrival=arrival))
    assert [s.id for s in scheduler.waiting] == ["urgent", "lazy", "later"]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_better_rank_takes_a_slot_when_it_may(preemption):
    """A slot held for 40 steps: without the option the urgent one waits for all of them, with it for none."""
    for allowed in (False, True):
        scheduler = make(max_seqs=2, preemption=preemption, priority_preemption=allowed, ageing=float("inf"))
        memory = Memory(scheduler.pool)
        for name in ("first", "second"):
            scheduler.add(Request(name, [1, 2, 3], 20, priority=1, arrival=0))
        seen = [run(scheduler, memory) for _ in range(3)]
        scheduler.add(Request("equal", [1], 2, priority=1, arrival=1))
        scheduler.add(Request("urgent", [1, 1], 2, priority=0, arrival=2))
        while scheduler.waiting or scheduler.running:
            seen.append(run(scheduler, memory))
        began = {}
        for number, step in enumerate(seen):
            for name, *_ in step:
                began.setdefault(name, number)
        assert began["urgent"] == (3 if allowed else 20)
        assert scheduler.num_preemptions == allowed


def test_a_better_rank_takes_blocks_but_not_in_vain():
    scheduler = make(num_blocks=6, size=2, max_seqs=4, priority_preemption=True, ageing=float("inf"))
    memory = Memory(scheduler.pool)
    for name, priority in (("keeps", 0), ("gives", 2)):
        scheduler.add(Request(name, [1, 2, 3], 3, priority=priority, arrival=0))
    run(scheduler, memory)
    scheduler.add(Request("large", [1] * 10, 1, priority=1, arrival=0))  # 5 blocks, and 4 could come free
    assert {name for name, *_ in run(scheduler, memory)} == {
        "keeps",
        "gives",
    } and not scheduler.num_preemptions
    scheduler.add(Request("small", [1] * 5, 1, priority=0, arrival=0))
    assert {name for name, *_ in run(scheduler, memory)} == {
        "keeps",
        "small",
    } and scheduler.num_preemptions == 1
    while scheduler.waiting or scheduler.running:
        run(scheduler, memory)
    with pytest.raises(ValueError, match="use continuous"):
        Limits(policy="static", priority_preemption=True)


@pytest.mark.parametrize("prefix", [HashPrefix, RadixPrefix])
@pytest.mark.parametrize("length, held", [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8)])
def test_a_whole_prompt_is_never_a_hit(prefix, length, held):
    """T19, nano-vllm #114, vLLM #11186: one token at least is run, and nothing is run twice."""
    scheduler = make(prefix=prefix, token_budget=50)
    memory = Memory(scheduler.pool)
    prompt = list(range(length))
    scheduler.add(Request("first", prompt, 1, arrival=0))
    assert run(scheduler, memory) == [("first", length, True)]
    again = scheduler.add(Request("second", prompt, 1, arrival=0))
    assert run(scheduler, memory) == [("second", length - held, True)]
    assert again.num_cached_tokens == held


def test_two_equal_prompts_in_one_step_keep_their_own_blocks():
    """T15, mini-sglang #142, nano-vllm #219."""
    scheduler = make(prefix=HashPrefix, token_budget=50)
    memory = Memory(scheduler.pool)
    twins = [scheduler.add(Request(name, list(range(9)), 4, arrival=0)) for name in "ab"]
    run(scheduler, memory)
    scheduler.audit()
    assert twins[0].table[:2] == twins[1].table[:2] and twins[0].table[2] != twins[1].table[2]
    while scheduler.running:
        run(scheduler, memory)
        scheduler.audit()
    assert twins[0].output == twins[1].output == answer(list(range(9)), 4)


@pytest.mark.parametrize(
    ("prompt", "new", "sentence"),
    [
        ([], 1, "empty"),
        ([1], 0, "1 or more"),
        ([1] * 60, 6, "whole pool has 64"),
        ([1] * 66, 1, "whole pool has 64"),
    ],
)
def test_what_can_never_run_is_refused_and_the_others_finish(prompt, new, sentence):
    """T21, nano-vllm #274, vLLM #2163."""
    scheduler = make()
    scheduler.add(Request("fits", [1] * 60, 5, arrival=0))
    with pytest.raises(ValueError, match=sentence):
        scheduler.add(Request("never", prompt, new, arrival=0))
    with pytest.raises(ValueError, match="already"):
        scheduler.add(Request("fits", [1], 1, arrival=0))
    memory = Memory(scheduler.pool)
    while scheduler.waiting or scheduler.running:
        run(scheduler, memory)
    assert scheduler.pool.num_free == 16


@pytest.mark.parametrize(
    "limits",
    [
        {"max_seqs": 0},
        {"max_seqs": 4, "token_budget": 3},
        {"policy": "magic"},
        {"ageing": 0},
        {"preemption": "x"},
    ],
)
def test_bad_limits_get_a_sentence(limits):
    with pytest.raises(ValueError):
        Limits(**limits)


def test_the_scheduler_needs_no_torch():
    code = "import sys, lumen.serve.scheduler; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
