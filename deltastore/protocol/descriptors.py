"""Descriptors: what is known of an object before it is fetched (spec, Descriptors and slices)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol import limits
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.protocol.wire import Fields, Value


@dataclass(frozen=True, slots=True)
class Descriptor:
    """An object by its content."""

    sha256: str
    size: int

    def to_value(self) -> Value:
        """As stored."""
        return {"sha256": bytes.fromhex(self.sha256), "size": self.size}

    @classmethod
    def read(cls, fields: Fields) -> Descriptor:
        """Reads one from a map."""
        return cls(fields.digest("sha256"), fields.integer("size"))


@dataclass(frozen=True, slots=True)
class Run:
    """A run of whole tensors of the schema; aliases inside it carry nothing."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Part:
    """Lanes `start` to `stop` of one tensor; both are multiples of 8 bytes, or `stop` is its end."""

    tensor: int
    start: int
    stop: int


Slices = tuple[Run | Part, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of lanes of a tensor that owns its storage, resolved against a schema."""

    tensor: TensorSpec
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of weights that it covers."""
        return (self.stop - self.start) * self.tensor.lane_bytes


@dataclass(frozen=True, slots=True)
class ShardDescriptor:
    """A shard, and all that is needed to plan for it.

    Attributes:
        sha256: Of the stored bytes; the shard's name.
        xxh3: XXH3-64 of the stored bytes, for cheap checks of a cached copy.
        size: Stored bytes.
        raw_size: Bytes of all its streams once inflated.
        codec: Its codec's id.
        state_delta: What it adds to the state digest, modulo 2^64.
        slices: What it covers.
    """

    sha256: str
    xxh3: int
    size: int
    raw_size: int
    codec: str
    state_delta: int
    slices: Slices

    def to_value(self) -> Value:
        """As stored."""
        return {
            "sha256": bytes.fromhex(self.sha256),
            "xxh3": self.xxh3.to_bytes(8, "big"),
            "size": self.size,
            "raw_size": self.raw_size,
            "codec": self.codec,
            "state_delta": self.state_delta.to_bytes(8, "big"),
            "slices": [
                [s.first, s.count] if isinstance(s, Run) else [s.tensor, s.start, s.stop] for s in self.slices
            ],
        }

    @classmethod
    def read(cls, fields: Fields) -> ShardDescriptor:
        """Reads one from a map."""
        rows = fields.array("slices", most=limits.SLICES_PER_SHARD)
        return cls(
            sha256=fields.digest("sha256"),
            xxh3=fields.word("xxh3"),
            size=fields.integer("size", most=limits.SHARD_BYTES),
            raw_size=fields.integer("raw_size"),
            codec=fields.text("codec", most=64),
            state_delta=fields.word("state_delta"),
            slices=tuple(_slice(row, fields.where) for row in rows),
        )


def resolve(schema: Schema, slices: Slices) -> Iterator[Slice]:
    """The slices of a shard against its schema, in order (DS-DESC-3).

    Raises:
        BadRecord: A slice outside the schema or its tensor, of an alias, out of order, or not on an
            8-byte boundary.
    """
    free = (0, 0)
    for item in slices:
        begin = (item.first, 0) if isinstance(item, Run) else (item.tensor, item.start)
        if begin < free:
            raise BadRecord(f"slice {item} is out of order or overlaps the one before it")
        last = item.first + item.count if isinstance(item, Run) else item.tensor + 1
        if last > len(schema.tensors):
            raise BadRecord(f"slice {item} is past the {len(schema.tensors)} tensors of the schema")
        free = (last, 0) if isinstance(item, Run) else (item.tensor, item.stop)
        if isinstance(item, Run):
            for tensor in schema.tensors[item.first : last]:
                if tensor.alias_of is None:
                    yield Slice(tensor, 0, tensor.lanes)
        else:
            yield _part(schema.tensors[item.tensor], item)


def compress(schema: Schema, slices: Sequence[Slice]) -> Slices:
    """Run-length codes slices that are in schema order; the inverse of `resolve`."""
    coded: list[Run | Part] = []
    for one in slices:
        index = schema.index(one.tensor.name)
        if (one.start, one.stop) != (0, one.tensor.lanes):
            coded.append(Part(index, one.start, one.stop))
        elif coded and isinstance(last := coded[-1], Run) and _adjacent(schema, last, index):
            coded[-1] = Run(last.first, index - last.first + 1)
        else:
            coded.append(Run(index, 1))
    return tuple(coded)


def check_cover(schema: Schema, shards: Iterable[ShardDescriptor]) -> None:
    """Checks that shards cover every lane exactly once, and declare sane sizes (DS-DESC-4, DS-DESC-5).

    Raises:
        BadRecord: A lane is covered twice or not at all.
        LimitExceeded: A `raw_size` that no honest encoder can reach.
    """
    seen: dict[str, list[tuple[int, int]]] = {}
    left = schema.nbytes
    for shard in shards:
        covered = count = 0
        for one in resolve(schema, shard.slices):
            ranges = seen.setdefault(one.tensor.name, [])
            covered += one.nbytes
            left -= one.nbytes
            count += 1
            if left < 0 or (ranges and one.nbytes == 0):
                raise _uncovered(one.tensor)
            ranges.append((one.start, one.stop))
        if shard.raw_size > limits.max_raw(covered, count):
            raise LimitExceeded(
                f"shard {shard.sha256} declares {shard.raw_size} inflated bytes for {covered} bytes "
                "of weights",
                shard=shard.sha256,
            )
    for tensor in schema.owners:
        at = 0
        for start, stop in sorted(seen.get(tensor.name, [])):
            if start != at:
                break
            at = stop
        else:
            if at == tensor.lanes and tensor.name in seen:
                continue
        raise _uncovered(tensor)


def _uncovered(tensor: TensorSpec) -> BadRecord:
    return BadRecord(f"the shards do not cover tensor {tensor.name!r} exactly once", tensor=tensor.name)


def _adjacent(schema: Schema, run: Run, index: int) -> bool:
    between = schema.tensors[run.first + run.count : index]
    return all(tensor.alias_of is not None for tensor in between)


def _slice(row: object, where: str) -> Run | Part:
    if isinstance(row, tuple) and all(type(n) is int and 0 <= n <= limits.MAX_INT for n in row):
        match row:
            case (first, count) if count > 0:
                return Run(first, count)
            case (tensor, start, stop) if start < stop:
                return Part(tensor, start, stop)
    raise BadRecord(f"{where}: {str(row)[:80]} is not a slice")


def _part(tensor: TensorSpec, part: Part) -> Slice:
    aligned = part.start * tensor.lane_bytes % 8 == 0 and (
        part.stop * tensor.lane_bytes % 8 == 0 or part.stop == tensor.lanes
    )
    if tensor.alias_of is not None or part.stop > tensor.lanes or not aligned:
        raise BadRecord(
            f"slice {part.start}:{part.stop} of tensor {tensor.name!r} is outside it, of an alias, or "
            "not on 8-byte boundaries",
            tensor=tensor.name,
        )
    return Slice(tensor, part.start, part.stop)
