"""Two versions of a store beside each other: schemas, and the bits of the tensors that both have.

Tensors are read in the groups that shards are cut in, so that no shard is fetched once per tensor and memory
is that of a few shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from deltastore.consumer import Consumer
from deltastore.protocol.digest import Lanes
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.replay import schema_of
from deltastore.slicing import cut
from deltastore.store import Store, VersionInfo

_CHUNK: Final = 1 << 22
"""Lanes compared at once."""

Steps = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """How one tensor differs between two versions.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        lanes: Elements in all; bytes where they are packed.
        changed: How many differ.
        steps: How many of these moved by 1, by 2, by 3 to 127 and by more, as bit patterns.
    """

    name: str
    dtype: str
    lanes: int
    changed: int
    steps: Steps


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """One difference of two schemas; `before` and `after` say what the tensor is there."""

    what: Literal["added", "removed", "retyped", "retied"]
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs.

    Attributes:
        schema: Tensors that are not the same kind of thing in both; their bits are not compared.
        tensors: All that are, in the order of the schema.
    """

    schema: list[SchemaChange]
    tensors: list[TensorDiff]

    @property
    def total(self) -> TensorDiff:
        """The sum over all tensors."""
        by_1, by_2, by_127, more = (sum(t.steps[i] for t in self.tensors) for i in range(4))
        lanes, changed = (sum(t.lanes for t in self.tensors), sum(t.changed for t in self.tensors))
        return TensorDiff("", "", lanes, changed, (by_1, by_2, by_127, more))


def compare(
    store: Store,
    a: VersionInfo,
    b: VersionInfo,
    *,
    base: Path | None = None,
    progress: Callable[[int, int], None],
) -> Comparison:
    """Compares two versions.

    Args:
        store: Where they are.
        a: One.
        b: The other.
        base: This machine's copy of the external base, if it takes one.
        progress: Told after each group of tensors: bytes of weights compared, and in all.

    Raises:
        NoSuchVersion: One of them holds no weights.
        NoPath: One of them cannot be rebuilt.
    """
    before, after = (schema_of(store, store.log.require(info.version)) for info in (a, b))
    changes = list(schema_changes(before, after))
    alike = [tensor for tensor in after.owners if _same_kind(before, tensor)]
    if (a.schema, a.state) == (b.schema, b.state):
        return Comparison(changes, [TensorDiff(t.name, t.dtype, t.lanes, 0, (0, 0, 0, 0)) for t in alike])
    found = []
    done, goal = 0, sum(tensor.nbytes for tensor in alike)
    with Consumer(store, base=base) as consumer:
        for names in _groups(after, {tensor.name for tensor in alike}):
            old = dict(consumer.host_tensors(a.version, names))
            for name, tensor in consumer.host_tensors(b.version, names):
                changed, steps = differing(old[name].lanes, tensor.lanes)
                found.append(TensorDiff(name, tensor.dtype, tensor.lanes.size, changed, steps))
                done += after[name].nbytes
            progress(done, goal)
    return Comparison(changes, found)


def differing(old: Lanes, new: Lanes) -> tuple[int, Steps]:
    """How many lanes differ, and by how much as bit patterns, the shorter way round."""
    changed = by_1 = by_2 = by_127 = 0
    for start in range(0, old.size, _CHUNK):
        before, after = old[start : start + _CHUNK], new[start : start + _CHUNK]
        hits = before != after
        forth = after[hits] - before[hits]
        far = np.minimum(forth, np.zeros_like(forth) - forth)
        changed += far.size
        by_1 += int(np.count_nonzero(far == 1))
        by_2 += int(np.count_nonzero(far == 2))
        by_127 += int(np.count_nonzero((far > 2) & (far <= 127)))
    return changed, (by_1, by_2, by_127, changed - by_1 - by_2 - by_127)


def schema_changes(before: Schema, after: Schema) -> Iterator[SchemaChange]:
    """What two schemas do not have in common, by name."""
    here, there = ({t.name: t for t in schema.tensors} for schema in (before, after))
    for name in sorted(here.keys() | there.keys()):
        old, new = here.get(name), there.get(name)
        if old is None and new is not None:
            yield SchemaChange("added", name, None, _described(new))
        elif new is None and old is not None:
            yield SchemaChange("removed", name, _described(old), None)
        elif old is not None and new is not None and old != new:
            same = (old.dtype, old.shape) == (new.dtype, new.shape)
            yield SchemaChange("retied" if same else "retyped", name, _described(old), _described(new))


def _groups(schema: Schema, wanted: set[str]) -> Iterator[list[str]]:
    """Names by the shards that they are cut into; a tensor of many parts once."""
    left = set(wanted)
    for group in cut(schema):
        names = [name for name in dict.fromkeys(one.tensor.name for one in group) if name in left]
        left.difference_update(names)
        if names:
            yield names


def _same_kind(before: Schema, tensor: TensorSpec) -> bool:
    if tensor.name not in before:
        return False
    old = before[tensor.name]
    return (old.dtype, old.shape) == (tensor.dtype, tensor.shape)


def _described(tensor: TensorSpec) -> str:
    tied = "" if tensor.alias_of is None else f", tied to {tensor.alias_of}"
    return f"{tensor.dtype}{list(tensor.shape)}{tied}"
