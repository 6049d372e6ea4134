"""torch tensors as bit patterns and back; below consumers only this module and `device` import torch."""

from __future__ import annotations

from typing import Final

import torch

from deltastore.codec.types import uint
from deltastore.errors import Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import Lanes
from deltastore.tensors.host import HostTensor

NAMES: Final = {
    torch.bool: "BOOL",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float4_e2m1fn_x2: "F4",
}
DTYPES: Final = {name: dtype for dtype, name in NAMES.items()}

_VIEWS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer types that torch can index and scatter, by width; the sign does not matter to bits."""
_PAIRS: Final = torch.float4_e2m1fn_x2
_FLOATS: Final = frozenset(
    name for dtype, name in NAMES.items() if dtype.is_floating_point and dtype is not _PAIRS
)
"""What is cast into one another: precision is lost, but no meaning."""


def dtype_of(name: str, tensor: torch.Tensor) -> str:
    """The safetensors dtype of a tensor.

    Raises:
        Unsupported: There is none, or the tensor is not dense.
    """
    dtype = NAMES.get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided or (dtype == "F4" and not tensor.dim()):
        raise Unsupported(
            f"tensor {name!r} is {tensor.layout} of {tensor.dtype}, which safetensors does not have",
            hint="Cast it to a dense dtype of safetensors, or leave it out",
            tensor=name,
        )
    if tensor.is_meta:
        raise Unsupported(f"tensor {name!r} has no memory: it is on the meta device", tensor=name)
    return dtype


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape in elements; torch counts packed pairs of 4-bit elements as one."""
    shape = tuple(tensor.shape)
    return (*shape[:-1], shape[-1] * 2) if tensor.dtype is _PAIRS else shape


def to_host(name: str, tensor: torch.Tensor, *, cast: str | None = None) -> HostTensor:
    """The bits of a tensor in host memory; a view where it is contiguous, on the CPU and not cast.

    Arguments and errors as for `flat`.
    """
    dtype, shape, lanes = flat(name, tensor, cast=cast)
    return HostTensor(dtype, shape, fetch(lanes, dtype))


def flat(
    name: str, tensor: torch.Tensor, *, cast: str | None = None
) -> tuple[str, tuple[int, ...], torch.Tensor]:
    """Dtype, shape and bits of a tensor where it lies: a view where it is contiguous and not cast.

    Args:
        name: For messages.
        tensor: Of any device, strides and dtype of safetensors.
        cast: The dtype to convert to first, on the tensor's own device.

    Raises:
        Unsupported: A dtype or layout that safetensors does not have, or a cast that is not from one
            kind of float to another.
    """
    value = tensor.detach()
    dtype = dtype_of(name, value)
    if cast is not None and cast != dtype:
        if not {cast, dtype} <= _FLOATS:
            raise Unsupported(f"tensor {name!r} cannot be cast from {dtype} to {cast}", tensor=name)
        value, dtype = value.to(DTYPES[cast]), cast
    return dtype, shape_of(value), bits(value).contiguous().reshape(-1)


def from_host(host: HostTensor) -> torch.Tensor:
    """A tensor of its own memory with these bits.

    Raises:
        Unsupported: torch has no such dtype.
    """
    dtype = DTYPES.get(host.dtype)
    if dtype is None:
        raise Unsupported(f"torch has no dtype {host.dtype}", hint="Read it as a host tensor")
    shape = (*host.shape[:-1], host.shape[-1] // 2) if dtype is _PAIRS else host.shape
    return integers(host.lanes.copy()).reshape(shape).view(dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers that torch can index; any strides."""
    return tensor.resolve_conj().resolve_neg().view(_VIEWS[tensor.element_size()])


def integer(width: int) -> torch.dtype:
    """What lanes of so many bytes are to torch."""
    return _VIEWS[width]


def integers(lanes: Lanes) -> torch.Tensor:
    """Writable lanes as integers on the CPU; a view."""
    width = lanes.itemsize
    return torch.from_numpy(lanes.view(f"<{'u' if width == 1 else 'i'}{width}"))


def fetch(flat: torch.Tensor, dtype: str, *, copy: bool = False) -> Lanes:
    """Flat integers as lanes in host memory, a view where they lie there and no copy is asked for.

    Whatever leaves a device in bulk leaves it here.
    """
    lanes: Lanes = flat.to("cpu", copy=copy).numpy().view(uint(dtypes.lane_bytes(dtype)))
    return lanes


def storage_key(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """What two tensors share if and only if they are the same view of the same memory; None if empty."""
    if tensor.numel() == 0 or tensor.is_meta or tensor.layout is not torch.strided:
        return None
    view = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), *view)
