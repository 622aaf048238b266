"""The batching timelines in a browser: runs unpacked as Python packed them, and controls by keyboard."""

import pytest

from lumen.config import CONFIGS
from lumen.explore import Timelines
from lumen.explore.explorers.timelines import TICK, WORKLOADS, packed, simulate
from lumen.hardware import CHIPS
from lumen.pages.ch08 import policies


@pytest.mark.parametrize("name, policy", [("mixed", "dynamic"), ("long-prompt", "chunked")])
def test_unpacked_runs_are_those_of_the_scheduler(name, policy, wide, modules):
    run = simulate(
        WORKLOADS[name].jobs, policy, 4, 512, CHIPS["A100 80GB SXM"], CONFIGS["llama-3-8b"], "bf16"
    )
    wide.goto(f"{modules}/", wait_until="load")
    got = wide.evaluate(
        "async ([url, run, tick]) => (await import(url)).unpack(run, tick)",
        [f"{modules}/timelines.js", packed(run), TICK],
    )
    assert [(s["slot"], s["job"], s["first"], s["counts"]) for s in got["spans"]] == run.spans
    for step, wanted in zip(got["steps"], run.steps, strict=True):
        assert step == pytest.approx(wanted, abs=0.01)
    assert got["rate"] == pytest.approx(run.tokens_per_s, abs=0.01)


@pytest.mark.parametrize("name, policy, slots", [("mixed", "static", 2), ("long-prompt", "chunked", 8)])
def test_what_has_happened_so_far_ends_in_the_run_s_own_numbers(name, policy, slots, wide, modules):
    jobs = WORKLOADS[name].jobs
    run = simulate(jobs, policy, slots, 64, CHIPS["A100 80GB SXM"], CONFIGS["llama-3-8b"], "bf16")
    wide.goto(f"{modules}/", wait_until="load")
    counted = """async ([url, run, tick, jobs, slots]) => {
      const { unpack, soFar } = await import(url), all = unpack(run, tick);
      return [0, 1, all.steps.length].map((count) => soFar(all, jobs, slots, count));
    }"""
    rows = [[job.arrival, job.prompt, job.answer] for job in jobs]
    start, one, end = wide.evaluate(counted, [f"{modules}/timelines.js", packed(run), TICK, rows, slots])
    assert (start["tokens"], start["gap"], start["used"], start["first"]) == (0, 0, 0, [])
    assert one["now"] == pytest.approx(run.steps[0][1], abs=1e-3) and one["gap"] == 0
    assert end["used"] == pytest.approx(run.utilisation, abs=0.01)
    assert end["rate"] == pytest.approx(run.tokens_per_s, rel=0.01)
    assert end["gap"] == pytest.approx(run.longest_gap, abs=0.005)
    wanted = [first - job.arrival for first, job in zip(run.first_tokens, jobs, strict=True)]
    assert end["first"] == pytest.approx(wanted, abs=0.01)


def test_the_explorer_shows_the_numbers_of_its_page(wide, modules):
    """Chapter 8's table of the policies and the explorer above it: one run, one number."""
    show(wide, Timelines("mixed", policy="static", slots=4), modules)
    rows, headers, _ = policies()
    assert headers == ["policy", "tokens/s", "slots in use", "mean TTFT (ms)", "longest gap (ms)"]
    for policy, rate, used, ttft, gap in rows:
        wide.get_by_role("radio", name=policy, exact=True).check(force=True)
        names, values = (wide.locator(f"dl.stats {tag}").all_inner_texts() for tag in ("dt", "dd"))
        seen = dict(zip(names, values, strict=True))
        shown = [seen[name].split()[0] for name in ("tokens/s", "slots in use", "mean TTFT")]
        assert shown == [rate, used.split()[0].rstrip("%"), ttft]
        assert f"{float(seen['longest gap in an answer'].split()[0]):.0f}" == gap


def test_the_title_says_how_many_slots_and_step_0_has_no_totals(wide, modules):
    show(wide, Timelines("long-prompt", title="{slots} slots"), modules)
    assert wide.locator("h3").inner_text() == "8 slots"
    assert "TTFT of the 8,000" in wide.locator("dl.stats").inner_text()
    wide.get_by_role("slider", name="Slots").press("Home")
    assert wide.locator("h3").inner_text() == "4 slots"
    wide.get_by_role("button", name="Start").press("Enter")
    assert wide.locator("dl.stats").inner_text().count("none yet") == 4


def show(page, widget, modules):
    page.goto(f"{modules}/explore.css", wait_until="load")
    page.set_content(f"<!doctype html><html><body style='margin:8px'>{widget.html()}</body></html>")
    page.locator("section.card").wait_for()


def test_the_keyboard_alone_picks_a_policy_and_steps(screen, modules):
    show(screen, Timelines("mixed", policy="static"), modules)
    radio = screen.get_by_role("radio", name="static")
    radio.focus()
    screen.keyboard.press("ArrowRight")
    assert screen.get_by_role("radio", name="dynamic").is_checked()
    screen.keyboard.press("ArrowRight")
    assert "static takes" in screen.locator(".verdict").inner_text()
    screen.get_by_role("button", name="Start").press("Enter")
    assert screen.locator(".where").inner_text().startswith("Step 0 of")
    screen.get_by_role("button", name="Next step").press("Enter")
    assert "of prompts" in screen.locator(".where").inner_text()
    step = screen.get_by_role("slider", name="Step", exact=True)
    step.press("End")
    assert screen.get_by_role("button", name="Next step").is_disabled()
    assert screen.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert screen.problems == []


def test_playing_reaches_the_end_and_can_be_paused(wide, modules):
    show(wide, Timelines("long-prompt"), modules)
    play = wide.locator("button.first")
    play.press("Enter")
    wide.wait_for_timeout(300)
    play.press("Enter")
    assert play.inner_text() == "Play"
    stopped = wide.locator(".where").inner_text()
    wide.wait_for_timeout(200)
    assert wide.locator(".where").inner_text() == stopped and not stopped.startswith("Step 0 of")
    assert wide.problems == []


def test_a_token_budget_is_offered_to_chunked_batching_alone(wide, modules):
    show(wide, Timelines("long-prompt", policy="continuous"), modules)
    budget = wide.get_by_role("slider", name="Tokens a step at most")
    assert budget.is_disabled() and budget.get_attribute("aria-valuetext")
    before = wide.locator("dl.stats").inner_text()
    wide.get_by_role("radio", name="chunked").check()
    assert budget.is_enabled() and wide.locator("dl.stats").inner_text() != before
