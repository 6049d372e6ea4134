"""The compiled kernels behind the functions of `twin`, `twin_steps` and `twin_ctx`: same bytes, all cores.

What is spread over cores is cut at blocks, so that no byte depends on their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltastore import threads
from deltastore.codec import _native
from deltastore.codec.contexts import EXPONENTS, Changes, CodedSegment, Field, Row, Run
from deltastore.codec.twin import BLOCK, Bytes, Counts
from deltastore.codec.types import (
    Coded,
    Diff,
    Found,
    Over,
    Positions,
    SliceSpec,
    Sparse,
    Streams,
    count_nonfinite,
    uint,
    whole_copy,
)
from deltastore.errors import BadShard, SchemaMismatch
from deltastore.protocol import dtypes
from deltastore.protocol.digest import MASK, Lanes, tensor_key

_FAULTS: Final = (
    "",
    "a block does not hold as many changes as its table says",
    "the gaps of a block go on after its last change",
    "a change lies outside its block",
    "a step has the code 3",
    "padding bits of the 2-bit codes are set",
    "a block has other escapes than its table says",
    "a step is not in its shortest form",
    "a stream does not end where its table says",
    "a segment has other gaps than its row says",
    "padding bits of the gaps are set",
    "a change lies past the last lane of its class",
    "a class has other lanes than its row says",
)


def digest(lanes: Lanes, key: int, first_word: int = 0) -> int:
    """See `protocol.digest.digest`."""
    data = np.ascontiguousarray(lanes).view(np.uint8)
    step = threads.PIECE

    def piece(at: int) -> int:
        return _native.digest(data[at : at + step], key, first_word + at // 8)

    return sum(threads.spread(piece, range(0, data.size, step))) & MASK


def steps_diff(spec: SliceSpec, base: Lanes, new: Lanes) -> Found:
    """See `twin_steps.steps_diff`."""
    spec.check(base)
    spec.check(new)
    spec.check_end()
    key, (mask, value) = tensor_key(spec.name), dtypes.NONFINITE.get(spec.dtype, (0, 1))
    step = max(1, threads.PIECE // (BLOCK * spec.lane_bytes)) * BLOCK

    def piece(at: int) -> tuple[bytes, bytes, bytes, bytes, bytes, int, int, int]:
        part = np.s_[at : at + step]
        first = spec.first_word + at * spec.lane_bytes // 8
        return _native.ulp_diff(base[part], new[part], spec.lane_bytes, key, first, mask, value)

    done = threads.spread(piece, range(0, spec.lanes, step))
    streams = Streams(*(b"".join(part[i] for part in done) for i in range(5)))  # type: ignore[misc]
    changed, delta, nonfinite = (sum(part[i] for part in done) for i in (5, 6, 7))  # type: ignore[misc]
    if spec.dtype == "C64" and changed:
        nonfinite = _nonfinite_halves(spec, streams, changed, base)
    return Found(streams, changed, delta & MASK, nonfinite)


def _nonfinite_halves(spec: SliceSpec, streams: Streams, changed: int, base: Lanes) -> int:
    """A complex number has two patterns to look at, and there are few of them: numpy will do."""
    positions, _ = steps_decode(spec, streams.coded(), changed)
    return count_nonfinite(spec.dtype, base[positions])


def diff(spec: SliceSpec, base: Lanes, new: Lanes) -> Diff:
    """See `twin.diff`."""
    found = steps_diff(spec, base, new)
    if not found.changed:
        return Diff.none(spec)
    positions, steps = steps_decode(spec, found.streams.coded(), found.changed)
    after = base[positions]
    return Diff(spec, positions, after - steps, after, found.state_delta, whole_copy(base, found.changed))


def steps_encode(spec: SliceSpec, positions: Positions, steps: Lanes) -> Streams:
    """See `twin_steps.steps_encode`."""
    where, values = np.ascontiguousarray(positions), np.ascontiguousarray(steps)
    return Streams(*_native.ulp_encode(where, values, spec.lanes, spec.lane_bytes))


def widen(streams: Streams) -> Coded:
    """See `twin_steps.widen`."""
    table = bytearray(streams.table)
    low, high = _native.ulp_widen(streams.gaps, table)
    return Coded(bytes(table), low, high, streams.codes, streams.near, streams.far)


def steps_decode(spec: SliceSpec, coded: Coded, changed: int) -> tuple[Positions, Lanes]:
    """See `twin_steps.steps_decode`."""
    positions = np.empty(changed, np.int64)
    steps = np.empty(changed, spec.uint)
    _raise(spec, _native.ulp_decode(tuple(coded), spec.lanes, spec.lane_bytes, positions, steps))
    return positions, steps


def steps_check(spec: SliceSpec, coded: Coded, changed: int) -> None:
    """See `twin_steps.steps_check`."""
    _raise(spec, _native.ulp_check(tuple(coded), spec.lanes, spec.lane_bytes, changed))


def steps_patch(spec: SliceSpec, coded: Coded, over: Over) -> int:
    """See `twin_steps.steps_patch`."""
    key, width = tensor_key(spec.name), spec.lane_bytes
    fault, delta = _native.ulp_patch(
        tuple(coded), over.lanes, width, key, spec.first_word, over.positions, over.values
    )
    _raise(spec, fault)
    return delta


def steps_merge(spec: SliceSpec, inputs: Sequence[Coded]) -> tuple[Streams, int]:
    """See `twin_steps.steps_merge`."""
    fault, *streams, changed = _native.ulp_merge(tuple(map(tuple, inputs)), spec.lanes, spec.lane_bytes)
    _raise(spec, fault)
    return Streams(*streams), changed


def patch(spec: SliceSpec, lanes: Lanes, change: Sparse) -> tuple[Lanes, int]:
    """See `twin.patch`."""
    values = np.empty(change.values.size, uint(spec.lane_bytes))
    positions = np.ascontiguousarray(change.positions, np.int64)
    new = np.ascontiguousarray(change.values)
    key = tensor_key(spec.name)
    width = spec.lane_bytes
    delta = _native.patch(lanes, width, positions, new, change.relative, key, spec.first_word, values)
    return values, delta


def scatter(lanes: Lanes, positions: Positions, values: Lanes) -> None:
    """See `twin.scatter`."""
    if values.dtype != lanes.dtype:
        raise SchemaMismatch(f"{values.dtype} values do not fit into lanes of {lanes.dtype}")
    _native.scatter(lanes, lanes.itemsize, np.ascontiguousarray(positions), np.ascontiguousarray(values))


def gather(lanes: Lanes, positions: Positions) -> Lanes:
    """See `twin.gather`."""
    values = np.empty(positions.size, lanes.dtype)
    _native.gather(lanes, lanes.itemsize, np.ascontiguousarray(positions), values)
    return values


def split_planes(lanes: Lanes, *, rotation: int = 0) -> list[Bytes]:
    """See `twin.split_planes`."""
    planes: NDArray[Any] = np.empty((lanes.itemsize, lanes.size), np.uint8)
    _native.split(np.ascontiguousarray(lanes), lanes.itemsize, rotation, planes)
    return list(planes)


def merge_planes(planes: Sequence[Bytes], *, rotation: int = 0) -> Lanes:
    """See `twin.merge_planes`."""
    lanes: Lanes = np.empty(planes[0].size, uint(len(planes)))
    _native.merge(np.concatenate(planes), len(planes), rotation, lanes)
    return lanes


def ctx_count(lanes: Lanes, field: Field, changes: Changes) -> tuple[Counts, Counts]:
    """See `twin_ctx.ctx_count`."""
    seen, changed = (np.zeros((-(-lanes.size // BLOCK), EXPONENTS), np.uint32) for _ in range(2))
    _native.ctx_count(lanes, lanes.itemsize, *field, *changes, seen, changed)
    return seen.astype(np.int64), changed.astype(np.int64)


def ctx_encode(runs: Sequence[Run], changes: Sequence[Changes], dense: int) -> CodedSegment:
    """See `twin_ctx.ctx_encode`."""
    width = runs[0].lanes.itemsize
    given = tuple((run.lanes, *run.field, run.origins, *of) for run, of in zip(runs, changes, strict=True))
    row, unary, low, codes, near, far, wide, symbols = _native.ctx_encode(given, width, dense)
    return CodedSegment(Row.parse(row), unary, low, codes, near, far, wide, symbols)


def ctx_decode(runs: Sequence[Run], coded: CodedSegment) -> list[Changes]:
    """See `twin_ctx.ctx_decode`."""
    row, unary, low, codes, near, far, wide, dense = coded
    hits = [int(np.count_nonzero(np.frombuffer(symbols, np.uint8))) for symbols in dense]
    total = row.changes(len(dense)) + sum(hits)
    positions, steps = np.empty(total, np.int64), np.empty(total, runs[0].lanes.dtype)
    counts = np.zeros(len(runs), np.int64)
    fault = _native.ctx_decode(
        tuple((run.lanes, *run.field, run.origins) for run in runs),
        steps.itemsize,
        (row.pack(), unary, low, codes, near, far, wide, tuple(dense)),
        positions,
        steps,
        counts,
    )
    if fault:
        raise BadShard(_FAULTS[fault])
    ends = np.cumsum(counts)
    return [
        (positions[end - count : end], steps[end - count : end])
        for count, end in zip(counts, ends, strict=True)
    ]


def _raise(spec: SliceSpec, fault: int) -> None:
    if fault:
        raise BadShard(f"slice {spec.label!r}: {_FAULTS[fault]}", tensor=spec.name)
