"""Sparse forms of peers, written from their descriptions: grail's row and column deltas, NeMo-RL's gaps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.forms.base import InPlaceForm, each
from bench.forms.packing import (
    Cursor,
    Header,
    Positions,
    differing,
    framed,
    narrowest,
    unframed,
    unzstd,
    zstd1,
)
from bench.model import Bits, Model


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one tensor; new bits, or what to XOR into the old ones."""

    name: str
    positions: Positions
    values: Bits


class Sparse(InPlaceForm[list[Changes]]):
    """Positions and values in one zstd-1 frame.

    Attributes:
        values_last: Whether the values of all tensors come after the positions of all; else tensor by tensor.
    """

    values_last = False

    @abstractmethod
    def positions_out(self, positions: Positions, shape: tuple[int, ...]) -> list[NDArray[Any]]:
        """Arrays that say where the changes are."""

    @abstractmethod
    def positions_in(self, arrays: list[NDArray[Any]], shape: tuple[int, ...]) -> Positions:
        """The positions again."""

    @abstractmethod
    def values_out(self, old: Bits, new: Bits) -> Bits:
        """What is sent of old and new bits."""

    def encode(self, held: Model, new: Model, cores: int) -> bytes:
        """See `InPlaceForm`."""

        def one(name: str) -> tuple[int, list[NDArray[Any]]]:
            old, bits = held.bits[name], new.bits[name]
            at = differing(old, bits)
            arrays = self.positions_out(at, new.shapes[name]) if at.size else []
            now = bits[at]
            arrays.append(self.values_out(old[at], now))
            old[at] = now
            return at.size, arrays

        done = each(cores, one, new.bits)
        header: Header = []
        parts: list[bytes] = []
        last: list[bytes] = []
        for name, (count, arrays) in zip(new.bits, done, strict=True):
            header.append([name, count, [array.itemsize for array in arrays[:-1]], list(new.shapes[name])])
            parts += [array.tobytes() for array in arrays[:-1]]
            (last if self.values_last else parts).append(arrays[-1].tobytes())
        return framed(header, zstd1(b"".join(parts + last), cores))

    def decode(self, data: bytes, held: Model, cores: int) -> list[Changes]:
        """See `InPlaceForm`."""
        header, payload = unframed(data)
        cursor = Cursor(unzstd(payload))
        where: list[tuple[str, int, list[NDArray[Any]]]] = []
        values: list[Bits] = []
        for name, count, widths, _ in header:
            if not (isinstance(name, str) and isinstance(count, int) and isinstance(widths, list)):
                raise TypeError(f"a header row is not name, count and widths: {name!r}")
            if count:
                where.append((name, count, [cursor.take(f"<u{width}", count) for width in widths]))
                if not self.values_last:
                    values.append(cursor.take("<u2", count))
        values += [cursor.take("<u2", count) for _, count, _ in where[len(values) :]]

        def one(item: tuple[tuple[str, int, list[NDArray[Any]]], Bits]) -> Changes:
            (name, _, arrays), bits = item
            return Changes(name, self.positions_in(arrays, held.shapes[name]), bits)

        return each(cores, one, zip(where, values, strict=True))


class Grail(Sparse):
    """PULSE / grail: row deltas in u8 and column deltas in u16 where they fit, absolute values."""

    name = "PULSE/grail form"

    def positions_out(self, positions: Positions, shape: tuple[int, ...]) -> list[NDArray[Any]]:
        """Row deltas, and columns relative to the change before in the same row."""
        rows, columns = np.divmod(positions, _columns(shape))
        down = np.diff(rows, prepend=0)
        along = columns.copy()
        along[1:] -= np.where(down[1:] == 0, columns[:-1], 0)
        return [narrowest(down), narrowest(along, least=2)]

    def positions_in(self, arrays: list[NDArray[Any]], shape: tuple[int, ...]) -> Positions:
        """See `Sparse`."""
        down, along = (array.astype(np.int64) for array in arrays)
        rows = np.cumsum(down)
        total = np.cumsum(along)
        first = np.flatnonzero(down)
        first = np.concatenate(([0], first[first > 0]))
        before = total[first] - along[first]
        columns = total - np.repeat(before, np.diff(first, append=down.size))
        return rows * _columns(shape) + columns

    def values_out(self, old: Bits, new: Bits) -> Bits:
        """The new bits."""
        del old
        return new

    def apply(self, held: Model, changes: list[Changes]) -> None:
        """See `InPlaceForm`."""
        for change in changes:
            held.bits[change.name][change.positions] = change.values


class Nemo(Sparse):
    """NeMo-RL's sparse form: u16 gaps per tensor, XOR of old and new; in the order that zstd likes best."""

    name = "NeMo form"
    values_last = True

    def positions_out(self, positions: Positions, shape: tuple[int, ...]) -> list[NDArray[Any]]:
        """Distances from change to change; u32 for a tensor where one does not fit."""
        del shape
        return [narrowest(np.diff(positions, prepend=0), least=2)]

    def positions_in(self, arrays: list[NDArray[Any]], shape: tuple[int, ...]) -> Positions:
        """See `Sparse`."""
        del shape
        return np.cumsum(arrays[0], dtype=np.int64)

    def values_out(self, old: Bits, new: Bits) -> Bits:
        """What differs."""
        return old ^ new

    def apply(self, held: Model, changes: list[Changes]) -> None:
        """See `InPlaceForm`."""
        for change in changes:
            held.bits[change.name][change.positions] ^= change.values


def _columns(shape: tuple[int, ...]) -> int:
    return prod(shape[1:]) if len(shape) > 1 else prod(shape)
