"""How fast bytes come to a chip from outside its memory: from the host, from another chip, over a network.

All rates are one direction, at best, in B/s. Vendors print both directions together for NVLink and often for
PCIe ("900 GB/s", "64 GB/s"): half of that moves a cache from here to there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lumen.inputs import nonnegative

LinkKind = Literal["datasheet", "standard", "estimate"]


@dataclass(frozen=True)
class Link:
    """A way for bytes. `bandwidth` in B/s in one direction, at best; `source` names document and year."""

    name: str
    bandwidth: float
    source: str
    kind: LinkKind
    note: str = ""

    def seconds(self, num_bytes: float) -> float:
        """The least time that bytes take over it. [s]"""
        nonnegative(num_bytes=num_bytes)
        return num_bytes / self.bandwidth


_LANES = "16 lanes; coding takes 1.5 % of it, packets a few percent more"
_ROWS = (
    Link("PCIe 4.0 x16", 32e9, "PCI Express base specification 4.0, 2017: 16 GT/s a lane", "standard", _LANES),
    Link("PCIe 5.0 x16", 64e9, "PCI Express base specification 5.0, 2019: 32 GT/s a lane", "standard", _LANES),
    Link("NVLink 3", 300e9, "NVIDIA A100 datasheet, 2021: 600 GB/s, both directions", "datasheet"),
    Link("NVLink 4", 450e9, "NVIDIA H100 datasheet, 2023: 900 GB/s, both directions", "datasheet"),
    Link("NVLink 5", 900e9, "NVIDIA Blackwell technical brief, 2024: 1.8 TB/s, both directions", "datasheet"),
    Link(
        "network 400 Gbit/s", 50e9, "InfiniBand NDR and 400 Gbit/s Ethernet, 2022", "standard",
        "the usual card beside each H100 of a server",
    ),
    Link("network 100 Gbit/s", 12.5e9, "InfiniBand EDR, 2014, and 100 Gbit/s Ethernet", "standard"),
    Link("network 25 Gbit/s", 25e9 / 8, "IEEE 802.3by, 2016", "standard"),
    Link("network 10 Gbit/s", 1.25e9, "IEEE 802.3ae, 2002", "standard"),
    Link("NVMe SSD", 7e9, "a drive of PCIe 4.0 x4 (8 GB/s) reading in order; our estimate, 2025", "estimate"),
)  # fmt: skip

LINKS: dict[str, Link] = {link.name: link for link in _ROWS}

# Which bus connects a chip of CHIPS to its host, after the datasheets.
_HOST = {
    "A100 40GB PCIe": "PCIe 4.0 x16", "A100 40GB SXM": "PCIe 4.0 x16", "A100 80GB PCIe": "PCIe 4.0 x16",
    "A100 80GB SXM": "PCIe 4.0 x16", "A10G": "PCIe 4.0 x16", "L4": "PCIe 4.0 x16", "L40S": "PCIe 4.0 x16",
    "RTX 3090": "PCIe 4.0 x16", "RTX 4090": "PCIe 4.0 x16",
    "H100 PCIe": "PCIe 5.0 x16", "H100 SXM": "PCIe 5.0 x16", "H200 SXM": "PCIe 5.0 x16", "B200": "PCIe 5.0 x16",
    "MI300X": "PCIe 5.0 x16",
}  # fmt: skip


def host_link(chip: str) -> Link:
    """The bus between a chip of CHIPS and its host."""
    if chip not in _HOST:
        raise ValueError(f"No bus to a host is known for {chip}; known: {', '.join(_HOST)}.")
    return LINKS[_HOST[chip]]
