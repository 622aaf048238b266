"""Chips, prices and links say where their numbers come from, and mean what their unit says."""

from __future__ import annotations

import re

import pytest

from lumen.hardware import CHIPS, LINKS, host_link, hourly

PRICED = {name: chip for name, chip in CHIPS.items() if chip.price_per_hour is not None}


@pytest.mark.parametrize("name", CHIPS)
def test_a_chip_has_a_kind_and_a_dated_source(name):
    chip = CHIPS[name]
    assert chip.kind in ("datasheet", "estimate", "paper")
    assert re.search(r"\b20(19|2\d)\b", chip.source)
    assert chip.kind != "estimate" or "our estimate" in chip.note, (
        "an estimate says what it was reckoned from"
    )


@pytest.mark.parametrize("name", PRICED)
def test_a_price_is_dollars_an_hour_an_estimate_and_dated(name):
    said = PRICED[name].price_source
    assert said.startswith("USD, our estimate") and re.search(r"\b202\d\b", said)
    assert "exercises state it in their text" in said


@pytest.mark.parametrize("name", PRICED)
def test_an_estimate_is_near_the_lowest_price_that_was_asked(name):
    """Where prices of one day stand beside the estimate, the lowest is within a factor of 1.5."""
    chip = PRICED[name]
    _, _, asked = chip.price_source.partition("Asked on 7 May 2026: ")
    if asked:
        lowest = min(map(float, re.findall(r"\d+\.\d\d", asked)))
        assert 1 / 1.5 < chip.price_per_hour / lowest < 1.5
    assert asked or "No list price" in chip.price_source or name.startswith("TPU")


def test_prices_by_the_hour_are_those_of_the_chips():
    assert hourly(*PRICED) == {name: chip.price_per_hour for name, chip in PRICED.items()}
    with pytest.raises(KeyError, match="B200"):
        hourly("L4", "B200")


def test_b200_is_dense_and_takes_a_kilowatt():
    b200, h100 = CHIPS["B200"], CHIPS["H100 SXM"]
    assert b200.power_w == 1000
    assert b200.flops["bf16"] == 2250e12 and b200.flops["fp8"] == 2 * b200.flops["bf16"]
    assert 2 < b200.flops["bf16"] / h100.flops["bf16"] < 2.5  # with a sparse number it would be 4.5
    assert b200.memory == 180e9


def test_links_are_one_direction():
    assert LINKS["NVLink 4"].bandwidth == 900e9 / 2 and "900 GB/s" in LINKS["NVLink 4"].source
    assert LINKS["PCIe 5.0 x16"].bandwidth == 2 * LINKS["PCIe 4.0 x16"].bandwidth == 64e9
    assert LINKS["network 400 Gbit/s"].bandwidth == 400e9 / 8
    for link in LINKS.values():
        assert re.search(r"\b20[012]\d\b", link.source) and link.kind in ("datasheet", "standard", "estimate")
        assert link.kind != "estimate" or "estimate" in link.source
        assert link.seconds(link.bandwidth) == 1


def test_chips_know_their_bus():
    assert host_link("H100 SXM") is LINKS["PCIe 5.0 x16"]
    assert host_link("A100 80GB SXM") is host_link("L4") is LINKS["PCIe 4.0 x16"]
    with pytest.raises(ValueError, match="No bus to a host is known for TPU v5e"):
        host_link("TPU v5e")


def test_both_geforce_cards_are_held_to_sums_in_fp32():
    """The 3090 stood with its rate for sums in fp16, the 4090 with that for fp32: half the yardstick."""
    new, old = CHIPS["RTX 4090"], CHIPS["RTX 3090"]
    assert (new.flops["fp16"], old.flops["fp16"]) == (165.2e12, 71e12) and new.note == old.note
