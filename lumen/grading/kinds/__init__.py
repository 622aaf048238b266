"""Ready-made checks: a number or several, a function against cases, statements, a configuration.

Each is a small dataclass that is called with `(answer, probe)`: it raises `Wrong` or `NotStarted`, or returns
a note for the RIGHT verdict (or None). A check that fits none of them is a plain function with the same
signature. Two bigger ones are imported where they are used: `loop.Loop` (a decoding loop), `cache.CacheContract`.
"""

from .cases import Case, Cases
from .decision import Constraint, Decision, Plan
from .number import Number
from .numbers import Numbers
from .slip import Slip
from .statements import Statements

__all__ = ["Case", "Cases", "Constraint", "Decision", "Number", "Numbers", "Plan", "Slip", "Statements"]
