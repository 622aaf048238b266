"""Flat, IVF, HNSW and PQ on 100,000 sentence vectors: recall@1, time of one query, memory, time to build.

    python benchmarks/faiss_indexes.py            about ten minutes on two cores the first time,
                                                  mostly embedding; writes evidence
    python benchmarks/faiss_indexes.py --quick    2,000 vectors; writes nothing

The vectors are MiniLM embeddings of distinct lines of Shakespeare's plays, shuffled with a fixed seed and kept
in $LUMEN_CACHE; the queries are 1,000 other lines. Recall@1 is the share of queries for which an index names
the same nearest line as the flat one, which compares with all. Queries come one at a time and FAISS has one
thread, as in a server that answers as questions come in.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from lumen import assets, bench
from lumen.semantic import IndexSpec, MiniLM
from lumen.semantic.index import build, index_bytes, recall_at_1

SEED = 0
COUNT, QUERIES, TIMED = 100_000, 1_000, 200
CHUNK = 2_000
RESCORED = 10  # how many of PQ's candidates are compared again, exactly
PROBES, BEAMS, PARTS = (1, 2, 4, 8, 16, 32, 64), (8, 16, 32, 64, 128, 256), (24, 48, 96)


def lines(count: int) -> list[str]:
    """`count` distinct lines of the plays, shuffled; names, scenes and lines of less than three words left out."""
    text = "\n".join(assets.shakespeare())
    found = sorted({line.strip() for line in text.splitlines() if len(line.split()) >= 3 and line[:1] != "["})
    random.Random(SEED).shuffle(found)
    if count > len(found):
        raise ValueError(f"The plays have {len(found):,} distinct lines, {count:,} were asked for.")
    return found[:count]


def embedded(count: int) -> np.ndarray:
    """(count, 384) float32 unit vectors, from the cache or made now, a chunk at a time."""
    encoder = MiniLM()
    folder = assets.cache_dir() / "vectors"
    file = folder / f"shakespeare-{encoder.fingerprint}-{SEED}-{count}.npy"
    if file.is_file():
        return np.load(file)
    texts = lines(count)
    parts = []
    with tqdm(total=count, desc="embedding", unit="line") as bar:
        for begin in range(0, count, CHUNK):
            parts.append(encoder.encode(texts[begin : begin + CHUNK], batch=128))
            bar.update(len(parts[-1]))
    vectors = np.concatenate(parts)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = file.with_suffix(f".{os.getpid()}.part")
    with open(scratch, "wb") as out:
        np.save(out, vectors)
    os.replace(scratch, file)
    return vectors


def variants(base: np.ndarray) -> tuple[dict[str, dict[str, Any]], dict[str, Callable[[np.ndarray], int]]]:
    """Facts of every variant, and its way to find the nearest of one query (1, width)."""
    facts: dict[str, dict[str, Any]] = {}
    find: dict[str, Callable[[np.ndarray], int]] = {}

    def nearest(index: Any, attribute: str, value: int) -> Callable[[np.ndarray], int]:
        owner = index.hnsw if attribute == "efSearch" else index

        def search(query: np.ndarray) -> int:
            if attribute:
                setattr(owner, attribute, value)
            return int(index.search(query, 1)[1][0, 0])

        return search

    def rescored(index: Any) -> Callable[[np.ndarray], int]:
        def search(query: np.ndarray) -> int:
            found = index.search(query, RESCORED)[1][0]
            return int(found[np.argmax(base[found] @ query[0])])

        return search

    specs = [("flat", IndexSpec("flat"), "", (0,)), ("ivf", IndexSpec("ivf"), "nprobe", PROBES)]
    specs += [("hnsw", IndexSpec("hnsw"), "efSearch", BEAMS)]
    specs += [(f"pq {parts} B", IndexSpec("pq", parts=parts, train_from=256), "", (0,)) for parts in PARTS]
    for name, spec, attribute, values in tqdm(specs, desc="building"):
        made: list[Any] = []
        seconds = bench.measure(lambda made=made, spec=spec: made.append(build(spec, base)), 1, 0).median
        about = {"bytes": index_bytes(made[0]), "build_s": seconds, "type": type(made[0]).__name__}
        if spec.kind == "ivf":
            about["lists"] = made[0].nlist
        for value in values:
            label = f"{name} {attribute} {value}".strip() if attribute else name
            facts[label] = about | {"kind": spec.kind, attribute or "setting": value}
            find[label] = nearest(made[0], attribute, value)
        if spec.kind == "pq":
            facts[f"{name}, {RESCORED} rescored"] = about | {
                "kind": "pq",
                "needs": "the vectors themselves, elsewhere",
            }
            find[f"{name}, {RESCORED} rescored"] = rescored(made[0])
    return facts, find


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="2,000 vectors, no evidence written")
    options.add_argument("--count", type=int, default=COUNT)
    options.add_argument("--repeats", type=int, default=5)
    chosen = options.parse_args()
    import faiss

    count, asked = (2_000, 200) if chosen.quick else (chosen.count, QUERIES)
    vectors = embedded(count + asked)
    base, queries = vectors[:count], vectors[count:]
    facts, find = variants(base)
    faiss.omp_set_num_threads(1)
    exact = [find["flat"](query[None]) for query in queries]
    timed = queries[: min(TIMED, len(queries))]
    times = bench.compare(
        {
            name: lambda search=search: [search(query[None]) for query in timed]
            for name, search in find.items()
        },
        chosen.repeats,
    )
    print(f"{count:,} vectors of {base.shape[1]} numbers, {len(queries):,} queries, one thread")
    print(f"{'index':26} {'recall@1':>8} {'µs/query':>9} {'bytes/vector':>12} {'build s':>8}")
    for name, search in find.items():
        recall = recall_at_1([search(query[None]) for query in queries], exact)
        each = times[name].per(len(timed))
        facts[name] |= {"recall_at_1": recall, "seconds_per_query": each}
        print(
            f"{name:26} {recall:8.3f} {each.median * 1e6:9.1f} {facts[name]['bytes'] / count:12.1f} "
            f"{facts[name]['build_s']:8.2f}"
        )
    if not chosen.quick:
        data = {
            "vectors": count,
            "width": base.shape[1],
            "queries": len(queries),
            "timed_queries": len(timed),
            "threads": 1,
            "made_of": "MiniLM embeddings of distinct lines of Shakespeare's plays; queries are other lines",
            "indexes": facts,
        }
        print(f"written: {bench.evidence('faiss_indexes', data, seed=SEED).name}")


if __name__ == "__main__":
    main()
