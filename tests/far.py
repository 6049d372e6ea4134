"""A device in name only: CPU tensors that behave as if they lay somewhere else, and a count of what crosses.

Within `Far()`, tensors that are made on `FAR` or brought there are of a class of their own. Reading one as an
array, or mixing one with a tensor of the host in an operation, fails as on any real device. Only `cpu`, `to`,
`copy_` and `item` cross over; how many bytes of them is counted, each way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FAR = torch.device("privateuseone", 0)
_CPU = torch.device("cpu")


class FarTensor(torch.Tensor):
    """A tensor that says that it lies on `FAR`."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return FAR


class Far(TorchFunctionMode):
    """While it is entered, there is a device `FAR`.

    Attributes:
        fetched: Bytes that have left the device.
        sent: Bytes that were brought to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0
        self.sent = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        tensors = [t for t in _leaves((args, given)) if isinstance(t, torch.Tensor)]
        far = any(isinstance(t, FarTensor) for t in tensors)
        devices = (d for d in _leaves((args, given)) if isinstance(d, torch.device | str) and _is(d))
        wanted = next(devices, None)
        plain_args, plain_given = _mapped(_plain, args), _mapped(_plain, given)
        if name == "copy_":
            return self._copy(args, func(*plain_args, **plain_given))
        if name == "cpu" or (name == "to" and wanted is not None):
            return self._moved(args[0], func(*plain_args, **plain_given), wanted)
        if name == "numpy" and far:
            raise TypeError("can't convert a tensor of another device to numpy")
        if name in {"item", "tolist", "__bool__", "__int__", "__index__", "equal"} and far:
            self.fetched += 8
            return func(*plain_args, **plain_given)
        mixed = [t for t in tensors if not isinstance(t, FarTensor) and t.dim()]
        if far and mixed:
            raise RuntimeError(f"{name}: tensors lie on two devices")
        found = func(*plain_args, **plain_given)
        there = far or (wanted is not None and torch.device(wanted) == FAR)
        return _mapped(_far, found) if there else found

    def _copy(self, args: Any, _done: torch.Tensor) -> torch.Tensor:
        into, source = args[0], args[1]
        size = source.numel() * source.element_size()
        if isinstance(into, FarTensor) != isinstance(source, FarTensor):
            self.sent += size if isinstance(into, FarTensor) else 0
            self.fetched += 0 if isinstance(into, FarTensor) else size
        return into  # type: ignore[no-any-return]

    def _moved(self, tensor: torch.Tensor, found: torch.Tensor, wanted: Any) -> torch.Tensor:
        there = wanted is not None and torch.device(wanted) == FAR
        size = found.numel() * found.element_size()
        if isinstance(tensor, FarTensor) and not there:
            self.fetched += size
            return found.clone() if found.data_ptr() == tensor.data_ptr() else found
        if there and not isinstance(tensor, FarTensor):
            self.sent += size
            return far(found.clone())
        return far(found) if there else found


def far(tensor: torch.Tensor) -> FarTensor:
    """The same memory, on `FAR`."""
    return tensor.detach().as_subclass(FarTensor)


def near(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, on the host: for tests to look at."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.as_subclass(torch.Tensor)


def _is(value: torch.device | str) -> bool:
    try:
        return torch.device(value) in {FAR, _CPU}
    except RuntimeError:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, FarTensor):
        return near(value)
    if isinstance(value, torch.device) and value == FAR:
        return _CPU
    return value


def _far(value: Any) -> Any:
    return value.as_subclass(FarTensor) if isinstance(value, torch.Tensor) else value


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_mapped(change, one) for one in value)
    if isinstance(value, dict):
        return {key: _mapped(change, one) for key, one in value.items()}
    return change(value)


def _leaves(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple | list):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _leaves(one)
    else:
        yield value
