"""One tensor of a target: where its bits are read, and how new ones get in (spec, Reading)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.typing import NDArray

from deltastore.codec import kernels
from deltastore.codec.types import Positions, uint
from deltastore.errors import Unsupported
from deltastore.protocol import dtypes
from deltastore.protocol.digest import Lanes
from deltastore.state import Patch
from deltastore.tensors.convert import is_torch
from deltastore.tensors.host import HostTensor
from deltastore.tensors.overlap import Extent, overlaps_itself

if TYPE_CHECKING:
    import torch

    from deltastore.tensors.convert import Tensor


class Write(Protocol):
    """New bits for one tensor, ready to go in without I/O or allocation; applied and undone in turn."""

    def apply(self) -> None:
        """Puts the new bits in."""
        ...

    def undo(self) -> None:
        """Puts the old bits back, also after an `apply` that broke off."""
        ...


class Posted(ABC):
    """A write to a device, which goes on behind `apply`; inherited, since a commit asks each write for it."""

    @abstractmethod
    def arrived(self) -> torch.Tensor:
        """On the device: 0 if it holds the new bits; reading it waits for them."""


def check_arrived(writes: Iterable[Write]) -> None:
    """Waits until what was written to devices is there, bit for bit; one number comes back from each device.

    Raises:
        RuntimeError: It is not.
    """
    found: dict[object, torch.Tensor] = {}
    for write in writes:
        if isinstance(write, Posted):
            off = write.arrived()
            found[off.device] = found[off.device] + off if off.device in found else off
    if any(int(off.item()) for off in found.values()):
        raise RuntimeError("a device holds other bits than were written to it")


class Place(Protocol):
    """One tensor; it may be `state.Local` too."""

    dtype: str
    shape: tuple[int, ...]
    extent: Extent

    def gather(self, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array in host memory."""
        ...

    def read(self, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` in host memory."""
        ...

    def view(self) -> Lanes | None:
        """All lanes as they lie in host memory, or None if they do not lie there in a row."""
        ...

    def prepare(self, patch: Patch) -> Write:
        """Brings new bits to where the tensor is."""
        ...


def place_of(name: str, tensor: Tensor) -> Place:
    """The place of a torch tensor, a numpy array or a host tensor.

    Raises:
        Unsupported: It cannot be written to, or has no dtype of safetensors.
    """
    if is_torch(tensor):
        from deltastore.consumer.torch_places import TorchPlace

        return TorchPlace(name, tensor)
    if isinstance(tensor, HostTensor):
        return ArrayPlace(name, tensor.dtype, tensor.shape, tensor.lanes)
    if isinstance(tensor, np.ndarray):
        dtype = HostTensor.of_array(name, tensor[..., :0] if tensor.ndim else tensor).dtype
        width = dtypes.lane_bytes(dtype)
        if not tensor.dtype.isnative:
            raise Unsupported(f"tensor {name!r} is not in the byte order of this machine", tensor=name)
        return ArrayPlace(name, dtype, tensor.shape, tensor.view(uint(width)))
    raise Unsupported(f"{name!r} is a {type(tensor).__name__}, not a tensor", tensor=name)


class ArrayPlace:
    """A numpy array of any strides."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...], lanes: NDArray[Any]) -> None:
        if not lanes.flags.writeable:
            raise Unsupported(f"tensor {name!r} is read-only", hint="Pass a writable array", tensor=name)
        if overlaps_itself(lanes.shape, [stride // lanes.itemsize for stride in lanes.strides]):
            raise Unsupported(f"tensor {name!r} overlaps itself", hint="Pass a copy", tensor=name)
        self.dtype = dtype
        self.shape = shape
        low, high = byte_bounds(lanes)
        self.extent = Extent(name, "cpu", low, high, lanes)
        self._flat: Any = lanes.reshape(-1) if lanes.flags.c_contiguous else lanes.flat

    def gather(self, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array."""
        taken: Lanes = self._flat[positions]
        return taken

    def read(self, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop`."""
        lanes: Lanes = self._flat[start:stop]
        return lanes

    def view(self) -> Lanes | None:
        """All lanes, where the array is contiguous."""
        return self._flat if isinstance(self._flat, np.ndarray) else None

    def prepare(self, patch: Patch) -> Write:
        """Keeps new and old bits."""
        lanes = self.view()
        if lanes is not None and patch.positions is not None:
            return Scatter(lanes, patch.positions, patch.values)
        where = slice(None) if patch.positions is None else patch.positions
        return _ArrayWrite(self._flat, where, patch.values, np.array(self._flat[where]))


class Scatter:
    """New bits at positions of contiguous lanes in host memory."""

    def __init__(self, lanes: Lanes, positions: Positions, values: Lanes) -> None:
        self._lanes, self._positions, self._new = lanes, positions, values
        self._old = kernels.gather(lanes, positions)

    def apply(self) -> None:
        """Puts the new bits in."""
        kernels.scatter(self._lanes, self._positions, self._new)

    def undo(self) -> None:
        """Puts the old bits back."""
        kernels.scatter(self._lanes, self._positions, self._old)


class _ArrayWrite:
    def __init__(self, flat: Any, where: slice | Positions, new: Lanes, old: Lanes) -> None:
        self._flat, self._where, self._new, self._old = flat, where, new, old

    def apply(self) -> None:
        self._flat[self._where] = self._new

    def undo(self) -> None:
        self._flat[self._where] = self._old
