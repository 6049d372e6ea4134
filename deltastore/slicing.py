"""How a schema is cut into the slices of shards: the same cut for every edge, so that parts stay parts."""

from __future__ import annotations

from typing import Final

from deltastore.protocol.descriptors import Slice
from deltastore.protocol.schema import Schema, TensorSpec

SHARD_BYTES: Final = 128 * 1024 * 1024
"""Bytes of weights after which a shard ends."""
PART_BYTES: Final = 512 * 1024 * 1024
"""Bytes of weights above which a tensor is cut; below it `plain` anchors keep tensors whole."""


def cut(schema: Schema, *, shard_bytes: int = SHARD_BYTES, part_bytes: int = PART_BYTES) -> list[list[Slice]]:
    """The slices of each shard, in schema order; every tensor that owns its storage exactly once."""
    groups: list[list[Slice]] = []
    room = 0
    for tensor in schema.owners:
        for one in _parts(tensor, part_bytes):
            if not groups or one.nbytes > room:
                groups.append([])
                room = shard_bytes
            groups[-1].append(one)
            room -= one.nbytes
    return groups


def _parts(tensor: TensorSpec, part_bytes: int) -> list[Slice]:
    """A tensor whole, or in parts of whole blocks of 8 bytes."""
    if tensor.nbytes <= part_bytes:
        return [Slice(tensor, 0, tensor.lanes)]
    step = max(8, part_bytes // 8 * 8) // tensor.lane_bytes
    return [Slice(tensor, at, min(at + step, tensor.lanes)) for at in range(0, tensor.lanes, step)]
