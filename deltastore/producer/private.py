"""A private copy of all weights: what a producer takes in, and what it compares the next ones with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from deltastore.protocol.digest import MASK, tensor_key
from deltastore.protocol.schema import Schema, TensorSpec
from deltastore.state import HostState
from deltastore.tensors.bits import Bits
from deltastore.tensors.host import HostTensor


class PrivateState:
    """Tensors in memory that nobody else writes to, each in host memory or on the device that it came from.

    Attributes:
        schema: What they are.
    """

    def __init__(self, schema: Schema, bits: Mapping[str, Bits]) -> None:
        self.schema = schema
        self._bits = dict(bits)

    @classmethod
    def of(cls, state: HostState) -> PrivateState:
        """A state in host memory that nobody else uses; a view."""
        owners = state.schema.owners
        return cls(state.schema, {t.name: HostTensor(t.dtype, t.shape, state.lanes(t.name)) for t in owners})

    @classmethod
    def copied(cls, schema: Schema, tensors: Iterable[tuple[TensorSpec, Bits]]) -> PrivateState:
        """Copies of all tensors of a schema that own their storage."""
        return cls(schema, {spec.name: bits.copy() for spec, bits in tensors})

    def __getitem__(self, name: str) -> Bits:
        return self._bits[name]

    def near(self, name: str, other: Bits) -> Bits:
        """A tensor where another one lies, to be compared with it; it stays there."""
        self._bits[name] = other.near(self._bits[name])
        return self._bits[name]

    def digest(self) -> int:
        """The state digest, from every byte (DS-DIGEST-4); whatever was queued on a device is done then."""
        return sum(self._bits[t.name].digest(tensor_key(t.name)) for t in self.schema.owners) & MASK

    def tensors(self) -> Iterator[tuple[TensorSpec, Bits]]:
        """The tensors that own their storage."""
        for tensor in self.schema.owners:
            yield tensor, self._bits[tensor.name]

    def drain(self) -> Iterator[tuple[TensorSpec, Bits]]:
        """The same, for the last time: each is let go of when the next one is asked for."""
        for tensor in self.schema.owners:
            yield tensor, self._bits.pop(tensor.name)
