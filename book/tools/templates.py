"""The generated cells: the badge row and the set-up cell of every notebook, as data with holes.

Notebook authors write empty cells tagged `badges` and `setup`; `notebooks.py` fills them from here.
"""

from __future__ import annotations

import repo

SETUP = """\
import importlib
import importlib.util
import os
import subprocess
import sys

# Colab: brings lumen, leaves torch and numpy as they are
if importlib.util.find_spec("lumen") is None:
    address = "{source}"
    address = os.environ.get("LUMEN_SOURCE", address)
    wanted = "{wanted} @ " + address
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    subprocess.run([*pip, wanted], check=True)
    importlib.invalidate_caches()

import lumen

session = lumen.setup("{name}")"""

BADGES = """\
<div class="badges">

{links}

{needs}

</div>"""

LABELS = {"chapters": "chapter", "exercises": "exercises", "solutions": "solutions"}


def setup(name: str) -> str:
    """Source of the set-up cell of notebook `name`."""
    wanted = repo.pip_name(repo.chapter(name).extras)
    return SETUP.format(source=repo.pip_source(), wanted=wanted, name=name)


def badges(kind: str, name: str) -> str:
    """Source of the badge row of the notebook `name` in the folder `kind`.

    Text links only: a picture from another host would be loaded by the page.
    """
    row = repo.chapter(name)
    if not row.tier or set(row.minutes) != {"read", "run", "practise"}:
        raise ValueError(f"chapters.yml: '{name}' needs tier and minutes {{read, run, practise}}")
    there = [k for k in repo.KINDS if repo.has(k, name) or k == kind]
    colab = [f"[Colab: {LABELS[k]}]({repo.colab(f'{k}/{name}.ipynb')})" for k in there]
    here = [f"[{LABELS[k]}]({repo.local(k, name, kind)})" for k in there if k != kind]
    m = row.minutes
    needs = f"{repo.TIERS[row.tier]} · read {m['read']} min · run {m['run']} min"
    if not row.appendix:
        needs += f" · practise {m['practise']} min"
    if here:
        needs += " · here: " + ", ".join(here)
    return BADGES.format(links=" ".join(colab), needs=needs)
