"""Records as bytes (spec, Records): canonical msgpack out, strict typed msgpack in, the signature envelope.

Stored bytes are what is hashed and signed; nothing is ever serialised again to be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgpack

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol.limits import MAX_INT, NESTING, RECORD_BYTES, SIGNATURES

Value = None | bool | int | float | str | bytes | Sequence["Value"] | Mapping[str, "Value"]
T = TypeVar("T")

SPEC: Final = 1
"""The version of the spec that records of this release are written to."""

_SIGNATURE_BYTES: Final = 4096
_LEAVES: Final = frozenset({type(None), bool, int, float, str, bytes})


def sha256(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def pack(value: Value) -> bytes:
    """Canonical msgpack: shortest forms, map keys ascending by their UTF-8 bytes (DS-REC-2)."""
    return bytes(msgpack.packb(_canonical(value), use_bin_type=True))


def unpack(data: bytes, *, where: str, max_bytes: int) -> Fields:
    """Reads a msgpack map, refusing what the spec does not allow before it allocates for it (DS-REC-1).

    Args:
        data: The stored bytes.
        where: What they are, for messages.
        max_bytes: The limit for this kind of object.

    Raises:
        LimitExceeded: More than `max_bytes`.
        BadRecord: Not one msgpack map with distinct text keys, nested too deep, or an extension type in it.
    """
    if len(data) > max_bytes:
        raise LimitExceeded(f"{where} has {len(data)} bytes, over the limit of {max_bytes}")
    try:
        _check_lengths(data, max_bytes)
        value = msgpack.unpackb(
            data,
            raw=False,
            use_list=False,
            strict_map_key=True,
            object_pairs_hook=distinct,
            ext_hook=_no_extension,
        )
        _check_nesting(value)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise BadRecord(f"{where} is not valid msgpack: {error}") from error
    return Fields(value, where)


class Fields:
    """A msgpack map whose fields are read by name and type; unknown fields are ignored (DS-REC-3)."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise BadRecord(f"{where} is not a map with text keys")
        self._map: dict[str, object] = value
        self.where = where

    def bad(self, name: str, problem: str) -> BadRecord:
        """The error for a field."""
        return BadRecord(f"{self.where}: field {name!r} {problem}", field=name)

    def names(self) -> list[str]:
        """The names of the fields, as stored."""
        return list(self._map)

    def integer(self, name: str, *, most: int = MAX_INT) -> int:
        """An integer from 0 to `most`."""
        value = self._map.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise self.bad(name, f"is not an integer from 0 to {most}")
        return value

    def text(self, name: str, *, most: int = 4096) -> str:
        """A string of at most `most` UTF-8 bytes."""
        value = self._map.get(name)
        if not isinstance(value, str) or len(value.encode()) > most:
            raise self.bad(name, f"is not a string of at most {most} bytes")
        return value

    def blob(self, name: str, *, size: int) -> bytes:
        """Exactly `size` bytes."""
        value = self._map.get(name)
        if not isinstance(value, bytes) or len(value) != size:
            raise self.bad(name, f"is not {size} bytes")
        return value

    def blob_up_to(self, name: str, *, most: int) -> bytes:
        """At most `most` bytes."""
        value = self._map.get(name)
        if not isinstance(value, bytes) or len(value) > most:
            raise self.bad(name, f"is not at most {most} bytes")
        return value

    def digest(self, name: str) -> str:
        """A SHA-256: 32 bytes here, hexadecimal in Python."""
        return self.blob(name, size=32).hex()

    def word(self, name: str) -> int:
        """A 64-bit value as 8 bytes, big-endian."""
        return int.from_bytes(self.blob(name, size=8), "big")

    def array(self, name: str, *, most: int) -> tuple[object, ...]:
        """An array of at most `most` items."""
        value = self._map.get(name)
        if not isinstance(value, tuple):
            raise self.bad(name, "is not an array")
        if len(value) > most:
            raise LimitExceeded(f"{self.where}: {name!r} has {len(value)} items, at most {most}")
        return value

    def texts(self, name: str, *, most: int) -> tuple[str, ...]:
        """An array of strings."""
        items = self.array(name, most=most)
        texts = tuple(item for item in items if isinstance(item, str))
        if len(texts) != len(items):
            raise self.bad(name, "holds something that is not a string")
        return texts

    def map(self, name: str, *, most: int) -> Fields:
        """A map with text keys and at most `most` fields."""
        inner = Fields(self._map.get(name), f"{self.where}, {name!r}")
        if len(inner._map) > most:
            raise LimitExceeded(f"{inner.where} has {len(inner._map)} fields, at most {most}")
        return inner

    def raw(self) -> dict[str, object]:
        """The map itself, for values that belong to the user."""
        return dict(self._map)

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """`read(name)`, or None where the field is nil; absence is an error."""
        if name not in self._map:
            raise self.bad(name, "is missing")
        return None if self._map[name] is None else read(name)

    def has(self, name: str) -> bool:
        """Whether the field is there and not nil."""
        return self._map.get(name) is not None


