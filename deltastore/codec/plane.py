"""Codec `plane` (spec, Codec plane): whole slices as byte planes: the small anchor.

Two thirds of the size of bf16 weights: their exponents compress to a third, their mantissas not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from deltastore.codec import frames, planes, shard
from deltastore.codec.kernels import Bytes
from deltastore.codec.types import Decoded, Dense, Encoded, SliceSpec, Whole
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK


class Plane:
    """Planes of whole slices, each in the form that is smaller."""

    id: Final = "plane"
    kind: Final = "anchor"

    def encode(self, denses: Sequence[Dense], *, nonce: bytes) -> Encoded:
        """See `AnchorCodec.encode`."""
        parts: dict[str, list[Bytes]] = {name: [] for name in planes.FULL}
        for dense in denses:
            dense.spec.check(dense.lanes)
            for name, plane in planes.split(dense.spec, dense.lanes).items():
                parts[name].append(plane)
        tensors: list[tuple[str, shard.Tensor]] = []
        sizes: dict[str, list[int]] = {}
        raw: dict[str, int] = {}
        total = 0
        for name in planes.FULL:
            stream = b"".join(plane.data for plane in parts.pop(name))
            if not stream:
                continue
            total += len(stream)
            stored, frame_sizes = planes.store(stream)
            if frame_sizes is not None:
                sizes[name], raw[name] = frame_sizes, len(stream)
            tensors.append((name, shard.Tensor("U8", (len(stored),), stored)))
        lanes = [dense.spec.lanes for dense in denses]
        digests = [dense.digest for dense in denses]
        meta = shard.Meta(self.id, shard.nonce_text(nonce), lanes, digests, sizes, raw)
        return Encoded(shard.build(meta, tensors), total, sum(digests) & MASK, sum(lanes))

    def decode(self, data: bytes, specs: Sequence[SliceSpec], *, raw_size: int) -> Decoded:
        """See `AnchorCodec.decode`."""
        file = shard.open_shard(data, specs, codec=self.id)
        shard.check_raw_size(raw_size, sum(spec.nbytes for spec in specs), specs)
        for spec, changed in zip(specs, file.meta.changed, strict=True):
            if changed != spec.lanes:
                raise BadShard(f"slice {spec.label!r} of {spec.lanes} lanes declares {changed}")
        streams = _open(file, specs)

        def take(name: str, size: int) -> Bytes:
            if not size:
                return np.empty(0, np.uint8)
            part, streams[name] = streams[name][:size], streams[name][size:]
            return np.frombuffer(part, np.uint8)

        whole = [Whole(planes.join(spec, spec.lanes, take)) for spec in specs]
        return Decoded([*whole], list(file.meta.changed), list(file.meta.digest))


def _open(file: shard.ShardFile, specs: Sequence[SliceSpec]) -> dict[str, memoryview]:
    """The streams, inflated; each has exactly the bytes that the slices need."""
    needed: Counter[str] = Counter()
    for spec in specs:
        needed.update(planes.sizes(spec, spec.lanes))
    expected = {name: size for name, size in needed.items() if size}
    if file.tensors.keys() != expected.keys() or not file.meta.raw.keys() <= expected.keys():
        raise BadShard("the streams of the shard are not the planes of its slices")
    _check_sizes(file, expected)
    return {name: _inflated(file, name, size) for name, size in expected.items()}


def _check_sizes(file: shard.ShardFile, expected: Mapping[str, int]) -> None:
    for name, size in expected.items():
        tensor = file.tensors[name]
        if tensor.dtype != "U8" or len(tensor.shape) != 1:
            raise BadShard(f"stream {name!r} is not a flat U8 tensor")
        declared = file.meta.raw.get(name, len(tensor.data))
        if declared != size:
            raise BadShard(f"stream {name!r} has {declared} raw bytes, where {size} are needed")


def _inflated(file: shard.ShardFile, name: str, size: int) -> memoryview:
    stored = memoryview(file.tensors[name].data)
    if name not in file.meta.raw:
        return stored
    return memoryview(frames.decompress(stored, file.meta.frames[name], size))
