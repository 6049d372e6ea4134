"""Shards whose positions are gaps (spec, Gap coding): what `ulp` and `abs` have in common.

Modes of slices, the block table `T`, gap symbols in `G` or `H` and `I`, whole slices in `F0` to `F7`. How the
values of changed lanes are written is each codec's own, behind `Values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from deltastore.codec import kernels
from deltastore.codec.kernels import Bytes, Counts
from deltastore.codec.streams import Reader, Writer
from deltastore.codec.types import Change, Decoded, Diff, Encoded, Positions, SliceSpec, Sparse, Whole
from deltastore.errors import BadShard
from deltastore.protocol.digest import Lanes

FULL_PLANES: Final = tuple(f"F{i}" for i in range(8))
_RARE: Final = 384
"""Below one change in so many lanes, 16-bit gaps are smaller than 8-bit ones."""

Take = Callable[[str, int], Bytes]
"""The next bytes of a stream."""


class Mode(IntEnum):
    """How a slice is stored."""

    UNCHANGED = 0
    GAPS8 = 1
    GAPS16 = 2
    FULL = 3


class Values(Protocol):
    """How a codec writes the values of changed lanes.

    `columns` is the number of counts per block that it adds to the table; `streams` are its own.
    """

    codec: str
    relative: bool
    columns: int
    streams: tuple[str, ...]

    def encode(self, diff: Diff, changes: Counts) -> tuple[dict[str, Bytes], Counts]:
        """Stream parts of one slice, and its counts, int64 [blocks, columns]."""

    def sizes(self, spec: SliceSpec, changes: Counts, counts: Counts, /) -> dict[str, int]:
        """Bytes that a slice has in each of the codec's streams; BadShard for counts that cannot be."""

    def decode(self, spec: SliceSpec, changes: Counts, counts: Counts, take: Take) -> Lanes:
        """Values of one slice from the streams; BadShard where they break a rule."""


# --- Encoding ----------------------------------------------------------------------------------------


def encode(values: Values, diffs: Sequence[Diff], *, nonce: bytes) -> Encoded:
    """Write a shard; arguments and errors as for `DeltaCodec.encode`."""
    writer = Writer(("T", "G", "H", "I", *values.streams, *FULL_PLANES))
    modes: list[int] = []
    for diff in diffs:
        mode, parts = _encode_slice(values, diff)
        modes.append(mode)
        writer.add(parts)
    return writer.finish(diffs, modes, codec=values.codec, nonce=nonce)


def _encode_slice(values: Values, diff: Diff) -> tuple[Mode, dict[str, Bytes]]:
    lanes = diff.spec.lanes
    if not diff.changed:
        return Mode.UNCHANGED, {}
    changes = kernels.per_block(diff.positions, kernels.block_ends(lanes))
    mode = Mode.GAPS16 if diff.changed * _RARE < lanes else Mode.GAPS8
    symbols, counts = kernels.gap_encode(diff.positions, changes, mode)
    parts, columns = values.encode(diff, changes)
    planes = kernels.split_planes(symbols)
    parts.update({"G": planes[0]} if mode is Mode.GAPS8 else {"H": planes[0], "I": planes[1]})
    sparse = sum(part.nbytes for part in parts.values())
    if diff.whole is not None and sparse >= diff.spec.nbytes:
        return Mode.FULL, dict(zip(FULL_PLANES, kernels.split_planes(diff.whole), strict=False))
    table = np.column_stack((counts, changes, columns)).astype("<u4")
    parts["T"] = table.reshape(-1).view(np.uint8)
    return mode, parts


# --- Decoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slice:
    """One slice and its rows of the table: symbols, changes and the codec's counts per block."""

    spec: SliceSpec
    mode: Mode
    symbols: Counts
    changes: Counts
    counts: Counts


def decode(values: Values, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
    """Read a shard; arguments and errors as for `DeltaCodec.decode`."""
    reader = Reader(data, specs, codec=values.codec, raw_size=raw_size)
    slices = _read_table(values, reader, specs)
    sizes = Counter(dict.fromkeys(("G", "H", "I", *values.streams, *FULL_PLANES), 0))
    for item, changed in zip(slices, reader.meta.changed, strict=True):
        sizes.update(_sizes(values, item, changed))
    reader.inflate(sizes)
    changes = [_decode_slice(values, item, reader.take) for item in slices]
    reader.close()
    return Decoded(changes, list(reader.meta.changed), list(reader.meta.digest))


def _read_table(values: Values, reader: Reader, specs: Sequence[SliceSpec]) -> list[_Slice]:
    if max(reader.modes, default=0) > Mode.FULL:
        raise BadShard(f"a slice has mode {max(reader.modes)}")
    modes = [Mode(mode) for mode in reader.modes]
    rows = [
        kernels.blocks(spec.lanes) if mode in {Mode.GAPS8, Mode.GAPS16} else 0
        for spec, mode in zip(specs, modes, strict=True)
    ]
    width = 2 + values.columns
    reader.inflate({"T": sum(rows) * width * 4})
    slices: list[_Slice] = []
    for spec, mode, count in zip(specs, modes, rows, strict=True):
        table = reader.take("T", count * width * 4).view("<u4").reshape(-1, width).astype(np.int64)
        slices.append(_Slice(spec, mode, table[:, 0], table[:, 1], table[:, 2:]))
    return slices


def _sizes(values: Values, item: _Slice, changed: int) -> Mapping[str, int]:
    """Bytes that a slice has in each stream, if its counts are possible."""
    spec, mode = item.spec, item.mode
    if (mode is Mode.UNCHANGED) != (changed == 0):
        raise BadShard(f"slice {spec.label!r} with {changed} changes has mode {mode.value}")
    if mode is Mode.UNCHANGED:
        return {}
    if mode is Mode.FULL:
        return dict.fromkeys(FULL_PLANES[: spec.lane_bytes], spec.lanes)
    room = np.diff(kernels.block_ends(spec.lanes), prepend=0)
    # A symbol moves the cursor by one lane at least, so none of these sums can overflow.
    if (
        (item.symbols > room).any()
        or (item.changes > item.symbols).any()
        or ((item.changes == 0) != (item.symbols == 0)).any()
        or int(item.changes.sum()) != changed
    ):
        raise BadShard(f"the counts of the blocks of slice {spec.label!r} are impossible")
    symbols = int(item.symbols.sum())
    gaps = {"G": symbols} if mode is Mode.GAPS8 else {"H": symbols, "I": symbols}
    return {**gaps, **values.sizes(spec, item.changes, item.counts)}


def _decode_slice(values: Values, item: _Slice, take: Take) -> Change:
    spec = item.spec
    if item.mode is Mode.UNCHANGED:
        return Sparse(np.empty(0, np.int64), np.empty(0, spec.uint), values.relative)
    if item.mode is Mode.FULL:
        planes = [take(name, spec.lanes) for name in FULL_PLANES[: spec.lane_bytes]]
        return Whole(kernels.merge_planes(planes))
    positions = _positions(item, take)
    return Sparse(positions, values.decode(spec, item.changes, item.counts, take), values.relative)


def _positions(item: _Slice, take: Take) -> Positions:
    count = int(item.symbols.sum())
    names = ("G",) if item.mode is Mode.GAPS8 else ("H", "I")
    symbols = kernels.merge_planes([take(name, count) for name in names])
    return kernels.gap_decode(symbols, item.symbols, item.changes, item.spec.lanes)
