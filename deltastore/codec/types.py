"""What codecs take and give (spec, Codecs): slices of tensors, what changed in them, and whole shards.

A *lane* is an element, or a byte of packed sub-byte elements, as an unsigned integer of 1, 2, 4 or 8 bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from deltastore.errors import SchemaMismatch, Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import MASK, Lanes
from deltastore.protocol.schema import TensorSpec

Positions = NDArray[np.signedinteger[Any]]
"""Lanes of a slice, counted from its start, ascending, each at most once."""

_DENSE: Final = 4
"""Below one change in so many lanes no codec stores a slice whole."""
_NARROW: Final = 1 << 31
"""Lanes that 32-bit positions can tell apart."""
_UINTS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}


def uint(width: int) -> np.dtype[Any]:
    """The unsigned integer type, little-endian, of lanes of `width` bytes."""
    return _UINTS[width]


def index_of(lanes: int) -> np.dtype[Any]:
    """The narrowest type of positions in a tensor of so many lanes."""
    return np.dtype(np.int32 if lanes <= _NARROW else np.int64)


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Lanes `start` to `stop` of one tensor; `start` lies on a multiple of 8 bytes.

    Attributes:
        name: The tensor.
        dtype: Its safetensors dtype.
        shape: The shape of the whole tensor, in elements.
        start: First lane.
        stop: One past the last lane.
        total: Lanes of the whole tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    total: int

    @classmethod
    def of(cls, tensor: TensorSpec) -> Self:
        """A whole tensor."""
        return cls(tensor.name, tensor.dtype, tensor.shape, 0, tensor.lanes, tensor.lanes)

    @property
    def lanes(self) -> int:
        """Lanes of the slice."""
        return self.stop - self.start

    @property
    def lane_bytes(self) -> int:
        """Bytes of one lane: 1, 2, 4 or 8."""
        return dtypes.lane_bytes(self.dtype)

    @property
    def uint(self) -> np.dtype[Any]:
        """The type of the lanes."""
        return _UINTS[self.lane_bytes]

    @property
    def packed(self) -> bool:
        """Whether elements are smaller than a byte, so that a lane is not an element."""
        return dtypes.BITS[self.dtype] < 8

    @property
    def nbytes(self) -> int:
        """Bytes of the slice."""
        return self.lanes * self.lane_bytes

    @property
    def whole(self) -> bool:
        """Whether the slice is its whole tensor."""
        return self.start == 0 and self.stop == self.total

    @property
    def first_word(self) -> int:
        """Index within the tensor of the 8-byte word that the slice starts with."""
        return self.start * self.lane_bytes // 8

    @property
    def label(self) -> str:
        """The name of the slice in a shard: the tensor's, with `[start:stop]` if it is a part of it."""
        return self.name if self.whole else f"{self.name}[{self.start}:{self.stop}]"

    def check_end(self) -> None:
        """Refuses a slice that ends inside a word that is not the tensor's last; the digest relies on it.

        Cannot fail where slices start at multiples of 8 bytes and tile their tensor.

        Raises:
            Unsupported: It does.
        """
        if self.nbytes % 8 and self.stop != self.total:
            raise Unsupported(
                f"slice {self.label!r} ends inside an 8-byte word of its tensor",
                hint="Cut slices at multiples of 8 bytes",
                tensor=self.name,
            )

    def check(self, lanes: Lanes) -> None:
        """Makes sure that an array is the lanes of this slice.

        Raises:
            SchemaMismatch: Another type or length, or not contiguous.
        """
        fits = lanes.dtype == self.uint and lanes.shape == (self.lanes,)
        if not (fits and lanes.flags.c_contiguous):
            raise SchemaMismatch(
                f"slice {self.label!r} is {self.lanes} contiguous lanes of {self.uint}, "
                f"not an array {lanes.dtype}{list(lanes.shape)}",
                hint="Pass the bit patterns as flat unsigned integers",
                tensor=self.name,
            )


