"""Writes the golden files: run it when a formula changes on purpose, and read the difference before you
commit it.

    python tests/explore/explorers/make_golden.py

Python (`test_golden.py`) and JavaScript (`tests/browser/test_explorers.py`) are both held to them.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lumen.config import CONFIGS
from lumen.cost.ledger import Held, ledger
from lumen.explore.explorers import (
    cache_shape,
    cache_size,
    eviction,
    knee,
    kv_stepper,
    paged,
    queue_load,
    radix,
    roofline,
    state_memory,
    threshold,
    tile_stepper,
)
from lumen.hardware import CHIPS

GOLDEN = Path(__file__).parent / "golden"


def roofline_cases() -> list[dict[str, Any]]:
    cases = []
    for model, chip, batch, context, name in (
        ("llama-3-8b", "H100 SXM", 1, 2048, "bf16"),
        ("llama-3-8b", "H100 SXM", 256, 2048, "q4_0"),
        ("llama-2-7b", "A100 80GB SXM", 1, 1, "bf16"),
        ("mistral-7b", "L4", 8, 16384, "q8_0"),  # beyond its window of 4,096
        ("smollm2-135m", "T4", 16, 512, "fp32"),  # tied head, no bf16 on the chip
        ("gptlite", "L4", 3, 250, "bf16"),  # learned positions, biases
    ):
        _, weight, kv, math = roofline.FORMATS[name]
        for phase in ("decode", "prefill"):
            asked = {
                "phase": phase,
                "batch": batch,
                "context": context,
                "weight": weight,
                "kv": kv,
                "math": list(math),
            }
            expected = roofline.predict(CONFIGS[model], CHIPS[chip], **asked)
            cases.append({"model": model, "chip": chip, "asked": asked, "expected": expected})
    return cases


def cache_cases() -> list[dict[str, Any]]:
    cases = []
    for model, memory, context, users, kv, weight, reserve in (
        ("llama-2-7b", 80e9, 4096, 32, 2.0, 2.0, 0.1),
        ("llama-3-8b", 80e9, 8192, 1, 2.0, 2.0, 0.0),
        ("llama-2-70b", 80e9, 4096, 100, 2.0, 2.0, 0.1),  # the weights alone do not fit
        ("mistral-7b", 24e9, 32768, 4, 0.5625, 0.5625, 0.05),  # beyond its window
        ("smollm2-135m", 16e9, 1000, 7, 4.0, 4.0, 0.2),
    ):
        asked = {
            "context": context,
            "users": users,
            "kv": kv,
            "weight": weight,
            "memory": memory,
            "reserve": reserve,
        }
        cases.append({"model": model, "asked": asked, "expected": cache_size.sizes(CONFIGS[model], **asked)})
    return cases


def stepper_cases() -> list[dict[str, Any]]:
    pairs = ((1, 1), (1, 512), (5, 1), (5, 6), (12, 12), (20, 200), (2048, 512))
    return [{"prompt": p, "answer": n, "expected": asdict(kv_stepper.totals(p, n))} for p, n in pairs]


def paged_cases() -> list[dict[str, Any]]:
    dry = ["new", "new", "new", "new", *["step"] * 8]  # four requests outgrow the pool
    samples = ["new", "step", "fork A", "fork A", "step", "step", "end A", "step"]
    cases = []
    for events in (
        [],
        ["step"],
        samples,
        dry,
        [*dry, "end A", "step", "step"],
        [*dry, *["step"] * 22],  # answers end, and who was preempted comes back
        ["new"] * 9,
    ):
        for size in paged.SIZES:
            cases.append({"events": events, "size": size, "expected": paged.play(events, size)})
    return cases


def radix_cases() -> list[dict[str, Any]]:
    cases = []
    for page, room, clock in (
        (1, 96, "none"),
        (2, 48, "none"),
        (2, 24, "none"),  # too small: leaves are forgotten, some while a request holds their front
        (4, 24, "end"),
        (2, 32, "top"),  # nothing is ever found
    ):
        requests = radix.with_clock(radix.REQUESTS, clock)
        expected = [asdict(step) for step in radix.replay(requests, page, room)]
        cases.append({"page": page, "room": room, "clock": clock, "requests": requests, "expected": expected})
    return cases


def eviction_cases() -> list[dict[str, Any]]:
    dice = random.Random(0)
    cases = []
    for count in (9, 16, 37):
        scores = {
            name: [round(dice.random() ** 4, 4) for _ in range(count)]
            for name in ("read", "observed", "asked")
        }
        scores["observed"][: count // 2] = [0.25] * (count // 2)  # equals, of which the later one stays
        scores["bounds"] = [round(dice.random(), 1) for _ in range(-(-count // eviction.PAGE))]
        asked = []
        for rule, budget in itertools.product(eviction.RULES, (1, 7, 9, 16, 40)):
            found = eviction.kept(rule, scores, budget)
            shares = {"held": eviction.held(scores, found), "best": eviction.best(scores, budget)}
            asked.append({"rule": rule, "budget": budget, "expected": found, **shares})
        cases.append({"scores": scores, "asked": asked})
    return cases


def threshold_cases() -> list[dict[str, Any]]:
    pairs = [
        ["paraphrase", 0.87, False], ["retyped", 0.8, True], ["paraphrase", 0.62, False],
        ["opposite", 0.92, True], ["entity", 0.8, False], ["roles", 0.996, True], ["unrelated", -0.03, False],
    ]  # fmt: skip
    asked = [(cut, checked) for cut in (0.0, 0.62, 0.8, 0.81, 1.0) for checked in (False, True)]
    cases = [(pairs, *one) for one in asked] + [(pairs[3:], 0.5, False), (pairs[:1], 0.5, True)]
    return [
        {"pairs": p, "threshold": cut, "checked": on, "expected": threshold.count(p, cut, on)}
        for p, cut, on in cases
    ]


def queue_cases() -> list[dict[str, Any]]:
    even, random = [1.0] * 20, queue_load.unit_gaps(60)
    cases = []
    for gaps, load, freeze, places, window in (
        (even, 0.5, 0.0, 1, 20),  # nobody ever waits
        (even, 0.75, 1.0, 1, 20),
        (even, 0.95, 5.0, 1, 10),  # two freezes, and the backlog outlives the run
        (random, 0.75, 0.0, 1, 60),
        (random, 0.9, 2.0, 1, 60),
        (random, 0.9, 0.5, 8, 30),  # two freezes, eight places
        ([2.5], 0.1, 0.5, 1, 1),  # one request, and it is the frozen one
    ):
        asked = {"gaps": gaps, "load": load, "freeze": freeze, "places": places, "window": window}
        cases.append({"asked": asked, "expected": queue_load.play(**asked)})
    return cases


def knee_cases() -> list[dict[str, Any]]:
    first = {"samples": [[0.1, 0.02], [0.3, 0.05]], "seconds": 3.0, "finished": 2, "tokens": 14, "failed": 1}
    second = {"samples": [[2.0, None]], "seconds": 1.0, "finished": 1, "tokens": 1, "failed": 0}
    one = {"rounds": [first, second]}
    played = knee.predicted_runs(
        lambda new, old: 0.05 + 0.1 * new, (0.5, 2.0, 4.0, 8.0, 16.0), answer=4, count=16, rounds=2
    )
    asked = [(one, 0.3, 0.05), (one, 0.2, 1.0), (one, 20.0, 0.01), *((run, 0.3, 0.1) for run in played)]
    nothing = {"samples": [], "seconds": 1.0, "finished": 0, "tokens": 0, "failed": 2}
    asked.append(({"rounds": [nothing]}, 1.0, 1.0))
    cases = [{"run": r, "ttft": t, "tpot": p, "expected": knee.judge(r, t, p)} for r, t, p in asked]
    for ttft, tpot in ((0.2, 0.1), (0.5, 0.3), (20.0, 1.0), (0.05, 0.01)):
        found = knee.carried(played, ttft, tpot)
        cases.append({"runs": played, "ttft": ttft, "tpot": tpot, "carried": found})
    return cases


def tile_cases() -> list[dict[str, Any]]:
    cases = []
    for scores, values in (
        ([1.5], [3]),
        ([0.1, -2.0, 3.3, 3.3, -0.4, 7.0, 1.1], [1, 9, 4, 0, 2, 5, 8]),
        ([900.0, -900.0, 901.0, 0.0], [1, 2, 3, 4]),  # what overflows without the largest score
        ([-3.0] * 8, [8, 1, 2, 3, 4, 5, 6, 7]),
    ):
        for block in (1, 2, 4, 8):
            found = [asdict(one) for one in tile_stepper.walk(scores, values, block)]
            cases.append({"scores": scores, "values": values, "block": block, "expected": found})
    return cases


def shape_cases() -> list[dict[str, Any]]:
    """Layers to store, what a layer stores, and every model of the ledger."""
    cases: list[dict[str, Any]] = []
    for layers, sharing, asked in (
        (32, 1, {"scheme": "heads", "heads": 8, "width": 128, "rank": 512, "rope": 64}),
        (61, 1, {"scheme": "latent", "heads": 8, "width": 128, "rank": 512, "rope": 64}),
        (
            61,
            4,
            {"scheme": "heads", "heads": 1, "width": 64, "rank": 64, "rope": 0},
        ),  # 61 is not divided by 4
    ):
        shape = {key: asked[key] for key in ("heads", "width", "rank", "rope")}
        numbers = cache_shape.stored(asked["scheme"], **shape)
        model = cache_shape.own(layers, sharing, numbers)
        cases.append(
            {"own": [layers, sharing], "asked": asked, "numbers": numbers, **shape_held(model, 4096)}
        )
    for model in ledger():
        cases += [{"name": model.name, **shape_held(model, context)} for context in (256, 131_072)]
    return cases


def shape_held(model: Held, context: int) -> dict[str, Any]:
    layers = [[part.count, part.numbers, part.window] for part in model.layers]
    asked = {"layers": layers, "context": context, "each": 2.0, "memory": 80e9}
    return {"held": asked, "expected": cache_shape.holds(model, context, 2.0, 80e9)}


def state_cases() -> list[dict[str, Any]]:
    """Every rule, more and fewer pairs than the state is wide, and the first key told once more."""
    drawn = state_memory.StateMemory().state
    cases: list[dict[str, Any]] = []
    for rule in state_memory.WRITES:
        for width, pairs, changed in ((4, 1, False), (4, 6, False), (4, 6, True), (8, 3, True)):
            rows = {
                name: [row[:width] for row in drawn[name][: pairs + changed]] for name in ("keys", "values")
            }
            asked = rows | {"width": width, "pairs": pairs, "rule": rule, "changed": changed}
            found = [asdict(one) for one in state_memory.walk(**asked)]
            cases.append({"asked": asked | {"decay": state_memory.DECAY}, "expected": found})
    return cases


FILES = {
    "roofline": roofline_cases,
    "cache_size": cache_cases,
    "kv_stepper": stepper_cases,
    "paged": paged_cases,
    "radix": radix_cases,
    "eviction": eviction_cases,
    "threshold": threshold_cases,
    "queue_load": queue_cases,
    "knee": knee_cases,
    "tile_stepper": tile_cases,
    "cache_shape": shape_cases,
    "state_memory": state_cases,
}

if __name__ == "__main__":
    for name, cases in FILES.items():
        (GOLDEN / f"{name}.json").write_text(json.dumps(cases(), indent=1, sort_keys=True) + "\n", "utf8")
        print(f"wrote {name}.json")
