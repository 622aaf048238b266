"""Kernel-less widgets: self-contained, reproducible, unbreakable by their contents, and strict about their
input."""

import json
import re

import pytest

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
    Rows,
    StateMemory,
    Threshold,
    TileStepper,
)
from lumen.explore.explorers.knee import predicted_runs
from lumen.explore.explorers.widget import inline_module
from lumen.semantic.evaluate import Scored
from lumen.semantic.pairs import Pair

CHOICE = {
    "kind": "choice",
    "question": "What binds `decode`?",
    "choices": [{"text": "bytes", "ok": True, "why": "yes"}, {"text": "FLOPs", "why": "no"}],
}
NUMERIC = {
    "kind": "numeric",
    "question": "14 / 2?",
    "answer": 7,
    "unit": "ms",
    "right": "yes",
    "wrong": "divide",
}
PAIRS = [
    Scored(Pair("paraphrase", "a", "b", "report"), 0.8712, ""),
    Scored(Pair("opposite", "c", "d", "report"), 0.9, "negation"),
]


def loaded(name, slow):
    """An engine whose steps take `slow` seconds and as much again for each prompt, under three loads."""
    step = lambda new, old: slow * (1 + new)  # noqa: E731
    runs = predicted_runs(step, (1.0, 4.0, 16.0), answer=4, count=12, rounds=2)
    return {"name": name, "note": "predicted", "runs": runs}


