"""Shards whose positions are gaps (spec, Gap coding): what `ulp` and `abs` have in common.

Modes of slices, digests of those that change, the block table `T`, gap symbols in `G` or `H` and `I`, whole
slices in the planes `P0` to `P7`. How the values of changed lanes are written is each codec's own, behind
`Values`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from deltastore import threads
from deltastore.codec import kernels, planes
from deltastore.codec.kernels import Counts
from deltastore.codec.planes import Take
from deltastore.codec.streams import DIGESTS, MODES, Reader, Writer
from deltastore.codec.types import (
    Base,
    Change,
    Decoded,
    Delta,
    Encoded,
    Over,
    SliceSpec,
    Sparse,
    Stream,
    Whole,
    index_of,
)
from deltastore.errors import BadShard
from deltastore.protocol.digest import Lanes

Pending = Callable[[], Change]
"""Decodes a change of which all has been taken from the streams; BadShard if it is none."""
D = TypeVar("D", bound=Delta)
D_contra = TypeVar("D_contra", bound=Delta, contravariant=True)

Flags = NDArray[np.bool_]

_RARE: Final = 384
"""Below one change in so many lanes, 16-bit gaps are smaller than 8-bit ones."""


class Mode(IntEnum):
    """How a slice is stored."""

    UNCHANGED = 0
    GAPS8 = 1
    GAPS16 = 2
    FULL = 3


_MODES: Final = tuple(Mode)
_CODED: Final = (Mode.GAPS8, Mode.GAPS16)


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """One slice that is decoded.

    Attributes:
        spec: Its lanes.
        mode: How it is stored.
        sizes: Bytes that it has in each stream but the table.
        table: Its rows of the table, as they are stored; the counts in them are possible ones.
        changed: Changes that they add up to.
    """

    spec: SliceSpec
    mode: Mode
    sizes: Mapping[str, int]
    table: Stream = b""
    changed: int = 0

    def planes(self, take: Take) -> tuple[Stream, Stream]:
        """Low and high bytes of its symbols; none of the high where they are 8-bit."""
        if self.mode is Mode.GAPS8:
            return take("G", self.sizes["G"]), b""
        return take("H", self.sizes["H"]), take("I", self.sizes["I"])


class Values(Protocol[D_contra]):
    """How a codec writes the values of changed lanes.

    `columns` is the number of counts per block that it adds to the table; `streams` are its own, `planes`
    those of them that hold planes.
    """

    codec: str
    columns: int
    streams: tuple[str, ...]
    planes: tuple[str, ...]

    def parts(self, delta: D_contra, *, wide: bool) -> dict[str, Stream]:
        """Parts of all streams that one slice has, `T` and the gaps too, with 8-bit or 16-bit gaps."""

    def impossible(self, changes: Counts, counts: Counts, /) -> Flags:
        """Which blocks have counts that cannot be, given the changes and the codec's counts of each."""

    def sizes(self, changes: Counts, counts: Counts, widths: Counts, /) -> list[Counts]:
        """Bytes that each block has in each of the codec's streams; its lanes have `widths` bytes."""

    def decode(self, item: Slice, take: Take, over: Over | None, /) -> Pending:
        """Takes what one slice has in the streams; BadShard there or later, where that breaks a rule."""


