"""Shards made of streams (spec, Compressed streams): U8 tensors of zstd frames, planes, the raw `M` and `D`.

Each stream runs through the slices of the shard in order. A reader says how long every stream must be, from
what it has checked so far, before that stream is inflated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from deltastore.codec import frames, shard
from deltastore.codec.planes import store
from deltastore.codec.types import Encoded, SliceSpec, Stream
from deltastore.errors import BadShard
from deltastore.protocol.digest import MASK

MODES: Final = "M"
"""One byte per slice, not compressed."""
DIGESTS: Final = "D"
"""What each slice that is not empty adds to the state digest, 8 bytes each, not compressed."""
_END: Final = memoryview(b"")
"""What is left of a stream at its end: a slice of it would keep it in memory."""


@dataclass(slots=True)
class _Growing:
    """A stream as it grows.

    Attributes:
        raw: Its bytes so far.
        held: Those that are not compressed yet.
        parts: What they are in.
        stored: All others, compressed.
        sizes: Those of their frames.
    """

    raw: int = 0
    held: int = 0
    parts: list[Stream] = field(default_factory=list)
    stored: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def add(self, part: Stream) -> None:
        self.parts.append(part)
        self.raw += len(part)
        self.held += len(part)

    def compress(self, size: int) -> None:
        """Compresses so many of the bytes that are held: whole frames, or all, once none can follow."""
        held = b"".join(self.parts)
        stored, sizes = frames.compress(memoryview(held)[:size])
        self.stored.append(stored)
        self.sizes += sizes
        self.parts, self.held = [held[size:]], self.held - size


class Writer:
    """Collects the streams of one shard.

    Args:
        names: The streams, in the order of the shard.
        planes: Those that are compressed only where it pays.
        gradual: Compress frames as they fill up, and not all at once, which takes less memory and more time
            where cores are idle. Planes wait: whether it pays depends on all of a stream.
    """

    def __init__(self, names: Sequence[str], *, planes: Collection[str], gradual: bool = False) -> None:
        self._streams = {name: _Growing() for name in names}
        self._planes = planes
        self._gradual = gradual

    def add(self, parts: Mapping[str, Stream]) -> None:
        """Appends to some of the streams."""
        for name, part in parts.items():
            stream = self._streams[name]
            stream.add(part)
            if self._gradual and stream.held >= frames.FRAME and name not in self._planes:
                stream.compress(stream.held // frames.FRAME * frames.FRAME)

    def finish(
        self, digests: Sequence[int], *, changed: int, codec: str, nonce: bytes, modes: Sequence[int] = ()
    ) -> Encoded:
        """Compresses the streams and writes the shard; empty streams are left out.

        Args:
            digests: What each slice that is not empty adds to the state digest, modulo 2^64.
            changed: Lanes that changed in all slices.
            codec: Id of the codec.
            nonce: 16 random bytes.
            modes: One per slice, for codecs that have them.
        """
        tables = {
            MODES: bytes(modes),
            DIGESTS: np.array([value & MASK for value in digests], "<u8").tobytes(),
        }
        tensors = [(name, _flat(table)) for name, table in tables.items() if table]
        raw_size = sum(map(len, tables.values()))
        sizes: dict[str, list[int]] = {}
        raw: dict[str, int] = {}
        for name in list(self._streams):
            stream = self._streams.pop(name)
            if stream.raw:
                raw_size += stream.raw
                stored, frame_sizes = self._stored(name, stream)
                if frame_sizes is not None:
                    sizes[name], raw[name] = frame_sizes, stream.raw
                tensors.append((name, _flat(stored)))
        meta = shard.Meta(codec, shard.nonce_text(nonce), frames=sizes, raw=raw)
        return Encoded(shard.build(meta, tensors), raw_size, sum(digests) & MASK, changed)

    def _stored(self, name: str, stream: _Growing) -> tuple[bytes, list[int] | None]:
        """A stream as it is stored, and the sizes of its frames; None if it is stored as it is."""
        if name in self._planes:
            return store(b"".join(stream.parts))
        if stream.held:
            stream.compress(stream.held)
        return b"".join(stream.stored), stream.sizes


def _flat(data: bytes) -> shard.Tensor:
    return shard.Tensor("U8", (len(data),), data)


class Reader:
    """The streams of one shard, inflated as their sizes become known.

    Args:
        data: The shard.
        specs: Its slices.
        codec: The codec that it must be of.
        raw_size: What the descriptor declares.
        tables: Streams that must be stored as they are.
        planes: Streams that may be.

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
        tables: Collection[str],
        planes: Collection[str],
    ) -> None:
        file = shard.open_shard(data, codec=codec, digests=0)
        self._meta: Final = file.meta
        self._tensors = file.tensors
        self._open: dict[str, memoryview] = {}
        self._frames: dict[str, Iterator[bytes]] = {}
        as_they_are = file.tensors.keys() - file.meta.raw.keys()
        known = file.meta.raw.keys() <= file.tensors.keys() - set(tables)
        if not (known and as_they_are <= {*tables, *planes}):
            raise BadShard("the streams of the shard are not those that its metadata list")
        for name, tensor in file.tensors.items():
            if tensor.dtype != "U8" or len(tensor.shape) != 1:
                raise BadShard(f"stream {name!r} is not a flat U8 tensor")
        self._raw: Final = {
            name: file.meta.raw.get(name, len(tensor.data)) for name, tensor in file.tensors.items()
        }
        shard.check_raw_size(raw_size, sum(self._raw.values()), specs)

    def modes(self, count: int) -> bytes:
        """The modes of so many slices.

        Raises:
            BadShard: There are not so many.
        """
        self.inflate({MODES: count})
        return bytes(self.take(MODES, count))

    def digests(self, filled: Sequence[bool]) -> list[int]:
        """What each slice adds to the state digest; 0 for those that are empty, of which nothing is stored.

        Args:
            filled: Which slices are not empty.

        Raises:
            BadShard: There is another number of digests than of these.
        """
        size = 8 * sum(filled)
        self.inflate({DIGESTS: size})
        stored = iter(np.frombuffer(self.take(DIGESTS, size), "<u8").tolist())
        return [next(stored) if one else 0 for one in filled]

    def inflate(self, expected: Mapping[str, int], *, gradual: bool = False) -> None:
        """Inflates streams that must have these raw sizes; one of size 0 must be left out.

        Args:
            expected: Raw sizes by name.
            gradual: Not now, but frame by frame as they are taken, which may then be refused as well.

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
                if name in self._meta.raw and gradual:
                    self._frames[name] = frames.each(stored, self._meta.frames[name], size)
                    stored = memoryview(b"")
                elif name in self._meta.raw:
                    stored = memoryview(frames.decompress(stored, self._meta.frames[name], size))
                self._open[name] = stored

    def close(self) -> None:
        """Makes sure that no stream is left over.

        Raises:
            BadShard: A stream that the codec does not know, or bytes that no slice took.
        """
        unknown = self._raw.keys() - self._open.keys()
        if unknown or any(self._open.values()):
            raise BadShard("streams of the shard are left over")

    def take(self, name: str, size: int) -> Stream:
        """The next bytes of an inflated stream."""
        if not size:
            return b""
        stream = self._open[name]
        if len(stream) < size:
            stream = self._filled(name, size)
        self._open[name] = stream[size:] if len(stream) > size else _END
        return stream[:size]

    def _filled(self, name: str, size: int) -> memoryview:
        """What is left of a stream that inflates gradually, with as many frames more as it takes."""
        parts: list[bytes | memoryview] = [self._open[name]]
        have = len(parts[0])
        while have < size:
            parts.append(next(self._frames[name]))
            have += len(parts[-1])
        return memoryview(parts[1] if not len(parts[0]) and len(parts) == 2 else b"".join(parts))
