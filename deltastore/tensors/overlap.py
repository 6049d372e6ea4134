"""Memory that tensors share in part: written through one name, changed under another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from deltastore.errors import Unsupported

_WORK = 10_000
"""How hard numpy may look for an element that two strided arrays share, before they count as overlapping."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a tensor lies.

    Attributes:
        name: Which.
        device: On what.
        start: Address of its first byte.
        stop: Address behind its last one.
        array: The same memory as a numpy array, on the CPU.
    """

    name: str
    device: str
    start: int
    stop: int
    array: NDArray[np.generic] | None


def overlaps_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of a tensor may be the same memory; strides are in elements."""
    if 0 in shape:
        return False
    reach = 0
    for stride, size in sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def refuse_overlaps(extents: Iterable[Extent]) -> None:
    """Refuses tensors that share some of their memory, but are not the same view of it.

    Raises:
        Unsupported: Two do, by name.
    """
    before: list[Extent] = []
    for one in sorted(extents, key=lambda e: (e.device, e.start)):
        before = [e for e in before if e.device == one.device and e.stop > one.start]
        for other in before:
            if one.start < one.stop and _share(one, other):
                raise Unsupported(
                    f"tensors {other.name!r} and {one.name!r} share a part of their memory",
                    hint="Pass one of them, or a copy",
                    tensor=one.name,
                )
        before.append(one)


def _share(one: Extent, other: Extent) -> bool:
    if one.array is None or other.array is None:
        return True
    try:
        return np.shares_memory(one.array, other.array, max_work=_WORK)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
