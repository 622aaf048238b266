"""The explorers by themselves: their formulas against the golden files, and their controls by mouse and by keyboard."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lumen.config import CONFIGS
from lumen.explore import (
    CacheShape,
    CacheSize,
    Eviction,
    Knee,
    KVStepper,
    PagedStepper,
    QueueLoad,
    Quiz,
    RadixTree,
    Roofline,
    StateMemory,
    Threshold,
    TileStepper,
)
from lumen.explore.explorers import paged, queue_load, roofline, tile_stepper
from lumen.explore.explorers.knee import ENOUGH, predicted_runs
from lumen.explore.explorers.roofline import chip_numbers, model_numbers
from lumen.hardware import CHIPS
from lumen.semantic.evaluate import Scored
from lumen.semantic.pairs import Pair

GOLDEN = Path(__file__).parents[1] / "explore" / "explorers" / "golden"


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text("utf8"))


def run(page, modules, module, function, arguments):
    """`function` of a module, called in the browser once for each list of arguments."""
    page.goto(f"{modules}/", wait_until="load")
    return page.evaluate(
        "async ([url, name, all]) => { const m = await import(url); return all.map((a) => m[name](...a)); }",
        [f"{modules}/{module}", function, arguments],
    )


def same(got, expected):
    for key, value in expected.items():
        assert got[key] == (value if isinstance(value, str) else pytest.approx(value, rel=1e-9)), key


def test_roofline_formula(wide, modules):
    cases = golden("roofline")
    arguments = [
        [model_numbers(CONFIGS[c["model"]]), chip_numbers(CHIPS[c["chip"]]), c["asked"]] for c in cases
    ]
    for got, case in zip(run(wide, modules, "roofline.js", "predict", arguments), cases, strict=True):
        same(got, case["expected"])


def test_cache_size_formula(wide, modules):
    cases = golden("cache_size")
    arguments = [[model_numbers(CONFIGS[c["model"]]), c["asked"]] for c in cases]
    for got, case in zip(run(wide, modules, "cache_size.js", "sizes", arguments), cases, strict=True):
        same(got, case["expected"])


def test_cache_shape_formula(wide, modules):
    cases = golden("cache_shape")
    held = run(wide, modules, "cache_shape.js", "holds", [[c["held"]] for c in cases])
    for got, case in zip(held, cases, strict=True):
        same(got, case["expected"])
    own = [c for c in cases if "own" in c]
    assert run(wide, modules, "cache_shape.js", "stored", [[c["asked"]] for c in own]) == [
        c["numbers"] for c in own
    ]


def test_state_memory_walks_as_python_does(wide, modules):
    cases = golden("state_memory")
    for got, case in zip(
        run(wide, modules, "state_memory.js", "walk", [[c["asked"]] for c in cases]), cases, strict=True
    ):
        for one, expected in zip(got, case["expected"], strict=True):
            assert one["right"] == expected["right"]
            assert one["error"] == pytest.approx(expected["error"], rel=1e-9, abs=1e-12)


def test_paged_stepper_formula(wide, modules):
    cases = golden("paged")
    rules = {
        "positions": paged.POSITIONS,
        "prompts": paged.PROMPTS,
        "names": paged.NAMES,
        "answer": paged.ANSWER,
    }
    found = run(wide, modules, "paged_stepper.js", "play", [[c["events"], c["size"], rules] for c in cases])
    for got, case in zip(found, cases, strict=True):
        assert got == case["expected"]


def test_kv_stepper_formula(wide, modules):
    cases = golden("kv_stepper")
    names = {"withCache": "with_cache", "without": "without", "read": "read", "ratio": "ratio"}
    found = run(wide, modules, "kv_stepper.js", "totals", [[c["prompt"], c["answer"]] for c in cases])
    for got, case in zip(found, cases, strict=True):
        same({names[k]: v for k, v in got.items()}, case["expected"])
        steps = run(
            wide, modules, "kv_stepper.js", "pass", [[case["prompt"], t] for t in (1, case["answer"])]
        )
        assert steps[0]["withCache"] == {"computed": case["prompt"], "read": 0}
        assert steps[1]["seen"] == case["prompt"] + case["answer"] - 1


def test_tile_stepper_walks_as_python_does(wide, modules):
    cases = golden("tile_stepper")
    arguments = [[c["scores"], c["values"], c["block"]] for c in cases]
    for got, case in zip(run(wide, modules, "tile_stepper.js", "walk", arguments), cases, strict=True):
        assert len(got) == len(case["expected"])
        for one, wanted in zip(got, case["expected"], strict=True):
            same(one, wanted)
    (order,) = run(wide, modules, "tile_stepper.js", "tiles", [[8, 2, True]])
    assert len(order) == 16 and sum(t["skipped"] for t in order) == 6


def test_eviction_keeps_what_python_keeps(wide, modules):
    cases = [(case["scores"], asked) for case in golden("eviction") for asked in case["asked"]]
    calls = {
        "kept": [[asked["rule"], scores, asked["budget"]] for scores, asked in cases],
        "held": [[scores, asked["expected"]] for scores, asked in cases],
        "best": [[scores, asked["budget"]] for scores, asked in cases],
    }
    found = {name: run(wide, modules, "eviction.js", name, arguments) for name, arguments in calls.items()}
    assert found["kept"] == [asked["expected"] for _, asked in cases]
    for name in ("held", "best"):
        assert found[name] == pytest.approx([asked[name] for _, asked in cases], rel=1e-9)


def test_radix_tree_replays_what_the_cache_does(wide, modules):
    cases = golden("radix")
    found = run(
        wide, modules, "radix_tree.js", "replay", [[c["requests"], c["page"], c["room"]] for c in cases]
    )
    for got, case in zip(found, cases, strict=True):
        assert [{key: step[key] for key in case["expected"][0]} for step in got] == case["expected"]
    clocked = run(
        wide, modules, "radix_tree.js", "withClock", [[cases[0]["requests"], c["clock"]] for c in cases]
    )
    assert clocked == [c["requests"] for c in cases]


def test_threshold_counts_what_evaluate_counts(wide, modules):
    cases = golden("threshold")
    arguments = [[c["pairs"], c["threshold"], c["checked"]] for c in cases]
    for got, case in zip(run(wide, modules, "threshold.js", "count", arguments), cases, strict=True):
        wanted = dict(case["expected"])
        kinds = {kind: hits for kind, hits in wanted.pop("byKind").items() if hits}
        assert {kind: hits for kind, hits in got["byKind"].items() if hits} == kinds
        assert {key: got[key] for key in wanted} == wanted


def test_queue_explorer_draws_the_gaps_that_python_draws(wide, modules):
    [drawn] = run(wide, modules, "queue_load.js", "gapList", [[2000, queue_load.SEED]])
    assert drawn == pytest.approx(queue_load.unit_gaps(2000), rel=1e-9)


def test_queue_explorer_plays_what_python_plays(wide, modules):
    cases = golden("queue_load")
    arguments = [[c["asked"][key] for key in ("gaps", "load", "freeze", "places", "window")] for c in cases]
    for got, case in zip(run(wide, modules, "queue_load.js", "play", arguments), cases, strict=True):
        for who, wanted in case["expected"].pop("stats").items():
            same(got["stats"][who], wanted)
        same(got, case["expected"])


def test_knee_judges_what_python_judges(wide, modules):
    cases = golden("knee")
    runs = [c for c in cases if "run" in c]
    found = run(wide, modules, "knee.js", "judge", [[c["run"], c["ttft"], c["tpot"]] for c in runs])
    for got, case in zip(found, runs, strict=True):
        assert got.keys() == case["expected"].keys()
        for key, value in case["expected"].items():
            assert got[key] == (value if value is None else pytest.approx(value, rel=1e-9)), key
    sets = [c for c in cases if "runs" in c]
    arguments = [[c["runs"], c["ttft"], c["tpot"], ENOUGH] for c in sets]
    for got, case in zip(run(wide, modules, "knee.js", "carried", arguments), sets, strict=True):
        assert got == pytest.approx(case["carried"], rel=1e-9)


@pytest.mark.parametrize(
    "text, unit, value",
    [
        ("7", "ms", 7),
        (" 1,024 ", "", 1024),
        ("3.5e9", "", 3.5e9),
        ("12 ms", "ms", 12),
        ("−2", "", -2),
        ("0,5", "", 0.5),
        ("half", "", None),
    ],
)
def test_quiz_reads_numbers(text, unit, value, wide, modules):
    (got,) = run(wide, modules, "kit.js", "number", [[text, unit]])
    assert got == value or (value is None and got != got)


def test_number_formats(wide, modules):
    assert run(wide, modules, "kit.js", "si", [[4.56e-3, "s"], [3.35e12, "B/s"], [999.6, "B"], [0, "B"]]) == [
        "4.56 ms", "3.35 TB/s", "1 kB", "0 B",
    ]  # fmt: skip
    assert run(wide, modules, "kit.js", "bytes", [[23040], [2**30], [512]]) == ["22.5 KiB", "1 GiB", "512 B"]


QUIZ = [
    {
        "kind": "choice",
        "question": "What binds `decode`?",
        "choices": [
            {"text": "**bytes** <i>", "ok": True, "why": "yes, *bytes*"},
            {"text": "FLOPs", "why": "they are few"},
        ],
    },
    {
        "kind": "numeric",
        "question": "14 GB at 2 TB/s?",
        "answer": 7,
        "tolerance": 0.1,
        "unit": "ms",
        "right": "14e9 / 2e12",
        "wrong": "divide",
        "slips": [{"answer": 28, "why": "you multiplied"}],
    },
]


@pytest.fixture
def show(screen, modules):
    """Puts a widget on an empty page, exactly as a notebook stores it, and returns it."""

    def put(widget):
        screen.goto(f"{modules}/explore.css", wait_until="load")
        screen.set_content(
            f"<!doctype html><html data-theme='light'><body style='margin:16px'>{widget.html()}</body></html>"
        )
        screen.wait_for_function(
            "document.querySelector('.lumen-widget').shadowRoot?.querySelector('h3, form')"
        )
        return screen.locator(".lumen-widget")

    yield put
    assert screen.problems == []
    assert screen.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def stat(widget, name):
    return widget.locator(".stats > div", has_text=name).locator("dd").inner_text()


def test_roofline_moves_with_the_keyboard(show):
    w = show(Roofline(chips=["H100 SXM", "L4"], models=["llama-3-8b"]))
    assert stat(w, "time per step") == "4.56 ms" and stat(w, "bound by") == "memory"
    dot = w.locator("circle.decode:not(.halo)")
    before = float(dot.get_attribute("cx"))
    batch = w.get_by_label("Batch: sequences at once")
    batch.focus()
    for _ in range(5):
        batch.press("ArrowRight")
    assert batch.get_attribute("aria-valuetext") == "32"
    assert float(w.locator("circle.decode:not(.halo)").get_attribute("cx")) > before + 10
    w.get_by_role("radio", name="Prefill").check(force=True)
    assert stat(w, "bound by") == "arithmetic"
    w.get_by_label("Chip").select_option("L4")
    assert "does not fit" in w.locator(".verdict").inner_text()
    assert "L4" in w.locator("svg[role=img]").get_attribute("aria-label")
    w.page.wait_for_timeout(350)
    assert "prefill" in w.locator("[aria-live=polite]").inner_text()


def test_roofline_draws_what_was_measured_below_the_roof(show):
    """A step measured at three times its bound stands under the roof, filled; it hides when the context moves on."""
    bound = roofline.predict(CONFIGS["llama-3-8b"], CHIPS["L4"], "decode", 1, 256, 2.0, 2.0, ("bf16",))[
        "seconds"
    ]
    taken = {
        "chip": "L4",
        "model": "llama-3-8b",
        "format": "bf16",
        "phase": "decode",
        "batch": 1,
        "context": 256,
    }
    w = show(
        Roofline(chips=["L4"], models=["llama-3-8b"], context=256, measured=[taken | {"seconds": 3 * bound}])
    )
    dot, hollow = w.locator("circle.measured"), w.locator("circle.decode:not(.halo):not(.measured)")
    assert dot.get_attribute("cx") == hollow.get_attribute("cx")
    assert float(dot.get_attribute("cy")) > float(hollow.get_attribute("cy")) + 15
    assert "3 times the bound" in w.locator(".verdict").inner_text()
    assert "measured at 33 % of it" in w.locator("svg[role=img]").get_attribute("aria-label")
    context = w.get_by_label("Context: tokens in each")
    context.focus()
    context.press("ArrowRight")
    assert dot.count() == 0 and "at best" in w.locator("svg[role=img]").text_content()


def test_roofline_has_the_answer_that_the_page_asks_for(show):
    """Llama-3-8B reaches the ridge of an H100 with 1,024 users of 256 tokens, and fits; with 2,048 tokens it cannot."""
    w = show(Roofline(chips=["H100 SXM"], models=["llama-3-8b"], batch=1024, context=256))
    assert stat(w, "bound by") == "arithmetic" and "does not fit" not in w.locator(".verdict").inner_text()
    w = show(Roofline(chips=["H100 SXM"], models=["llama-3-8b"], batch=1024, context=2048))
    verdict = w.locator(".verdict").inner_text()
    assert (
        stat(w, "bound by") == "memory"
        and "does not fit" in verdict
        and " GB" in verdict
        and "GiB" not in verdict
    )


def test_roofline_precision_moves_the_step_and_not_the_ridge(show):
    w = show(Roofline(chips=["H100 SXM"], models=["llama-3-8b"]))
    ridge = w.locator("svg text", has_text="ridge").text_content()
    w.get_by_role("radio", name="4.5 bits").check(force=True)
    assert stat(w, "time per step") == "1.34 ms"
    assert w.locator("svg text", has_text="ridge").text_content() == ridge


def test_stepper_counts(show):
    w = show(KVStepper(prompt=5, steps=6))
    forth, back = w.get_by_role("button", name="Next pass"), w.get_by_role("button", name="Back")
    assert back.is_disabled()
    for _ in range(3):
        forth.focus()
        w.page.keyboard.press("Enter")
    assert stat(w, "so far, with a cache") == "8" and stat(w, "so far, without") == "26"
    assert stat(w, "read so far") == "18"
    first = w.locator("svg[role=img]").first
    assert "1 token rows computed in this pass, 7 read" in first.get_attribute("aria-label")
    assert first.locator(".cell.read").count() == 14 and first.locator(".cell.computed").count() == 3
    forth.click()
    forth.click()
    assert forth.is_disabled()
    back.click()
    assert "Pass 5 of 6" in w.locator(".where").inner_text()
    w.get_by_label("Tokens in the prompt").press("ArrowRight")
    assert "Pass 1 of 6" in w.locator(".where").inner_text()


def test_tile_stepper_carries_three_numbers(show):
    explorer = TileStepper(size=8, block=2)
    w = show(explorer)
    forth, back = w.get_by_role("button", name="Next tile"), w.get_by_role("button", name="Back")
    assert "Tile 7 of 10" in w.locator(".where").inner_text(), "it opens where the watched query begins"
    w.get_by_role("button", name="Start over").click()
    assert back.is_disabled() and "Tile 1 of 10" in w.locator(".where").inner_text()
    assert "has not begun" in w.locator(".where").inner_text() and stat(w, "scores that exist now") == "4"
    w.get_by_role("button", name="To the query's first tile").click()
    walked = tile_stepper.walk(explorer.state["scores"][7], explorer.state["values"], 2)
    for step, carried in enumerate(walked):
        text = w.locator(".where").inner_text()
        assert f"Tile {7 + step} of 10" in text
        assert ("is multiplied by" in text) == (step > 0 and carried.shrink < 1)
        assert float(stat(w, "output so far")) == pytest.approx(carried.out, rel=0.01)
        if step < 3:
            forth.focus()
            w.page.keyboard.press("Enter")
    assert stat(w, "output so far") == stat(w, "output in the end") and forth.is_disabled()
    w.get_by_role("radio", name="none").check(force=True)
    assert "Tile 1 of 16" in w.locator(".where").inner_text() and w.locator(".picture .skipped").count() == 0
    w.get_by_label("Rows and columns of a tile").press("ArrowRight")
    assert "Tile 1 of 4" in w.locator(".where").inner_text() and stat(w, "scores that exist now") == "16"


def some_scores(at):
    """A head whose answer reads token `at` and the first one, and whose prompt has read the first half alike."""
    asked = [0.0] * 40
    asked[0], asked[at] = 0.4, 0.6
    read = [float(i < 20) for i in range(40)]
    return {"asked": asked, "read": read, "observed": asked, "bounds": [0.1, 0.1, 0.5, 0.1, 0.2]}


def test_eviction_strikes_out_what_leaves(show):
    heads = {"layer 1, head 1": some_scores(17), "layer 2, head 3": some_scores(39)}
    w = show(Eviction([f"w{i}" for i in range(40)], heads, budget=16))
    share = "the answer's attention on them"
    assert w.locator(".text .gone").count() == 24 and stat(w, share) == "0 %"
    w.get_by_role("radio", name="first 4, newest").check(force=True)
    assert stat(w, share) == "40 %" and "60 %" in w.locator(".verdict").inner_text()
    w.get_by_role("radio", name="SnapKV").check(force=True)
    assert stat(w, share) == "100 %" and stat(w, "bytes that are held") == "40 %"
    w.get_by_role("radio", name="Quest").check(force=True)
    assert stat(w, "keys that are read") == "16 of 40" and stat(w, "bytes that are held") == "all, and bounds"
    w.get_by_label("Layer and head").select_option("1")
    w.get_by_role("radio", name="newest", exact=True).check(force=True)
    assert stat(w, share) == "60 %"
    w.get_by_label("Keys that stay").press("End")
    assert stat(w, "keys that stay") == "40 of 40" and w.locator(".text .gone").count() == 0
    assert "40 of 40 keys stay" in w.locator(".text").get_attribute("aria-label")


def test_radix_tree_grows_by_keyboard(show):
    w = show(RadixTree(page=2, room=48))
    forth, back = w.get_by_role("button", name="Next request"), w.get_by_role("button", name="Back")
    assert back.is_disabled() and stat(w, "found in this prompt") == "0 of 13"
    forth.focus()
    w.page.keyboard.press("Enter")
    assert stat(w, "found in this prompt") == "10 of 13" and stat(w, "blocks remembered") == "10 of 24"
    assert "A node was split" in w.locator(".verdict").inner_text()
    assert w.locator(".tree .page.held").count() == 5 and w.locator(".tree .page.new").count() == 2
    assert "found" in w.locator(".tree .page.held").first.text_content()
    w.get_by_role("radio", name="first word").check(force=True)
    assert stat(w, "found in this prompt") == "0 of 14" and stat(w, "hit rate so far") == "0 %"
    w.get_by_role("radio", name="none").check(force=True)
    for _ in range(5):
        forth.click()
    assert forth.is_disabled() and stat(w, "hit rate so far") == "60 %"
    w.get_by_label("Room in the cache (tokens)").press("ArrowLeft")
    assert "Forgotten to make room" in w.locator(".verdict").inner_text()
    w.page.wait_for_timeout(350)
    assert "blocks forgotten" in w.locator("[aria-live=polite]").inner_text()


def test_paged_stepper_copies_preempts_and_goes_back(show):
    w = show(PagedStepper())
    token, fork = w.get_by_role("button", name="Next token"), w.get_by_role("button", name="Fork")
    w.get_by_label("Sequence").select_option("B")
    fork.click()
    assert "no copy" in w.locator(".said").inner_text()
    token.focus()
    w.page.keyboard.press("Enter")
    assert "B shares block 4, so it copies it" in w.locator(".said").inner_text()
    assert stat(w, "copied on write") == "1"
    assert "B holds 2, 3, 5" in w.locator("svg[role=img]").get_attribute("aria-label")
    w.get_by_role("button", name="New request").click()
    for _ in range(10):
        token.click()
    assert w.locator(".tables .waiting").count() >= 1
    size = w.get_by_label("Positions in a block")
    size.press("ArrowRight")
    assert size.get_attribute("aria-valuetext") == "8"
    w.get_by_role("button", name="Start over").click()
    assert stat(w, "copied on write") == "0" and w.get_by_role("button", name="Start over").is_disabled()
    back = w.get_by_role("button", name="Back")
    for _ in range(3):
        back.click()
    assert back.is_disabled() and "empty" in w.locator(".said").inner_text()


def test_cache_size_says_what_fits(show):
    w = show(CacheSize(models=["llama-2-7b", "llama-2-70b"], chips=["A100 80GB SXM"], context=4096, users=32))
    assert stat(w, "cache of one token") == "512 KiB" and stat(w, "cache of 32 users") == "64 GiB"
    assert "Does not fit: there is room for 27 of 32 users." in w.locator(".verdict").inner_text()
    users = w.get_by_label("Users at once")
    users.press("ArrowLeft")
    assert "Fits: 27" in w.locator(".verdict").inner_text()
    w.get_by_label("Model").select_option("llama-2-70b")
    assert "the weights alone" in w.locator(".verdict").inner_text()


def test_cache_shape_puts_yours_among_the_published(show):
    w = show(CacheShape(heads=8, width=128, layers=32, context=131_072))
    assert stat(w, "bytes a token") == "128 KiB" and stat(w, "users in 80 GB") == "4"
    assert w.locator("svg rect").count() == len(CacheShape().state["models"]) + 1
    assert w.locator("svg rect.mine").count() == 1 and not w.get_by_label("Rank of the latent").is_visible()
    w.get_by_label("Heads that are stored").press("ArrowRight")
    assert stat(w, "bytes a token") == "256 KiB" and stat(w, "users in 80 GB") == "2"
    w.get_by_role("radio", name="one latent").check(force=True)
    assert stat(w, "numbers a token and layer") == "576" and w.get_by_label("Rank of the latent").is_visible()
    assert "published models" in w.locator(".verdict").inner_text()


def test_state_memory_corrects_what_has_changed(show):
    explorer = StateMemory(width=16, pairs=12)
    w = show(explorer)
    assert w.locator("svg rect.right, svg rect.wrong").count() == 12 + 2  # with the legend's two
    assert stat(w, "numbers in the state") == "256" and stat(w, "as keys and values") == "384"
    w.get_by_role("radio", name="again, new value").check(force=True)
    w.get_by_role("radio", name="correct", exact=True).check(force=True)
    assert "comes back with an error of 0" in w.locator(".verdict").inner_text()
    w.get_by_role("radio", name="add", exact=True).check(force=True)
    assert not re.search(r"an error of 0(\.0\d*)?\.$", w.locator(".verdict").inner_text())
    w.get_by_label("Pairs told").press("ArrowRight")
    assert stat(w, "as keys and values") == "416"


def test_quiz_answers_back(show):
    w = show(Quiz(QUIZ, id="t"))
    choice, numeric = w.locator("form").all()
    assert "bytes <i>" in [label.inner_text() for label in choice.locator("label").all()]  # text, not markup
    choice.get_by_role("button").click()
    assert "Pick one" in choice.inner_text()
    choice.get_by_label("FLOPs").check()
    choice.get_by_role("button").click()
    assert "Not yet. they are few" in choice.inner_text()
    assert "0 of 2 right" in w.locator(".score").inner_text()
    choice.get_by_label("bytes").check()
    choice.get_by_label("bytes").press("Enter")
    assert "Right. yes, bytes" in choice.inner_text()
    box = numeric.get_by_role("textbox")
    for answer, reply in (
        ("abc", "Write a number"),
        ("28", "you multiplied"),
        ("3", "divide"),
        ("7.05 ms", "Right. 14e9"),
    ):
        box.fill(answer)
        box.press("Enter")
        assert reply in numeric.inner_text()
    assert w.locator(".score").inner_text() == "2 of 2 right, 0 at the first try. That is all of them."


@pytest.mark.parametrize(
    "make",
    [
        Roofline,
        KVStepper,
        CacheSize,
        PagedStepper,
        RadixTree,
        TileStepper,
        CacheShape,
        lambda: Eviction([f"w{i}" for i in range(40)], {"layer 1, head 1": some_scores(17)}),
        StateMemory,
        lambda: Quiz(QUIZ, id="t"),
    ],
)
def test_every_control_has_a_name_and_a_place_in_the_tab_order(make, show):
    w = show(make())
    nameless = w.evaluate(
        """host => [...host.shadowRoot.querySelectorAll('input, select, button')]
             .filter(e => e.tabIndex < 0 || !(e.ariaLabel || (e.labels && e.labels.length) || e.textContent.trim()))
             .map(e => e.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize(
    "attribute",
    ["document.documentElement.dataset.theme='dark'", "document.body.dataset.jpThemeLight='false'"],
)
def test_the_theme_of_the_page_is_followed(attribute, show):
    w = show(KVStepper())
    w.page.evaluate("delete document.documentElement.dataset.theme")
    assert w.get_attribute("data-dark") is None
    w.page.evaluate(attribute)
    w.page.wait_for_function("document.querySelector('.lumen-widget').hasAttribute('data-dark')")


def scored(*rows):
    return [Scored(Pair(kind, "a", "b", "report"), cosine, rule) for kind, cosine, rule in rows]


def test_threshold_moves_with_the_keyboard(show):
    rows = (
        ("paraphrase", 0.87, ""),
        ("paraphrase", 0.7, ""),
        ("opposite", 0.92, "negation"),
        ("unrelated", 0.01, ""),
    )
    w = show(Threshold(scored(*rows), threshold=0.8))
    assert stat(w, "right hits") == "1" and stat(w, "wrong hits") == "1" and stat(w, "precision") == "50.0 %"
    cut = w.get_by_label("Threshold (cosine)")
    cut.focus()
    cut.press("End")
    assert cut.get_attribute("aria-valuetext") == "1.00" and stat(w, "precision") == "no hits"
    cut.press("Home")
    assert stat(w, "right hits") == "2" and stat(w, "wrong hits") == "2"
    w.get_by_role("radio", name="on", exact=True).check(force=True)
    assert stat(w, "wrong hits") == "1"
    assert "1 of 1 unrelated" in w.locator(".verdict").inner_text()
    assert "2 right and 1 wrong" in w.locator("svg[role=img]").get_attribute("aria-label")


def test_threshold_lists_the_pairs_that_flip_next(show):
    rows = [("paraphrase", 0.5 + place / 50, "") for place in range(11)] + [("opposite", 0.71, "negation")]
    w = show(Threshold(scored(*rows), threshold=0.7, checked=True))
    listed = w.locator("table.near tr")
    assert listed.count() == 6
    said = {row.split("\t")[0].strip(): row for row in listed.all_inner_texts()}
    assert "refused: negation" in said["0.710"] and "right hit" in said["0.700"] and "no hit" in said["0.680"]
    w.get_by_label("Threshold (cosine)").press("ArrowLeft")
    w.get_by_label("Threshold (cosine)").press("ArrowLeft")
    said = {row.split("\t")[0].strip(): row for row in listed.all_inner_texts()}
    assert "right hit" in said["0.680"]


def loaded(name, slow):
    """An engine whose steps take `slow` seconds and as much again for each prompt, under three loads."""
    step = lambda new, old: slow * (1 + new)  # noqa: E731
    runs = predicted_runs(step, (1.0, 4.0, 16.0), answer=4, count=12, rounds=2)
    return {"name": name, "note": f"{name} steps", "runs": runs}


def test_knee_moves_with_the_keyboard(show):
    engines = [loaded("fast", 0.02), loaded("slow", 0.2)]
    w = show(Knee(engines, ttft=0.5, tpot=0.3))
    assert "fast carries 16 or more requests a second; slow carries" in w.locator(".verdict").inner_text()
    limit = w.get_by_label("Limit on TTFT")
    limit.focus()
    limit.press("Home")
    assert limit.get_attribute("aria-valuetext") == "50 ms"
    assert "slow carries less than 1 requests" in w.locator(".verdict").inner_text()
    w.get_by_role("radio", name="slow").check(force=True)
    load = w.get_by_label("at an offered load of")
    load.focus()
    load.press("End")
    assert load.get_attribute("aria-valuetext") == "16 requests/s"
    assert "slow steps" in w.locator("section").inner_text()
    w.get_by_role("radio", name="share good").check(force=True)
    assert "share of requests within both limits against offered load" in w.locator(
        "svg[role=img]"
    ).get_attribute("aria-label")


def test_queue_explorer_moves_with_the_keyboard(show):
    w = show(QueueLoad(load=0.75, freeze=2.0))
    verdict = w.locator(".verdict")
    assert (
        "counts 1 slow in 300 requests. Counted from when they were due, there are 57."
        in verdict.inner_text()
    )
    freeze = w.get_by_label("Length of the freeze")
    freeze.focus()
    freeze.press("Home")
    assert freeze.get_attribute("aria-valuetext") == "0 s"
    expect(verdict).to_contain_text("Both count 0 slow requests")
    load = w.get_by_label("Load (share of time busy)")
    load.focus()
    load.press("End")
    assert load.get_attribute("aria-valuetext") == "95 %"
    w.get_by_role("radio", name="random").check(force=True)
    expect(verdict).to_contain_text("counts 0 slow in 300 requests. Counted from")
    alone = w.locator(".stats").first.inner_text()
    w.get_by_role("radio", name="64", exact=True).check(force=True)
    expect(verdict).to_contain_text("Both count 0 slow requests in 19,200")  # p99 is 1.7 service times
    assert w.locator(".stats").first.inner_text() != alone
    freeze.focus()
    freeze.press("End")
    expect(verdict).to_contain_text("The tester with 64 connections")
    assert "Latency of 300 requests" in w.locator("svg[role=img]").get_attribute("aria-label")
