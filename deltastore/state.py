"""A state in host memory, and changes to one that are not made yet (spec, Words).

Both read lanes by tensor name and flat position; a patch lies over a state, or over nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from deltastore.codec import kernels
from deltastore.codec.types import Positions, SliceSpec, Sparse, uint
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.tensors.host import HostTensor


class Reader(Protocol):
    """Something that holds the bits of a state."""

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes of a tensor at flat positions, as a new array."""
        ...

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` of a tensor; may be a view that is only read."""
        ...

    def view(self, name: str) -> Lanes | None:
        """All lanes of a tensor as they lie in host memory, or None if they do not lie there in a row."""
        ...


class Local(ABC):
    """A reader that can work where its bits lie, on a device say, so that they need not be read.

    To be inherited from: it is asked for once per slice, and protocols are slow to tell.
    """

    @abstractmethod
    def evaluate(self, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
        """New bits of a change to a slice, and what they do to the digest; nothing is written."""

    @abstractmethod
    def slice_digest(self, spec: SliceSpec) -> int:
        """The digest of a slice."""


def evaluate(reader: Reader, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
    """New bits of a change to what a reader holds, and what they do to the digest; nothing is written."""
    if isinstance(reader, Local):
        return reader.evaluate(spec, change)
    return evaluate_here(reader, spec, change)


def evaluate_here(reader: Reader, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
    """The same, from lanes in host memory."""
    view = reader.view(spec.name)
    if view is not None:
        return kernels.patch(spec, view[spec.start : spec.stop], change)

    def read(positions: Positions) -> Lanes:
        return reader.gather(spec.name, positions + spec.start)

    gathered = kernels.gather_words(spec, read, change.positions)
    values = kernels.new_bits(change, gathered.old)
    return values, gathered.delta(values)


def slice_digest(reader: Reader, spec: SliceSpec) -> int:
    """The digest of a slice of what a reader holds."""
    if isinstance(reader, Local):
        return reader.slice_digest(spec)
    return digest_here(reader, spec)


def digest_here(reader: Reader, spec: SliceSpec) -> int:
    """The same, from lanes in host memory."""
    lanes = np.ascontiguousarray(reader.read(spec.name, spec.start, spec.stop))
    return kernels.digest(lanes, tensor_key(spec.name), spec.first_word)


class HostState:
    """All tensors of a schema in host memory.

    Attributes:
        schema: What they are.
    """

    def __init__(self, schema: Schema, lanes: Mapping[str, Lanes]) -> None:
        self.schema = schema
        self._lanes = dict(lanes)

    @classmethod
    def empty(cls, schema: Schema) -> HostState:
        """Memory for a state, not initialised."""
        return cls(schema, {t.name: np.empty(t.lanes, uint(t.lane_bytes)) for t in schema.owners})

    def lanes(self, name: str) -> Lanes:
        """The lanes of a tensor or of the one that it is tied to; writes go through."""
        return self._lanes[self.schema[name].alias_of or name]

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array."""
        taken: Lanes = self.lanes(name)[positions]
        return taken

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """A view of lanes `start` to `stop`."""
        return self.lanes(name)[start:stop]

    def view(self, name: str) -> Lanes | None:
        """All lanes."""
        return self.lanes(name)

    def digest(self) -> int:
        """The state digest, from every byte."""
        return digest_of(self, self.schema)

    def apply(self, patches: Mapping[str, Patch]) -> None:
        """Makes changes."""
        for name, patch in patches.items():
            patch.write_to(self.lanes(name))

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, HostTensor]]:
        """Names and bits, ties included; views."""
        for name in [t.name for t in self.schema.tensors] if names is None else names:
            tensor = self.schema[name]
            yield name, HostTensor(tensor.dtype, tensor.shape, self.lanes(name))


def digest_of(reader: Reader, schema: Schema) -> int:
    """The state digest of whatever a reader holds, from every byte (DS-DIGEST-4)."""
    return sum(slice_digest(reader, SliceSpec.of(tensor)) for tensor in schema.owners) & MASK


@dataclass(frozen=True, slots=True)
class Patch:
    """New bits of some or all lanes of one tensor.

    Attributes:
        tensor: Which.
        positions: Ascending and unique, or None where `values` are all lanes.
        values: Lanes.
    """

    tensor: TensorSpec
    positions: Positions | None
    values: Lanes

    @property
    def count(self) -> int:
        """Lanes that it sets."""
        return int(self.values.size)

    def write_to(self, lanes: Lanes) -> None:
        """Sets them in an array of all lanes of the tensor."""
        if self.positions is None:
            lanes[:] = self.values
        else:
            kernels.scatter(lanes, self.positions, self.values)

    def over(self, earlier: Patch) -> Patch:
        """The patch that does `earlier` and then this; `earlier` is not used afterwards."""
        if self.positions is None:
            return self
        if earlier.positions is None:
            values = earlier.values if earlier.values.flags.writeable else earlier.values.copy()
            values[self.positions] = self.values
            return Patch(self.tensor, None, values)
        merged = _united(earlier.positions, self.positions)
        values = np.empty(merged.size, self.values.dtype)
        values[np.searchsorted(merged, earlier.positions)] = earlier.values
        values[np.searchsorted(merged, self.positions)] = self.values
        return Patch(self.tensor, merged, values)


def _united(one: Positions, other: Positions) -> Positions:
    """Two ascending arrays as one; sorting runs that are sorted already is much faster than a set."""
    both = np.concatenate((one, other))
    both.sort(kind="stable")
    first = np.ones(both.size, np.bool_)
    np.not_equal(both[1:], both[:-1], out=first[1:])
    return both[first]


class Overlay(Local):
    """Patches over a reader, read as one; over nothing, only what patches set may be read."""

    def __init__(self, base: Reader | None) -> None:
        self._base = base
        self.patches: dict[str, Patch] = {}

    def gather(self, name: str, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array."""
        patch = self.patches.get(name)
        if patch is None:
            return self._under(name).gather(name, positions)
        if patch.positions is None:
            taken: Lanes = patch.values[positions]
            return taken
        lanes = self._under(name).gather(name, positions)
        if patch.count:
            slots = np.minimum(np.searchsorted(patch.positions, positions), patch.count - 1)
            hit = patch.positions[slots] == positions
            lanes[hit] = patch.values[slots[hit]]
        return lanes

    def read(self, name: str, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop`."""
        patch = self.patches.get(name)
        if patch is None:
            return self._under(name).read(name, start, stop)
        if patch.positions is None:
            return patch.values[start:stop]
        lanes = self._under(name).read(name, start, stop).copy()
        low, high = np.searchsorted(patch.positions, (start, stop))
        lanes[patch.positions[low:high] - start] = patch.values[low:high]
        return lanes

    def view(self, name: str) -> Lanes | None:
        """All lanes, as they lie in a row in memory; None where they do not, or nothing has set them."""
        patch = self.patches.get(name)
        if patch is None:
            return None if self._base is None else self._base.view(name)
        return patch.values if patch.positions is None else None

    def evaluate(self, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
        """See `Local.evaluate`."""
        if spec.name in self.patches:
            return evaluate_here(self, spec, change)
        return evaluate(self._under(spec.name), spec, change)

    def slice_digest(self, spec: SliceSpec) -> int:
        """See `Local.slice_digest`."""
        if spec.name in self.patches:
            return digest_here(self, spec)
        return slice_digest(self._under(spec.name), spec)

    def put(self, patch: Patch) -> None:
        """Lays a patch over what is there."""
        earlier = self.patches.get(patch.tensor.name)
        self.patches[patch.tensor.name] = patch if earlier is None else patch.over(earlier)

    def _under(self, name: str) -> Reader:
        if self._base is None:
            raise LookupError(f"tensor {name!r} is read before anything has set it")
        return self._base
