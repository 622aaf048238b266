"""How far bounds and prices are off: what published bounds leave out, and what vendors ask for an hour."""

from __future__ import annotations

import re

from lumen.cost.published import THIRD, Miss, misses
from lumen.explore.figures.published import left_out
from lumen.hardware import CHIPS, Chip
from lumen.pages.ch02 import Table
from lumen.pages.chips import DEAR, NAMES, listed, served, short, two

PRICES = "https://techbytes.app/posts/serverless-gpu-pricing-matrix-modal-replicate-lambda-2026/"
SHOWN = 5  # reasons that the text names


def left_out_text() -> str:
    """What the bound has no term for where it misses by over a third, and two yardsticks that are soft."""
    rows = misses()
    far = sum(abs(row.signed) > THIRD for row in rows)
    reasons = left_out(rows)
    most = "; ".join(f"{reason} ({n})" for reason, n in reasons[:SHOWN])
    return (
        f"In {far} of {len(rows)} the program took over 1.5 times the bound. The bound has no term for much that a "
        f"program does. By our reading of the sources these apply, often several to one, in brackets to how many of "
        f"the {far}: {most}; {len(reasons) - SHOWN} others less often. Which of them took the time, no experiment here "
        "can tell.\n\n"
        "The two RTX cards are held to their peaks with sums in fp32, as the other chips are; Apple's peaks are our "
        "estimates."
    )


def asking(chip: Chip) -> str:
    """Who asked how much on the day that `price_source` names; empty where nobody did."""
    found = re.search(r"Asked on 7 May 2026: (.*)$", chip.price_source)
    return found[1] if found else ""


def asked(chip: Chip) -> list[float]:
    """What vendors asked on that day. [dollars an hour]"""
    return [float(price) for price in re.findall(r"\d+\.\d\d", asking(chip))]


def vendors_differ(name: str = "") -> float:
    """The largest factor between two vendors' prices of that day for this chip, or for any."""
    chips = [CHIPS[name]] if name else list(CHIPS.values())
    return max(max(p) / min(p) for p in map(asked, chips) if p)


def above_ours() -> float:
    """The largest factor between a price of that day and our estimate."""
    priced = [chip for chip in CHIPS.values() if chip.price_per_hour]
    return max(p / (chip.price_per_hour or p) for chip in priced for p in asked(chip))


def like_ours() -> list[Miss]:
    """Published decode steps and answers on one chip with a data sheet, in 16 bits, as the page's bounds are."""
    return [
        row for row in misses()
        if row.measurement.chips == 1 and row.measurement.phase != "prefill"
        and {row.measurement.weights, row.measurement.kv} <= {"bf16", "fp16"}
        and CHIPS[row.measurement.chip].kind == "datasheet"
    ]  # fmt: skip


def prices_table() -> Table:
    """The chips of which a price is kept, ours or a vendor's, in the order of the page's first table."""
    rows = []
    for name in NAMES:
        chip, price = CHIPS[name], served(name)["price"]
        if chip.price_per_hour or asking(chip):
            ours = two(chip.price_per_hour) if chip.price_per_hour else None
            rows.append([short(name), two(price) if price else None, ours, asking(chip) or None])
    return rows, ["chip", "bound, $ per M tokens", "$ an hour, ours", "asked on 7 May 2026"], "lrrl"


def prices() -> str:
    """How far apart hours and bounds may be, and what follows for the table."""
    ratios = [row.ratio for row in like_ours()]
    alone = sum(row.measurement.batch == 1 for row in like_ours())
    none = [name for name in NAMES if not CHIPS[name].price_per_hour and not asking(CHIPS[name])]
    return (
        "Bounds are at our price, an estimate of mid-2025 for one chip on demand. Beside it stands what vendors asked "
        f"later, by [one list]({PRICES}); it says of no A100 which form factor. A dash: no price, or no batch that "
        f"fits and is in time. Of {listed(none)} no price was read.\n\n"
        f"Vendors on that list differ by {two(vendors_differ(DEAR))} times for an H100 and by "
        f"{two(vendors_differ())} for "
        f"A100s of 80 GB, and ask up to {two(above_ours())} times our price. Published programs took "
        f"{min(ratios):.1f} to "
        f"{max(ratios):.1f} times such bounds ({len(ratios)} decode steps and answers in 16 bits on one chip, "
        f"{alone} of "
        "them of one user, where the bounds above have many). So chips that lie close "
        "together here may change places. **That is why this page asks for factors, not ranks.**"
    )