@dataclass(frozen=True, slots=True)
class Signature:
    """One signature over the body of an envelope (spec, Envelope).

    Attributes:
        key: Which key made it.
        algorithm: Its name in the registry.
        value: The signature.
    """

    key: str
    algorithm: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A stored record: its type, its body as bytes, and signatures over both (DS-SIG-1)."""

    type: str
    body: bytes
    signatures: tuple[Signature, ...] = ()

    def to_bytes(self) -> bytes:
        """What is stored."""
        signatures: list[Value] = [
            {"algorithm": s.algorithm, "key": s.key, "value": s.value} for s in self.signatures
        ]
        return pack({"body": self.body, "signatures": signatures, "type": self.type})

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Envelope:
        """Reads a stored record's envelope.

        Raises:
            BadRecord: It is malformed.
            LimitExceeded: It is over a limit.
        """
        fields = unpack(data, where=where, max_bytes=RECORD_BYTES)
        signatures = []
        for item in fields.array("signatures", most=SIGNATURES):
            one = Fields(item, f"{where}, a signature")
            value = one.blob_up_to("value", most=_SIGNATURE_BYTES)
            signatures.append(Signature(one.text("key", most=256), one.text("algorithm", most=64), value))
        body = fields.blob_up_to("body", most=RECORD_BYTES)
        return cls(fields.text("type", most=32), body, tuple(signatures))


def signed_bytes(type_: str, body: bytes) -> bytes:
    """What a signature covers: a record of one type never passes for one of another (DS-SIG-2)."""
    name = type_.encode()
    return b"deltastore/1 %d %s %d " % (len(name), name, len(body)) + body


def open_record(data: bytes, where: str) -> tuple[str, Fields]:
    """Type and body of a stored record whose spec version this release reads (DS-REC-4).

    Raises:
        BadRecord: It is malformed, or of another spec version.
        LimitExceeded: It is over a limit.
    """
    envelope = Envelope.from_bytes(data, where=where)
    fields = unpack(envelope.body, where=where, max_bytes=RECORD_BYTES)
    spec = fields.integer("spec")
    if spec != SPEC:
        raise BadRecord(f"{where} is of spec version {spec}", hint="Upgrade deltastore", spec=spec)
    return envelope.type, fields


def word_bytes(value: int | None) -> bytes | None:
    """A 64-bit value as 8 bytes, big-endian; nil stays nil."""
    return None if value is None else value.to_bytes(8, "big")


def _canonical(value: Value) -> object:
    if isinstance(value, Mapping):
        return {key: _canonical(value[key]) for key in sorted(value, key=str.encode)}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_canonical(item) for item in value]
    return value


def distinct(pairs: Sequence[tuple[object, object]]) -> dict[object, object]:
    """A map from its entries; a key that is no text, or is there twice, is a `ValueError`."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice in a map")
    if not all(isinstance(key, str) for key in found):
        raise ValueError("a key of a map is no text")
    return found


def _check_lengths(data: bytes, max_bytes: int) -> None:
    """Walks over the data and makes nothing of it: a length that no bytes back is never allocated."""
    unpacker = msgpack.Unpacker(max_buffer_size=max_bytes)
    unpacker.feed(data)
    unpacker.skip()


def _check_nesting(value: object) -> None:
    level = [value]
    for _ in range(NESTING):
        inner: list[object] = []
        for item in level:
            if not isinstance(item, dict | tuple):
                raise ValueError(f"extension type: {type(item).__name__}")  # noqa: TRY004 - of the data
            children = item.values() if isinstance(item, dict) else item
            inner += [child for child in children if type(child) not in _LEAVES]
        if not inner:
            return
        level = inner
    raise ValueError(f"nested deeper than {NESTING}")


def _no_extension(code: int, _data: bytes) -> object:
    raise ValueError(f"extension type {code}")
