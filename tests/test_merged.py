"""Several calibrations of one machine: the best roofs, the medians of the rest, and how far they lie apart."""

from __future__ import annotations

import pytest

from lumen.hardware import Achieved, Chip
from lumen.hardware.merged import merged


def chip(read, peak, overhead, curve, name="c", **sure):
    achieved = {"fp32": Achieved(matmul=curve, attention=(), cache_read=(), elementwise=())}
    return Chip(name, {"fp32": peak}, read, 1e9, overhead_s=overhead, achieved=achieved, uncertainty=sure)


def test_roofs_are_the_best_and_curves_the_median():
    found = merged([
        chip(30.0, 5.0, 1.0, ((1, 10.0), (8, 40.0)), bandwidth=0.01, matmul=0.1),
        chip(50.0, 4.0, 3.0, ((1, 14.0),), bandwidth=0.02, matmul=0.3),
        chip(40.0, 6.0, 2.0, ((1, 12.0), (8, 60.0)), bandwidth=0.03, matmul=0.2),
    ])  # fmt: skip
    assert (found.bandwidth, found.flops["fp32"], found.overhead_s) == (50.0, 6.0, 2.0)
    assert found.achieved["fp32"].matmul == ((1, 12.0), (8, 50.0)), (
        "a point that one calibration cut is the others'"
    )
    assert found.uncertainty == {"bandwidth": 0.4, "matmul": 0.2, "overhead": 0.5}
    assert "3 calibrations" in found.note


def test_one_calibration_is_itself():
    only = chip(30.0, 5.0, 1.0, ((1, 10.0),))
    assert merged([only]) is only


@pytest.mark.parametrize(
    ("chips", "why"),
    [([], "No calibration"), ([chip(1, 1, 1, ()), chip(1, 1, 1, (), "d")], "of one machine .* c, d")],
)
def test_what_does_not_belong_together_is_refused(chips, why):
    with pytest.raises(ValueError, match=why):
        merged(chips)
