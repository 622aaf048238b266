"""`python -m lumen.cli`: the same as `lumen`, where no script is installed."""

from . import console

console()
