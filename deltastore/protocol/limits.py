"""Limits of the spec (section Limits): part of the format, enforced before anything is allocated."""

from __future__ import annotations

from typing import Final

MAX_INT: Final = 2**53 - 1
"""Versions, steps, terms, sizes and counts: what every JSON and JavaScript number can hold."""

STORE_BYTES: Final = 64 * 1024
RECORD_BYTES: Final = 4 * 1024 * 1024
SCHEMA_BYTES: Final = 16 * 1024 * 1024
HEADER_BYTES: Final = 16 * 1024 * 1024
SIDE_FILE_BYTES: Final = 1024 * 1024 * 1024
SHARD_BYTES: Final = 5 * 1024**3
KEY_BYTES: Final = 512
NAME_BYTES: Final = 1024
USER_BYTES: Final = 64 * 1024
TENSORS: Final = 200_000
DIMENSIONS: Final = 64
SHARDS_PER_EDGE: Final = 16_384
EDGES_PER_RECORD: Final = 16
SLICES_PER_SHARD: Final = 1_000_000
FILES: Final = 4096
FEATURES: Final = 64
SIGNATURES: Final = 16
NESTING: Final = 32
FRAME_BYTES: Final = 4 * 1024 * 1024

RAW_PER_BYTE: Final = 10
RAW_PER_SLICE: Final = 4096
RAW_BASE: Final = 64 * 1024


def max_raw(covered_bytes: int, slices: int) -> int:
    """The largest `raw_size` that a shard covering so many bytes of weights in so many slices may declare.

    The worst honest codec is `coo` on one-byte lanes: an 8-byte index and a value for each.
    """
    return RAW_PER_BYTE * covered_bytes + RAW_PER_SLICE * slices + RAW_BASE
