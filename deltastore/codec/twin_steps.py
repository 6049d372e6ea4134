"""Streams of the codec `ulp` in numpy, the twin of the compiled ones (spec, Codec ulp).

The step of a changed lane is new - old modulo 2^width: -1 and 1 are 2-bit codes, others escape to a byte, and
from there to the full width. Steps of successive deltas add.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from deltastore.codec import twin
from deltastore.codec.twin import Bytes, Counts
from deltastore.codec.types import Coded, Found, Over, Positions, SliceSpec, Sparse, Streams
from deltastore.errors import BadShard
from deltastore.protocol.digest import Lanes

_ESCAPE: Final = 2
_FIRST: Final = 3
"""The smallest zigzag number that is an escape; 1 and 2 are the steps -1 and 1."""
_LARGEST: Final = 255
"""What stands for a step in its full width."""


def steps_diff(spec: SliceSpec, base: Lanes, new: Lanes) -> Found:
    """Compares, encodes, and moves `base` to `new` in place; arguments and errors as for `twin.diff`."""
    diff = twin.diff(spec, base, new)
    streams = steps_encode(spec, diff.positions, diff.new - diff.old)
    return Found(streams, diff.changed, diff.state_delta, diff.nonfinite)


def steps_encode(spec: SliceSpec, positions: Positions, steps: Lanes) -> Streams:
    """The streams of steps that are not zero, at ascending positions."""
    changes = twin.per_block(positions, twin.block_ends(spec.lanes))
    symbols, counts = twin.gap_encode(positions, changes, 1)
    codes, near, far = codes_encode(steps)
    escapes = np.flatnonzero(codes == _ESCAPE)
    full = near == _LARGEST
    ends = np.cumsum(changes)
    columns = (counts, changes, twin.per_block(escapes, ends), twin.per_block(escapes[full], ends))
    table = np.column_stack(columns).astype("<u4").tobytes()
    packed = twin.pack2(codes, changes).tobytes()
    return Streams(table, symbols.tobytes(), packed, near.tobytes(), far.tobytes())


def codes_encode(steps: Lanes) -> tuple[Bytes, Bytes, Lanes]:
    """The 2-bit code of each step, unpacked, and the escapes: bytes, and steps in their full width."""
    one = steps.dtype.type(1)
    codes = np.full(steps.size, _ESCAPE, np.uint8)
    codes[steps == ~(one - one)] = 0
    codes[steps == one] = 1
    far = steps[codes == _ESCAPE]
    numbers = twin.zigzag(far) - steps.dtype.type(_FIRST)
    near = np.minimum(numbers, steps.dtype.type(_LARGEST)).astype(np.uint8)
    return codes, near, far[near == _LARGEST]


def widen(streams: Streams) -> Coded:
    """The same changes with 16-bit gaps."""
    table = np.frombuffer(streams.table, "<u4").reshape(-1, 4).copy()
    changes = table[:, 1].astype(np.int64)
    symbols = np.frombuffer(streams.gaps, np.uint8)
    positions = twin.gap_decode(symbols, table[:, 0].astype(np.int64), changes, changes.size * twin.BLOCK)
    wide, table[:, 0] = twin.gap_encode(positions, changes, 2)
    low, high = twin.split_planes(wide)
    return Coded(table.tobytes(), low.tobytes(), high.tobytes(), streams.codes, streams.near, streams.far)


def steps_decode(spec: SliceSpec, coded: Coded, changed: int) -> tuple[Positions, Lanes]:
    """Positions and steps of one slice.

    Args:
        spec: The slice.
        coded: Its streams.
        changed: What the table adds up to.

    Raises:
        BadShard: A stream breaks a rule.
        ValueError: The table is not one of so many blocks.
    """
    table = np.frombuffer(coded.table, "<u4").reshape(-1, 4).astype(np.int64)
    symbols, changes, near, full = table.T
    if symbols.size != twin.blocks(spec.lanes):
        raise ValueError("sizes do not fit together")
    if int(changes.sum()) != changed or not _ends(spec, coded, table):
        raise BadShard(f"slice {spec.label!r}: a stream does not end where its table says", tensor=spec.name)
    planes = [np.frombuffer(plane, np.uint8) for plane in (coded.low, coded.high) if len(plane)]
    gaps = twin.merge_planes(planes) if planes else np.empty(0, np.uint8)
    try:
        return twin.gap_decode(gaps, symbols, changes, spec.lanes), _steps(spec, coded, changes, near, full)
    except BadShard as error:
        raise BadShard(f"slice {spec.label!r}: {error.what}", tensor=spec.name) from error


def _ends(spec: SliceSpec, coded: Coded, table: Counts) -> bool:
    """Whether every stream has the length that the table says."""
    symbols, changes, near, full = table.T
    return (
        len(coded.low) == int(symbols.sum())
        and len(coded.high) in {0, len(coded.low)}
        and len(coded.codes) == int(((changes + 3) // 4).sum())
        and len(coded.near) == int(near.sum())
        and len(coded.far) == int(full.sum()) * spec.lane_bytes
    )


def _steps(spec: SliceSpec, coded: Coded, changes: Counts, near_counts: Counts, full_counts: Counts) -> Lanes:
    codes = twin.unpack2(np.frombuffer(coded.codes, np.uint8), changes)
    near = np.frombuffer(coded.near, np.uint8)
    far: Lanes = np.frombuffer(coded.far, np.uint8).view(spec.uint)
    escapes = np.flatnonzero(codes == _ESCAPE)
    full = near == _LARGEST
    if (codes > _ESCAPE).any():
        raise BadShard("a step has the code 3")
    ends = np.cumsum(changes)
    if not np.array_equal(twin.per_block(escapes, ends), near_counts) or not np.array_equal(
        twin.per_block(escapes[full], ends), full_counts
    ):
        raise BadShard("a block has other escapes than its table says")
    return codes_decode(codes, near, far)


def codes_decode(codes: Bytes, near: Bytes, far: Lanes) -> Lanes:
    """Undoes `codes_encode`, where there are as many escapes as there are codes for them.

    Raises:
        BadShard: A step is not in the one form that it has.
    """
    widest = (1 << 8 * far.itemsize) - 1
    full = near == _LARGEST
    if (near[~full] > widest - _FIRST).any() or (twin.zigzag(far) < _FIRST + _LARGEST).any():
        raise BadShard("a step is not in its shortest form")
    numbers = near.astype(far.dtype)
    numbers += far.dtype.type(_FIRST)
    escaped = twin.unzigzag(numbers)
    escaped[full] = far
    steps = np.array([-1, 1, 0], np.int8).astype(far.dtype)[codes]
    steps[codes == _ESCAPE] = escaped
    return steps


def steps_check(spec: SliceSpec, coded: Coded, changed: int) -> None:
    """Makes sure that streams can be decoded; arguments and errors as for `steps_decode`."""
    steps_decode(spec, coded, changed)


def steps_patch(spec: SliceSpec, coded: Coded, over: Over) -> int:
    """Positions and new bits of one slice, over the lanes before them.

    Args:
        spec: The slice.
        coded: Its streams.
        over: The lanes, which are only read, and what is filled.

    Returns:
        What the change does to the digest, modulo 2^64.

    Raises:
        BadShard: A stream breaks a rule.
    """
    positions, steps = steps_decode(spec, coded, over.positions.size)
    over.positions[:] = positions
    over.values[:], delta = twin.patch(spec, over.lanes, Sparse(positions, steps, relative=True))
    return delta


def steps_merge(spec: SliceSpec, inputs: Sequence[Coded]) -> tuple[Streams, int]:
    """Successive deltas of one slice as one: steps add, and what adds up to zero goes.

    Args:
        spec: The slice.
        inputs: Streams of each delta, oldest first.

    Returns:
        The streams, and the number of changes.

    Raises:
        BadShard: A stream breaks a rule.
    """
    counts = [
        int(np.frombuffer(coded.table, "<u4").reshape(-1, 4)[:, 1].sum(dtype=np.int64)) for coded in inputs
    ]
    decoded = [steps_decode(spec, coded, count) for coded, count in zip(inputs, counts, strict=True)]
    positions, where = np.unique(np.concatenate([p for p, _ in decoded]), return_inverse=True)
    steps = np.zeros(positions.size, spec.uint)
    np.add.at(steps, where, np.concatenate([values for _, values in decoded]))
    kept = steps != 0
    return steps_encode(spec, positions[kept], steps[kept]), int(np.count_nonzero(kept))
