"""Shards made of streams (spec, Compressed streams): U8 tensors of zstd frames, planes, and the raw `M`.

Each stream runs through the slices of the shard in order. A reader says how long every stream must be, from
what it has checked so far, before that stream is inflated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import numpy as np

from deltastore.codec import frames, shard
from deltastore.codec.kernels import Bytes
from deltastore.codec.planes import store
from deltastore.codec.types import Delta, Encoded, SliceSpec
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK

MODES: Final = "M"
"""One byte per slice, not compressed."""


class Writer:
    """Collects the streams of one shard.

    Args:
        names: The streams, in the order of the shard.
        planes: Those that are compressed only where it pays.
    """

    def __init__(self, names: Sequence[str], *, planes: Collection[str]) -> None:
        self._parts: dict[str, list[Bytes]] = {name: [] for name in names}
        self._planes = planes

    def add(self, parts: Mapping[str, Bytes]) -> None:
        """Appends to some of the streams."""
        for name, part in parts.items():
            self._parts[name].append(part)

    def finish(self, deltas: Sequence[Delta], modes: Sequence[int], *, codec: str, nonce: bytes) -> Encoded:
        """Compresses the streams and write the shard; empty streams are left out."""
        tensors: list[tuple[str, shard.Tensor]] = []
        sizes: dict[str, list[int]] = {}
        raw: dict[str, int] = {}
        raw_size = len(modes)
        if modes:
            tensors.append((MODES, shard.Tensor("U8", (len(modes),), bytes(modes))))
        for name, parts in self._parts.items():
            stream = b"".join(part.data for part in parts)
            if stream:
                raw_size += len(stream)
                stored, frame_sizes = store(stream) if name in self._planes else frames.compress(stream)
                if frame_sizes is not None:
                    sizes[name], raw[name] = frame_sizes, len(stream)
                tensors.append((name, shard.Tensor("U8", (len(stored),), stored)))
        changed = [delta.changed for delta in deltas]
        digests = [delta.state_delta for delta in deltas]
        meta = shard.Meta(codec, shard.nonce_text(nonce), changed, digests, sizes, raw)
        return Encoded(
            data=shard.build(meta, tensors),
            raw_size=raw_size,
            state_delta=sum(digests) & MASK,
            changed=sum(changed),
        )


class Reader:
    """The streams of one shard, inflated as their sizes become known.

    Args:
        data: The shard.
        specs: Its slices.
        codec: The codec that it must be of.
        raw_size: What the descriptor declares.
        planes: Streams that may be stored as they are.

    Raises:
        BadShard: It breaks a rule of the container, or its sizes do not add up.
        LimitExceeded: It declares more than the limits allow.
    """

    def __init__(
        self,
        data: bytes,
        specs: Sequence[SliceSpec],
        *,
        codec: str,
        raw_size: int,
        planes: Collection[str],
    ) -> None:
        file = shard.open_shard(data, specs, codec=codec)
        self.meta: Final = file.meta
        self._tensors = file.tensors
        self._open: dict[str, memoryview] = {}
        modes = {MODES} if specs else set()
        as_they_are = file.tensors.keys() - file.meta.raw.keys()
        known = file.meta.raw.keys() <= file.tensors.keys() - modes
        if not (known and modes <= as_they_are <= modes.union(planes)):
            raise BadShard("the streams of the shard are not those that its metadata list")
        for name, tensor in file.tensors.items():
            if tensor.dtype != "U8" or len(tensor.shape) != 1:
                raise BadShard(f"stream {name!r} is not a flat U8 tensor")
        self._raw: Final = {
            name: file.meta.raw.get(name, len(tensor.data))
            for name, tensor in file.tensors.items()
            if name not in modes
        }
        shard.check_raw_size(raw_size, sum(self._raw.values()) + len(specs), specs)
        self.modes: Final = bytes(file.tensors[MODES].data) if specs else b""
        if len(self.modes) != len(specs):
            raise BadShard(f"the shard has {len(self.modes)} modes for {len(specs)} slices")

    def inflate(self, expected: Mapping[str, int]) -> None:
        """Inflates streams that must have these raw sizes; one of size 0 must be left out.

        Raises:
            BadShard: A stream has another size, is missing or does not inflate.
        """
        for name, size in expected.items():
            declared = self._raw.get(name, 0)
            if declared != size or (name in self._raw) != (size > 0):
                raise BadShard(f"stream {name!r} has {declared} raw bytes, where {size} are needed")
        for name, size in expected.items():
            if size:
                stored = memoryview(self._tensors[name].data)
                if name in self.meta.raw:
                    stored = memoryview(frames.decompress(stored, self.meta.frames[name], size))
                self._open[name] = stored

    def close(self) -> None:
        """Makes sure that no stream is left over.

        Raises:
            BadShard: A stream that the codec does not know, or bytes that no slice took.
        """
        unknown = self._raw.keys() - self._open.keys()
        if unknown or any(self._open.values()):
            raise BadShard("streams of the shard are left over")

    def take(self, name: str, size: int) -> Bytes:
        """The next bytes of an inflated stream."""
        if not size:
            return np.empty(0, np.uint8)
        stream = self._open[name]
        self._open[name] = stream[size:]
        return np.frombuffer(stream[:size], np.uint8)
