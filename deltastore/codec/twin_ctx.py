"""Segments of the codec `ctx` in numpy, the twin of the compiled kernel (spec, Codec ctx).

In the low, dense classes every lane has a byte; in the others the gaps between the ranks of changed lanes are
Rice-coded, and their steps are coded as in `ulp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from deltastore.codec import twin, twin_steps
from deltastore.codec.contexts import CLASSES, EXPONENTS, Changes, CodedSegment, Field, Row, Run
from deltastore.codec.twin import BLOCK, Bytes, Counts
from deltastore.codec.types import Positions, Stream
from deltastore.errors import BadShard
from deltastore.protocol.digest import Lanes

_LARGEST: Final = 255
_SAMPLE: Final = 64
"""Lanes of every `_STRIDE` that are looked at to choose origins."""
_STRIDE: Final = 2048
_MANY: Final = 256
"""Changes of a block that are enough to choose its origin."""


def ctx_count(lanes: Lanes, field: Field, changes: Changes) -> tuple[Counts, Counts]:
    """How many lanes of each block have each exponent, from a sample, and how many that changed.

    Args:
        lanes: All lanes of a slice, after the changes.
        field: Where their exponents are.
        changes: Positions and steps.
    """
    shape = twin.blocks(lanes.size), EXPONENTS
    every = max(1, changes[0].size // max(1, _MANY * shape[0]))
    positions, steps = (part[::every] for part in changes)
    cells = positions // BLOCK * EXPONENTS + field.of(lanes[positions] - steps)
    changed = np.bincount(cells, minlength=shape[0] * EXPONENTS).reshape(shape) * every
    counts = np.zeros(shape, np.int64)
    for block, first in enumerate(range(0, lanes.size, BLOCK)):
        part = lanes[first : first + BLOCK]
        full = part.size // _STRIDE * _STRIDE
        rows = part[:full].reshape(-1, _STRIDE)[:, :_SAMPLE]
        sample = np.concatenate((rows.ravel(), part[full : full + _SAMPLE]))
        counts[block] = np.bincount(field.of(sample), minlength=EXPONENTS) * part.size // sample.size
    return counts, changed


# --- Encoding ----------------------------------------------------------------------------------------


def ctx_encode(runs: Sequence[Run], changes: Sequence[Changes], dense: int) -> CodedSegment:
    """Codes a segment.

    Args:
        runs: Of lanes of one width, after the changes.
        changes: Positions and steps of each run.
        dense: How many classes are dense.
    """
    at, steps, classes = _before(runs, changes)
    numbers = twin.zigzag(steps)
    of_change = classes[at]
    symbols = np.zeros(classes.size, np.uint8)
    symbols[at] = np.minimum(numbers, numbers.dtype.type(_LARGEST))
    sparse: list[Lanes] = [steps[:0]]
    gaps: list[Positions] = []
    rows: list[Bytes] = []
    for k in range(CLASSES):
        members = np.flatnonzero(classes == k)
        if k < dense:
            rows.append(symbols[members])
            continue
        mine = np.flatnonzero(of_change == k)
        gaps.append(np.diff(np.searchsorted(members, at[mine]), prepend=-1) - 1)
        sparse.append(steps[mine])
    rices = [_rice(of) for of in gaps]
    codes, near, far = twin_steps.codes_encode(np.concatenate(sparse))
    wide = steps[(of_change < dense) & (numbers >= _LARGEST)]
    unary = _unary([(of >> r) + 1 for of, r in zip(gaps, rices, strict=True)])
    counts = [row.size for row in rows] + [of.size for of in gaps]
    row = Row(unary.size, near.size, far.size, wide.size, tuple(counts), (*[0] * dense, *rices))
    return CodedSegment(
        row,
        unary.tobytes(),
        _low(gaps, rices).tobytes(),
        twin.pack2(codes, np.array([codes.size])).tobytes(),
        near.tobytes(),
        far.tobytes(),
        wide.tobytes(),
        [symbols.tobytes() for symbols in rows],
    )


def _before(runs: Sequence[Run], changes: Sequence[Changes]) -> tuple[Positions, Lanes, Bytes]:
    """Positions in the segment and steps of all changes, and the class of every lane before them."""
    at: list[Positions] = []
    classes: list[Bytes] = []
    start = 0
    for run, (positions, steps) in zip(runs, changes, strict=True):
        old = run.lanes.copy()
        old[positions] -= steps
        classes.append(_classes(old, run))
        at.append(positions + start)
        start += old.size
    return np.concatenate(at), np.concatenate([steps for _, steps in changes]), np.concatenate(classes)


def _classes(old: Lanes, run: Run) -> Bytes:
    exponents = run.field.of(old).astype(np.int16)
    exponents -= np.repeat(run.origins, BLOCK)[: old.size]
    return np.clip(exponents, 0, CLASSES - 1).astype(np.uint8)


def _rice(gaps: Positions) -> int:
    """The Rice parameter: the largest with which half of the unary bits or more are zeros.

    That is not the one with the fewest bits, but these bits compress, and then it is.
    """
    return max(0, (int(gaps.sum() + gaps.size) // (2 * gaps.size)).bit_length() - 1) if gaps.size else 0


def _unary(lengths: Sequence[Positions]) -> Bytes:
    """So many bits for each number, the last of them set."""
    ends = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))
    bits = np.zeros(int(ends[-1]), np.uint8)
    bits[ends[1:] - 1] = 1
    return np.packbits(bits, bitorder="little")


def _low(gaps: Sequence[Positions], rices: Sequence[int]) -> Bytes:
    bits = [of[:, None] >> np.arange(r) & 1 for of, r in zip(gaps, rices, strict=True)]
    joined = np.concatenate([np.empty(0, np.int64), *(rows.ravel() for rows in bits)])
    return np.packbits(joined.astype(np.uint8), bitorder="little")


# --- Decoding ----------------------------------------------------------------------------------------


def ctx_decode(runs: Sequence[Run], coded: CodedSegment) -> list[Changes]:
    """Undoes `ctx_encode`, given the lanes before the changes.

    Args:
        runs: Of lanes of one width, before the changes.
        coded: The streams, each as long as the row says.

    Raises:
        BadShard: A stream breaks a rule.
    """
    classes = np.concatenate([_classes(run.lanes, run) for run in runs])
    kind = runs[0].lanes.dtype
    at, steps = _sparse(classes, coded, kind)
    near_at, near = _dense(classes, coded, kind)
    at, steps = np.concatenate((at, near_at)), np.concatenate((steps, near))
    order = np.argsort(at)
    at, steps = at[order], steps[order]
    starts = list(accumulate((run.lanes.size for run in runs), initial=0))
    cuts = np.searchsorted(at, starts)
    return [
        (at[low:high] - start, steps[low:high])
        for start, low, high in zip(starts, cuts, cuts[1:], strict=False)
    ]


def _sparse(classes: Bytes, coded: CodedSegment, kind: np.dtype[np.unsignedinteger]) -> Changes:
    row, dense = coded.row, len(coded.dense)
    total = row.changes(dense)
    packed = np.array([total])
    codes = twin.unpack2(np.frombuffer(coded.codes, np.uint8), packed)
    near, far = np.frombuffer(coded.near, np.uint8), np.frombuffer(coded.far, np.uint8).view(kind)
    if (codes == 3).any():
        raise BadShard("a step has the code 3")
    if np.count_nonzero(codes == 2) != near.size or np.count_nonzero(near == _LARGEST) != far.size:
        raise BadShard("a segment has other escapes than its row says")
    quotients = _quotients(coded.unary, total)
    bits = np.unpackbits(np.frombuffer(coded.low, np.uint8), bitorder="little")
    at: list[Positions] = [np.empty(0, np.int64)]
    first = first_bit = 0
    for k in range(dense, CLASSES):
        n, r = row.counts[k], row.rices[k]
        if not n:
            continue
        rows = bits[first_bit : first_bit + n * r].reshape(n, r).astype(np.int64)
        # Quotients are below the bits of a stream, and r is at most 24: no sum can overflow.
        gaps = (quotients[first : first + n] << r) + (rows << np.arange(r)).sum(axis=1)
        ranks = np.cumsum(gaps + 1) - 1
        members = np.flatnonzero(classes == k)
        if int(ranks[-1]) >= members.size:
            raise BadShard("a change lies past the last lane of its class")
        at.append(members[ranks])
        first, first_bit = first + n, first_bit + n * r
    if bits[first_bit:].any():
        raise BadShard("padding bits of the gaps are set")
    return np.concatenate(at), twin_steps.codes_decode(codes, near, far)


def _quotients(unary: Stream, total: int) -> Positions:
    bits = np.unpackbits(np.frombuffer(unary, np.uint8), bitorder="little")
    ends = np.flatnonzero(bits)
    used = int(ends[-1]) + 1 if ends.size else 0
    if ends.size != total or len(unary) != -(-used // 8):
        raise BadShard("a segment has other gaps than its row says")
    return np.diff(ends, prepend=-1) - 1


def _dense(classes: Bytes, coded: CodedSegment, kind: np.dtype[np.unsignedinteger]) -> Changes:
    dense = len(coded.dense)
    symbols = np.zeros(classes.size, np.uint8)
    for k, stream in enumerate(coded.dense):
        members = np.flatnonzero(classes == k)
        if members.size != len(stream):
            raise BadShard("a class has other lanes than its row says")
        symbols[members] = np.frombuffer(stream, np.uint8)
    at = np.flatnonzero(symbols) if dense else np.empty(0, np.int64)
    numbers = symbols[at]
    full = numbers == _LARGEST
    wide = np.frombuffer(coded.wide, np.uint8).view(kind)
    if np.count_nonzero(full) != wide.size:
        raise BadShard("a segment has other escapes than its row says")
    if (twin.zigzag(wide) < _LARGEST).any():
        raise BadShard("a step is not in its shortest form")
    steps = twin.unzigzag(numbers.astype(kind))
    steps[full] = wide
    return at, steps
