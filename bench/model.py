"""bf16 models as bit patterns, and pairs of them: before and after a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Shapes = Mapping[str, tuple[int, ...]]

_ALIGN: Final = 32
"""Lanes: every tensor begins on a cache line."""


@dataclass(frozen=True, slots=True)
class Model:
    """Tensors in one block of memory, ascending by name.

    Attributes:
        shapes: Of each tensor.
        bits: The tensors, flat; views of `flat`.
        flat: uint16, all of them with zeros in between.
    """

    shapes: Shapes
    bits: Mapping[str, Bits]
    flat: Bits

    @classmethod
    def empty(cls, shapes: Shapes) -> Self:
        """A model of zeros."""
        ordered = {name: shapes[name] for name in sorted(shapes, key=str.encode)}
        sizes = [prod(shape) for shape in ordered.values()]
        starts = np.concatenate(([0], np.cumsum([-(-size // _ALIGN) * _ALIGN for size in sizes])))
        flat = np.zeros(int(starts[-1]), np.uint16)
        parts = zip(ordered, pairwise(starts), sizes, strict=True)
        return cls(ordered, {name: flat[low : low + size] for name, (low, _), size in parts}, flat)

    @property
    def weights(self) -> int:
        """Number of weights."""
        return sum(bits.size for bits in self.bits.values())

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return 2 * self.weights

    def copy(self) -> Model:
        """Another block of memory with the same bits."""
        other = Model.empty(self.shapes)
        other.overwrite(self)
        return other

    def overwrite(self, other: Model) -> None:
        """Takes over the bits of a model of the same shapes."""
        np.copyto(self.flat, other.flat)

    def same(self, other: Model) -> bool:
        """Whether all bits are equal."""
        return np.array_equal(self.flat, other.flat)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model before and after a step.

    Attributes:
        name: For tables.
        old: Before.
        new: After; some weights differ.
        real: Whether training made it.
    """

    name: str
    old: Model
    new: Model
    real: bool

    @property
    def changed(self) -> int:
        """Weights that differ."""
        return sum(int(np.count_nonzero(self.old.bits[n] != self.new.bits[n])) for n in self.old.bits)
