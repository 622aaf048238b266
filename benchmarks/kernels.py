"""The matrix kernels that were chosen for SmolLM2 on this CPU, against every single kernel and the rule of thumb.

    python benchmarks/kernels.py            whole decode steps and a prefill, about three minutes; writes evidence
    python benchmarks/kernels.py --quick    fewer repeats; writes nothing

The choice is measured product by product (`lumen.hardware.kernel_choice`). Whether it holds where it counts is tried
here: whole forwards of the model, one kernel everywhere against the mixture, in turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

import lumen
from lumen import bench
from lumen.cache import StaticCache
from lumen.hardware import kernel_choice, kernel_times
from lumen.models.kernels import FEW, KERNELS, Kernel, candidates, rule
from lumen.models.linear import Linear

CONTEXT, PROMPT = 256, 512
TARGET = 1.05  # the mixture takes at most this share of the best single kernel's time


def everywhere(name: str, layer: Linear) -> tuple[Kernel, ...]:
    """One kernel for all rows; where it cannot run, the rule of thumb."""
    sizes = [*range(1, FEW + 1), 4 * FEW]
    return tuple(KERNELS[name] if name in candidates(layer, n) else rule(layer, n) for n in sizes)


def step(model: lumen.Llama, cache: StaticCache, rows: int) -> None:
    model(torch.ones(rows, 1, dtype=torch.int64), None, cache)
    cache.rewind([CONTEXT] * rows)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    repeats = 5 if options.quick else 25
    model = lumen.load("smollm2-135m", dtype=torch.float32).model
    times = kernel_choice.choose(model)
    layers = [part for part in model.modules() if isinstance(part, Linear)]
    plans: dict[str, list[tuple[Kernel, ...]]] = {"chosen": [layer.chosen for layer in layers]}
    plans["rule of thumb"] = [() for _ in layers]
    plans |= {name: [everywhere(name, layer) for layer in layers] for name in KERNELS if "twice" not in name}

    def with_plan(name: str, call: Callable[[], object]) -> None:
        for layer, chosen in zip(layers, plans[name], strict=True):
            layer.chosen = chosen
        call()

    works: dict[str, Callable[[], object]] = {}
    for rows in (1, 2, 4, 8):
        cache = StaticCache.for_model(model, rows, CONTEXT + 8)
        model.hidden(torch.ones(rows, CONTEXT, dtype=torch.int64), None, cache)
        works[f"decode, {rows} row{'s' if rows > 1 else ''}"] = partial(step, model, cache, rows)
    prompt = torch.ones(1, PROMPT, dtype=torch.int64)
    works[f"prefill of {PROMPT}"] = lambda: model.head(model.hidden(prompt)[:, -1])

    found: dict[str, dict[str, bench.Timing]] = {}
    met = True
    for what, call in works.items():
        few = repeats if "decode" in what else max(3, repeats // 4)
        found[what] = bench.compare({name: partial(with_plan, name, call) for name in plans}, repeats=few)
        single = {name: found[what][name].median for name in KERNELS if name in plans}
        best = min(single, key=single.__getitem__)
        share = found[what]["chosen"].median / single[best]
        met = met and share <= TARGET
        listed = ", ".join(f"{name} {1e3 * timing.median:.1f}" for name, timing in found[what].items())
        print(f"{what}: {listed} ms; chosen / best single ({best}) = {share:.2f}", flush=True)
    print(*kernel_times.described(times), sep="\n")
    if not options.quick:
        data = {"seconds": found, "products": times, "described": kernel_times.described(times)}
        print("wrote", bench.evidence("kernels", data, seed=0).name)
    print(
        f"target (within {100 * (TARGET - 1):.0f} % of the best single kernel): {'met' if met else 'MISSED'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
