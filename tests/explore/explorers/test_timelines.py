"""The batching timelines: what the scheduler does, unpacked as it was packed, and counted by hand where it is short."""

import json
from itertools import pairwise

import pytest

from lumen.config import CONFIGS
from lumen.explore import Timelines
from lumen.explore.explorers.timelines import TICK, WAIT, WHOLE, WORKLOADS, Job, packed, simulate
from lumen.explore.explorers.widget import inline_module
from lumen.hardware import CHIPS

A100, LLAMA = CHIPS["A100 80GB SXM"], CONFIGS["llama-3-8b"]
SETTINGS = [
    (name, policy, slots, budget)
    for name, load in WORKLOADS.items()
    for policy in load.policies
    for slots in load.slots
    for budget in (load.budgets if policy == "chunked" else (WHOLE,))
]


def run(jobs, policy, slots=2, budget=WHOLE):
    return simulate(jobs, policy, slots, budget, A100, LLAMA, "bf16")


def where(timeline):
    """{job: (slot, first step, last step)}, joined over the spans."""
    found = {}
    for slot, job, first, counts in timeline.spans:
        _, start, end = found.get(job, (slot, first, first))
        found[job] = slot, min(start, first), max(end, first + len(counts) - 1)
    return found


THREE = [Job(0, 10, 2), Job(0, 10, 6), Job(0, 10, 3)]


def test_static_batching_ends_with_its_longest_answer():
    timeline = run(THREE, "static")
    assert where(timeline) == {0: (0, 0, 1), 1: (1, 0, 5), 2: (0, 6, 8)}
    cells = 2 + 6 + 3
    assert timeline.utilisation == pytest.approx(cells / (2 * 9), rel=0.02)  # steps are almost equally long


def test_continuous_batching_gives_a_free_slot_away_at_once():
    assert where(run(THREE, "continuous")) == {0: (0, 0, 1), 1: (1, 0, 5), 2: (0, 2, 4)}


def test_dynamic_batching_starts_when_it_is_full_or_the_timer_is_out():
    full = run([Job(0, 10, 2), Job(0.02, 10, 2)], "dynamic")
    assert full.steps[0][0] == 0.02
    alone = run([Job(0, 10, 2), Job(WAIT + 0.05, 10, 2)], "dynamic")
    assert alone.steps[0][0] == pytest.approx(WAIT)
    assert run([Job(0, 10, 2), Job(0.02, 10, 2)], "static").steps[0][0] == 0


def test_chunks_share_their_steps_with_an_answer():
    jobs = [Job(0, 10, 20), Job(0.03, 100, 2)]
    timeline = run(jobs, "chunked", budget=33)
    chunks = [counts for _, job, _, counts in timeline.spans if job == 1]
    assert chunks == [[32, 32, 32, 4, 0]]  # one token a step belongs to the answer; the last chunk is sampled
    whole = run(jobs, "continuous")
    assert [counts for _, job, _, counts in whole.spans if job == 1] == [[100, 0]]


@pytest.mark.parametrize("name, policy, slots, budget", SETTINGS)
def test_every_setting_computes_every_token_once(name, policy, slots, budget):
    jobs = WORKLOADS[name].jobs
    timeline = run(jobs, policy, slots, budget)
    prompts, answers = [0] * len(jobs), [0] * len(jobs)
    taken = set()
    for slot, job, first, counts in timeline.spans:
        prompts[job] += sum(counts)
        answers[job] += counts.count(0)
        cells = {(slot, first + i) for i in range(len(counts))}
        assert slot < slots and not cells & taken  # nobody sits on anybody's lap
        taken |= cells
    assert prompts == [job.prompt for job in jobs]
    assert answers == [job.answer - 1 for job in jobs]  # the first token comes out of the prompt's last step
    assert all(a[1] <= b[0] for a, b in pairwise(timeline.steps))
    assert 0 < timeline.utilisation <= 1


def unpack(run):
    """What `unpack` in timelines.js does."""
    steps, at = [], 0
    for idle, length, count in run["steps"]:
        for _ in range(count):
            steps.append((at + idle, at + idle + length))
            at += idle + length
    spans = [
        (slot, job, first, [value for value, count in counts for _ in range(count)])
        for slot, job, first, *counts in run["spans"]
    ]
    return steps, spans


@pytest.mark.parametrize("name, policy, slots, budget", SETTINGS)
def test_packing_loses_nothing_that_can_be_seen(name, policy, slots, budget):
    timeline = run(WORKLOADS[name].jobs, policy, slots, budget)
    steps, spans = unpack(json.loads(json.dumps(packed(timeline))))
    assert spans == timeline.spans
    for (start, end), (first, last) in zip(steps, timeline.steps, strict=True):
        assert (start * TICK, end * TICK) == (pytest.approx(first, abs=0.002), pytest.approx(last, abs=0.002))


def test_the_workloads_show_what_they_are_for():
    mixed, long = WORKLOADS["mixed"].jobs, WORKLOADS["long-prompt"].jobs
    static, continuous = run(mixed, "static", 4), run(mixed, "continuous", 4)
    assert continuous.tokens_per_s > 1.8 * static.tokens_per_s
    assert continuous.utilisation > static.utilisation
    whole, chunked = run(long, "continuous", 8), run(long, "chunked", 8, 512)
    assert chunked.longest_gap < whole.longest_gap / 3


def test_a_small_budget_costs_the_document_its_first_token():
    load = WORKLOADS["long-prompt"]
    ttft = {b: run(load.jobs, "chunked", 8, b).first_tokens[load.watched] for b in load.budgets}
    assert load.jobs[load.watched].prompt == max(job.prompt for job in load.jobs)
    assert ttft[64] > 1.5 * ttft[512] and ttft[64] > ttft[128] > ttft[256]


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_widget_is_one_small_page_that_asks_nobody(name):
    page = Timelines(name).html()
    assert page == Timelines(name).html()
    assert page.count("<script") == page.count("</script") == 1
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert len(page) < 40_000
    assert inline_module("timelines.js").count("const widget = ") == 1


@pytest.mark.parametrize(
    "asked, words",
    [
        ({"workload": "long"}, "no workload is called 'long'"),
        ({"policy": "eager"}, "policy is one of static, dynamic, continuous, chunked here"),
        ({"workload": "long-prompt", "policy": "static"}, "policy is one of continuous, chunked here"),
        ({"slots": 3}, "slots is one of 2, 4, 8 here, not 3"),
        ({"budget": 1000}, "budget is one of 64, 128, 256 here"),
    ],
)
def test_settings_that_the_controls_cannot_show_are_refused(asked, words):
    with pytest.raises(ValueError, match=words):
        Timelines(**asked)