def count_nonfinite(dtype: str, lanes: Lanes) -> int:
    """How many lanes are the bit pattern of a NaN or an infinity of that dtype."""
    if dtype == "C64":
        return count_nonfinite("F32", np.ascontiguousarray(lanes).view(np.uint32))
    if dtype not in dtypes.NONFINITE:
        return 0
    mask, value = (lanes.dtype.type(n) for n in dtypes.NONFINITE[dtype])
    return int(np.count_nonzero((lanes & mask) == value))


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """New values of some lanes of a slice.

    Attributes:
        positions: int64 or, where they fit, int32; ascending and unique, counted from the start of the slice.
        values: Lanes: the new bits, or the steps to them.
        relative: Whether `values` are steps, to be added modulo 2^width.
        delta: What the new bits do to the state digest, modulo 2^64, where decoding has seen the old ones.
    """

    positions: Positions
    values: Lanes
    relative: bool
    delta: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """New values of all lanes of a slice; the array may be a read-only view of the shard."""

    lanes: Lanes


Change = Sparse | Whole

CopyWhole = Callable[[int], Lanes | None]
"""What `whole_copy` is for an array, given the number of changes."""


def whole_copy(base: Lanes, changed: int) -> Lanes | None:
    """A copy of all lanes where so many changed that a slice may be stored whole; below that none is.

    Of the base, once it has moved: whoever writes to the new weights meanwhile must not make it differ.
    """
    return whole_or_none(base.copy, changed, base.size)


def whole_or_none(copy: Callable[[], Lanes], changed: int, lanes: int) -> Lanes | None:
    """The same where a base has to be asked for a copy."""
    if not changed or changed * _DENSE < lanes:
        return None
    kept = copy()
    kept.flags.writeable = False
    return kept


Stream = bytes | memoryview

ReadLanes = Callable[[int, int], Lanes]
"""Lanes of a slice from one to another; only read."""


class Base(Protocol):
    """The lanes of the slices of a shard, which are only read."""

    def read(self, index: int, start: int, stop: int) -> Lanes:
        """Lanes of one of the slices, counted from its start; may be a copy."""

    def view(self, index: int) -> Lanes | None:
        """All lanes of one of the slices, as they lie in a row in host memory; None if they do not."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Slices that lie in host memory, as a base."""

    lanes: Sequence[Lanes]

    def read(self, index: int, start: int, stop: int) -> Lanes:
        """See `Base.read`."""
        return self.lanes[index][start:stop]

    def view(self, index: int) -> Lanes | None:
        """See `Base.view`."""
        return self.lanes[index]


class Over(NamedTuple):
    """What a slice is decoded over: its lanes before, and where positions and new bits go."""

    lanes: Lanes
    positions: Positions
    values: Lanes


class Streams(NamedTuple):
    """The `ulp` streams of one slice as they are written first, with 8-bit gaps."""

    table: bytes
    gaps: bytes
    codes: bytes
    near: bytes
    far: bytes

    def coded(self) -> Coded:
        """The same as they are stored."""
        return Coded(self.table, self.gaps, b"", self.codes, self.near, self.far)


class Coded(NamedTuple):
    """The `ulp` streams of one slice as they are stored; `high` is empty where gaps are 8-bit."""

    table: Stream
    low: Stream
    high: Stream
    codes: Stream
    near: Stream
    far: Stream


class Found(NamedTuple):
    """What a comparison found: streams, lanes changed, change of the digest, new values not finite."""

    streams: Streams
    changed: int
    state_delta: int
    nonfinite: int


def overwritten(lanes: Lanes, positions: Positions, values: Lanes) -> ReadLanes:
    """Lanes with other values at some positions, copied only as they are asked for."""

    def part(start: int, stop: int) -> Lanes:
        low, high = np.searchsorted(positions, (start, stop))
        copy = lanes[start:stop].copy()
        copy[positions[low:high] - start] = values[low:high]
        return copy

    return part