# --- Encoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """One slice as it will be stored.

    Attributes:
        mode: How.
        changed: Lanes that it sets.
        state_delta: What it adds to the state digest, modulo 2^64.
        parts: What it has in each stream.
    """

    mode: Mode
    changed: int = 0
    state_delta: int = 0
    parts: Mapping[str, Stream] = field(default_factory=dict)


def encode(values: Values[D], deltas: Sequence[D], *, nonce: bytes) -> Encoded:
    """Writes a shard; arguments and errors as for `DeltaCodec.encode`."""
    return write(values, (written(values, delta) for delta in deltas), nonce=nonce)


def write(values: Values[D], slices: Iterable[Written], *, nonce: bytes, gradual: bool = False) -> Encoded:
    """A shard of slices in schema order; errors as for `DeltaCodec.encode`.

    Args:
        values: The codec's.
        slices: They are forgotten as soon as they are added.
        nonce: 16 random bytes.
        gradual: Compress streams as they grow, and not at once.
    """
    names = ("T", "G", "H", "I", *values.streams, *planes.FULL)
    writer = Writer(names, planes={*values.planes, *planes.FULL}, gradual=gradual)
    modes, changed = bytearray(), 0
    digests: list[int] = []
    for one in slices:
        writer.add(one.parts)
        modes.append(one.mode)
        changed += one.changed
        if one.mode is not Mode.UNCHANGED:
            digests.append(one.state_delta)
    return writer.finish(digests, changed=changed, codec=values.codec, nonce=nonce, modes=modes)


def written(values: Values[D], delta: D) -> Written:
    """A slice in the smallest of its modes."""
    if not delta.changed:
        return Written(Mode.UNCHANGED)
    wide = delta.changed * _RARE < delta.spec.lanes
    mode, parts = Mode.GAPS16 if wide else Mode.GAPS8, values.parts(delta, wide=wide)
    if delta.whole is not None:
        full = planes.split(delta.spec, delta.whole)
        if planes.stored_size(full) <= planes.stored_size(parts):
            mode, parts = Mode.FULL, full
    return Written(mode, delta.changed, delta.state_delta, parts)


def written_whole(spec: SliceSpec, lanes: Lanes, state_delta: int) -> Written:
    """A slice of which only the lanes after are known."""
    return Written(Mode.FULL, spec.lanes, state_delta, planes.split(spec, lanes))


# --- Decoding ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A shard of which every count has been checked, and whose slices have yet to be taken, in order.

    Attributes:
        slices: Modes and tables.
        digests: What each slice adds to the state digest, as declared.
        reader: What their other parts are taken from; to be closed after the last.
    """

    slices: list[Slice]
    digests: list[int]
    reader: Reader


def decode(
    values: Values[D], data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, base: Base | None = None
) -> Decoded:
    """Reads a shard; arguments and errors as for `DeltaCodec.decode`."""
    opened = read(values, data, specs, raw_size=raw_size)
    pending = [
        _pending(values, item, opened.reader.take, over)
        for item, over in zip(opened.slices, _overs(opened.slices, base), strict=True)
    ]
    opened.reader.close()
    groups = threads.groups(range(len(specs)), lambda at: specs[at].nbytes)
    done = threads.spread(lambda group: [pending[at]() for at in group], groups)
    return Decoded([*chain.from_iterable(done)], [*opened.digests])


def _overs(slices: Sequence[Slice], base: Base | None) -> list[Over | None]:
    """What sparse slices are decoded over, where their lanes before lie in memory."""
    counts = [item.changed for item in slices]
    held = [base.view(at) if base is not None and count else None for at, count in enumerate(counts)]
    wanted = [
        ((count, index_of(item.spec.total)), (count, item.spec.uint))
        for item, count, lanes in zip(slices, counts, held, strict=True)
        if lanes is not None
    ]
    rooms = iter(_rooms([*chain.from_iterable(wanted)]))
    return [None if lanes is None else Over(lanes, next(rooms), next(rooms)) for lanes in held]


def _rooms(wanted: Sequence[tuple[int, np.dtype[Any]]]) -> list[NDArray[Any]]:
    """Arrays in one block of memory: a large one comes in large pages, which are far fewer to be cleared."""
    ends = np.cumsum([count * dtype.itemsize + 7 & ~7 for count, dtype in wanted], dtype=np.int64).tolist()
    block = np.empty(ends[-1] if ends else 0, np.uint8)
    return [
        block[start : start + count * dtype.itemsize].view(dtype)
        for start, (count, dtype) in zip([0, *ends], wanted, strict=False)
    ]


def read(
    values: Values[D], data: bytes, specs: Sequence[SliceSpec], *, raw_size: int, gradual: bool = False
) -> Opened:
    """Opens a shard; arguments and errors as for `DeltaCodec.decode`.

    Args:
        values: The codec's.
        data: The shard.
        specs: Its slices.
        raw_size: What its descriptor declares.
        gradual: Inflate streams as they are taken, and not at once.
    """
    reader = Reader(
        data,
        specs,
        codec=values.codec,
        raw_size=raw_size,
        tables=(MODES, DIGESTS),
        planes=(*values.planes, *planes.FULL),
    )
    modes = _read_modes(reader, specs)
    digests = reader.digests([mode is not Mode.UNCHANGED for mode in modes])
    slices = _read_slices(values, reader, specs, modes)
    sizes = dict.fromkeys(("G", "H", "I", *values.streams, *planes.FULL), 0)
    for item in slices:
        for name, size in item.sizes.items():
            sizes[name] += size
    reader.inflate(sizes, gradual=gradual)
    return Opened(slices, digests, reader)


