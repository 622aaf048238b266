"""Sparse attention: reading few of the keys, chosen by content or by pattern.

blocks     what all share: blocks of positions, two orders of reading some of them
nsa        compressed, selected and window parts, gated (Yuan et al. 2025)
moba       blocks by their mean key (Lu et al. 2025)
dsa        tokens by a small indexer (DeepSeek-AI 2025)
patterns   Longformer and BigBird: settled beforehand
sla        critical blocks exactly, marginal ones linearly (Zhang et al. 2025)
naive      loops and T x S masks that NSA and DSA must equal; the others have theirs beside them
work       FLOPs and bytes of a decode step
recall     how much of full attention a selection catches
"""

from .dsa import dsa_attention, index_loss
from .moba import block_means, moba_attention, naive_moba
from .naive import naive_dsa, naive_nsa
from .nsa import NSA, BlockMLP, compress, nsa_attention
from .patterns import (
    BigBird,
    bigbird_attention,
    longformer_attention,
    naive_bigbird,
    naive_longformer,
)
from .sla import SLA, naive_sla, sla_attention
from .work import Heads, Work, dsa_work, full_work, moba_work, nsa_work, window_work

__all__ = [
    "NSA",
    "SLA",
    "BigBird",
    "BlockMLP",
    "Heads",
    "Work",
    "bigbird_attention",
    "block_means",
    "compress",
    "dsa_attention",
    "dsa_work",
    "full_work",
    "index_loss",
    "longformer_attention",
    "moba_attention",
    "moba_work",
    "naive_bigbird",
    "naive_dsa",
    "naive_longformer",
    "naive_moba",
    "naive_nsa",
    "naive_sla",
    "nsa_attention",
    "nsa_work",
    "sla_attention",
    "window_work",
]
