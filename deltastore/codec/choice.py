"""Which codec an edge is written in, where that is left open (`codec="auto"`): `ctx` where a link is slow.

What `ctx` saves must take the link longer than its scans take the cores at both ends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deltastore import threads
from deltastore.codec import kernels
from deltastore.codec.ulp import Steps

AUTO: Final = "auto"

_SAVED: Final = 0.27
"""Share of an `ulp` delta that `ctx` saves; 0.24 to 0.29 on recorded deltas of 1 to 6 %."""
_SCAN: Final = {"native": 1.0e-9, "numpy": 24e-9}[kernels.NAME]
"""Seconds that a byte of coded weights costs more in `ctx`, on one core, at 1 %: written, checked, read."""


def choose(deltas: Collection[Steps], *, link: float | None) -> str:
    """The id of the codec that brings some deltas across soonest.

    Args:
        deltas: All slices of an edge.
        link: Bytes per second of the slowest link between the producer and a server; None if it is not slow.
    """
    if link is None:
        return "ulp"
    changed = [delta for delta in deltas if delta.changed]
    stored = sum(len(stream) for delta in changed for stream in delta.streams)
    scanned = sum(delta.spec.nbytes for delta in changed)
    return "ctx" if _SAVED * stored / link > _SCAN * scanned / threads.count() else "ulp"