class Delta(Protocol):
    """What changed in one slice, in the form that a codec wants it in."""

    @property
    def spec(self) -> SliceSpec:
        """The slice."""

    @property
    def changed(self) -> int:
        """Lanes that changed."""

    @property
    def state_delta(self) -> int:
        """What the change adds to the state digest, modulo 2^64."""

    @property
    def nonfinite(self) -> int:
        """New values that are NaN or infinite."""

    @property
    def whole(self) -> Lanes | None:
        """All lanes after, where so many changed that the slice may be stored whole."""

    def undo(self, base: Lanes) -> None:
        """Puts the old bits back into a base that has moved with this delta."""

    def before(self, after: Lanes) -> ReadLanes:
        """The lanes before this delta, given all of them after it; made when they are asked for."""

    def reverse(self) -> Sparse:
        """The change that puts the old bits back, for a base that is not an array."""

    def says(self, change: Change) -> bool:
        """Whether a change is exactly this one: what a codec must decode to."""


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """What changed in one slice from one state to the next.

    Attributes:
        spec: The slice.
        positions: The lanes that changed.
        old: Their bits before.
        new: Their bits after; different from `old` at every position.
        state_delta: What the change adds to the state digest, modulo 2^64.
        whole: All lanes after, a read-only copy, where at least a quarter of them changed; without it a
            codec cannot choose to store the slice whole.
    """

    spec: SliceSpec
    positions: Positions
    old: Lanes
    new: Lanes
    state_delta: int
    whole: Lanes | None = None

    @classmethod
    def joined(cls, spec: SliceSpec, parts: Iterable[Diff], whole: CopyWhole) -> Self:
        """What changed in the parts of a slice, as one; arguments as for `DeltaCodec.of`."""
        listed = [Diff.none(spec), *parts]
        positions = np.concatenate([d.positions + (d.spec.start - spec.start) for d in listed])
        old = np.concatenate([d.old for d in listed])
        new = np.concatenate([d.new for d in listed])
        state_delta = sum(d.state_delta for d in listed) & MASK
        return cls(spec, positions, old, new, state_delta, whole(positions.size))

    @classmethod
    def none(cls, spec: SliceSpec) -> Self:
        """A slice in which nothing changed."""
        empty = np.empty(0, spec.uint)
        return cls(spec, np.empty(0, np.int64), empty, empty, 0)

    @property
    def changed(self) -> int:
        """Number of lanes that changed."""
        return int(self.positions.size)

    @property
    def nonfinite(self) -> int:
        """New values that are NaN or infinite."""
        return count_nonfinite(self.spec.dtype, self.new)

    def undo(self, base: Lanes) -> None:
        """Puts the old bits back into a base that has moved with this diff."""
        base[self.positions] = self.old

    def before(self, after: Lanes) -> ReadLanes:
        """The lanes before this diff, given those after it."""
        return overwritten(after, self.positions, self.old)

    def reverse(self) -> Sparse:
        """The change that puts the old bits back."""
        return Sparse(self.positions, self.old, relative=False)

    def says(self, change: Change) -> bool:
        """Whether a change is exactly this one."""
        if isinstance(change, Whole):
            return self.whole is not None and np.array_equal(change.lanes, self.whole)
        new = self.old + change.values if change.relative else change.values
        return np.array_equal(change.positions, self.positions) and np.array_equal(new, self.new)


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A whole slice, from nothing.

    Attributes:
        spec: The slice.
        lanes: Its bits; may be a view into the producer's base, and is only read.
        digest: Its digest, modulo 2^64.
    """

    spec: SliceSpec
    lanes: Lanes
    digest: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """A complete shard, and what its descriptor says of it.

    Attributes:
        data: The file.
        raw_size: Bytes of its streams or tensors before compression.
        state_delta: What the shard adds to the state digest, modulo 2^64.
        changed: Lanes that changed; in an anchor, all lanes.
    """

    data: bytes
    raw_size: int
    state_delta: int
    changed: int


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """The content of a shard, one entry per slice, in the order of the specs.

    Attributes:
        changes: The new values.
        deltas: What each slice adds to the state digest, as declared: whoever applies it checks. None where
            the codec declares it of the whole shard only, in its descriptor.
    """

    changes: list[Change]
    deltas: list[int | None]

    @property
    def changed(self) -> list[int]:
        """Lanes that each slice sets: those that changed, and all where the change is `Whole`."""
        return [c.lanes.size if isinstance(c, Whole) else c.positions.size for c in self.changes]
