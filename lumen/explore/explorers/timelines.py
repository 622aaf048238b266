"""The batching timelines: who sits in which slot when, under static, dynamic, continuous and chunked batching.

No rule is written down twice: every timeline is made by `lumen.serve.scheduler.Scheduler`, with steps that take what
`lumen.cost.predict_mixed` says, for each setting of the controls. The JavaScript unpacks and draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from lumen.config import CONFIGS, ModelConfig
from lumen.cost import predict_mixed
from lumen.cost.predict import CacheKind
from lumen.explore.explorers.widget import JSWidget
from lumen.hardware import CHIPS, Chip

WHOLE = 1 << 20  # a token budget that no step reaches: prompts are read in one piece
WAIT = 0.1  # seconds that dynamic batching waits for a full batch
TICK = 1e-5  # seconds; hundreds of steps are added up, and their sum must still be right


@dataclass(frozen=True)
class Job:
    """A request: when it arrives (seconds), how many tokens its prompt and its answer have."""

    arrival: float
    prompt: int
    answer: int


@dataclass(frozen=True)
class Workload:
    """Jobs in order of arrival, and the settings that the controls offer for them."""

    jobs: tuple[Job, ...]
    policies: tuple[str, ...] = ("static", "dynamic", "continuous", "chunked")
    slots: tuple[int, ...] = (2, 4, 8)
    budgets: tuple[int, ...] = (64, 128, 256)  # tokens a step, of chunked batching
    watched: int | None = None  # the job whose own TTFT is shown in place of the mean


def _jobs(rows: str) -> tuple[Job, ...]:
    return tuple(Job(float(a), int(p), int(n)) for a, p, n in (row.split() for row in rows.split(",")))


# "mixed": answers as a log-normal with sigma = 1 gives them, median 20; "long-prompt": one reader among writers.
WORKLOADS = {
    "mixed": Workload(
        _jobs(
            "0 120 21, .01 45 9, .02 210 62, .03 80 12, .04 60 31, .06 150 5, .07 40 17, .08 300 26, .1 90 44,"
            ".12 70 7, .15 180 15, .18 50 88, .2 110 11, .22 60 24, .24 130 4, .26 75 19, .28 240 36, .3 95 13"
        )
    ),
    "long-prompt": Workload(
        _jobs("0 60 70, 0 90 60, 0 40 76, 0 120 64, .12 8000 12, .2 80 24, .3 50 20"),
        policies=("continuous", "chunked"),
        slots=(4, 8),
        budgets=(64, 128, 256, 512, 1024, 2048),
        watched=4,
    ),
}


@dataclass(frozen=True)
class Run:
    """One timeline. `steps` are (start, end) in seconds; the statistics are the exact ones, before rounding.

    `spans` are (slot, job, first step, tokens of the prompt computed in each of its steps, 0 for an answer's token):
    consecutive steps in which the job was computed. `utilisation` is the share of slot-seconds in which a slot was
    computed; `longest_gap` the longest time between two tokens of one answer.
    """

    steps: list[tuple[float, float]]
    spans: list[tuple[int, int, int, list[int]]]
    first_tokens: list[float]
    utilisation: float
    mean_ttft: float
    tokens_per_s: float
    longest_gap: float


def simulate(
    jobs: Sequence[Job],
    policy: str,
    slots: int,
    budget: int,
    chip: Chip,
    config: ModelConfig,
    dtype: str = "bf16",
    cache: CacheKind = "static",
) -> Run:
    """Drive the scheduler through `jobs`, each step as long as predicted. "chunked" is continuous with a budget.

    `cache="paged"` predicts the engine of this course, which gathers blocks.
    """
    from lumen.cache.pool import BlockPool
    from lumen.serve.request import Request
    from lumen.serve.scheduler import Limits, Scheduler

    kind: Any = "continuous" if policy == "chunked" else policy
    limits = Limits(slots, budget if policy == "chunked" else WHOLE, kind, max_wait=WAIT)
    blocks = sum(-(-(job.prompt + job.answer) // 16) for job in jobs)
    scheduler = Scheduler(BlockPool(blocks, 16), limits=limits)
    coming = sorted(enumerate(jobs), key=lambda item: item[1].arrival)
    seats: dict[int, int] = {}
    steps: list[tuple[float, float]] = []
    cells: list[tuple[int, int, int, int]] = []  # slot, job, step, tokens of the prompt
    known: list[list[float]] = [[] for _ in jobs]
    now = 0.0
    while coming or scheduler.waiting or scheduler.running:
        while coming and coming[0][1].arrival <= now:
            name, job = coming.pop(0)
            scheduler.add(Request(str(name), [0] * job.prompt, job.answer, arrival=job.arrival))
        plan = scheduler.schedule(now)
        if not plan.work:  # nobody is here, or the timer runs
            timers = [s.request.arrival + WAIT + 1e-9 for s in scheduler.waiting]
            now = min([job.arrival for _, job in coming[:1]] + timers)
            continue
        seconds = predict_mixed(
            config, chip, [(w.start, w.count) for w in plan.work], dtype, cache=cache
        ).seconds
        for work in plan.work:
            job_id = int(work.sequence.id)
            if job_id not in seats:
                seats[job_id] = min(set(range(slots)) - set(seats.values()))
            of_prompt = max(0, min(work.count, jobs[job_id].prompt - work.start))
            cells.append((seats[job_id], job_id, len(steps), of_prompt))
        steps.append((now, now + seconds))
        now += seconds
        scheduler.update(plan, {w.sequence.id: [0] for w in plan.work if w.samples})
        for work in plan.work:
            job_id = int(work.sequence.id)
            if work.sequence.output and work.sequence.computed == work.sequence.total - 1:
                known[job_id].append(now)
            if len(work.sequence.output) == jobs[job_id].answer:
                scheduler.finish(work.sequence)
                del seats[job_id]
    scheduler.audit()
    used = sum(steps[step][1] - steps[step][0] for _, _, step, _ in cells)
    gaps = [b - a for times in known for a, b in pairwise(times)]
    return Run(
        steps, _spans(cells), [times[0] for times in known],
        utilisation=used / (slots * now),
        mean_ttft=sum(times[0] - job.arrival for times, job in zip(known, jobs, strict=True)) / len(jobs),
        tokens_per_s=sum(map(len, known)) / now,
        longest_gap=max(gaps, default=0.0),
    )  # fmt: skip


def _spans(cells: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, list[int]]]:
    """Cells (slot, job, step, prompt tokens) of neighbouring steps, joined."""
    cells = sorted(cells)
    groups = groupby(enumerate(cells), key=lambda item: (*item[1][:2], item[1][2] - item[0]))
    joined = []
    for _, group in groups:
        members = [cell for _, cell in group]
        slot, job, step, _ = members[0]
        joined.append((slot, job, step, [cell[3] for cell in members]))
    return joined


def packed(run: Run) -> dict[str, Any]:
    """A run as short JSON. Runs of equal values are written [value, count]; times in ticks of 0.01 ms.

    `steps` are (idle before the step, its length, how often); `unpack` in timelines.js takes a run apart again.
    """
    idle = [
        start - end for (start, _), end in zip(run.steps, [0.0, *(end for _, end in run.steps)], strict=False)
    ]
    edges = [
        (round(gap / TICK), round((end - start) / TICK))
        for gap, (start, end) in zip(idle, run.steps, strict=True)
    ]
    return {
        "steps": [[*pair, len(list(group))] for pair, group in groupby(edges)],
        "spans": [
            [slot, job, step, *([count, len(list(group))] for count, group in groupby(counts))]
            for slot, job, step, counts in run.spans
        ],
        "stats": [
            round(run.utilisation, 4),
            round(run.mean_ttft, 5),
            round(run.tokens_per_s, 2),
            round(run.longest_gap, 5),
        ],
    }


class Timelines(JSWidget):
    """Slots over time under each batching policy. `workload` is a name of `WORKLOADS`, or a `Workload`.

    Where the title says {slots}, the number that the control is set to stands. The numbers below the picture count
    what has happened up to the step that is shown.

    >>> Timelines("mixed", policy="static", slots=4)
    """

    module = "timelines.js"
    label = "batching timelines"

    def __init__(
        self,
        workload: str | Workload = "mixed",
        policy: str = "continuous",
        slots: int | None = None,
        budget: int | None = None,
        *,
        chip: Chip | str = "A100 80GB SXM",
        model: ModelConfig | str = "llama-3-8b",
        dtype: str = "bf16",
        title: str = "Who sits in which slot",
        lead: str | None = None,
    ) -> None:
        if isinstance(workload, str) and workload not in WORKLOADS:
            raise ValueError(f"no workload is called {workload!r}; choose from: {', '.join(WORKLOADS)}")
        load = WORKLOADS[workload] if isinstance(workload, str) else workload
        chip = CHIPS[chip] if isinstance(chip, str) else chip
        config = CONFIGS[model] if isinstance(model, str) else model
        slots = load.slots[len(load.slots) // 2] if slots is None else slots
        budget = load.budgets[len(load.budgets) // 2] if budget is None else budget
        for name, value, offered in (
            ("policy", policy, load.policies), ("slots", slots, load.slots), ("budget", budget, load.budgets)
        ):  # fmt: skip
            if value not in offered:
                raise ValueError(f"{name} is one of {', '.join(map(str, offered))} here, not {value!r}")
        runs = {}
        for kind in load.policies:
            for count in load.slots:
                for limit in load.budgets if kind == "chunked" else (WHOLE,):
                    name = f"{kind} {count} {limit}" if kind == "chunked" else f"{kind} {count}"
                    runs[name] = packed(simulate(load.jobs, kind, count, limit, chip, config, dtype))
        if lead is None:
            lead = (
                f"One row a slot. Step times are predicted for {config.name} on one {chip.name}, {dtype}, "
                + ("from its data sheet." if chip.kind == "datasheet" else f"from its rates ({chip.kind}).")
            )
        super().__init__(
            jobs=[[job.arrival, job.prompt, job.answer] for job in load.jobs], runs=runs, tick=TICK,
            policies=list(load.policies), slots=list(load.slots), budgets=list(load.budgets),
            policy=policy, slot=slots, budget=budget, wait=WAIT, watched=load.watched, title=title, lead=lead,
        )  # fmt: skip
