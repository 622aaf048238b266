"""Answers kept for later: for the same request (exact), or for a question that means the same (semantic).

    exact.py      key = sha256 of prompt, model, parameters, tenant      never wrong, seldom hits
    semantic.py   MiniLM, FAISS, a threshold, a second check              hits more, can be wrong
    verify/       the second check: rules that read both questions
    index.py      flat, IVF, HNSW, PQ behind one class that can delete
    entries.py    capacity, age, order of use;  log.py  the crash-safe file under it
    pairs.py      the labelled question pairs that thresholds are chosen with

Nothing here needs torch, FAISS or sentence-transformers before the first SemanticCache is made.
"""

from .encoder import Encoder, MiniLM
from .entries import Entry
from .exact import ExactCache
from .hits import Hit, Stats
from .index import IndexSpec, VectorIndex
from .keys import key_of
from .log import DamageWarning, StoreError
from .pairs import Pair, load_pairs
from .semantic import Candidate, Look, SemanticCache
from .verify import Verdict, check

__all__ = [
    "Candidate",
    "DamageWarning",
    "Encoder",
    "Entry",
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
    "Verdict",
    "check",
    "key_of",
    "load_pairs",
]
