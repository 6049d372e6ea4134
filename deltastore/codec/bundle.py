"""Streams in one tensor (spec, Codec ctx): where they are many and short, names cost more than data.

The metadata list the raw size of each and its frames; without frames it is stored as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltastore.codec import frames, shard
from deltastore.codec.types import Encoded, SliceSpec, Stream
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK

TENSOR: Final = "S"
"""The tensor that holds all streams, one after the other."""


class Writer:
    """Collects the streams of one shard, in their order."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._frames: dict[str, list[int]] = {}
        self._raw: dict[str, int] = {}

    def add(self, name: str, parts: Sequence[Stream], *, compressed: bool = True) -> None:
        """Adds a stream; an empty one is left out, and one that would not get smaller stays as it is."""
        stream = b"".join(parts)
        if not stream:
            return
        self._raw[name], self._frames[name] = len(stream), []
        if compressed:
            stored, sizes = frames.compress(stream)
            if len(stored) < len(stream):
                stream, self._frames[name] = stored, sizes
        self._parts.append(stream)

    def finish(self, *, codec: str, nonce: bytes, state_delta: int, changed: int) -> Encoded:
        """Writes the shard."""
        data = b"".join(self._parts)
        meta = shard.Meta(codec, shard.nonce_text(nonce), frames=self._frames, raw=self._raw)
        tensors = [(TENSOR, shard.Tensor("U8", (len(data),), data))] if data else []
        return Encoded(
            data=shard.build(meta, tensors),
            raw_size=sum(self._raw.values()),
            state_delta=state_delta & MASK,
            changed=changed,
        )


class Reader:
    """The streams of one shard, inflated as their sizes become known.

    Args:
        data: The shard.
        specs: Its slices.
        codec: The codec that it must be of.
        names: The streams that it may have, in their order.
        raw_size: What the descriptor declares.

    Raises:
        BadShard: It breaks a rule of the container, or its sizes do not add up.
        LimitExceeded: It declares more than the limits allow.
    """

    def __init__(
        self, data: bytes, specs: Sequence[SliceSpec], *, codec: str, names: Sequence[str], raw_size: int
    ) -> None:
        file = shard.open_shard(data, codec=codec, digests=0)
        self._raw: Final[Mapping[str, int]] = file.meta.raw
        self._frames: Final = file.meta.frames
        present = [name for name in names if name in self._raw]
        if len(present) != len(self._raw):
            raise BadShard("the streams of the shard are not those of its codec")
        if file.tensors.keys() != ({TENSOR} if present else set()):
            raise BadShard(f"the tensors of the shard are not the one that holds its streams, {TENSOR!r}")
        shard.check_raw_size(raw_size, sum(self._raw.values()), specs)
        body = memoryview(b"")
        if present:
            tensor = file.tensors[TENSOR]
            if tensor.dtype != "U8" or len(tensor.shape) != 1:
                raise BadShard(f"{TENSOR!r} is not a flat U8 tensor")
            body = memoryview(tensor.data)
        self._stored: dict[str, memoryview] = {}
        at = 0
        for name in present:
            size = sum(self._frames[name]) or self._raw[name]
            self._stored[name] = body[at : at + size]
            at += size
        if at != len(body):
            raise BadShard(f"the streams take {at} bytes, the tensor has {len(body)}")

    def declared(self, name: str) -> int:
        """The raw size that a stream claims to have; 0 if it is not there."""
        return self._raw.get(name, 0)

    def read(self, name: str, size: int) -> memoryview:
        """A stream that must have this raw size, inflated; one of size 0 must be left out.

        Raises:
            BadShard: It has another size, is missing or does not inflate.
        """
        declared = self.declared(name)
        if declared != size or (name in self._raw) != (size > 0):
            raise BadShard(f"stream {name!r} has {declared} raw bytes, where {size} are needed")
        if not size:
            return memoryview(b"")
        if self._frames[name]:
            return memoryview(frames.decompress(self._stored[name], self._frames[name], size))
        return self._stored[name]
