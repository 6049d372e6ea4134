"""What the peers' forms have in common: finding changes with numpy, a JSON header, zstd at level 1."""

from __future__ import annotations

import json
import struct
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from bench.model import Bits

Positions = NDArray[np.int64]
Header = list[list[str | int | list[int]]]
"""Per tensor its name and what else a form needs to know."""

_CHUNK: Final = 1 << 18
"""Lanes compared at a time: what numpy is fastest at."""


def differing(old: Bits, new: Bits) -> Positions:
    """Positions of the lanes that differ, ascending."""
    found = [
        np.flatnonzero(old[at : at + _CHUNK] != new[at : at + _CHUNK]) + at
        for at in range(0, old.size, _CHUNK)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def narrowest(values: NDArray[Any], *, least: int = 1) -> NDArray[Any]:
    """Values in the smallest unsigned integers that hold them, of at least so many bytes."""
    top = int(values.max(initial=0))
    width = next(w for w in (1, 2, 4, 8) if w >= least and top < 1 << 8 * w)
    return values.astype(f"<u{width}")


def zstd1(data: bytes, cores: int) -> bytes:
    """One frame at level 1."""
    return zstandard.ZstdCompressor(level=1, threads=0 if cores == 1 else cores).compress(data)


def unzstd(data: bytes | memoryview) -> bytes:
    """The content of a frame."""
    return zstandard.ZstdDecompressor().decompress(data)


def framed(header: Header, payload: bytes) -> bytes:
    """A file: length of the header, the header, the rest."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<I", len(text)) + text + payload


def unframed(data: bytes) -> tuple[Header, memoryview]:
    """Header and the rest of a file."""
    (length,) = struct.unpack_from("<I", data)
    header: Header = json.loads(data[4 : 4 + length])
    return header, memoryview(data)[4 + length :]


class Cursor:
    """Takes arrays off a payload."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, dtype: str, count: int) -> NDArray[Any]:
        """The next array."""
        array = np.frombuffer(self._data, dtype, count, self._at)
        self._at += array.nbytes
        return array
