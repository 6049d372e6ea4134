"""Byte planes (spec, Byte planes): how whole lanes are laid out for compression, most telling byte first.

Lanes of floats are rotated first, so that the bits of the exponent fill the first plane. A plane is stored
compressed where that pays and as it is where it does not; the metadata of the shard say which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from deltastore.codec import frames, kernels
from deltastore.codec.types import SliceSpec, Stream
from deltastore.protocol.digest import Lanes

FULL: Final = tuple(f"P{i}" for i in range(8))
"""Streams of whole slices; `P0` holds the most significant byte of every rotated lane."""

ROTATION: Final[Mapping[str, int]] = MappingProxyType({"BF16": 1, "F16": 1, "F32": 1, "F64": 4})
"""Bits by which lanes of a dtype are rotated to the left; others are not."""

_PROBE: Final = 4096
"""Bytes of every `_STRIDE` that are compressed on trial."""
_STRIDE: Final = 1 << 16
_WORTH: Final = 64
"""A large plane is compressed if the trial saves one byte in so many: reading it costs more than that."""


Take = Callable[[str, int], Stream]
"""The next bytes of a stream: its name, and how many."""


def split(spec: SliceSpec, lanes: Lanes, names: Sequence[str] = FULL) -> dict[str, Stream]:
    """The planes of some lanes of a slice, by the names of their streams."""
    planes = kernels.split_planes(lanes, rotation=ROTATION.get(spec.dtype, 0))
    return {name: plane.data for name, plane in zip(names, reversed(planes), strict=False)}


def sizes(spec: SliceSpec, count: int, names: Sequence[str] = FULL) -> dict[str, int]:
    """Bytes that so many lanes of a slice have in each stream."""
    return dict.fromkeys(names[: spec.lane_bytes], count)


def join(spec: SliceSpec, count: int, take: Take, names: Sequence[str] = FULL) -> Lanes:
    """Undoes `split`, for so many lanes."""
    planes = [np.frombuffer(take(name, count), np.uint8) for name in names[: spec.lane_bytes]]
    return kernels.merge_planes(planes[::-1], rotation=ROTATION.get(spec.dtype, 0))


def stored_size(parts: Mapping[str, Stream]) -> int:
    """Bytes that stream parts take when each is compressed by itself, or is not where that is smaller."""
    streams = [memoryview(part) for part in parts.values() if len(part)]
    return sum(min(len(frames.compress(stream)[0]), len(stream)) for stream in streams)


def store(stream: bytes) -> tuple[bytes, list[int] | None]:
    """A stream of planes as it is stored, and the sizes of its frames; None if it is stored as it is."""
    if len(stream) > frames.FRAME:
        view = memoryview(stream)
        probe = b"".join(view[at : at + _PROBE] for at in range(0, len(stream), _STRIDE))
        if len(frames.compress(probe)[0]) > len(probe) - len(probe) // _WORTH:
            return stream, None
    stored, sizes = frames.compress(stream)
    return (stored, sizes) if len(stored) < len(stream) else (stream, None)
