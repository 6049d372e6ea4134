"""Small logs by hand: records, tombstones and edges that keep the rules, for tests that then break one.

Nothing here asks the code under test what is right: states and deltas are made up, and add up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack

from deltastore.protocol.descriptors import Descriptor, Run, ShardDescriptor, Slices
from deltastore.protocol.edges import Edge
from deltastore.protocol.records import Kind, Slot, Stats, Tombstone, VersionRecord

STORE = "ab" * 16
OTHER = "cd" * 16
NONCE = bytes(range(16))
SCHEMA = Descriptor("5c" * 32, 321)
WORDS = 2**64
ONE = (Run(0, 1),)


def sha(text: object) -> str:
    """Some SHA-256."""
    return hashlib.sha256(str(text).encode()).hexdigest()


def shard(
    name: object,
    delta: int,
    *,
    size: int = 100,
    raw_size: int = 10,
    codec: str = "ulp",
    slices: Slices = ONE,
) -> ShardDescriptor:
    """A shard's descriptor."""
    return ShardDescriptor(sha(name), 7, size, raw_size, codec, delta % WORDS, slices)


def anchor(target: int, state: int, **options: Any) -> Edge:
    """An edge from nothing, with one shard."""
    return Edge("none", None, target, state, (shard(f"anchor {target}", state, **options),))


def delta(base: int, base_state: int, target: int, state: int, **options: Any) -> Edge:
    """An edge from a version, with one shard."""
    made = shard(f"{base} -> {target}", state - base_state, **options)
    return Edge(base, base_state, target, state, (made,))


def slot(record: VersionRecord) -> Slot:
    """A record as it is stored."""
    data = record.to_bytes()
    return Slot(record, data, hashlib.sha256(data).hexdigest())


def buried(before: Slot) -> Slot:
    """What a collector makes of a slot."""
    assert isinstance(before.record, VersionRecord)
    tombstone = Tombstone.of(before.record, before.sha256)
    return Slot(tombstone, tombstone.to_bytes(), before.sha256)


def claim(before: Slot | None, **changes: Any) -> VersionRecord:
    """The claim that follows a slot, or the first one."""
    version = 0 if before is None else before.version + 1
    record = VersionRecord(
        store=STORE,
        version=version,
        term=1 if before is None else before.record.term + 1,
        term_start=version,
        nonce=NONCE,
        parent=None if before is None else before.sha256,
        kind=Kind.CLAIM,
        schema=None if before is None else before.record.schema,
        state=None if before is None else before.record.state,
        time=1_700_000_000_000,
    )
    return replace(record, **changes)


def data(before: Slot, *, step: int | None = None, **changes: Any) -> VersionRecord:
    """The data record that follows a slot: a delta, or an anchor where there was no state."""
    old, version = before.record, before.version + 1
    state = 1000 + version
    edge = anchor(version, state) if old.state is None else delta(before.version, old.state, version, state)
    record = VersionRecord(
        store=old.store,
        version=version,
        term=old.term,
        term_start=old.term_start,
        nonce=NONCE,
        parent=before.sha256,
        kind=Kind.DATA,
        schema=SCHEMA,
        state=state,
        edges=(edge,),
        step=version if step is None else step,
        time=1_700_000_000_000,
        stats=Stats(1, 2, 3, 4),
    )
    return replace(record, **changes)


def short_log() -> list[Slot]:
    """A claim, two data records, another claim, one more data record."""
    slots = [slot(claim(None))]
    slots.append(slot(data(slots[-1])))
    slots.append(slot(data(slots[-1])))
    slots.append(slot(claim(slots[-1])))
    slots.append(slot(data(slots[-1])))
    return slots


# --- Stored bytes as anybody's msgpack reads them -------------------------------------------------------


def body_of(stored: bytes) -> dict[str, Any]:
    """The body of a stored record, by msgpack alone."""
    body: dict[str, Any] = msgpack.unpackb(msgpack.unpackb(stored)["body"])
    return body


def with_body(stored: bytes, body: object) -> bytes:
    """The same envelope around another body."""
    envelope = msgpack.unpackb(stored)
    envelope["body"] = body if isinstance(body, bytes) else msgpack.packb(body)
    return bytes(msgpack.packb(envelope))


def edited(stored: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """A stored record after an edit of its body in place."""
    body = body_of(stored)
    edit(body)
    return with_body(stored, body)
