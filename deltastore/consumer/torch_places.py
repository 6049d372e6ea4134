"""Torch tensors as places, on whatever device they are: only changes cross the bus."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
import torch

from deltastore.codec.types import Positions
from deltastore.consumer.places import Scatter, Write
from deltastore.errors import Unsupported
from deltastore.protocol.digest import Lanes
from deltastore.state import Patch
from deltastore.tensors import torch as adapter
from deltastore.tensors.overlap import Extent, overlaps_itself

_SWAP = 1 << 20
"""Elements that a whole tensor is swapped by, so that undoing needs no second copy of it."""


class TorchPlace:
    """A tensor of any device and strides."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.dtype = adapter.dtype_of(name, tensor)
        self.shape = adapter.shape_of(tensor)
        if tensor.is_conj() or tensor.is_neg() or overlaps_itself(tensor.shape, tensor.stride()):
            raise Unsupported(
                f"tensor {name!r} is a view that cannot be written to bit by bit",
                hint="Pass the tensor that it is a view of, or a copy",
                tensor=name,
            )
        self._inference = tensor.is_inference()
        with self.mode():
            self._bits = adapter.bits(tensor.detach())
            self._flat = self._bits.view(-1) if self._bits.is_contiguous() else None
        self.extent = _extent(name, self._bits)

    def gather(self, positions: Positions) -> Lanes:
        """Lanes at flat positions, as a new array in host memory."""
        return self._host(self._take(self._index(positions)))

    def read(self, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` in host memory; a view where that is possible."""
        flat = self._flat if self._flat is not None else self._bits.reshape(-1)
        return self._host(flat[start:stop])

    def view(self) -> Lanes | None:
        """All lanes, of a contiguous tensor on the CPU."""
        if self._flat is None or self._flat.device.type != "cpu":
            return None
        return adapter.host_lanes(self._flat, self.dtype)

    def prepare(self, patch: Patch) -> Write:
        """Brings new bits to the tensor's device."""
        lanes = self.view()
        if lanes is not None and patch.positions is not None:
            return Scatter(lanes, patch.positions, patch.values)
        with self.mode():
            values = torch.from_numpy(np.array(patch.values).view(f"<i{patch.values.itemsize}"))
            values = values.view(self._bits.dtype).to(self._bits.device)
            if patch.positions is None:
                return _Swap(self, self._bits, values.reshape(self._bits.shape))
            where = self._index(patch.positions)
            return _Scatter(self, where, values, self._take(where))

    def put(self, where: tuple[torch.Tensor, ...], values: torch.Tensor) -> None:
        """Scatters values to indices."""
        with self.mode():
            (self._bits if self._flat is None else self._flat).index_put_(where, values)

    def _take(self, where: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return (self._bits if self._flat is None else self._flat)[where]

    def _index(self, positions: Positions) -> tuple[torch.Tensor, ...]:
        flat = torch.from_numpy(np.ascontiguousarray(positions)).to(self._bits.device)
        return (flat,) if self._flat is not None else torch.unravel_index(flat, self._bits.shape)

    def _host(self, lanes: torch.Tensor) -> Lanes:
        return adapter.host_lanes(lanes.contiguous().cpu(), self.dtype)

    def mode(self) -> AbstractContextManager[None]:
        """Tensors made in inference mode can only be changed in it, and others only outside of it."""
        return torch.inference_mode(self._inference)


def _extent(name: str, bits: torch.Tensor) -> Extent:
    reach = sum(stride * (size - 1) for stride, size in zip(bits.stride(), bits.shape, strict=True))
    start, size = bits.data_ptr(), bits.element_size()
    stop = start + (reach + 1) * size if bits.numel() else start
    return Extent(name, str(bits.device), start, stop, bits.numpy() if bits.device.type == "cpu" else None)


class _Scatter:
    def __init__(
        self, place: TorchPlace, where: tuple[torch.Tensor, ...], new: torch.Tensor, old: torch.Tensor
    ) -> None:
        self._place, self._where, self._new, self._old = place, where, new, old

    def apply(self) -> None:
        self._place.put(self._where, self._new)

    def undo(self) -> None:
        self._place.put(self._where, self._old)


class _Swap:
    """Exchanges a whole tensor with its new bits, piece by piece; doing it again takes it back."""

    def __init__(self, place: TorchPlace, live: torch.Tensor, staged: torch.Tensor) -> None:
        self._place = place
        pairs = [(live, staged)]
        if live.is_contiguous():
            pairs = list(
                zip(torch.split(live.view(-1), _SWAP), torch.split(staged.view(-1), _SWAP), strict=True)
            )
        self._pairs = pairs
        self._scratch = torch.empty_like(pairs[0][0]) if pairs else live
        self._done = 0

    def apply(self) -> None:
        while self._done < len(self._pairs):
            self._exchange(self._done)
            self._done += 1

    def undo(self) -> None:
        while self._done:
            self._done -= 1
            self._exchange(self._done)

    def _exchange(self, number: int) -> None:
        live, staged = self._pairs[number]
        scratch = self._scratch if live.dim() != 1 else self._scratch.view(-1)[: live.numel()]
        with self._place.mode():
            scratch.copy_(live)
            live.copy_(staged)
            staged.copy_(scratch)
