"""Right and wrong answers to the exercises of chapter 02."""

import types

from lumen.grading.proof import Answers
from lumen.grading.sets import ch02 as given


def as_shown(broken):
    """A broken function as the notebook shows it: the reader's, with the same code."""
    return types.FunctionType(broken.__code__, {"__name__": "__main__"})


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


def by_formula(config, context):
    """The closed form, as floats."""
    d, f, dq, dkv = (
        float(config.hidden_size),
        config.intermediate_size,
        config.num_heads * config.head_dim,
        config.num_kv_heads * config.head_dim,
    )
    n = context if config.window is None or context < config.window else config.window
    mlp = 6 * d * f if config.mlp == "swiglu" else 4 * d * f
    return config.num_layers * (4 * d * dq + 4 * d * dkv + mlp + 4 * n * dq) + 2 * d * config.vocab_size


def bent(**change):
    return lambda config, context: given._flops(config, context, **change)


def forgets_the_window(config, context):
    return given._flops(config.with_(window=None), context)


def without_return(config, context):
    given._flops(config, context)


# utilisation --------------------------------------------------------------------------------------
def by_rates(step, card):
    """As rates: what was done a second over what could be."""
    per_second = 1 / step["seconds"]
    peak = card["headline_tflops"] * (0.5 if card["headline_is_sparse"] else 1.0) * 1e12
    done = 2 * step["parameters"] * step["users"] * per_second
    weights = step["bytes_per_weight"] * step["parameters"]
    read = (weights + step["users"] * step["cache_bytes_per_user"]) * per_second
    return done / peak, read / (card["gb_per_s"] * 1e9)


def by_clocks(step, card):
    """As times: what the clocks ask for over what it took."""
    tera = card["headline_tflops"] / (1 + card["headline_is_sparse"])
    compute = step["parameters"] * step["users"] * 2 / (tera * 1e12)
    gigabytes = (
        step["parameters"] * step["bytes_per_weight"] + step["users"] * step["cache_bytes_per_user"]
    ) / 1e9
    return compute / step["seconds"], gigabytes / card["gb_per_s"] / step["seconds"]


def dashboard(**change):
    return lambda step, card: given._utilisation(step, card, **change)


# memory-bandwidth ---------------------------------------------------------------------------------
def one_long_walk(machine):
    """A quarter of the memory once, in pieces of 16 MiB."""
    piece, start = 2**24, machine.clock()
    for at in range(0, 2**28, piece):
        machine.read(at, piece)
    return 2**28 / (machine.clock() - start)


def rounds_beyond_the_cache(machine):
    """An array of four times the cache, warmed up, then twice round."""
    size = max(4 * machine.cache_bytes, 2**26)
    machine.read(0, size)
    start = machine.clock()
    machine.read(0, size)
    machine.read(0, size)
    return 2 * size / (machine.clock() - start)


def small_pieces(machine):
    """Large enough in all, but 64 KiB a call."""
    piece, start = 2**16, machine.clock()
    for at in range(0, 2**27, piece):
        machine.read(at, piece)
    return 2**27 / (machine.clock() - start)


def in_gigabytes(machine):
    return one_long_walk(machine) / 1e9


def twice_round_the_cache(machine):
    """Exactly the cache: the second round is all hits."""
    size = machine.cache_bytes
    start = machine.clock()
    machine.read(0, size)
    machine.read(0, size)
    return 2 * size / (machine.clock() - start)


def clock_left_running(machine):
    """The warm-up is inside the clock and not among the bytes."""
    start = machine.clock()
    machine.read(0, 2**28)
    machine.read(2**28, 2**28)
    return 2**28 / (machine.clock() - start)


def all_of_memory_thrice(machine):
    start = machine.clock()
    for _ in range(3):
        machine.read(0, 2**30)
    return 3 * 2**30 / (machine.clock() - start)


def past_the_end(machine):
    machine.read(2**30, 2**20)
    return 0.0


