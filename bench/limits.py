"""The limits of the machine, measured beside everything else: a copy, and reads of one and two streams."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.compiled import library
from bench.model import Bits

READ1: Final = "read, one stream"
READ2: Final = "read, two streams"
COPY: Final = "memcpy"

Words = NDArray[np.uint64]
_CHUNK: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit.

    Attributes:
        name: Which.
        run: Does it once, over two models' memory, on so many cores; the second is written by a copy only.
    """

    name: str
    run: Callable[[Bits, Bits, int], None]


def how() -> str:
    """What measures the limits."""
    return "numpy: no C compiler" if library() is None else "C"


def _split(a: Bits, b: Bits, cores: int, work: Callable[[Words, Words], None]) -> None:
    one, two = a.view(np.uint64), b.view(np.uint64)
    if cores == 1:
        work(one, two)
        return
    edges = [one.size * i // cores for i in range(cores + 1)]
    parts = [slice(low, high) for low, high in pairwise(edges)]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(lambda part: work(one[part], two[part]), parts))


def _read1(a: Words, _b: Words) -> None:
    lib = library()
    if lib is None:
        np.bitwise_xor.reduce(a)
    else:
        lib.bench_read1(a.ctypes.data, a.size)


def _read2(a: Words, b: Words) -> None:
    lib = library()
    if lib is not None:
        lib.bench_read2(a.ctypes.data, b.ctypes.data, a.size)
        return
    for at in range(0, a.size, _CHUNK):
        (a[at : at + _CHUNK] != b[at : at + _CHUNK]).any()


def _copy(a: Words, b: Words) -> None:
    lib = library()
    if lib is None:
        np.copyto(b, a)
    else:
        lib.bench_copy(b.ctypes.data, a.ctypes.data, a.size)


LIMITS: Final = (
    Limit(COPY, lambda a, b, cores: _split(a, b, cores, _copy)),
    Limit(READ1, lambda a, b, cores: _split(a, b, cores, _read1)),
    Limit(READ2, lambda a, b, cores: _split(a, b, cores, _read2)),
)


def limit(name: str) -> Limit:
    """The limit of this name."""
    return next(one for one in LIMITS if one.name == name)
