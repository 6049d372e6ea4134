from typing import Any, TypeAlias

from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[Any]

def digest(data: Buffer, key: int, first_word: int, /) -> int: ...
def ulp_diff(
    base: Buffer, new: Buffer, width: int, key: int, first_word: int, mask: int, value: int, /
) -> tuple[bytes, bytes, bytes, bytes, bytes, int, int, int]: ...
def ulp_encode(
    positions: Buffer, steps: Buffer, lanes: int, width: int, /
) -> tuple[bytes, bytes, bytes, bytes, bytes]: ...
def ulp_widen(gaps: Buffer, table: bytearray, /) -> tuple[bytes, bytes]: ...
def ulp_decode(
    streams: tuple[Buffer, ...], lanes: int, width: int, positions: Buffer, steps: Buffer, /
) -> int: ...
def ulp_check(streams: tuple[Buffer, ...], lanes: int, width: int, changes: int, /) -> int: ...
def ulp_patch(
    streams: tuple[Buffer, ...],
    lanes: Buffer,
    width: int,
    key: int,
    first_word: int,
    positions: Buffer,
    values: Buffer,
    /,
) -> tuple[int, int]: ...
def ulp_merge(
    inputs: tuple[tuple[Buffer, ...], ...], lanes: int, width: int, /
) -> tuple[int, bytes, bytes, bytes, bytes, bytes, int]: ...
def ctx_count(
    lanes: Buffer,
    width: int,
    shift: int,
    mask: int,
    positions: Buffer,
    steps: Buffer,
    seen: Buffer,
    changed: Buffer,
    /,
) -> None: ...
def ctx_encode(
    runs: tuple[tuple[Buffer, int, int, Buffer, Buffer, Buffer], ...], width: int, dense: int, /
) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, tuple[bytes, ...]]: ...
def ctx_decode(
    runs: tuple[tuple[Buffer, int, int, Buffer], ...],
    width: int,
    coded: tuple[Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, Buffer, tuple[Buffer, ...]],
    positions: Buffer,
    steps: Buffer,
    counts: Buffer,
    /,
) -> int: ...
def patch(
    lanes: Buffer,
    width: int,
    positions: Buffer,
    values: Buffer,
    relative: bool,
    key: int,
    first_word: int,
    out: Buffer,
    /,
) -> int: ...
def scatter(lanes: Buffer, width: int, positions: Buffer, values: Buffer, /) -> None: ...
def gather(lanes: Buffer, width: int, positions: Buffer, values: Buffer, /) -> None: ...
def split(lanes: Buffer, width: int, rotation: int, planes: Buffer, /) -> None: ...
def merge(planes: Buffer, width: int, rotation: int, lanes: Buffer, /) -> None: ...