LOADED = [loaded("fast", 0.02), loaded("slow", 0.1)]
FEW = {name: [0.05] * 20 for name in ("read", "observed", "asked")} | {"bounds": [0.3, 0.2, 0.1]}
WORDS = [f"w{i}" for i in range(20)]
MAKERS = [
    Roofline, KVStepper, CacheSize, PagedStepper, RadixTree, lambda: Threshold(PAIRS), QueueLoad,
    lambda: Eviction(WORDS, {"layer 1, head 1": FEW}),
    lambda: Knee(LOADED), TileStepper, CacheShape, StateMemory,
    lambda: Quiz([CHOICE, NUMERIC], id="t"),
    lambda: Rows({1: (34.0, 1.0), 16: (45.0, 1.3)}, start=16, where="here"),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_html_is_reproducible_and_asks_nobody(make):
    page = make().html()
    assert page == make().html()
    assert page.count("<script") == page.count("</script") == 1
    assert "import " not in re.sub(r"//.*", "", page) and not re.search(r"^export", page, re.M)
    assert set(re.findall(r"https?://[^\"' ]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert len(page) < 30_000


@pytest.mark.parametrize(
    "name",
    [
        "roofline.js",
        "kv_stepper.js",
        "cache_size.js",
        "quiz.js",
        "paged_stepper.js",
        "radix_tree.js",
        "eviction.js",
        "threshold.js",
        "queue_load.js",
        "knee.js",
        "rows.js",
        "tile_stepper.js",
        "cache_shape.js",
        "state_memory.js",
    ],
)
def test_inlined_module_has_one_default(name):
    assert inline_module(name).count("const widget = ") == 1


def test_two_states_have_two_ids():
    ids = {re.search(r'id="(w\w+)"', KVStepper(prompt=p).html()).group(1) for p in (3, 4)}
    assert len(ids) == 2


def test_text_cannot_end_the_script():
    page = Quiz([CHOICE | {"question": "</script><!--<script>"}], id="t").html()
    assert page.count("</script") == 1 and "<!--" not in page


def test_state_is_plain_json():
    for make in MAKERS:
        json.dumps(make().state, allow_nan=False)


def test_the_repr_has_text_for_terminals():
    bundle, _ = KVStepper()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}


def test_roofline_takes_a_measured_chip_and_a_config():
    from lumen.config import CONFIGS
    from lumen.hardware import Chip

    mine = Chip("this machine", {"fp32": 1e11}, 2e10, 8e9, kind="measured")
    state = Roofline(chips=[mine, "L4"], models=[CONFIGS["gptlite"]], format="fp32", batch=3).state
    assert state["chip"] == "this machine" and state["model"] == "gptlite" and state["batch"] == 2
    assert state["chips"][0]["label"] == "this machine (8 GB, measured)"


MEASURED = {"chip": "L4", "model": "llama-3-8b", "format": "bf16", "phase": "decode", "batch": 1, "context": 256,
            "seconds": 0.1}  # fmt: skip


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: Roofline(chips=["H900"]), "no chip is called 'H900'"),
        (lambda: Roofline(chips=["B200"]), "no rate is known for fp32 on B200"),
        (lambda: Roofline(format="int3"), "no format 'int3'"),
        (lambda: Roofline(measured=[{"batch": 1}]), "a measurement has chip"),
        (lambda: Roofline(measured=[MEASURED | {"batch": 3}]), "batch 3 is not among"),
        (lambda: Roofline(measured=[MEASURED | {"seconds": 0.0}]), "seconds above zero"),
        (lambda: CacheSize(models=[]), "at least one model"),
        (lambda: CacheSize(reserve=1), "share of the memory"),
        (lambda: CacheSize(kv="int3"), "no format 'int3'"),
        (lambda: KVStepper(prompt=0), "prompt must lie between"),
        (lambda: KVStepper(steps=13), "steps must lie between"),
        (lambda: TileStepper(size=9), "8 or 16"),
        (lambda: TileStepper(block=3), "block is one of"),
        (lambda: CacheShape([]), "beside which models"),
        (lambda: CacheShape(memory=0), "some memory"),
        (lambda: StateMemory(width=5), "width is one of"),
        (lambda: StateMemory(pairs=41), "from 1 to 40"),
        (lambda: StateMemory(rule="mamba"), "rule is one of"),
        (lambda: PagedStepper(size=3), "not 3"),
        (lambda: PagedStepper(events=["go"]), "no event 'go'"),
        (lambda: RadixTree(page=3), "page is one of"),
        (lambda: Eviction(WORDS, {}), "a head at least"),
        (lambda: Eviction(WORDS[:16], {"h": FEW}), "more than 16 tokens"),
        (lambda: Eviction([*WORDS, "x"], {"h": FEW}), "there are 21 tokens"),
        (lambda: Eviction(WORDS, {"h": FEW}, rule="lru"), "rule is one of newest"),
        (lambda: RadixTree([("a " * 30, "b")]), "make room for the longest request"),
        (lambda: Quiz([], id="q"), "no questions"),
        (lambda: Quiz([CHOICE | {"kind": "essay"}], id="q"), "question 1: kind is"),
        (lambda: Quiz([CHOICE | {"choices": CHOICE["choices"][1:]}], id="q"), "two choices at least"),
        (
            lambda: Quiz(
                [CHOICE | {"choices": [{"text": "a", "ok": True, "why": "y"}, {"text": "b"}]}], id="q"
            ),
            "'why'",
        ),
        (lambda: Quiz([NUMERIC | {"wrong": ""}], id="q"), "'wrong' needs a text"),
        (lambda: Quiz([NUMERIC | {"answer": float("inf")}], id="q"), "finite"),
        (lambda: Quiz([NUMERIC | {"slips": [{"answer": 7.1, "why": "x"}]}], id="q"), "inside the tolerance"),
    ],
)
def test_refusals_name_the_cure(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_choices_are_shuffled_the_same_way_for_everybody():
    many = CHOICE | {"choices": [{"text": str(i), "ok": i == 0, "why": "w"} for i in range(8)]}

    def order(question, id):
        return [c["text"] for c in Quiz([question], id=id).state["questions"][0]["choices"]]

    assert sorted(order(many, "q")) == list("01234567")
    assert order(many, "q") == order(many, "q") != list("01234567")
    assert order(many, "q") != order(many, "p")


def test_threshold_takes_only_what_its_slider_can_show():
    assert Threshold(PAIRS).state["pairs"] == [
        ["paraphrase", 0.871, False, "a", "b", ""],
        ["opposite", 0.9, True, "c", "d", "negation"],
    ]
    with pytest.raises(ValueError, match="one scored pair at least"):
        Threshold([])
    for value in (-0.1, 1.01):
        with pytest.raises(ValueError, match="from 0 to 1"):
            Threshold(PAIRS, threshold=value)


def test_knee_takes_only_what_its_controls_can_show():
    state = Knee(LOADED, ttft=0.5, tpot=0.05).state
    assert [engine["name"] for engine in state["engines"]] == ["fast", "slow"]
    assert state["engines"][0]["runs"][0]["rounds"][0]["samples"][0] == [0.04, 0.02]
    for wrong in ({"ttft": 0.7}, {"tpot": 0.0}):
        with pytest.raises(ValueError, match="sliders go through"):
            Knee(LOADED, **wrong)
    for engines in ([], [{"name": "none", "runs": []}], LOADED * 3):
        with pytest.raises(ValueError, match="one to four engines"):
            Knee(engines)


def test_rows_wants_the_pass_of_one_token():
    state = Rows({1: (34.0, 1.0), 16: (45.0, 1.32)}, start=16, where="here").state
    assert state["passes"] == [[1, 34.0, 1.0], [16, 45.0, 1.32]]
    for wrong in ({16: (45.0, 1.3)}, {1: (34.0, 1.0)}, {1: (0.0, 1.0), 16: (45.0, 1.3)}):
        with pytest.raises(ValueError, match="times above zero"):
            Rows(wrong, start=16, where="here")
