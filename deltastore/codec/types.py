"""What codecs take and give (spec, Codecs): slices of tensors, what changed in them, and whole shards.

A *lane* is an element, or a byte of packed sub-byte elements, as an unsigned integer of 1, 2, 4 or 8 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from deltastore.errors import SchemaMismatch
from deltastore.protocol import dtypes
from deltastore.protocol.digest import Lanes

Positions = NDArray[np.int64]
"""Lanes of a slice, counted from its start, ascending, each at most once."""

_UINTS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}


def uint(width: int) -> np.dtype[Any]:
    """The unsigned integer type, little-endian, of lanes of `width` bytes."""
    return _UINTS[width]


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

    def check(self, lanes: Lanes) -> None:
        """Make sure that an array is the lanes of this slice.

        Raises:
            SchemaMismatch: Another type or length, or not contiguous.
        """
        fits = lanes.dtype == self.uint and lanes.shape == (self.lanes,)
        if not (fits and lanes.flags.c_contiguous):
            raise SchemaMismatch(
                f"slice {self.label!r} is {self.lanes} contiguous lanes of {self.uint}, "
                f"not an array {lanes.dtype}{list(lanes.shape)}",
                hint="pass the bit patterns as flat unsigned integers",
                tensor=self.name,
            )


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """New values of some lanes of a slice.

    Attributes:
        positions: int64, ascending and unique, counted from the start of the slice.
        values: Lanes: the new bits, or the steps to them.
        relative: Whether `values` are steps, to be added modulo 2^width.
    """

    positions: Positions
    values: Lanes
    relative: bool


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """New values of all lanes of a slice; the array may be a read-only view of the shard."""

    lanes: Lanes


Change = Sparse | Whole


@dataclass(frozen=True, slots=True, eq=False)
class Diff:
    """What changed in one slice from one state to the next.

    Attributes:
        spec: The slice.
        positions: int64, the lanes that changed.
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

    @property
    def changed(self) -> int:
        """Number of lanes that changed."""
        return int(self.positions.size)

    def undo(self, base: Lanes) -> None:
        """Put the old bits back into a base that has moved with this diff."""
        base[self.positions] = self.old


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
        changed: Lanes that changed; exact where the change is `Sparse`, else what the shard declares.
        deltas: What each slice adds to the state digest, as declared: whoever applies it checks.
    """

    changes: list[Change]
    changed: list[int]
    deltas: list[int]


class DeltaCodec(Protocol):
    """Turns what changed into a shard and back."""

    @property
    def id(self) -> str:
        """The codec's name in descriptors."""

    @property
    def kind(self) -> Literal["delta"]:
        """Which edges it is for."""

    def encode(self, diffs: Sequence[Diff], *, nonce: bytes) -> Encoded:
        """Write a shard with one slice per diff.

        Args:
            diffs: In schema order.
            nonce: 16 random bytes, so that two encodings never share a key.

        Raises:
            UsageError: The diffs cannot be written; the error says which and why.
        """

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """Read a shard that holds exactly these slices.

        Raises:
            BadShard: Anything in it breaks the rules of the codec.
            LimitExceeded: It declares more than the limits allow; nothing was allocated for it.
        """


class AnchorCodec(Protocol):
    """Turns whole slices into a shard and back."""

    @property
    def id(self) -> str:
        """The codec's name in descriptors."""

    @property
    def kind(self) -> Literal["anchor"]:
        """Which edges it is for."""

    def encode(self, denses: Sequence[Dense], *, nonce: bytes) -> Encoded:
        """Write a shard of whole slices; arguments and errors as for `DeltaCodec.encode`."""

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """Read a shard that holds exactly these slices; every change is `Whole`. Errors as for deltas."""
