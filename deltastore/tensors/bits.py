"""A tensor as what it is to the protocol, wherever it lies: what is handed over, and what is kept of it."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from deltastore.codec.interface import DeltaCodec
from deltastore.codec.types import Delta, SliceSpec
from deltastore.errors import SchemaMismatch
from deltastore.protocol.digest import Lanes

D = TypeVar("D", bound=Delta)


class Bits(Protocol):
    """Bits of a tensor, in host memory or on a device.

    `move` and `undo` write, and are for copies of one's own: what a producer compares with.
    """

    @property
    def dtype(self) -> str:
        """A dtype of safetensors."""

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements."""

    @property
    def any_thread(self) -> bool:
        """Whether any thread may compare it; on a device only one whose stream it is written on."""

    def memory(self) -> tuple[object, ...] | None:
        """What two of them share if they are the same view of the same memory; None where there is none."""

    def read(self, start: int, stop: int) -> Lanes:
        """Lanes `start` to `stop` in host memory; a view where that is possible."""

    def copy(self) -> Self:
        """The same bits in memory of its own, on the same device."""

    def same(self, other: Bits) -> bool:
        """Whether another tensor of this dtype and shape has the same bits."""

    def nonfinite(self) -> int:
        """How many values are NaN or infinite."""

    def digest(self, key: int) -> int:
        """The digest of all of it (DS-DIGEST-2)."""

    def near(self, other: Bits) -> Bits:
        """Another tensor's bits where this one lies: it itself, or a copy."""

    def move(self, codec: DeltaCodec[D], spec: SliceSpec, new: Bits) -> D:
        """Compares a slice with new bits that lie beside it, and moves it to them.

        Raises:
            SchemaMismatch: Other dtypes or shapes; nothing has moved. After any other error it may have.
        """

    def undo(self, delta: Delta) -> None:
        """Puts the old bits back after `move` has given this delta."""


def require(name: str, bits: Bits, dtype: str, shape: tuple[int, ...]) -> None:
    """Checks a tensor against a schema.

    Raises:
        SchemaMismatch: Another dtype or shape.
    """
    if (bits.dtype, bits.shape) != (dtype, shape):
        raise SchemaMismatch(
            f"tensor {name!r} is {bits.dtype}{list(bits.shape)}, the schema has {dtype}{list(shape)}",
            hint="Publish it as it was, or with new_schema=True",
            tensor=name,
        )
