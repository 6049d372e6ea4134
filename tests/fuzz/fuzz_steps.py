"""Target `steps`: any streams of codec `ulp`, read and merged by both sets of kernels.

The layout is that of `read_streams` in `native/fuzz.h`: harnesses in C begin with the same inputs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np
from fuzz_kernels import with_each
from fuzz_target import Target, bytes_only

from deltastore.codec import kernels, twin, twin_steps
from deltastore.codec.types import Coded, SliceSpec, Streams, uint

_DTYPES = {1: "U8", 2: "BF16", 4: "F32", 8: "F64"}
_HEAD = struct.Struct("<BHHHHH")
_LARGE = 7
"""The kind whose number of lanes is about that of a block."""


def _lanes(kind: int, value: int) -> int:
    return twin.BLOCK - 32 + value % 64 if kind & 7 == _LARGE else value % 2048


def _spec(width: int, lanes: int) -> SliceSpec:
    return SliceSpec("w", _DTYPES[width], (lanes,), 0, lanes, lanes)


def written(width: int, kind: int, value: int, coded: Coded) -> bytes:
    """Streams as an input."""
    how = (width.bit_length() - 1) | (4 if len(coded.high) else 0) | kind << 3
    sizes = [len(part) for part in (coded.low, coded.codes, coded.near, coded.far)]
    return _HEAD.pack(how, value, *sizes) + b"".join(map(bytes, coded))


def read(data: bytes) -> tuple[SliceSpec, Coded]:
    """An input as streams; zeros follow its end."""
    how, value, low, codes, near, far = _HEAD.unpack(data[: _HEAD.size].ljust(_HEAD.size, b"\0"))
    width = 1 << (how & 3)
    lanes = _lanes(how >> 3, value)
    at = _HEAD.size
    parts = []
    for size in (16 * twin.blocks(lanes), low, low if how & 4 else 0, codes, near, far):
        parts.append(data[at : at + size].ljust(size, b"\0"))
        at += size
    return _spec(width, lanes), Coded(*parts)


def _samples() -> Iterator[tuple[int, int, int, Streams]]:
    rng = np.random.default_rng(5)
    for width in _DTYPES:
        for kind, value, count in ((0, 0, 0), (0, 40, 9), (0, 2000, 5), (0, 500, 300), (7, 40, 12)):
            lanes = _lanes(kind, value)
            at = np.sort(rng.permutation(lanes)[:count])
            steps = rng.choice(np.array([-1, 1, 2, -5, 120, 129]), count).astype(np.int64).astype(uint(width))
            steps[1::5] = rng.integers(1, 2**8, steps[1::5].size) << (8 * width - 8)
            yield width, kind, value, twin_steps.steps_encode(_spec(width, lanes), at, steps)


def seeds() -> Iterable[bytes]:
    """Valid streams of every width, with 8-bit and 16-bit gaps."""
    for width, kind, value, streams in _samples():
        table, symbols, codes, near, far = streams
        yield written(width, kind, value, Coded(table, symbols, b"", codes, near, far))
        if symbols:
            yield written(width, kind, value, twin_steps.widen(streams))


def check(data: bytes) -> None:
    """Both refuse the streams, or read the same change, of which merging them with nothing makes the same."""
    spec, coded = read(data)
    table = np.frombuffer(coded.table, "<u4").reshape(-1, 4)
    changed = int(table[:, 1].sum(dtype=np.int64))
    if changed > spec.lanes:  # refused before any kernel, which makes room for what it is told
        changed = len(data) % 8

    def decoded() -> tuple[bytes, bytes]:
        positions, steps = kernels.steps_decode(spec, coded, changed)
        return positions.tobytes(), steps.tobytes()

    def checked() -> bool:
        kernels.steps_check(spec, coded, changed)
        return True

    def merged() -> tuple[Streams, int]:
        return kernels.steps_merge(spec, [coded, coded][: 1 + len(data) % 2])

    change = with_each(decoded, tuple.__eq__)
    fine = with_each(checked, bool.__eq__)
    assert (fine is None) == (change is None), "what is checked is not what is read"
    found = with_each(merged, tuple.__eq__)
    if change is None:
        return
    assert found is not None, "what can be read cannot be merged"
    if len(data) % 2 == 0:
        streams, count = found
        assert count == changed
        again = twin_steps.widen(streams) if len(coded.high) else streams
        assert b"".join(map(bytes, again)) == b"".join(map(bytes, coded)), "a change has two forms"


TARGET = Target(seeds, check, bytes_only)
