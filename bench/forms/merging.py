"""Merging of successive deltas into one, without any state; each way is an entry of `MERGERS`.

No peer has it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final, Protocol

from bench.forms.base import Message, Missing, each
from bench.model import Model, Shapes
from deltastore.protocol.digest import tensor_key

_NATIVE: Final = "deltastore.codec._native"


class Merger(Protocol):
    """A way to merge."""

    @property
    def name(self) -> str:
        """For tables."""

    def require(self) -> None:
        """Makes sure that it can run.

        Raises:
            Missing: It cannot.
        """

    def delta(self, held: Model, new: Model) -> Message:
        """One delta; `held` moves to `new`."""

    def merge(self, shapes: Shapes, messages: Sequence[Message], cores: int) -> Message:
        """One delta for successive ones, oldest first: the bytes that `delta` gives for their ends."""


class Kernel:
    """The compiled kernel on `ulp` streams, without container and zstd."""

    name: Final = "ulp streams (C kernel)"

    def require(self) -> None:
        """See `Merger`."""
        if os.environ.get("DELTASTORE_KERNELS") == "numpy" or find_spec(_NATIVE) is None:
            raise Missing("the C kernels were not built")
        if not {"ulp_diff", "ulp_merge"} <= vars(importlib.import_module(_NATIVE)).keys():
            raise Missing(f"{_NATIVE} has no ulp_diff and ulp_merge: write an entry for what it has")

    def delta(self, held: Model, new: Model) -> Message:
        """See `Merger`; five streams per tensor."""
        native: Any = importlib.import_module(_NATIVE)
        parts: list[bytes] = []
        for name, bits in new.bits.items():
            parts += native.ulp_diff(held.bits[name], bits, 2, tensor_key(name), 0, 0x7F80, 0x7F80)[:5]
        return Message(tuple(parts))

    def merge(self, shapes: Shapes, messages: Sequence[Message], cores: int) -> Message:
        """See `Merger`."""
        native: Any = importlib.import_module(_NATIVE)

        def one(item: tuple[int, int]) -> tuple[bytes, ...]:
            number, lanes = item
            inputs = []
            for message in messages:
                table, gaps, codes, near, far = message.parts[5 * number : 5 * number + 5]
                inputs.append((table, gaps, b"", codes, near, far))
            fault, *streams, _ = native.ulp_merge(tuple(inputs), lanes, 2)
            if fault:
                raise ValueError(f"the kernel refuses its own streams: fault {fault}")
            return tuple(streams)

        model = [(number, _lanes(shape)) for number, shape in enumerate(shapes.values())]
        return Message(tuple(stream for streams in each(cores, one, model) for stream in streams))


def _lanes(shape: tuple[int, ...]) -> int:
    lanes = 1
    for n in shape:
        lanes *= n
    return lanes


MERGERS: Final[tuple[Merger, ...]] = (Kernel(),)
