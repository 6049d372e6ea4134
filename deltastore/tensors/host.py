"""A tensor in host memory as what it is to the protocol: dtype, shape and lanes (spec, Schema)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltastore.codec import kernels
from deltastore.codec.interface import DeltaCodec
from deltastore.codec.types import Delta, SliceSpec, count_nonfinite, uint
from deltastore.errors import Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import Lanes
from deltastore.tensors.bits import Bits, D

_NUMPY: Final = {
    "bool": "BOOL",
    "int8": "I8",
    "uint8": "U8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""Names of numpy's dtypes, and of those that `ml_dtypes` adds."""


@dataclass(frozen=True, slots=True)
class HostTensor:
    """Bits of a tensor.

    Attributes:
        dtype: A dtype of safetensors.
        shape: In elements.
        lanes: Flat, contiguous, little-endian unsigned integers: elements, or bytes of packed ones.
    """

    dtype: str
    shape: tuple[int, ...]
    lanes: Lanes

    @classmethod
    def of_array(cls, name: str, array: NDArray[Any]) -> HostTensor:
        """The bits of a numpy array; a view where it is contiguous and little-endian.

        Raises:
            Unsupported: A dtype that safetensors does not have.
        """
        dtype = _NUMPY.get(array.dtype.name)
        if dtype is None:
            raise Unsupported(
                f"tensor {name!r} has dtype {array.dtype.name}, which safetensors does not have",
                hint="Cast it, or leave it out",
                tensor=name,
            )
        native = array.astype(array.dtype.newbyteorder("<"), copy=False)
        flat = np.ascontiguousarray(native).reshape(-1)
        return cls(dtype, array.shape, flat.view(uint(dtypes.lane_bytes(dtype))))

    @classmethod
    def of_bytes(cls, dtype: str, shape: tuple[int, ...], data: memoryview | bytes) -> HostTensor:
        """Bits as they lie in a safetensors file; a view."""
        return cls(dtype, shape, np.frombuffer(data, uint(dtypes.lane_bytes(dtype))))

    def array(self) -> NDArray[Any]:
        """As a numpy array: of its own dtype where numpy has one, else of its lanes."""
        name = next((n for n, d in _NUMPY.items() if d == self.dtype), None)
        try:
            dtype = np.dtype(name) if name else None
        except TypeError:
            dtype = None
        if dtype is not None:
            return self.lanes.view(dtype).reshape(self.shape)
        return self.lanes.reshape(self.shape if dtypes.BITS[self.dtype] >= 8 else (-1,))

    @property
    def any_thread(self) -> bool:
        """See `Bits.any_thread`."""
        return True

    def memory(self) -> tuple[object, ...] | None:
        """See `Bits.memory`."""
        if not self.lanes.size:
            return None
        return (self.lanes.__array_interface__["data"][0], self.lanes.strides, self.dtype, self.shape)

    def read(self, start: int, stop: int) -> Lanes:
        """See `Bits.read`."""
        return self.lanes[start:stop]

    def copy(self) -> HostTensor:
        """See `Bits.copy`."""
        return HostTensor(self.dtype, self.shape, self.lanes.copy())

    def same(self, other: Bits) -> bool:
        """See `Bits.same`."""
        return np.array_equal(self.lanes, other.read(0, self.lanes.size))

    def nonfinite(self) -> int:
        """See `Bits.nonfinite`."""
        return count_nonfinite(self.dtype, self.lanes)

    def digest(self, key: int) -> int:
        """See `Bits.digest`."""
        return kernels.digest(np.ascontiguousarray(self.lanes), key)

    def near(self, other: Bits) -> HostTensor:
        """See `Bits.near`."""
        if isinstance(other, HostTensor):
            return other
        return HostTensor(other.dtype, other.shape, other.read(0, self.lanes.size).copy())

    def move(self, codec: DeltaCodec[D], spec: SliceSpec, new: Bits) -> D:
        """See `Bits.move`."""
        return codec.diff(spec, self.lanes[spec.start : spec.stop], new.read(spec.start, spec.stop))

    def undo(self, delta: Delta) -> None:
        """See `Bits.undo`."""
        delta.undo(self.lanes[delta.spec.start : delta.spec.stop])
