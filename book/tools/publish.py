"""Publication in one command, on a quiet machine: calibrate, measure, execute all, write the README's figures.

    python book/tools/publish.py               about as long as all notebooks take, and five minutes
    python book/tools/publish.py --evidence    run benchmarks/*.py as well, before the notebooks that quote them (long)
    python book/tools/publish.py --no-run      measure and write the README; execute nothing

Everything runs with LUMEN_PUBLISH=1: a measurement that contradicts its own bound, scatters, or was disturbed refuses
itself. A refused quantity is measured again, three times in all; if it still refuses nothing is published, and the
report says why.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import repo
from tqdm import tqdm

from lumen.bench import Refused, Timing
from lumen.bench.names import Name
from lumen.bench.steps import Decode, Prefill, floor, name_of
from lumen.bench.store import current, keep
from lumen.bench.trust import Watch, wait_until_quiet
from lumen.pages.ch01 import ROWS

if TYPE_CHECKING:
    from lumen.hardware import Chip
    from lumen.models.layers import Decoder

TRIES = 3  # measurements of a quantity before its refusal counts
ROUNDS, STEPS, PREFILLS = 12, 8, 3  # samples of a quantity: rounds × steps; half a minute from round to round
EVERY = 3  # rounds from one calibration to the next
CANONICAL = [
    *(("decode", batch, context, "static") for batch in (1, 2, 4, 8) for context in (64, 256, 512, 1024)),
    *(("decode", batch, 256, "static") for batch in (16, 32)),
    *(("decode", 1, context, "paged") for context in (256, 1024)),
    ("decode", 8, 40, "paged"),
    *(("prefill", 1, prompt, "static") for prompt in (*ROWS, 1024)),
    *(("prefill", 8, prompt, "static") for prompt in (32, 128)),
]
Taken = dict[Name, tuple[Timing, Watch]]


def sample(
    model: Decoder, names: Iterable[Name], rounds: int = ROUNDS, between: Callable[[], object] = lambda: None
) -> Taken:
    """Samples of all quantities, taken in turns: round after round, so that a slow minute falls on all alike.

    `between` is called before the first round, after every `EVERY` rounds, and so after the last.
    """
    jobs = {name: (Decode if name.phase == "decode" else Prefill)(model, name) for name in names}
    samples: dict[Name, list[float]] = {name: [] for name in jobs}
    watches = {name: Watch() for name in jobs}
    with tqdm(total=rounds * len(jobs), desc="measuring", unit="quantity") as bar:
        between()
        for number in range(rounds):
            for name in list(jobs) if number % 2 == 0 else reversed(list(jobs)):
                with watches[name]:
                    samples[name] += jobs[name].samples(STEPS if name.phase == "decode" else PREFILLS)
                bar.update()
            if (number + 1) % EVERY == 0:
                between()
    return {name: (Timing(tuple(taken)), watches[name]) for name, taken in samples.items()}


def judge(model: Decoder, taken: Taken) -> dict[Name, str]:
    """Put what can be believed into the store; return what refused, with its sentence."""
    refused = {}
    for name, (timing, watch) in taken.items():
        bound_s, bound = floor(model, name)
        try:
            keep(name, timing, bound_s=bound_s, bound=bound, watch=watch, fresh=True)
        except Refused as error:
            refused[name] = str(error)
    return refused


def measure(model: Decoder, patience: float, rounds: int = ROUNDS) -> list[str]:
    """Measure the canonical list into a new store. Returns what refused every time; then the old file stands.

    The machine is calibrated between the rounds: the forecast's medians and the clock's are of the same minutes.
    """
    from lumen import hardware
    from lumen.hardware.measured import keep as keep_chip
    from lumen.hardware.merged import merged

    chips: list[Chip] = []
    names = [name_of(model, *job) for job in CANONICAL]
    path = current().path
    before = path.read_bytes() if path.exists() else None
    path.unlink(missing_ok=True)
    try:
        taken = sample(model, names, rounds, lambda: chips.append(hardware.measure(refresh=True)))
        chip = keep_chip(merged(chips))
        tqdm.write(f"== {chip.name}: {chip.bandwidth / 1e9:.1f} GB/s; {chip.note}")
        refused = judge(model, taken)
        for _ in range(TRIES - 1):
            if refused:
                tqdm.write("\n".join(["refused, and measured again:", *refused.values()]))
                wait_until_quiet(patience)
                refused = judge(model, sample(model, refused))
    except BaseException:
        _restore(path, before)
        raise
    if refused:
        _restore(path, before)
    return list(refused.values())


def _restore(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(content)


def tool(*command: str) -> bool:
    """Run a script of the checkout; True when it succeeded."""
    print(f"== {' '.join(command)}", flush=True)
    return subprocess.run([sys.executable, *command], cwd=repo.ROOT).returncode == 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evidence", action="store_true", help="run benchmarks/*.py as well")
    parser.add_argument("--no-run", action="store_true", help="execute no notebook")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for a quiet machine")
    options = parser.parse_args(argv)
    os.environ |= {"LUMEN_PUBLISH": "1", "LUMEN_BOOK": "1"}
    try:
        print(f"== waiting for a quiet machine, {options.patience:.0f} s at most", flush=True)
        wait_until_quiet(options.patience)
        import lumen
        from lumen.hardware import kernel_choice, kernel_times

        model = lumen.load("smollm2-135m").model
        print("== kernels:", *kernel_times.described(kernel_choice.choose(model, refresh=True)), sep="\n   ")
        refused = measure(model, options.patience)
    except Refused as error:
        refused = [str(error)]
    if refused:
        print(*["== nothing was published:", *refused], sep="\n")
        return 1
    steps = []
    if options.evidence:
        steps += [(f"benchmarks/{p.name}",) for p in sorted((repo.ROOT / "benchmarks").glob("*.py"))]
    if not options.no_run:
        steps += [("book/tools/notebooks.py", "--force"), ("book/tools/make_exercises.py",)]
        steps += [("book/tools/coursemap.py",)]
    steps += [("book/tools/readme.py",)]
    proofs = [f"tests/book/test_{name}.py" for name in ("measurements", "readme")]
    steps += [("-m", "pytest", "-q", *proofs)]
    failed = [" ".join(step) for step in steps if not tool(*step)]
    print(*["== failed or refused, see above:", *failed] if failed else ["== published"], sep="\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
