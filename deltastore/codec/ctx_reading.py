"""Reading shards of the codec `ctx` (spec, Codec ctx): every count is checked before it is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from deltastore import threads
from deltastore.codec import kernels, planes
from deltastore.codec.bundle import Reader
from deltastore.codec.contexts import (
    CLASSES,
    DENSE,
    LARGEST_RICE,
    ROW,
    Changes,
    CodedSegment,
    Mode,
    Part,
    Row,
    Run,
    field_of,
    segments,
)
from deltastore.codec.types import Base, Change, Decoded, SliceSpec, Sparse, Whole
from deltastore.errors import BadShard

STREAMS: Final = ("M", "T", "E", *DENSE, "G", "U", "X", *planes.FULL, "L", "Y", "W")
"""All streams, in the order in which they are stored."""
_MODES: Final = frozenset(int(mode) for mode in Mode)


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment that is read, and how wide its lanes are."""

    parts: Sequence[Part]
    row: Row
    width: int

    def sizes(self, dense: int) -> Mapping[str, int]:
        """Bytes that it has in each stream."""
        row, changes = self.row, self.row.changes(dense)
        return {
            **dict(zip(DENSE[:dense], row.counts, strict=False)),
            "G": row.unary,
            "L": row.low(dense),
            "U": -(-changes // 4),
            "X": row.near,
            "Y": row.far * self.width,
            "W": row.wide * self.width,
        }


def read(reader: Reader, specs: Sequence[SliceSpec], base: Base) -> Decoded:
    """Decodes a shard; arguments and errors as for `DeltaCodec.decode`."""
    modes, dense = _read_modes(reader, specs)
    coded = [i for i, mode in enumerate(modes) if mode is Mode.CODED]
    # No more segments than there are rows for, and one that there is none for: slices may claim anything.
    most = reader.declared("T") // ROW.size + 1
    found = _read_table(reader, specs, list(islice(segments(specs, coded), most)), dense)
    blocks = sum(part.blocks for segment in found for part in segment.parts)
    origins = np.frombuffer(reader.read("E", blocks), np.uint8)
    streams = _Streams(reader, specs, modes, found, dense)
    coded_segments = [streams.segment(segment) for segment in found]
    changes: dict[int, list[Changes]] = {i: [] for i in coded}

    def decode(at: int) -> list[Changes]:
        runs = [
            Run(base.read(p.index, p.start, p.stop), field_of(specs[p.index].dtype), p.of(origins))
            for p in found[at].parts
        ]
        with _naming(specs, found[at].parts):
            return kernels.ctx_decode(runs, coded_segments[at])

    for segment, each in zip(found, threads.spread(decode, range(len(found))), strict=True):
        for part, found_in in zip(segment.parts, each, strict=True):
            np.add(found_in[0], part.start, out=found_in[0])
            changes[part.index].append(found_in)
    done: list[Change] = []
    for i, (spec, mode) in enumerate(zip(specs, modes, strict=True)):
        done.append(streams.whole(spec) if mode is Mode.FULL else _joined(spec, changes.get(i)))
    return Decoded(done, [None] * len(specs))


def _read_modes(reader: Reader, specs: Sequence[SliceSpec]) -> tuple[list[Mode], int]:
    """The mode of each slice, and the number of dense classes."""
    data = reader.read("M", len(specs) + 1 if specs else 0)
    if not specs:
        return [], 0
    *modes, dense = bytes(data)
    if not _MODES.issuperset(modes) or dense > CLASSES:
        raise BadShard("a slice has a mode that is not known, or there are more than 16 dense classes")
    for spec, mode in zip(specs, modes, strict=True):
        if mode and not spec.lanes:
            raise BadShard(f"slice {spec.label!r} has mode {mode}, and no lanes")
    return [Mode(mode) for mode in modes], dense


def _read_table(
    reader: Reader, specs: Sequence[SliceSpec], parts: Sequence[Sequence[Part]], dense: int
) -> list[_Segment]:
    table = reader.read("T", len(parts) * ROW.size)
    found = []
    for number, of in enumerate(parts):
        row = Row.parse(table[number * ROW.size : (number + 1) * ROW.size])
        with _naming(specs, of):
            _check(row, sum(part.lanes for part in of), dense)
        found.append(_Segment(of, row, specs[of[0].index].lane_bytes))
    return found


@contextmanager
def _naming(specs: Sequence[SliceSpec], parts: Sequence[Part]) -> Iterator[None]:
    """Says of what is refused in a segment between which tensors it is."""
    try:
        yield
    except BadShard as error:
        first, last = specs[parts[0].index], specs[parts[-1].index]
        raise BadShard(
            f"slices {first.label!r} to {last.label!r}: {error.what}", tensor=first.name
        ) from error


def _check(row: Row, lanes: int, dense: int) -> None:
    """Makes sure that a segment of so many lanes can have such a row, so that no size computed from it is."""
    changes = row.changes(dense)
    idle = [r for k, (n, r) in enumerate(zip(row.counts, row.rices, strict=True)) if k < dense or not n]
    if (
        sum(row.counts) > lanes
        or max(row.rices) > LARGEST_RICE
        or any(idle)
        or row.unary * 8 > lanes + 7
        or row.near > changes
        or row.far > row.near
        or row.wide > sum(row.counts[:dense])
    ):
        raise BadShard("the counts of a segment are impossible")


class _Streams:
    """The streams of a shard, handed out segment by segment and slice by slice."""

    def __init__(
        self,
        reader: Reader,
        specs: Sequence[SliceSpec],
        modes: Sequence[Mode],
        found: Sequence[_Segment],
        dense: int,
    ) -> None:
        sizes = Counter(dict.fromkeys(STREAMS[3:], 0))
        for segment in found:
            sizes.update(segment.sizes(dense))
        for spec, mode in zip(specs, modes, strict=True):
            if mode is Mode.FULL:
                sizes.update(planes.sizes(spec, spec.lanes))
        self._dense = dense
        self._open = {name: reader.read(name, size) for name, size in sizes.items()}

    def segment(self, segment: _Segment) -> CodedSegment:
        """The next segment."""
        part = {name: self._next(name, size) for name, size in segment.sizes(self._dense).items()}
        return CodedSegment(
            segment.row,
            unary=part["G"],
            low=part["L"],
            codes=part["U"],
            near=part["X"],
            far=part["Y"],
            wide=part["W"],
            dense=[part[name] for name in DENSE[: self._dense]],
        )

    def whole(self, spec: SliceSpec) -> Whole:
        """The next slice that is stored whole."""
        return Whole(planes.join(spec, spec.lanes, self._next))

    def _next(self, name: str, size: int) -> memoryview:
        held = self._open[name]
        self._open[name] = held[size:]
        return held[:size]


def _joined(spec: SliceSpec, parts: Sequence[Changes] | None) -> Sparse:
    """The changes of a slice from its parts; None if it is unchanged."""
    if parts is None:
        return Sparse(np.empty(0, np.int64), np.empty(0, spec.uint), relative=False)
    found = [part for part in parts if part[0].size]
    if not found:
        raise BadShard(f"slice {spec.label!r} is coded, and nothing changes in it")
    if len(found) == 1:
        return Sparse(*found[0], relative=True)
    return Sparse(
        np.concatenate([positions for positions, _ in found]),
        np.concatenate([steps for _, steps in found]),
        relative=True,
    )
