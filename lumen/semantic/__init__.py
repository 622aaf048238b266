"""Answers kept for later: for the same request (exact), or for a question that means the same (semantic).

    exact.py      key = sha256 of prompt, model, parameters, tenant      hits only what is repeated to the letter
    semantic.py   MiniLM, FAISS, a threshold, a second look              hits more, can be wrong
    check.py      the second look: four rules that read both questions
    rivals.py     a one-line baseline, a probe, weighed evidence, a cross-encoder: what the rules are held against
    index.py      flat, IVF, HNSW, PQ behind one class that can delete
    store.py      capacity, age, order of use, and SQLite under it;  cache.py  what both caches share
    pairs.py      labelled question pairs;  evaluate.py  shares with intervals, and the threshold to choose

Nothing here needs torch, FAISS or sentence-transformers before the first SemanticCache is made.
"""

from .cache import Hit, Stats
from .check import check
from .encoder import Encoder, MiniLM
from .exact import ExactCache
from .index import IndexSpec, VectorIndex
from .keys import key_of
from .pairs import Pair, load_pairs
from .semantic import Look, SemanticCache
from .store import DamageWarning, StoreError

__all__ = [
    "DamageWarning",
    "Encoder",
    "ExactCache",
    "Hit",
    "IndexSpec",
    "Look",
    "MiniLM",
    "Pair",
    "SemanticCache",
    "Stats",
    "StoreError",
    "VectorIndex",
    "check",
    "key_of",
    "load_pairs",
]
