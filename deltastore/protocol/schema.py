"""The schema: names, dtypes, shapes and ties of a model's tensors (spec, Schema)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from deltastore.errors import BadRecord, LimitExceeded, Unsupported
from deltastore.protocol import dtypes, limits
from deltastore.protocol.wire import pack, sha256, unpack

METADATA: Final = "__metadata__"
"""What files of safetensors keep for themselves; no tensor is called so."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a schema.

    Attributes:
        name: Its name in the checkpoint.
        dtype: A dtype of safetensors, such as `BF16`.
        shape: Its dimensions; `()` is a scalar.
        alias_of: The tensor whose storage it shares, or None if it owns its own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    alias_of: str | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return dtypes.BITS[self.dtype] * math.prod(self.shape) // 8

    @property
    def lane_bytes(self) -> int:
        """Bytes per lane: an element, or a byte of packed sub-byte elements."""
        return dtypes.lane_bytes(self.dtype)

    @property
    def lanes(self) -> int:
        """Lanes of its data."""
        return self.nbytes // self.lane_bytes


@dataclass(frozen=True)
class Schema:
    """The tensors of a model, ascending by name (UTF-8 bytes); its bytes are canonical (DS-SCHEMA-1).

    Raises:
        BadRecord: Order, names, dtypes, shapes or ties break a rule of the spec.
        LimitExceeded: Too many tensors or dimensions.
        Unsupported: Packed elements that do not fill whole bytes, or a tensor called `__metadata__`.
    """

    tensors: tuple[TensorSpec, ...]
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_index", {t.name: i for i, t in enumerate(self.tensors)})
        _check(self.tensors, self._index)

    @classmethod
    def of(cls, tensors: Iterable[TensorSpec]) -> Schema:
        """The schema of tensors in any order."""
        return cls(tuple(sorted(tensors, key=lambda t: t.name.encode())))

    @classmethod
    def from_bytes(cls, data: bytes) -> Schema:
        """Reads a stored schema."""
        fields = unpack(data, where="schema", max_bytes=limits.SCHEMA_BYTES)
        rows = fields.array("tensors", most=limits.TENSORS)
        schema = cls(tuple(_tensor(row) for row in rows))
        if schema.data != data:
            raise BadRecord("schema: its bytes are not canonical, so its SHA-256 would not be its name")
        return schema

    @cached_property
    def data(self) -> bytes:
        """What is stored."""
        rows = [[t.name, t.dtype, list(t.shape), t.alias_of] for t in self.tensors]
        return pack({"tensors": rows})

    @cached_property
    def sha256(self) -> str:
        """Its name as an object, and half of the identity of a state."""
        return sha256(self.data)

    @cached_property
    def owners(self) -> tuple[TensorSpec, ...]:
        """The tensors that own their storage."""
        return tuple(t for t in self.tensors if t.alias_of is None)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of a whole state."""
        return sum(t.nbytes for t in self.owners)

    @cached_property
    def lanes(self) -> int:
        """Lanes of a whole state."""
        return sum(t.lanes for t in self.owners)

    def __getitem__(self, name: str) -> TensorSpec:
        return self.tensors[self._index[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._index

    def index(self, name: str) -> int:
        """Position of a tensor, as slices name it."""
        return self._index[name]


def _tensor(row: object) -> TensorSpec:
    match row:
        case (str(name), str(dtype), tuple(shape), alias) if alias is None or isinstance(alias, str):
            if all(type(n) is int and 0 <= n <= limits.MAX_INT for n in shape):
                return TensorSpec(name, dtype, shape, alias)
    raise BadRecord(f"schema: {str(row)[:120]} is not [name, dtype, shape, alias_of]")


def _check(tensors: tuple[TensorSpec, ...], index: dict[str, int]) -> None:
    if len(tensors) > limits.TENSORS:
        raise LimitExceeded(f"schema: {len(tensors)} tensors, at most {limits.TENSORS}")
    before = b""
    for position, tensor in enumerate(tensors):
        name = tensor.name.encode()
        if not 0 < len(name) <= limits.NAME_BYTES or (position and name <= before):
            raise BadRecord(
                f"schema: {tensor.name[:80]!r} is empty, too long, out of order or there twice",
                tensor=tensor.name[:80],
            )
        before = name
        if tensor.name == METADATA:
            raise Unsupported(
                f"a tensor is called {METADATA}, which safetensors keeps for itself",
                hint="Rename it",
                tensor=METADATA,
            )
        _check_shape(tensor)
        if tensor.alias_of is not None:
            _check_alias(tensor, tensors, index)


def _check_shape(tensor: TensorSpec) -> None:
    if tensor.dtype not in dtypes.BITS:
        raise Unsupported(
            f"tensor {tensor.name!r} has the unknown dtype {tensor.dtype[:40]!r}",
            hint="The dtypes are those of safetensors",
            tensor=tensor.name,
        )
    if len(tensor.shape) > limits.DIMENSIONS:
        raise LimitExceeded(f"tensor {tensor.name!r} has {len(tensor.shape)} dimensions")
    size = 1
    for n in tensor.shape:
        size *= n
        if size > limits.MAX_INT // 8:
            raise LimitExceeded(f"tensor {tensor.name!r} has more than 2^50 elements")
    if dtypes.byte_length(tensor.dtype, size) is None:
        raise Unsupported(
            f"tensor {tensor.name!r}: {size} elements of {tensor.dtype} do not fill whole bytes",
            hint="Pad its last dimension",
            tensor=tensor.name,
        )


def _check_alias(tensor: TensorSpec, tensors: tuple[TensorSpec, ...], index: dict[str, int]) -> None:
    owner = tensors[index[tensor.alias_of]] if tensor.alias_of in index else None
    if (
        owner is None
        or owner.alias_of is not None
        or (owner.dtype, owner.shape) != (tensor.dtype, tensor.shape)
    ):
        raise BadRecord(
            f"schema: {tensor.name!r} is tied to {str(tensor.alias_of)[:80]!r}, which is no tensor of "
            "the same dtype and shape with storage of its own",
            tensor=tensor.name,
        )
