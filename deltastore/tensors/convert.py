"""Whatever trainers and servers hold, torch or numpy, as named bits; torch is touched only if it is used."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from deltastore.errors import Unsupported
from deltastore.tensors.bits import Bits
from deltastore.tensors.host import HostTensor

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor | NDArray[Any] | HostTensor
    Weights = torch.nn.Module | Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]

Compare = Literal["auto", "host", "device"]
"""Where torch tensors are compared; `auto` is on the device, for those that do not lie in host memory."""

_DICT_ITEMS: type = type({}.items())


def is_module(value: object) -> TypeGuard[torch.nn.Module]:
    """Whether it is a torch module."""
    return _is(value, getattr(_torch(), "nn", None), "Module")


def is_torch(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a torch tensor."""
    return _is(value, _torch(), "Tensor")


def _torch() -> object:
    return sys.modules.get("torch")


def _is(value: object, module: object, name: str) -> bool:
    """Where the class is not there yet, because another thread is importing torch, nothing is one."""
    kind = getattr(module, name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def pairs(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of a module's state, a state dict, or an iterable of pairs."""
    if is_module(weights):
        yield from weights.state_dict(keep_vars=True).items()
    elif isinstance(weights, Mapping):
        yield from weights.items()
    else:
        yield from weights  # type: ignore[misc]


def stable(weights: Weights) -> bool:
    """Whether all tensors live at once, so that shared memory is a tie.

    An iterator may reuse it, and so may a mapping or view that makes its tensors when it is asked.
    """
    return is_module(weights) or isinstance(weights, dict | _DICT_ITEMS | list | tuple)


def private(tensor: Tensor) -> Tensor:
    """A copy in host memory of what may be overwritten before it is used; no tie survives it."""
    if is_torch(tensor):
        return tensor.detach().to("cpu", copy=True)
    if isinstance(tensor, HostTensor):
        return HostTensor(tensor.dtype, tensor.shape, tensor.lanes.copy())
    return tensor.copy() if isinstance(tensor, np.ndarray) else tensor


def to_bits(name: str, tensor: Tensor, *, cast: str | None = None, compare: Compare = "auto") -> Bits:
    """The bits of a tensor where it is to be compared; arguments and errors as for `to_host`."""
    if is_torch(tensor) and (compare == "device" or (compare == "auto" and tensor.device.type != "cpu")):
        from deltastore.tensors.device import DeviceTensor

        return DeviceTensor.of(name, tensor, cast=cast)
    return to_host(name, tensor, cast=cast)


def to_host(name: str, tensor: Tensor, *, cast: str | None = None) -> HostTensor:
    """The bits of a tensor; a view where that is possible. `cast` applies to torch tensors.

    Raises:
        Unsupported: Not a tensor, or of a dtype or layout that safetensors does not have.
    """
    if isinstance(tensor, HostTensor):
        return tensor
    if isinstance(tensor, np.ndarray):
        return HostTensor.of_array(name, tensor)
    if is_torch(tensor):
        from deltastore.tensors import torch as adapter

        return adapter.to_host(name, tensor, cast=cast)
    raise Unsupported(
        f"{name!r} is a {type(tensor).__name__}, not a tensor",
        hint="Pass torch tensors or numpy arrays",
        tensor=name,
    )


def memory_of(tensor: Tensor) -> tuple[object, ...] | None:
    """What two tensors share if they are the same view of the same memory; None where there is none."""
    if is_torch(tensor):
        from deltastore.tensors import torch as adapter

        return adapter.storage_key(tensor)
    if isinstance(tensor, HostTensor):
        return tensor.memory()
    if not isinstance(tensor, np.ndarray) or tensor.size == 0:
        return None
    return (tensor.__array_interface__["data"][0], tensor.dtype.str, tensor.shape, tensor.strides)
