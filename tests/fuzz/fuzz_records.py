"""Target `records`: records, edges, schemas, STORE.json, envelopes and keys, as anybody may have stored them.

The first byte of an input chooses what is read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from typing import Any

import msgpack
from fuzz_noise import Noise, edit
from fuzz_target import Target
from record_samples import SCHEMA, STORE, buried, data, delta, short_log, slot

from deltastore.errors import BadKey, BadRecord, LimitExceeded, UnknownFeature, Unsupported
from deltastore.protocol import descriptors, features, keys, wire
from deltastore.protocol.edges import EdgeRecord, parse_edge
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import Ancestor, Identity
from deltastore.protocol.records import parse_slot
from deltastore.protocol.schema import Schema, TensorSpec

_STORED = (BadRecord, LimitExceeded)
_LOG = short_log()
_SCHEMA = Schema.of(
    [
        TensorSpec("a", "BF16", (16, 4)),
        TensorSpec("b", "F4", (48,)),
        TensorSpec("c", "F32", ()),
        TensorSpec("d", "BF16", (16, 4), alias_of="a"),
        TensorSpec("e", "U8", (0,)),
        TensorSpec("ü", "I64", (5,)),
    ]
)


def _rich() -> bytes:
    record = data(
        _LOG[1],
        files={"a.json": SCHEMA, "b/c.txt": SCHEMA},
        last_anchor=1,
        resumed_from=1,
        user={"loss": 0.5, "tags": ["x", None, True], "more": {"y": b"z"}},
        requires=Requires(),
    )
    return slot(record).data


# --- What is read, and what must hold then -----------------------------------------------------------


def _slot(stored: bytes) -> None:
    for version in (0, 2):
        try:
            found = parse_slot(stored, store=STORE, version=version)
        except _STORED:
            continue
        written = found.record.to_bytes()  # compared as bytes: a user's NaN is not equal to itself
        assert parse_slot(written, store=STORE, version=version).record.to_bytes() == written
        _cover(getattr(found.record, "edges", ()))


def _edge(stored: bytes) -> None:
    try:
        found = parse_edge(stored, store=STORE)
    except _STORED:
        return
    assert parse_edge(found.to_bytes(), store=STORE) == found
    _cover((found.edge,))
    try:
        features.check(found.requires, "read", where="edge")
    except UnknownFeature:
        assert found.requires.read


def _cover(edges: Iterable[Any]) -> None:
    """Slices against a schema: refused, or inside their tensors, in order, and the same once coded again."""
    for edge in edges:
        for shard in edge.shards:
            try:
                found = list(descriptors.resolve(_SCHEMA, shard.slices))
            except BadRecord:
                continue
            assert all(0 <= one.start <= one.stop <= one.tensor.lanes for one in found)
            again = descriptors.compress(_SCHEMA, found)
            assert list(descriptors.resolve(_SCHEMA, again)) == found
        try:
            descriptors.check_cover(_SCHEMA, edge.shards)
        except _STORED:
            continue
        covered = [one for shard in edge.shards for one in descriptors.resolve(_SCHEMA, shard.slices)]
        assert sum(one.nbytes for one in covered) == _SCHEMA.nbytes


def _schema(stored: bytes) -> None:
    try:
        found = Schema.from_bytes(stored)
    except (*_STORED, Unsupported):
        return
    assert found.data == stored
    assert Schema.of(found.tensors) == found
    assert found.nbytes == sum(t.lanes * t.lane_bytes for t in found.owners)


def _identity(stored: bytes) -> None:
    try:
        found = Identity.from_bytes(stored)
    except _STORED:
        return
    assert Identity.from_bytes(found.to_bytes()) == found
    assert len(found.store_of(0)) == 32


def _envelope(stored: bytes) -> None:
    try:
        found = wire.Envelope.from_bytes(stored, where="x")
    except _STORED:
        return
    assert wire.Envelope.from_bytes(found.to_bytes(), where="x") == found
    assert wire.signed_bytes(found.type, found.body).endswith(found.body)


def _key(stored: bytes) -> None:
    key = stored.decode("utf-8", "surrogateescape")
    readers: tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...] = (
        (keys.check, str),
        (keys.check_prefix, str),
        (keys.parse_version, keys.version),
        (keys.parse_edge, lambda found: keys.edge(*found)),
    )
    for reader, write in readers:
        try:
            found = reader(key)
        except BadKey:
            continue
        assert write(found) == key
        assert key.isascii()
        assert ".." not in key.split("/")
        assert not key.startswith("/")


READERS = (_slot, _edge, _schema, _identity, _envelope, _key)


def check(data: bytes) -> None:
    """Nothing but the errors that the docstrings promise; what is read is written as it was."""
    if data:
        READERS[data[0] % len(READERS)](data[1:])


def seeds() -> Iterable[bytes]:
    """One of everything that is stored."""
    lineage = (Ancestor("cd" * 16, 7),)
    identity = Identity(store=STORE, first_version=3, lineage=lineage, replica_of="ef" * 16)
    edge = EdgeRecord(store=STORE, schema=SCHEMA.sha256, edge=delta(1, 5, 2, 9, slices=_SLICES))
    signed = wire.Envelope("edge", b"\x80", (wire.Signature("k", "ed25519", bytes(64)),))
    stored = (
        (_slot, (_rich(), buried(_LOG[2]).data, _LOG[0].data, _LOG[1].data)),
        (_edge, (edge.to_bytes(),)),
        (_schema, (_SCHEMA.data,)),
        (_identity, (identity.to_bytes(),)),
        (_envelope, (signed.to_bytes(),)),
        (_key, tuple(key.encode() for key in _KEYS)),
    )
    for reader, samples in stored:
        for sample in samples:
            yield bytes([READERS.index(reader)]) + sample


_SLICES = descriptors.compress(
    _SCHEMA,
    [
        descriptors.Slice(_SCHEMA["a"], 0, 32),
        descriptors.Slice(_SCHEMA["a"], 32, 64),
        descriptors.Slice(_SCHEMA["b"], 0, 24),
        descriptors.Slice(_SCHEMA["c"], 0, 1),
        descriptors.Slice(_SCHEMA["e"], 0, 0),
        descriptors.Slice(_SCHEMA["ü"], 0, 5),
    ],
)
_KEYS = (
    keys.STORE,
    keys.version(7),
    keys.edge(7, 3, "5c" * 32),
    keys.edge(7, "none", "5c" * 32),
    keys.edge(7, "external", "5c" * 32),
    keys.object_("5c" * 32),
    keys.status("a.b"),
    keys.edges_of(3),
)


# --- How to damage one -------------------------------------------------------------------------------


def mutate(data: bytes, rng: random.Random, noise: Noise) -> bytes:
    """Damages a value inside the message, at any depth and behind the envelope; or any bytes at all."""
    kind, stored = data[:1], data[1:]
    if not kind or rng.random() < 0.15:
        return noise(data, len(data) + 32)
    reader = READERS[kind[0] % len(READERS)]
    try:
        if reader is _identity:
            return kind + _edited(json.loads(stored), rng, noise, lambda v: json.dumps(v).encode())
        if reader is not _key:
            return kind + _edited_message(stored, rng, noise)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        pass
    return kind + noise(stored, len(stored) + 16)


def _edited_message(stored: bytes, rng: random.Random, noise: Noise) -> bytes:
    value = msgpack.unpackb(stored)
    if isinstance(value, dict) and isinstance(body := value.get("body"), bytes) and rng.random() < 0.9:
        value["body"] = _edited(msgpack.unpackb(body), rng, noise, _pack)
        if rng.random() < 0.2:
            value["body"] = noise(body, len(body) + 8)
        return _pack(value)
    return _edited(value, rng, noise, _pack)


def _pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


def _edited(value: Any, rng: random.Random, noise: Noise, write: Callable[[Any], bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 3))):
        edit(value, rng, noise)
    return write(value)


TARGET = Target(seeds, check, mutate)
