"""Torch tensors as places, on whatever device they are: only changes cross the bus."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

import torch

from deltastore.codec import kernels
from deltastore.codec.types import Positions, SliceSpec, Sparse
from deltastore.consumer.places import Posted, Scatter, Write
from deltastore.errors import Unsupported
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.state import Local, Patch
from deltastore.tensors import device as on_device
from deltastore.tensors import torch as adapter
from deltastore.tensors.overlap import Extent, overlaps_itself

_SWAP = 1 << 20
"""Elements that a whole tensor is swapped by, so that undoing needs no second copy of it."""


class TorchPlace(Local):
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
        return self._host(self.take(self._index(on_device.send(positions, self._bits.device))))

    def read(self, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` in host memory; a view where that is possible."""
        flat = self._flat if self._flat is not None else self._bits.reshape(-1)
        return self._host(flat[start:stop])

    def view(self) -> Lanes | None:
        """All lanes, of a contiguous tensor on the CPU."""
        if self._flat is None or self._flat.device.type != "cpu":
            return None
        return adapter.fetch(self._flat, self.dtype)

    def evaluate(self, spec: SliceSpec, change: Sparse) -> tuple[Lanes, int]:
        """See `Local.evaluate`."""
        lanes = self.view()
        if lanes is not None:
            return kernels.patch(spec, lanes[spec.start : spec.stop], change)
        device = self._bits.device
        return on_device.evaluate(spec, lambda at: self.take(self._index(at + spec.start)), change, device)

    def slice_digest(self, spec: SliceSpec) -> int:
        """See `Local.slice_digest`."""
        lanes, key = self.view(), tensor_key(spec.name)
        if lanes is not None:
            return kernels.digest(lanes[spec.start : spec.stop], key, spec.first_word)
        if self._flat is not None:
            return on_device.digest(self._flat[spec.start : spec.stop], key, spec.first_word)
        if spec.whole:
            return _digest_by_rows(self._bits, key)
        return on_device.digest(self._bits.reshape(-1)[spec.start : spec.stop], key, spec.first_word)

    def prepare(self, patch: Patch) -> Write:
        """Brings new bits to the tensor's device."""
        lanes = self.view()
        if lanes is not None and patch.positions is not None:
            return Scatter(lanes, patch.positions, patch.values)
        device = self._bits.device
        with self.mode():
            values = on_device.send(patch.values, device)
            if patch.positions is None:
                write: _Scatter | _Swap = _Swap(self, self._bits, values.reshape(self._bits.shape))
            else:
                where = self._index(on_device.send(patch.positions, device))
                write = _Scatter(self, where, values, self.take(where))
            return write if device.type == "cpu" else _Posted(write, values)

    def put(self, where: tuple[torch.Tensor, ...], values: torch.Tensor) -> None:
        """Scatters values to indices."""
        with self.mode():
            (self._bits if self._flat is None else self._flat).index_put_(where, values)

    def take(self, where: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """Lanes at indices."""
        return (self._bits if self._flat is None else self._flat)[where]

    def _index(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (flat,) if self._flat is not None else torch.unravel_index(flat, self._bits.shape)

    def _host(self, lanes: torch.Tensor) -> Lanes:
        return adapter.fetch(lanes.contiguous(), self.dtype)

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

    def written(self) -> torch.Tensor:
        return self._place.take(self._where)


class _Swap:
    """Exchanges a whole tensor with its new bits, piece by piece; doing it again takes it back."""

    def __init__(self, place: TorchPlace, live: torch.Tensor, staged: torch.Tensor) -> None:
        self._place, self._live = place, live
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

    def written(self) -> torch.Tensor:
        return self._live.reshape(-1)

    def _exchange(self, number: int) -> None:
        live, staged = self._pairs[number]
        scratch = self._scratch if live.dim() != 1 else self._scratch.view(-1)[: live.numel()]
        with self._place.mode():
            scratch.copy_(live)
            live.copy_(staged)
            staged.copy_(scratch)


class _Posted(Posted):
    """A write to a device, which has all that it needs; and the digest of what it writes.

    Staging and committing may be on streams of their own, so each waits for what it has queued.
    """

    def __init__(self, write: _Scatter | _Swap, new: torch.Tensor) -> None:
        self._write, self._device = write, new.device
        self._expected = on_device.total(new, 0).item()

    def apply(self) -> None:
        self._write.apply()

    def undo(self) -> None:
        self._write.undo()
        on_device.wait(self._device)

    def arrived(self) -> torch.Tensor:
        return (on_device.total(self._write.written(), 0) != self._expected).to(torch.int64)


def _digest_by_rows(bits: torch.Tensor, key: int) -> int:
    """The digest of a tensor that does not lie in a row: a copy of some rows at a time, of whole words."""
    per_word, lanes = 8 // bits.element_size(), bits[0].numel() if bits.numel() else 1
    whole = per_word // math.gcd(per_word, lanes)
    step, digest, word = max(1, _SWAP // lanes // whole) * whole, 0, 0
    for rows in torch.split(bits, step):
        digest += on_device.digest(rows.reshape(-1), key, word)
        word += rows.numel() // per_word
    return digest & MASK
