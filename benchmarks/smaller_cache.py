"""What a smaller cache costs: perplexity and needles of SmolLM2-135M through every kind, at 50, 20, 10 and 5 %.

    python benchmarks/smaller_cache.py            two hours or so on two cores; writes evidence
    python benchmarks/smaller_cache.py --quick    one budget, one length, few needles; writes nothing
    python benchmarks/smaller_cache.py --only quest snapkv

Two tables. `perplexity`: passages of Shakespeare, a prompt of 512 tokens, then 256 predicted one by one; rules choose
after every token, so that memory stays within the budget (SnapKV, which chooses once, keeps what comes after the prompt
as well: its bytes say so). `needles`: a number hidden in 512 to 2,048 tokens, asked for in chat; rules choose once,
when the prompt ends, as kvpress has them do, with the question in sight and, at the shares it publishes, without.
Rules read their prompts whole, a window (4 sinks and the newest) reads even its prompt through itself. Bytes are those
of the cache at the end of the run over those of a full one in the same dtype, fp32; Quest keeps everything and reads
less, so it is compared by what a step reads.

All kinds see the same passages and needles, so ratios are paired. The order of the rules is set beside the published
one, see PUBLISHED.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import lumen
from lumen import assets, bench, cache
from lumen.bench.needle import Cell, grid
from lumen.bench.quality import Losses, losses, passages
from lumen.cache import Cache, EvictingCache, QuestCache, StaticCache, WindowCache
from lumen.cache.evict_rules import H2O, KeyNorm, Newest, Random, Rule, SinksAndNewest, SnapKV

SHARES = (0.5, 0.2, 0.1, 0.05)
PROMPT, SCORED, PASSAGES = 512, 256, 16
LENGTHS, DEPTHS, COUNT = (512, 1024, 2048), (0.05, 0.25, 0.5, 0.75, 0.95), 2
PAGE = 16
SEED = 0
PUBLISHED: dict[str, Any] = {
    "source": "NVIDIA/kvpress at commit 5313980 (27 November 2025), evaluation/leaderboard_plot_score.png: RULER with "
    "4k tokens, mean score of 13 tasks, question not seen; read off the plot, to within 1; no compression 95",
    "kept": {
        0.5: {"snapkv": 67, "sinks": 60, "h2o, mean": 51, "key norm": 50, "random": 8},
        0.25: {"snapkv": 40, "sinks": 40, "h2o, mean": 29, "key norm": 29, "random": 1},
        0.1: {"snapkv": 24, "sinks": 26, "h2o, mean": 18, "key norm": 19, "random": 0},
    },
}  # StreamingLLM is "sinks" here, ObservedAttention "h2o, mean", Knorm "key norm"


def snapkv(budget: int) -> Rule:
    """Half of a small budget for the window at most."""
    return SnapKV(observes=max(1, min(32, budget // 2)))


RULES: dict[str, Callable[[int], Rule]] = {
    "h2o": lambda budget: H2O(),
    "h2o, mean": lambda budget: H2O(mean=True),
    "snapkv": snapkv,
    "key norm": lambda budget: KeyNorm(),
    "sinks": lambda budget: SinksAndNewest(min(4, budget - 1)),
    "newest": lambda budget: Newest(),
    "random": lambda budget: Random(SEED),
}
CODES = ("int8", "int4", "kivi", "kivi-2")  # each is its own share: the one that its bits say
KINDS = [*CODES, "window", *RULES, "quest"]


def in_codes(name: str, model: Any, rows: int, positions: int) -> Cache:
    """All keys in fewer bits, in blocks as a server has them (KIVI's newest blocks are whole)."""
    form, size = cache.QUANT_FORMATS[name], 32
    blocks = rows * -(-positions // size)
    if form.per_channel:
        return cache.KiviStore.for_model(model, blocks, size, form, sequences=rows).rows(rows)
    return cache.QuantStore.for_model(model, blocks, size, form).rows(rows)


@dataclass
class Run:
    """A kind of cache at a share of the full one, and the last cache that it made."""

    name: str
    share: float
    answers: bool  # whether the rule chooses after the prompt, too
    last: Cache | None = None

    def make(self, model: Any, rows: int, positions: int) -> Cache:
        budget = max(2, round(self.share * positions))
        if self.name == "full":
            self.last = StaticCache.for_model(model, rows, positions)
        elif self.name in CODES:
            self.last = in_codes(self.name, model, rows, positions)
        elif self.name == "window":
            self.last = WindowCache.for_model(model, rows, max(1, budget - 4), 4)
        elif self.name == "quest":
            self.last = QuestCache.for_model(model, rows, positions, max(1, round(budget / PAGE)), PAGE)
        else:
            rule = RULES[self.name](budget)
            when = "always" if self.answers and not rule.observes else "prompt"
            self.last = EvictingCache.for_model(model, rows, budget, rule, when)
        return self.last

    def bytes(self, model: Any, positions: int) -> dict[str, float]:
        """What the last cache held, and what a step at its end read, over a full one's."""
        assert self.last is not None
        last, rows = self.last, len(self.last.lengths)
        whole = StaticCache.for_model(model, 1, positions).nbytes * rows
        read = last.bytes_read(positions) * rows if isinstance(last, QuestCache) else last.nbytes
        return {"held": last.nbytes / whole, "read": read / whole}


def perplexity(model: Any, run: Run, blocks: list[list[int]]) -> tuple[Losses, dict[str, float]]:
    """Losses through the run's caches, and their bytes."""
    found = losses(model, blocks, run.make, prompt=PROMPT)
    return found, run.bytes(model, len(blocks[0]))


def found(cells: list[Cell]) -> bench.Estimate:
    """The share of all needles of a grid."""
    right = [hit for cell in cells for hit in cell.right]
    return bench.wilson(sum(right), len(right))


def ranked(rows: list[dict[str, Any]], share: float) -> list[str]:
    """The rules by what they found at one share, best first."""
    at = {row["kind"]: row["found"].value for row in rows if row["share"] == share and row["kind"] in RULES}
    return sorted(at, key=lambda kind: -at[kind])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS)
    options = parser.parse_args()
    quick, start = options.quick, time.perf_counter()
    loaded = lumen.load("smollm2-135m", dtype=torch.float32)
    model, tokenizer = loaded.model, loaded.tokenizer
    text = tokenizer.encode(assets.shakespeare()[1], add_special=False)
    blocks = passages(text, PROMPT + SCORED // (8 if quick else 1), 2 if quick else PASSAGES)
    sizes: dict[str, Any] = {"lengths": LENGTHS, "depths": DEPTHS, "count": COUNT}
    if quick:
        sizes = {"lengths": LENGTHS[:1], "depths": DEPTHS[1:4:2], "count": 2}
    shares = SHARES[1:2] if quick else SHARES
    runs = [("full", 1.0)]
    runs += [(kind, share) for kind in options.only for share in ((1.0,) if kind in CODES else shares)]
    base: Losses | None = None
    texts: list[dict[str, Any]] = []
    hidden: list[dict[str, Any]] = []
    for kind, share in runs:
        run = Run(kind, share, answers=True)
        scored, size = perplexity(model, run, blocks)
        base = base or scored
        ratio = scored.over(base)
        texts.append({"kind": kind, "share": share, "bytes": size, "losses": scored.blocks})
        texts[-1] |= {"perplexity": scored.perplexity(), "ratio": ratio}
        print(f"{kind:10} {share:4.0%}  perplexity {scored.perplexity()}, {ratio}, held {size['held']:.3f}")
        for seen in (True, False) if share in (1.0, *PUBLISHED["kept"]) or quick else (True,):
            run = Run(kind, share, answers=False)
            cells = grid(model, tokenizer, text, run.make, **sizes, seed=SEED, question_seen=seen, batch=4)
            row = {"kind": kind, "share": share, "question_seen": seen, "found": found(cells), "cells": cells}
            row["bytes"] = run.bytes(model, sizes["lengths"][-1] + 6)
            hidden.append(row)
            print(f"{'':16} needles {'with' if seen else 'without'} the question {row['found']}", flush=True)
    order = {
        share: ranked([row for row in hidden if not row["question_seen"]], share)
        for share in shares
        if share in PUBLISHED["kept"]
    }
    for share, kinds in order.items():
        theirs = PUBLISHED["kept"][share]
        print(
            f"order at {share:.0%}: {', '.join(kinds)}; published: {', '.join(sorted(theirs, key=theirs.get)[::-1])}"
        )
    if not quick:
        setting = {"prompt": PROMPT, "scored": SCORED, "passages": PASSAGES, **sizes}
        data = {
            "setting": setting,
            "perplexity": texts,
            "needles": hidden,
            "order": order,
            "published": PUBLISHED,
        }
        path = bench.evidence("smaller_cache", data, seed=SEED)
        print(f"wrote {path.name} after {time.perf_counter() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
