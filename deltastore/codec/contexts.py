"""Contexts of the codec `ctx` (spec, Codec ctx): which lanes are coded together, and in which class each is.

The exponent of the old value is what predicts a change: the chance halves with each step of it. The class of
a lane is its exponent less the origin of its block, from 0 to 15. Origins are the encoder's choice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from deltastore.codec.twin import BLOCK, Bytes, Counts
from deltastore.codec.types import Positions, SliceSpec, Stream
from deltastore.protocol.digest import Lanes

Floats = NDArray[np.float64]

CLASSES: Final = 16
LARGEST_RICE: Final = 24
SEGMENT: Final = 1 << 22
"""Lanes of a segment at most: ranks begin again at each, so that segments are coded side by side."""
EXPONENTS: Final = 256
DENSE: Final = tuple(f"C{k}" for k in range(CLASSES))
"""Streams of the dense classes."""


class Mode(IntEnum):
    """How a slice is stored; numbered as in the gap codes."""

    UNCHANGED = 0
    CODED = 1
    FULL = 3


class Field(NamedTuple):
    """Where the exponent of a lane is: `(lane >> shift & mask) - 1`, modulo 256.

    So zeros, which hardly ever change and would be the smallest, have 255, as have lanes without exponents.
    """

    shift: int
    mask: int

    def of(self, lanes: Lanes) -> Bytes:
        """The exponents, uint8."""
        kind = lanes.dtype.type
        found: Bytes = (lanes >> kind(self.shift) & kind(self.mask)).astype(np.uint8) - np.uint8(1)
        return found


_FIELDS: Final[Mapping[str, Field]] = MappingProxyType(
    {
        "BF16": Field(7, 255),
        "F16": Field(10, 31),
        "F32": Field(23, 255),
        "F8_E4M3": Field(3, 15),
        "F8_E4M3FNUZ": Field(3, 15),
        "F8_E5M2": Field(2, 31),
        "F8_E5M2FNUZ": Field(2, 31),
    }
)


def field_of(dtype: str) -> Field:
    """Where lanes of a dtype have their exponents."""
    return _FIELDS.get(dtype, Field(0, 0))


@dataclass(frozen=True, slots=True)
class Part:
    """Whole blocks of one slice that lie in one segment.

    Attributes:
        index: Which of the slices.
        start: First lane within the slice.
        stop: One past the last.
        block: Index of the first block among all blocks of the shard.
    """

    index: int
    start: int
    stop: int
    block: int

    @property
    def lanes(self) -> int:
        """Lanes that it has."""
        return self.stop - self.start

    @property
    def blocks(self) -> int:
        """Blocks that it has."""
        return -(-self.lanes // BLOCK)

    def of(self, origins: Bytes) -> Bytes:
        """The origins of its blocks, from those of all blocks of the shard."""
        return origins[self.block : self.block + self.blocks]


def segments(specs: Sequence[SliceSpec], coded: Sequence[int]) -> Iterator[list[Part]]:
    """The segments of a shard, in order: narrow lanes before wide ones, else the order of the slices.

    Args:
        specs: All slices.
        coded: Indices of those that are coded in classes.
    """
    block = 0
    held: list[Part] = []
    room = width = 0
    for index in sorted(coded, key=lambda i: specs[i].lane_bytes):
        spec = specs[index]
        at = 0
        while at < spec.lanes:
            first = min(BLOCK, spec.lanes - at)
            if held and (first > room or spec.lane_bytes != width):
                yield held
                held = []
            if not held:
                room, width = SEGMENT, spec.lane_bytes
            stop = spec.lanes if spec.lanes - at <= room else at + room // BLOCK * BLOCK
            part = Part(index, at, stop, block)
            held.append(part)
            block += part.blocks
            room -= stop - at
            at = stop
    if held:
        yield held


# --- Segments ----------------------------------------------------------------------------------------

Changes = tuple[Positions, Lanes]
"""Positions, ascending, and steps."""


class Run(NamedTuple):
    """The lanes of a part of a segment, where their exponents are, and an origin for each block."""

    lanes: Lanes
    field: Field
    origins: Bytes


class Row(NamedTuple):
    """What the table says of a segment.

    Attributes:
        unary: Bytes of unary parts.
        near: 8-bit escapes.
        far: Full-width escapes of sparse classes.
        wide: Those of dense classes.
        counts: Of each class: its lanes if it is dense, else its changes.
        rices: Rice parameters; 0 where there is nothing to code.
    """

    unary: int
    near: int
    far: int
    wide: int
    counts: tuple[int, ...]
    rices: tuple[int, ...]

    def pack(self) -> bytes:
        """As it is stored."""
        return ROW.pack(*self[:4], *self.counts, *self.rices)

    @classmethod
    def parse(cls, data: Stream) -> Self:
        """Undoes `pack`."""
        fields = ROW.unpack(data)
        unary, near, far, wide = fields[:4]
        return cls(unary, near, far, wide, fields[4 : 4 + CLASSES], fields[4 + CLASSES :])

    def changes(self, dense: int) -> int:
        """Changes in sparse classes."""
        return sum(self.counts[dense:])

    def low(self, dense: int) -> int:
        """Bytes of the low bits of gaps."""
        bits = sum(n * r for n, r in zip(self.counts[dense:], self.rices[dense:], strict=True))
        return -(-bits // 8)


ROW: Final = struct.Struct(f"<{4 + CLASSES}I{CLASSES}B")
"""A row of the table."""


class CodedSegment(NamedTuple):
    """A segment as it is stored: its row, and its bytes of each stream; `dense` has one for each class."""

    row: Row
    unary: Stream
    low: Stream
    codes: Stream
    near: Stream
    far: Stream
    wide: Stream
    dense: Sequence[Stream]


# --- Origins -----------------------------------------------------------------------------------------

_SCALE: Final = 1 << 12
"""Logarithms are integers in units of so many to the bit: sums of floats are exact, whatever their order."""
_ROWS: Final = 64
"""Blocks per product of matrices: few enough that no library spreads it over threads of its own."""
_HALVING: Final = 4.2
"""Class in which half of the lanes would change, in the model that origins start from."""
_LIKELY: Final = 0.97
"""The largest rate of that model."""
_ROUNDS: Final = 4
"""How often origins are chosen, each time by the rates under those before."""
_DENSE_RATE: Final = 0.5
"""Classes of which more lanes change than this are dense."""


def origins(lanes: Counts, changes: Counts) -> tuple[Bytes, int]:
    """An origin for each block: the one under which the classes of all blocks predict its changes best.

    Args:
        lanes: Blocks x 256: how many lanes of each block have each exponent, about.
        changes: Likewise, of the lanes that changed.

    Returns:
        The origins, and how many classes, from 0 on, are dense under them.
    """
    rates = np.minimum(_LIKELY, 2.0 ** -(np.arange(CLASSES) - _HALVING))
    used = np.flatnonzero((lanes + changes).any(axis=0))
    went = changes[:, used].astype(np.float64)
    stayed = np.maximum(lanes - changes, 0)[:, used].astype(np.float64)
    chosen = np.zeros(len(lanes), np.int64)
    if used.size:
        options = np.arange(max(0, used[0] - CLASSES + 1), used[-1] + 1)
        table = np.clip(used[:, None] - options, 0, CLASSES - 1)
        for _ in range(_ROUNDS):
            stay, go = (np.rint(-np.log2(p) * _SCALE)[table] for p in (1 - rates, rates))
            chosen = np.concatenate(
                [np.argmin(a @ stay + b @ go, axis=1) for a, b in zip(*_rows(stayed, went), strict=True)]
            )
            rates = _rates(stayed, went, table.T[chosen])
        chosen = options[chosen]
    return chosen.astype(np.uint8), int(np.max(np.flatnonzero(rates > _DENSE_RATE) + 1, initial=0))


def _rows(*counts: Floats) -> list[list[Floats]]:
    return [[table[at : at + _ROWS] for at in range(0, max(1, len(table)), _ROWS)] for table in counts]


def _rates(stayed: Floats, went: Floats, classes: Counts) -> Floats:
    """The share of lanes that change in each class, given the class of each block's exponents."""
    rest, changed = (np.bincount(classes.ravel(), n.ravel(), CLASSES) for n in (stayed, went))
    # Half a change in a class that has none: its rate is small, and not zero.
    rates: Floats = (changed + 0.5) / (rest + changed + 1)
    return rates
