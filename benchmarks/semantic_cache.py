"""Which threshold, and is there one? Labelled question pairs through MiniLM, with and without the second check.

    python benchmarks/semantic_cache.py            about a minute on two cores; writes evidence
    python benchmarks/semantic_cache.py --quick    the tuning half alone, no timing; writes nothing

The threshold is chosen on the half "tune": the highest recall at a false-hit rate of 1 % or less. Everything
that is claimed is counted on the half "report", which no rule and no threshold has seen. Pairs are judged one
by one, and then all at once: a cache that holds every stored question of the half is asked every other one.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

from lumen import bench
from lumen.semantic import MiniLM, SemanticCache, check, load_pairs
from lumen.semantic.evaluate import Rates, Scored, best_threshold, rates, score
from lumen.semantic.pairs import KINDS, Pair

LIMIT = 0.01  # false hits among the pairs that must miss
USUAL = 0.8  # a threshold as tutorials have it
BIN = 0.05


def shown(name: str, found: Rates | None) -> None:
    if found is None:
        print(f"{name:34} no threshold keeps to {LIMIT:.0%} and hits anything")
        return
    print(
        f"{name:34} at {found.threshold:.3f}: recall {found.recall:6.1%}  precision {found.precision:6.1%}  "
        f"false hits {found.false_hit_rate:5.1%}   "
        + " ".join(f"{kind} {hits}/{total}" for kind, (hits, total) in found.by_kind.items())
    )


def as_data(found: Rates | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "threshold": found.threshold,
        "recall": found.recall,
        "precision": None if math.isnan(found.precision) else found.precision,
        "false_hit_rate": found.false_hit_rate,
        "hits_by_kind": {
            kind: {"hits": hits, "pairs": total} for kind, (hits, total) in found.by_kind.items()
        },
    }


def histogram(scored: list[Scored]) -> dict[str, Any]:
    """Pairs per kind in bins of the cosine: `edges[i] <= cosine < edges[i + 1]`."""
    first = math.floor(min(item.score for item in scored) / BIN)
    bins = math.ceil(1 / BIN) - first + 1
    counts = {kind: [0] * bins for kind in KINDS}
    for item in scored:
        counts[item.pair.kind][math.floor(item.score / BIN) - first] += 1
    return {"edges": [round((first + place) * BIN, 2) for place in range(bins + 1)], "counts": counts}


def as_a_cache(pairs: list[Pair], encoder: MiniLM, threshold: float, checked: bool) -> dict[str, int]:
    """One cache with all stored questions, asked all the others. A hit is right if it found its own paraphrase."""
    cache = SemanticCache(encoder, threshold=threshold, second_check=check if checked else None)
    kept = sum(cache.put(pair.stored, pair.stored) for pair in pairs)
    right = wrong = 0
    for pair in pairs:
        hit = cache.get(pair.asked)
        right += hit is not None and pair.same and hit.answer == pair.stored
        wrong += hit is not None and not (pair.same and hit.answer == pair.stored)
    return {"stored": kept, "asked": len(pairs), "right": right, "wrong": wrong}


def costs(encoder: MiniLM, pairs: list[Pair], repeats: int) -> dict[str, bench.Timing]:
    """Seconds of one look-up's parts: the vector of one question, the search, the rules on one pair."""
    from lumen.semantic import VectorIndex

    vectors = encoder.encode([pair.stored for pair in pairs])
    index = VectorIndex(encoder.width)
    for number, vector in enumerate(vectors):
        index.add(str(number), vector)
    asked = [pair.asked for pair in pairs[:20]]
    return {
        "encode": bench.measure(lambda: [encoder.encode([text]) for text in asked], repeats).per(len(asked)),
        "search": bench.measure(lambda: [index.search(vector, 8) for vector in vectors[:20]], repeats).per(
            20
        ),
        "check": bench.measure(lambda: [check(p.asked, p.stored) for p in pairs], repeats).per(len(pairs)),
    }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="the tuning half alone, no evidence written")
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()

    encoder = MiniLM(device="cpu")
    tune = score(load_pairs("tune"), encoder)
    best = {checked: best_threshold(tune, checked, LIMIT) for checked in (False, True)}
    shown("tune, threshold alone", best[False])
    shown("tune, with the second check", best[True])
    shown(f"tune, threshold alone, {USUAL} as usual", rates(tune, USUAL, False))
    if chosen.quick:
        return

    report = load_pairs("report")
    scored = score(report, encoder)
    data: dict[str, Any] = {
        "encoder": {"name": "all-MiniLM-L6-v2", "fingerprint": encoder.fingerprint},
        "objective": f"highest recall at a false-hit rate of {LIMIT} or less on the half 'tune'",
        "tune": {"threshold_alone": as_data(best[False]), "second_check": as_data(best[True])},
        "report": {},
        "as_a_cache": {},
    }
    for checked, name in ((False, "threshold_alone"), (True, "second_check")):
        for label, threshold in (("chosen", best[checked] and best[checked].threshold), ("usual", USUAL)):
            if threshold is None:
                continue
            found = rates(scored, threshold, checked)
            shown(f"report, {name}, {label}", found)
            data["report"][f"{name}, {label}"] = as_data(found)
            whole = as_a_cache(report, encoder, threshold, checked)
            print(f"{'':34} as one cache: {whole}")
            data["as_a_cache"][f"{name}, {label}"] = whole
    both = tune + scored
    data["histogram"] = histogram(both)
    data["curve"] = {
        name: [
            {"threshold": cut / 100, "recall": at.recall, "false_hit_rate": at.false_hit_rate}
            for cut in range(0, 101)
            for at in [rates(scored, cut / 100, checked)]
        ]
        for checked, name in ((False, "threshold_alone"), (True, "second_check"))
    }
    data["pairs"] = [
        {"kind": item.pair.kind, "half": item.pair.half, "cosine": round(item.score, 4), "rule": item.rule}
        for item in both
    ]
    data["seconds"] = costs(encoder, report, chosen.repeats)
    for part, timing in data["seconds"].items():
        print(f"{part:8} {timing}")
    print(f"written: {bench.evidence('semantic_cache', data).name}")


if __name__ == "__main__":
    main()
