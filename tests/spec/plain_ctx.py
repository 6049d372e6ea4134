"""Codec `ctx` for the plain reader: section 9.11, lane by lane, written from the specification alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from plain_streams import BLOCK, Streams, inflate, unzigzag, zigzag

SEGMENT = 2**22
CLASSES = 16
DENSE = [f"C{k}" for k in range(CLASSES)]
PLANES = [f"P{i}" for i in range(8)]
ORDER = ["M", "T", "E", *DENSE, "G", "U", "X", *PLANES, "L", "Y", "W"]
EXPONENT = {
    "BF16": (7, 8),
    "F16": (10, 5),
    "F32": (23, 8),
    "F8_E4M3": (3, 4),
    "F8_E4M3FNUZ": (3, 4),
    "F8_E5M2": (2, 5),
    "F8_E5M2FNUZ": (2, 5),
}
"""First bit and number of bits of the exponent field."""


@dataclass
class Part:
    """A slice: its dtype, its lanes, which are moved in place, and what they were before."""

    dtype: str
    lanes: np.ndarray
    old: list[int]

    @property
    def width(self) -> int:
        return int(self.lanes.dtype.itemsize)

    def add(self, lane: int, d: int) -> None:
        self.lanes[lane] = (self.old[lane] + d) % 2 ** (8 * self.width)


class Block(NamedTuple):
    """Lanes of a slice that have one origin."""

    part: Part
    first: int
    stop: int


@dataclass
class Row:
    """A row of `T`: bytes of `G`, steps in `X`, `Y` and `W`, a number per class, Rice parameters."""

    unary: int
    near: int
    far: int
    whole: int
    counts: list[int]
    rice: bytes

    @classmethod
    def of(cls, data: bytes) -> Row:
        unary, near, far, whole, *counts = struct.unpack("<20I", data[:80])
        return cls(unary, near, far, whole, counts, data[80:])


def apply(meta: dict[str, Any], stored: bytes, slices: list[tuple[str, np.ndarray]]) -> int:
    """Moves the lanes of all slices of a shard; returns the raw size of its streams.

    Args:
        meta: Metadata of the shard.
        stored: The tensor `S`.
        slices: The dtype and the lanes of each slice.
    """
    parts = [Part(dtype, lanes, lanes.tolist()) for dtype, lanes in slices]
    streams = opened(meta, stored)
    modes = streams.take("M", len(parts))
    (dense,) = streams.take("M", 1) if parts else [0]
    assert dense <= CLASSES
    for mode, part in zip(modes, parts, strict=True):
        assert mode in {0, 1, 3}
        assert part.old or mode == 0
        if mode == 3:
            part.lanes[:] = streams.planes("P", len(part.old), part.width, part.dtype)
    coded = [part for mode, part in zip(modes, parts, strict=True) if mode == 1]
    for segment in segments(coded):
        move(segment, dense, Row.of(streams.take("T", 96)), streams)
    assert all(part.lanes.tolist() != part.old for part in coded)
    assert streams.all_taken()
    return streams.raw


def opened(meta: dict[str, Any], stored: bytes) -> Streams:
    """The streams that lie in `S`, inflated where they have frames."""
    frames, raw = meta.get("frames", {}), meta.get("raw", {})
    assert frames.keys() == raw.keys() <= set(ORDER)
    data, at = {}, 0
    for name in ORDER:
        if name not in raw:
            continue
        size = sum(frames[name]) if frames[name] else raw[name]
        data[name] = stored[at : at + size]
        at += size
        if frames[name]:
            data[name] = inflate(data[name], frames[name])
        assert 0 < len(data[name]) == raw[name]
    assert at == len(stored)
    return Streams(data)


def segments(coded: list[Part]) -> list[list[Block]]:
    """The blocks of all coded slices, narrow lanes first, put together."""
    found: list[list[Block]] = []
    room = width = 0
    for part in sorted(coded, key=lambda part: part.width):
        for first in range(0, len(part.old), BLOCK):
            block = Block(part, first, min(first + BLOCK, len(part.old)))
            lanes = block.stop - block.first
            if part.width != width or lanes > room:
                found.append([])
                room, width = SEGMENT, part.width
            found[-1].append(block)
            room -= lanes
    return found


def move(segment: list[Block], dense: int, row: Row, streams: Streams) -> None:
    """Applies the changes of one segment."""
    lanes = [lane for block in segment for lane in classified(block, streams)]
    members = [[(part, lane) for part, lane, k in lanes if k == of] for of in range(CLASSES)]
    assert sum(row.counts) <= len(lanes)
    assert row.unary <= -(-len(lanes) // 8)
    for k in range(CLASSES):
        assert row.rice[k] <= 24
        if k < dense:
            assert row.counts[k] == len(members[k])
        if k < dense or not row.counts[k]:
            assert row.rice[k] == 0
    move_dense([one for one in lanes if one[2] < dense], dense, row, streams)
    changes = [members[k][rank] for k, rank in ranks(dense, row, streams)]
    width = segment[0].part.width
    steps = streams.steps(len(changes), row.near, row.far, width)
    for (part, lane), d in zip(changes, steps, strict=True):
        part.add(lane, d)


def classified(block: Block, streams: Streams) -> Iterator[tuple[Part, int, int]]:
    """The lanes of a block with their classes."""
    (origin,) = streams.take("E", 1)
    first_bit, bits = EXPONENT.get(block.part.dtype, (0, 0))
    for lane in range(block.first, block.stop):
        field = (block.part.old[lane] >> first_bit) % 2**bits
        exponent = (field - 1) % 256
        yield block.part, lane, min(max(exponent - origin, 0), CLASSES - 1)


def move_dense(lanes: list[tuple[Part, int, int]], dense: int, row: Row, streams: Streams) -> None:
    """Each lane takes a byte of its class, and where that is 255 a step of `W`."""
    symbols = [iter(streams.take(DENSE[k], row.counts[k])) for k in range(dense)]
    whole = streams.whole_steps("W", row.whole, lanes[0][0].width if lanes else 1)
    for part, lane, k in lanes:
        z = next(symbols[k])
        d = unzigzag(z) if z < 255 else next(whole)
        assert z < 255 or zigzag(d) >= 255
        part.add(lane, d)
    assert next(whole, None) is None


def ranks(dense: int, row: Row, streams: Streams) -> list[tuple[int, int]]:
    """Class and rank of each change in a sparse class, in the order of `G`."""
    low_bits = sum(row.counts[k] * row.rice[k] for k in range(dense, CLASSES))
    unary = bits_of(streams.take("G", row.unary))
    low = bits_of(streams.take("L", -(-low_bits // 8)))
    found = []
    for k in range(dense, CLASSES):
        rank = -1
        for _ in range(row.counts[k]):
            gap = 0
            while next(unary) == 0:
                gap += 1
            gap <<= row.rice[k]
            gap += sum(next(low) << i for i in range(row.rice[k]))
            rank += gap + 1
            found.append((k, rank))
    for rest in list(unary), list(low):
        assert len(rest) < 8
        assert not any(rest)
    return found


def bits_of(data: bytes) -> Iterator[int]:
    """The least significant bit of each byte first."""
    return (byte >> i & 1 for byte in data for i in range(8))
