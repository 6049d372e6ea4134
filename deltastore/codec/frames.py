"""Streams as zstd frames (spec, Compressed streams): 1 MiB raw each but the last, the content size in each.

The parameters leave little but zstd's Huffman coder, which is both smaller and faster here than level 1.
Sizes are compared with what they must be before anything is inflated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final

import zstandard

from deltastore import threads
from deltastore.errors import BadShard
from deltastore.protocol import limits

FRAME: Final = 1 << 20
"""Raw bytes of every frame but the last of a stream."""
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_PARAMETERS: Final = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    window_log=17,
    hash_log=6,
    chain_log=6,
    search_log=1,
    min_match=7,
    target_length=0,
    write_content_size=True,
    write_checksum=False,
    write_dict_id=False,
    threads=0,
)


class _Here(threading.local):
    """Of each thread its own: they must not be shared."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self.decompressor = zstandard.ZstdDecompressor()


_here: Final = _Here()


def compress(raw: bytes | memoryview) -> tuple[bytes, list[int]]:
    """Compresses a stream that is not empty.

    Returns:
        The frames, one after the other, and the stored size of each.
    """
    view = memoryview(raw)
    parts = threads.spread(_compress, [view[at : at + FRAME] for at in range(0, len(view), FRAME)])
    return b"".join(parts), [len(part) for part in parts]


def decompress(data: memoryview, sizes: Sequence[int], raw: int) -> bytes:
    """Inflates a stream.

    Args:
        data: The frames.
        sizes: Stored size of each frame.
        raw: Raw size of the stream, which the caller has found plausible.

    Raises:
        BadShard: Frames whose number, stored sizes, content sizes or window are not what they must be, or
            that do not inflate.
    """
    parts = threads.spread(_frame(data, sizes, raw), range(len(sizes)))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def each(data: memoryview, sizes: Sequence[int], raw: int) -> Iterator[bytes]:
    """Inflates a stream, each frame when it is asked for; arguments and errors as for `decompress`."""
    return map(_frame(data, sizes, raw), range(len(sizes)))


def _frame(data: memoryview, sizes: Sequence[int], raw: int) -> Callable[[int], bytes]:
    """What inflates the frame of a number."""
    if len(sizes) != -(-raw // FRAME) or sum(sizes) != len(data):
        raise BadShard(f"a stream of {raw} bytes has {len(sizes)} frames in {len(data)} bytes")
    stops = list(accumulate(sizes))
    return lambda at: _inflate(data[stops[at] - sizes[at] : stops[at]], min(FRAME, raw - at * FRAME))


def _compress(raw: memoryview) -> bytes:
    return _here.compressor.compress(raw)


def _inflate(frame: memoryview, raw: int) -> bytes:
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if (
            bytes(frame[:4]) != _MAGIC
            or parameters.content_size != raw
            or parameters.window_size > limits.FRAME_BYTES
            or parameters.dict_id != 0
        ):
            raise BadShard(f"a frame is not a zstd frame of {raw} bytes")
        inflated = _here.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadShard(f"a frame does not inflate: {error}") from error
    if len(inflated) != raw:
        raise BadShard(f"a frame inflates to {len(inflated)} bytes, not {raw}")
    return inflated
