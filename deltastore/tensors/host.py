"""A tensor in host memory as what it is to the protocol: dtype, shape and lanes (spec, Schema)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deltastore.codec.types import uint
from deltastore.errors import SchemaMismatch, Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import Lanes

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

    def require(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Checks it against a schema.

        Raises:
            SchemaMismatch: Another dtype or shape.
        """
        if (self.dtype, self.shape) != (dtype, shape):
            raise SchemaMismatch(
                f"tensor {name!r} is {self.dtype}{list(self.shape)}, the schema has {dtype}{list(shape)}",
                hint="Publish it as it was, or with new_schema=True",
                tensor=name,
            )
