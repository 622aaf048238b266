"""Right and wrong answers to the exercises of chapter 02."""

import math

import numpy as np

from lumen.grading.proof import Submissions
from lumen.grading.sets import ch02 as given


# count-flops --------------------------------------------------------------------------------------
def by_matrix(config, context):
    """A list of (inputs, outputs), added up."""
    width, head = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * head, config.num_kv_heads * head
    layer = [(width, queries), (width, keys), (width, keys), (queries, width)]
    layer += [(width, config.intermediate_size)] * (3 if config.mlp == "swiglu" else 2)
    seen = min(context, config.window or context)
    per_layer = sum(2 * a * b for a, b in layer) + 2 * (2 * queries * seen)
    return config.num_layers * per_layer + 2 * width * config.vocab_size


def forgets_the_window(config, context):
    return given._flops(config.with_(window=None), context)


def sees_all_of_the_window(config, context):
    """As if every prompt filled it."""
    return given._flops(config, config.window or context)


def without_return(config, context):
    given._flops(config, context)


def gates_relu(config, context):
    return given._flops(config, context, matrices=2 if config.mlp == "gelu" else 3)


# utilisation --------------------------------------------------------------------------------------
def by_rates(step, card):
    """As rates: what was done a second over what could be."""
    per_second = 1 / step["seconds"]
    peak = card["headline_tflops"] * (0.5 if card["headline_is_sparse"] else 1.0) * 1e12
    done = 2 * step["parameters"] * step["users"] * per_second
    weights = step["bytes_per_weight"] * step["parameters"]
    read = (weights + step["users"] * step["cache_bytes_per_user"]) * per_second
    return done / peak, read / (card["gb_per_s"] * 1e9)


def knows_its_model(step, card):
    """8.03 billion weights, whatever the step says."""
    return by_rates({**step, "parameters": 8.03e9}, card)


# memory-bandwidth ---------------------------------------------------------------------------------
def one_long_walk(machine):
    """A quarter of the memory once, in pieces of 16 MiB."""
    piece, start = 2**24, machine.clock()
    for at in range(0, 2**28, piece):
        machine.read(at, piece)
    return 2**28 / (machine.clock() - start)


def too_short_for_its_call(machine):
    """Four caches at a time, however small the cache."""
    size, start = 4 * machine.cache_bytes, machine.clock()
    machine.read(0, size)
    return size / (machine.clock() - start)


def since_it_was_switched_on(machine):
    """The clock read once: 0.152 GB/s, which is no unit's fault."""
    machine.read(0, 2**30)
    return 2**30 / machine.clock()


def all_day(machine):
    start = machine.clock()
    for _ in range(50_000):
        machine.read(0, 2**30)
    return 50_000 * 2**30 / (machine.clock() - start)


def past_the_end(machine):
    machine.read(2**30, 2**20)
    return 0.0


ANSWERS = {
    "users-to-ridge": Submissions(
        right=[100.3],
        wrong=[(100.3e9, "about 1000000000"), (300.9, "a factor of about 3")],
    ),
    "count-flops": Submissions(
        right=[by_matrix],
        wrong=[
            (lambda config, context: given._flops(config.with_(window=None), context), "A window ends"),
            (sees_all_of_the_window, "the most that a token sees"),
            (without_return, "`return` missing"),
            (gates_relu, "has a gate"),
        ],
        lumen=["lumen.cost.flops_per_token", "lumen.cost.step_flops"],
    ),
    "crossover": Submissions(
        right=[lambda: ({"B"}, 6.375 * 8192)],
        wrong=[
            (("a", 52224), "four square projections"),
            (("c", 52224), "half of the prompt"),
            (("d", 52224), "still meets every key"),
            ("b", "the choice alone"),
        ],
    ),
    "utilisation": Submissions(
        right=[by_rates, lambda step, card: [float(f"{share:.3g}") for share in by_rates(step, card)]],
        wrong=[(knows_its_model, "1.1 billion weights")],
        lumen=["lumen.cost.mfu", "lumen.cost.mbu"],
    ),
    "memory-bandwidth": Submissions(
        right=[one_long_walk, lambda machine: np.array(one_long_walk(machine))],
        wrong=[
            (past_the_end, "lies outside"),
            (lambda machine: "20 GB/s", "a number of bytes per second"),
            (lambda machine: math.nan, "nan GB/s"),
            (too_short_for_its_call, "2 µs"),
            (since_it_was_switched_on, "between the clock's two readings"),
            (all_day, "more than 2 GiB read"),
        ],
        no_lumen="lumen has no bandwidth benchmark of a simulated machine",
    ),
    "choose-chips": Submissions(
        right=[lambda: dict(chip="H200 SXM", cards=4, weights="fp8", users=290)],
        wrong=[
            ({"chip": "H200 SXM", "cards": 1, "weights": "bf16", "users": 1}, "every user's cache must fit"),
            ({"chip": "H200 SXM", "cards": 4, "weights": "fp8", "users": 325}, "fewer users it is shorter"),
            ({"chip": "H100 SXM", "cards": 4, "weights": "fp8", "users": 162}, "share the price"),
            ({"chip": "H200 SXM", "cards": 3, "weights": "fp8", "users": 54}, "cards=3"),
            ({"chip": "H200 SXM", "cards": 2}, "the fields chip, cards\n"),
        ],
        stubs=[{"chip": ..., "cards": 1, "weights": "bf16", "users": 1}],
    ),
}
