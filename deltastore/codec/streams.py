"""Shards made of streams (spec, Compressed streams): U8 tensors of zstd frames, and the raw stream `M`.

Each stream runs through the slices of the shard in order. A reader says how long every stream must be, from
what it has checked so far, before that stream is inflated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from deltastore.codec import frames, shard
from deltastore.codec.kernels import Bytes
from deltastore.codec.types import Diff, Encoded, SliceSpec
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK

MODES: Final = "M"
"""One byte per slice, not compressed."""


class Writer:
    """Collects the streams of one shard."""

    def __init__(self, names: Sequence[str]) -> None:
        self._parts: dict[str, list[Bytes]] = {name: [] for name in names}

    def add(self, parts: Mapping[str, Bytes]) -> None:
        """Append to some of the streams."""
        for name, part in parts.items():
            self._parts[name].append(part)

    def finish(self, diffs: Sequence[Diff], modes: Sequence[int], *, codec: str, nonce: bytes) -> Encoded:
        """Compress the streams and write the shard; empty streams are left out."""
        tensors: list[tuple[str, shard.Tensor]] = []
        sizes: dict[str, list[int]] = {}
        raw: dict[str, int] = {}
        if modes:
            tensors.append((MODES, shard.Tensor("U8", (len(modes),), bytes(modes))))
        for name, parts in self._parts.items():
            stream = b"".join(part.data for part in parts)
            if stream:
                stored, sizes[name] = frames.compress(stream)
                raw[name] = len(stream)
                tensors.append((name, shard.Tensor("U8", (len(stored),), stored)))
        changed = [diff.changed for diff in diffs]
        deltas = [diff.state_delta for diff in diffs]
        meta = shard.Meta(codec, shard.nonce_text(nonce), changed, deltas, sizes, raw)
        return Encoded(
            data=shard.build(meta, tensors),
            raw_size=sum(raw.values()) + len(modes),
            state_delta=sum(deltas) & MASK,
            changed=sum(changed),
        )


class Reader:
    """The streams of one shard, inflated as their sizes become known.

    Args:
        data: The shard.
        specs: Its slices.
        codec: The codec that it must be of.
        raw_size: What the descriptor declares.

    Raises:
        BadShard: It breaks a rule of the container, or its sizes do not add up.
        LimitExceeded: It declares more than the limits allow.
    """

    def __init__(self, data: bytes, specs: Sequence[SliceSpec], *, codec: str, raw_size: int) -> None:
        file = shard.open_shard(data, specs, codec=codec)
        self.meta: Final = file.meta
        self._tensors = file.tensors
        self._open: dict[str, memoryview] = {}
        modes = {MODES} if specs else set()
        if file.tensors.keys() != file.meta.raw.keys() | modes or MODES in file.meta.raw:
            raise BadShard("the streams of the shard are not those that its metadata list")
        for name, tensor in file.tensors.items():
            if tensor.dtype != "U8" or len(tensor.shape) != 1:
                raise BadShard(f"stream {name!r} is not a flat U8 tensor")
        shard.check_raw_size(raw_size, sum(file.meta.raw.values()) + len(specs), specs)
        self.modes: Final = bytes(file.tensors[MODES].data) if specs else b""
        if len(self.modes) != len(specs):
            raise BadShard(f"the shard has {len(self.modes)} modes for {len(specs)} slices")

    def inflate(self, expected: Mapping[str, int]) -> None:
        """Inflate streams that must have these raw sizes; one of size 0 must be left out.

        Raises:
            BadShard: A stream has another size, is missing or does not inflate.
        """
        for name, size in expected.items():
            declared = self.meta.raw.get(name, 0)
            if declared != size or (name in self.meta.raw) != (size > 0):
                raise BadShard(f"stream {name!r} has {declared} raw bytes, where {size} are needed")
        for name, size in expected.items():
            if size:
                stored = memoryview(self._tensors[name].data)
                raw = frames.decompress(stored, self.meta.frames[name], size)
                self._open[name] = memoryview(raw)

    def close(self) -> None:
        """Make sure that no stream is left over.

        Raises:
            BadShard: A stream that the codec does not know, or bytes that no slice took.
        """
        unknown = self.meta.raw.keys() - self._open.keys()
        if unknown or any(self._open.values()):
            raise BadShard("streams of the shard are left over")

    def take(self, name: str, size: int) -> Bytes:
        """The next bytes of an inflated stream."""
        if not size:
            return np.empty(0, np.uint8)
        stream = self._open[name]
        self._open[name] = stream[size:]
        return np.frombuffer(stream[:size], np.uint8)
