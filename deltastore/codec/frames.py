"""Streams as zstd frames (spec, Compressed streams): 1 MiB raw each but the last, the content size in each.

The parameters leave little but zstd's Huffman coder, which is both smaller and faster here than level 1.
Sizes are compared with what they must be before anything is inflated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import zstandard

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


def compress(raw: bytes | memoryview) -> tuple[bytes, list[int]]:
    """Compresses a stream that is not empty.

    Returns:
        The frames, one after the other, and the stored size of each.
    """
    view = memoryview(raw)
    # A compressor must not be shared between threads, and is cheap with tables this small.
    compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
    parts = [compressor.compress(view[at : at + FRAME]) for at in range(0, len(view), FRAME)]
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
    parts = list(each(data, sizes, raw))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def each(data: memoryview, sizes: Sequence[int], raw: int) -> Iterator[bytes]:
    """Inflates a stream, each frame when it is asked for; arguments and errors as for `decompress`."""
    if len(sizes) != -(-raw // FRAME) or sum(sizes) != len(data):
        raise BadShard(f"a stream of {raw} bytes has {len(sizes)} frames in {len(data)} bytes")
    decompressor = zstandard.ZstdDecompressor()
    stops = accumulate(sizes)
    for at, (stop, size) in enumerate(zip(stops, sizes, strict=True)):
        yield _inflate(decompressor, data[stop - size : stop], min(FRAME, raw - at * FRAME))


def _inflate(decompressor: zstandard.ZstdDecompressor, frame: memoryview, raw: int) -> bytes:
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if (
            bytes(frame[:4]) != _MAGIC
            or parameters.content_size != raw
            or parameters.window_size > limits.FRAME_BYTES
            or parameters.dict_id != 0
        ):
            raise BadShard(f"a frame is not a zstd frame of {raw} bytes")
        inflated = decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadShard(f"a frame does not inflate: {error}") from error
    if len(inflated) != raw:
        raise BadShard(f"a frame inflates to {len(inflated)} bytes, not {raw}")
    return inflated