ANSWERS = {
    "users-to-ridge": Answers(
        right=[100.3, lambda: 312e12 / 1555e9 / 2],
        wrong=[
            (200.6, "batch for 16-bit weights"),
            (401.3, "one FLOP for 2 bytes"),
            (50.2, "four FLOPs a byte"),
            (76.5, "80 GB card"),
            (100.3e9, "factor 1,000,000,000"),
            (300.9, "smaller by a factor of about 3"),
        ],
    ),
    "count-flops": Answers(
        right=[by_matrix, by_formula],
        wrong=[
            (bent(per_pair=1), "A multiply-add is two FLOPs"),
            (bent(kv_heads=9), "projections are narrower"),
            (
                lambda config, context: given._flops(config, context, attention_heads=config.num_kv_heads),
                "every *query* head",
            ),
            (bent(matrices=2), "three matrices"),
            (bent(matrices=3), "has a gate"),
            (bent(head=0), "The head is a matrix too"),
            (bent(attention_products=1), "two products"),
            (
                lambda config, context: given._flops(config, context, attention_width=config.hidden_size),
                "need not be hidden_size",
            ),
            (forgets_the_window, "A window ends"),
            (without_return, "`return` missing"),
        ],
        lumen=["lumen.cost.flops_per_token", "lumen.cost.step_flops"],
    ),
    "crossover": Answers(
        right=[("b", 52224), lambda: ({"B"}, 6.375 * 8192)],
        wrong=[
            (("a", 52224), "four square projections"),
            (("c", 52224), "half of the prompt"),
            (("d", 52224), "still meets every key"),
            (("b", 49152), "the rule itself"),
            (("b", 104448), "a *prefill*"),
            (("b", 59392), "not 8d²"),
            (("b", 41984), "not two of 4d"),
            (("b", 26112), "factor 2 is missing"),
            (("b", 26624), "the chapter counted"),
            (("b", 53248), "Here they are an eighth"),
            ("b", "the choice alone"),
        ],
    ),
    "utilisation": Answers(
        right=[by_rates, by_clocks],
        wrong=[
            (dashboard(per_pair=1), "the peak counts both"),
            (dashboard(dense=False), "half of it"),
            (dashboard(weights_each=True), "once a step"),
            (dashboard(cache_each=False), "a cache of their own"),
            (dashboard(always_halve=True), "Not every headline"),
            (lambda step, card: tuple(100 * share for share in by_rates(step, card)), "26.35 at [0]"),
        ],
        stubs=[as_shown(given.broken_utilisation)],
        lumen=["lumen.cost.mfu", "lumen.cost.mbu"],
    ),
    "memory-bandwidth": Answers(
        right=[one_long_walk, rounds_beyond_the_cache],
        wrong=[
            (twice_round_the_cache, "lay in the cache"),
            (small_pieces, "2 µs of each call"),
            (in_gigabytes, "GB or GiB per second"),
            (clock_left_running, "between them"),
            (all_of_memory_thrice, "2 GiB at most"),
            (past_the_end, "lies outside"),
            (lambda machine: "20 GB/s", "a number of bytes per second"),
        ],
        stubs=[as_shown(given.broken_bandwidth)],
        no_lumen="lumen has no bandwidth benchmark of a simulated machine",
    ),
    "choose-chips": Answers(
        right=[
            {"chip": "H200 SXM", "cards": 2, "weights": "fp8", "users": 136},
            lambda: dict(chip="H100 SXM", cards=8, weights="fp8", users=256),
        ],
        wrong=[
            ({"chip": "H100 SXM", "cards": 1, "weights": "bf16", "users": 1}, "a number about no machine"),
            ({"chip": "L4", "cards": 8, "weights": "fp8", "users": 32}, "fewer users, fewer bytes"),
            ({"chip": "H100 SXM", "cards": 2, "weights": "fp8", "users": 54}, "others do it for less"),
            ({"chip": "H200 SXM", "cards": 3, "weights": "fp8", "users": 54}, "cards=3"),
            ({"chip": "B200", "cards": 2, "weights": "fp8", "users": 54}, "chip='B200'"),
            ({"chip": "H200 SXM", "cards": 2}, "the fields chip, cards\n"),
        ],
        stubs=[{"chip": ..., "cards": 1, "weights": "bf16", "users": 1}],
    ),
}
