"""Linear attention: a state of fixed size in the place of keys and values, token by token and by chunks.

recurrent   the four rules in one loop; the plain form, and what a decode step runs
chunked     the same by matrices inside chunks, with a state between them: prefill and training
conv        the short convolution in front of them, which has a state, too
capacity    what such a state can remember
"""

from .capacity import recall_error, simulated_recall
from .chunked import chunked
from .conv import short_conv
from .recurrent import recurrent

__all__ = ["chunked", "recall_error", "recurrent", "short_conv", "simulated_recall"]
