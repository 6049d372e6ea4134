"""Shards taken apart and put together again, without any of the checks that a reader makes."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass
from typing import Any

import zstandard
from fuzz_noise import Noise, edit

from deltastore.codec import frames, shard
from deltastore.protocol import dtypes

_METADATA = "__metadata__"
_COUNTS = (0, 1, 2, 3, 254, 255, 256, 2**16, 2**18 - 1, 2**18, 2**31, 2**32 - 1)
_MOST = 1 << 20
"""Nothing larger is inflated here."""


@dataclass
class Parts:
    """A shard whose streams are inflated.

    Attributes:
        header: Entries of the tensors, by name.
        meta: The fields under our key.
        streams: Bytes of the tensors; raw, where they are compressed.
        packed: Those that are compressed, which the fields of the metadata are brought up to date for.
    """

    header: dict[str, Any]
    meta: dict[str, Any]
    streams: dict[str, bytes]
    packed: set[str]

    @classmethod
    def of(cls, data: bytes) -> Parts | None:
        """Takes a shard apart; None if it is too broken for that."""
        try:
            (length,) = struct.unpack_from("<Q", data)
            header = json.loads(data[8 : 8 + length])
            meta = json.loads(header.pop(_METADATA)[shard.KEY])
            packed = set(meta.get("raw", {}))
            streams = {
                name: _inflated(_at(data, 8 + length, entry), packed=name in packed)
                for name, entry in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
            return None
        return cls(header, meta, streams, packed & streams.keys())

    def damage(self, rng: random.Random, noise: Noise) -> None:
        """Does one thing."""
        names = sorted(self.streams)
        kind = rng.randrange(10) if names else 9
        name = rng.choice(names) if names else ""
        raw = self.streams.get(name, b"")
        match kind:
            case 0 | 1:  # as long as before: the counts elsewhere still fit
                self.streams[name] = noise(raw, len(raw) + 1)[: len(raw)].ljust(len(raw), b"\0")
            case 2:
                self.streams[name] = noise(raw, len(raw) + 64)
            case 3 | 4 if len(raw) >= 4:  # a count of a table
                at = 4 * rng.randrange(len(raw) // 4)
                (old,) = struct.unpack_from("<I", raw, at)
                new = rng.choice((old + 1, old - 1, old ^ 1 << rng.randrange(32), *_COUNTS)) % 2**32
                self.streams[name] = raw[:at] + struct.pack("<I", new) + raw[at + 4 :]
            case 5:
                self.streams[name] = raw[: rng.randint(0, len(raw))]
            case 6:
                self.packed ^= {name}
            case 7:
                other = rng.choice((*names, "M", "T", "G", "H", "P0", "X", "D"))
                self.streams[other], self.streams[name] = raw, self.streams.get(other, raw)
                self.header.setdefault(other, {"dtype": "U8"})
            case 8:
                del self.streams[name]
                self.header.pop(name, None)
                self.packed.discard(name)
            case _:
                edit(rng.choice((self.meta, self.meta, self.header)), rng, noise)

    def to_bytes(self) -> bytes:
        """The shard: offsets, shapes and frames as they come out, unless their types were meddled with."""
        body, header = b"", dict(self.header)
        for name, raw in self.streams.items():
            stored, sizes = frames.compress(raw) if name in self.packed and raw else (raw, [])
            for field, value in (("frames", sizes), ("raw", len(raw))):
                if isinstance(known := self.meta.get(field), dict):
                    known.pop(name, None)
                    if sizes:
                        known[name] = value
            header[name] = _entry(header.get(name), len(body), len(stored))
            body += stored
        text = json.dumps({_METADATA: {shard.KEY: json.dumps(self.meta)}, **header}).encode()
        return struct.pack("<Q", len(text)) + text + body


def _at(data: bytes, start: int, entry: dict[str, Any]) -> bytes:
    first, last = entry["data_offsets"]
    return data[start + first : start + last]


def _inflated(stored: bytes, *, packed: bool) -> bytes:
    if not packed:
        return stored
    out, rest = b"", stored
    while rest and len(out) < _MOST:
        one = zstandard.ZstdDecompressor().decompressobj()
        try:
            out += one.decompress(rest)
        except zstandard.ZstdError:
            return out
        rest = one.unused_data
    return out


def _entry(old: Any, start: int, size: int) -> Any:
    """An entry for so many bytes, of the old dtype and shape if they fit."""
    match old:
        case {"dtype": str(dtype)} if dtype in dtypes.BITS:
            shape = old.get("shape")
            match old.get("data_offsets"):
                case [int(first), int(last)] if last - first == size:
                    pass
                case _:
                    shape = [size * 8 // dtypes.BITS[dtype]]
            return {**old, "shape": shape, "data_offsets": [start, start + size]}
    return old