def _read_modes(reader: Reader, specs: Sequence[SliceSpec]) -> list[Mode]:
    found = reader.modes(len(specs))
    for spec, mode in zip(specs, found, strict=True):
        if mode > (Mode.FULL if spec.lanes else Mode.UNCHANGED):
            raise BadShard(f"slice {spec.label!r} of {spec.lanes} lanes has mode {mode}")
    return [_MODES[mode] for mode in found]


def _read_slices(
    values: Values[D], reader: Reader, specs: Sequence[SliceSpec], modes: Sequence[Mode]
) -> list[Slice]:
    coded = [spec for spec, mode in zip(specs, modes, strict=True) if mode in _CODED]
    rows = [kernels.blocks(spec.lanes) for spec in coded]
    row = 4 * (2 + values.columns)
    reader.inflate({"T": sum(rows) * row})
    table = reader.take("T", sum(rows) * row)
    sums, lengths = iter(_sums(values, coded, rows, table)), iter([row * n for n in rows])
    at = 0
    slices: list[Slice] = []
    for spec, mode in zip(specs, modes, strict=True):
        if mode in _CODED:
            symbols, changed, *own = next(sums)
            sizes = dict(zip(values.streams, own, strict=True))
            for name in "G" if mode is Mode.GAPS8 else "HI":
                sizes[name] = symbols
            end = at + next(lengths)
            slices.append(Slice(spec, mode, sizes, table[at:end], changed))
            at = end
        else:
            slices.append(Slice(spec, mode, planes.sizes(spec, spec.lanes) if mode else {}))
    return slices


def _sums(
    values: Values[D], specs: Sequence[SliceSpec], rows: Sequence[int], stored: Stream
) -> list[list[int]]:
    """Symbols, changes, and bytes in the codec's streams, of each slice, if the counts are possible.

    All rows at once: a shard may have many small slices, and numpy takes its time for each call.
    """
    if not rows:
        return []
    table = np.frombuffer(stored, "<u4").reshape(-1, 2 + values.columns).astype(np.int64)
    symbols, changes, counts = table[:, 0], table[:, 1], table[:, 2:]
    ends = np.cumsum(rows, dtype=np.int64)
    lanes = np.full(len(table), kernels.BLOCK)
    lanes[ends - 1] = [spec.lanes - (n - 1) * kernels.BLOCK for spec, n in zip(specs, rows, strict=True)]
    # A symbol moves the cursor by one lane at least, so none of the sums can overflow.
    bad = (symbols > lanes) | (changes > symbols) | ((changes == 0) != (symbols == 0))
    bad |= values.impossible(changes, counts)
    if bad.any():
        raise _impossible(specs[int(np.searchsorted(ends, bad.argmax(), side="right"))])
    widths = np.repeat([spec.lane_bytes for spec in specs], rows)
    columns = np.column_stack([symbols, changes, *values.sizes(changes, counts, widths)])
    sums: list[list[int]] = np.add.reduceat(columns, ends - rows).tolist()
    for spec, (_, changed, *_) in zip(specs, sums, strict=True):
        if not changed:
            raise _impossible(spec)
    return sums


def _impossible(spec: SliceSpec) -> BadShard:
    return BadShard(f"the counts of the blocks of slice {spec.label!r} are impossible", tensor=spec.name)


def change_of(values: Values[D], item: Slice, take: Take) -> Change:
    """The change of the slice that is next; BadShard where it breaks a rule."""
    return _pending(values, item, take, None)()


def _pending(values: Values[D], item: Slice, take: Take, over: Over | None) -> Pending:
    spec = item.spec
    if item.mode is Mode.UNCHANGED:
        return lambda: Sparse(np.empty(0, np.int64), np.empty(0, spec.uint), relative=False)
    if item.mode is Mode.FULL:
        whole = Whole(planes.join(spec, spec.lanes, take))
        return lambda: whole
    return values.decode(item, take, over)
