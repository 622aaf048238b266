"""Which question is the same question? Six ways to decide over three sets of labelled pairs, and what a look-up costs.

    python benchmarks/semantic_cache.py            about a minute on two cores; writes evidence
    python benchmarks/semantic_cache.py --quick    counts alone, no timing; writes nothing

Every threshold and every weight comes from the half "tune", at 5 % false hits; "report" and "third" are counted only.
$LUMEN_CROSS_ENCODER names the folder of a sentence-transformers cross-encoder to be counted, too.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from lumen import bench
from lumen.semantic import MiniLM, SemanticCache, VectorIndex, check, load_pairs
from lumen.semantic.evaluate import Rates, embed
from lumen.semantic.rivals import Set, ablation, as_one_cache, compare, cross_encoder

LIMIT = 0.05  # false hits among the pairs that must miss
SHARES = (0.5, 0.9, 0.99)  # of the near pairs, how many are paraphrases


def as_data(found: Rates) -> dict[str, Any]:
    return {
        "threshold": found.threshold,
        "recall": found.recall,
        "false_hits": found.false_hits,
        "precision_at": {f"{share:.0%}": found.precision_at(share) for share in SHARES},
        "hits_by_kind": {kind: {"hits": k, "pairs": n} for kind, (k, n) in found.by_kind.items()},
    }


def costs(encoder: MiniLM, pairs: Set, repeats: int) -> dict[str, bench.Timing]:
    """Seconds of a look-up and of its parts, one question at a time, among all stored questions of a set."""
    index, cache = VectorIndex(encoder.width), SemanticCache(encoder, threshold=0.7)
    for pair, vector in zip(pairs.pairs, pairs.stored, strict=True):
        index.add(pair.stored, vector)
        cache.put(pair.stored, "an answer")
    asked, vectors = [pair.asked for pair in pairs.pairs[:20]], pairs.asked[:20]
    parts = {
        "look-up": lambda: [cache.look(text) for text in asked],
        "encode": lambda: [encoder.encode([text]) for text in asked],
        "search": lambda: [index.search(vector, 8) for vector in vectors],
        "check": lambda: [check(p.asked, p.stored) for p in pairs.pairs[:20]],
    }
    return {name: timing.per(20) for name, timing in bench.compare(parts, repeats).items()}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="counts alone, no evidence written")
    options.add_argument("--repeats", type=int, default=12)
    chosen = options.parse_args()

    encoder = MiniLM(device="cpu")
    sets = {}
    for name in ("tune", "report", "third"):
        pairs = load_pairs(name)
        sets[name] = Set(pairs, *embed(pairs, encoder))
    folder = os.environ.get("LUMEN_CROSS_ENCODER")
    found = compare(sets, LIMIT, cross_encoder(folder) if folder else None)
    for way, by_set in found.items():
        for name, at in by_set.items():
            print(f"{way:32} {name:7} recall {at.recall}  false hits {at.false_hits}")
    cut = found["cosine and four rules"]["tune"].threshold
    without = ablation(sets, cut)
    for name, by_set in without.items():
        print(f"{name:18}", {part: (at.right, at.wrong) for part, at in by_set.items()})
    whole = {
        name: as_one_cache(sets[name], cut) for name in ("tune", "report")
    }  # "third" repeats its questions
    print("as one cache (right, wrong):", whole)
    if chosen.quick:
        return
    seconds = costs(encoder, sets["report"], chosen.repeats)
    for part, timing in seconds.items():
        print(f"{part:8} {timing}")
    data = {
        "encoder": {"name": "all-MiniLM-L6-v2", "fingerprint": encoder.fingerprint},
        "objective": f"highest recall at {LIMIT:.0%} false hits or less on the half 'tune'",
        "ways": {way: {name: as_data(at) for name, at in by_set.items()} for way, by_set in found.items()},
        "ablation": {
            name: {part: {"right": at.right, "wrong": at.wrong} for part, at in by_set.items()}
            for name, by_set in without.items()
        },
        "as_one_cache": {name: {"right": right, "wrong": wrong} for name, (right, wrong) in whole.items()},
        "seconds": seconds,
    }
    print(f"written: {bench.evidence('semantic_cache', data).name}")


if __name__ == "__main__":
    main()
