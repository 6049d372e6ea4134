"""Version records and tombstones (spec, Records), each checked for itself when it is read.

What two records must be to each other is in `chain`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final, TypeVar

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol import limits
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.features import Requires
from deltastore.protocol.wire import (
    SPEC,
    Envelope,
    Fields,
    Value,
    open_record,
    pack,
    sha256,
    unpack,
    word_bytes,
)

T = TypeVar("T")

_NOT_PLAIN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\\\ud800-\udfff]")
"""Control characters, backslashes, and the halves of pairs that no UTF-8 has."""


class Kind(StrEnum):
    """What a version record records."""

    DATA = "data"
    CLAIM = "claim"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class External:
    """A checkpoint that everybody has already: where it is, and what its files are."""

    url: str
    files: Mapping[str, Descriptor]

    def to_value(self) -> Value:
        """As stored."""
        return {"url": self.url, "files": {n: d.to_value() for n, d in self.files.items()}}

    @classmethod
    def read(cls, fields: Fields) -> External:
        """Reads one from a map."""
        return cls(fields.text("url"), read_files(fields, "files"))


@dataclass(frozen=True, slots=True)
class Stats:
    """What a version cost: lanes changed and in all, bytes raw and stored; informative."""

    changed: int
    total: int
    raw: int
    stored: int

    def to_value(self) -> Value:
        """As stored."""
        return {"changed": self.changed, "total": self.total, "raw": self.raw, "stored": self.stored}

    @classmethod
    def read(cls, fields: Fields) -> Stats:
        """Reads one from a map."""
        changed, total, raw, stored = map(fields.integer, ("changed", "total", "raw", "stored"))
        return cls(changed, total, raw, stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecord:
    """The record whose creation commits a version; the fields are those of the spec (DS-VER-1)."""

    store: str
    version: int
    term: int
    term_start: int
    nonce: bytes
    parent: str | None
    kind: Kind
    schema: Descriptor | None = None
    files: Mapping[str, Descriptor] = field(default_factory=dict)
    state: int | None = None
    edges: tuple[Edge, ...] = ()
    external: External | None = None
    last_anchor: int | None = None
    step: int | None = None
    resumed_from: int | None = None
    time: int = 0
    stats: Stats | None = None
    user: Mapping[str, Value] = field(default_factory=dict)
    requires: Requires = Requires()

    TYPE: ClassVar[str] = "version"

    def to_bytes(self) -> bytes:
        """What is stored, unsigned."""
        body: dict[str, Value] = {
            "store": bytes.fromhex(self.store),
            "spec": SPEC,
            "version": self.version,
            "term": self.term,
            "term_start": self.term_start,
            "nonce": self.nonce,
            "parent": None if self.parent is None else bytes.fromhex(self.parent),
            "kind": self.kind.value,
            "schema": None if self.schema is None else self.schema.to_value(),
            "files": {name: file.to_value() for name, file in self.files.items()},
            "state": word_bytes(self.state),
            "edges": [edge.to_value() for edge in self.edges],
            "external": None if self.external is None else self.external.to_value(),
            "last_anchor": self.last_anchor,
            "step": self.step,
            "resumed_from": self.resumed_from,
            "time": self.time,
            "stats": None if self.stats is None else self.stats.to_value(),
            "user": dict(self.user),
            "requires": self.requires.to_value(),
        }
        return Envelope(self.TYPE, pack(body)).to_bytes()

    @property
    def embedded(self) -> Edge | None:
        """The edge from the version before, or the first anchor."""
        return self.edges[0] if self.edges else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """What a collected version's record is replaced by; the slot stays taken (DS-TOMB-1)."""

    store: str
    version: int
    term: int
    term_start: int
    parent: str | None
    record_sha256: str
    schema: Descriptor | None
    state: int | None
    step: int | None

    TYPE: ClassVar[str] = "tombstone"

    @classmethod
    def of(cls, record: VersionRecord, record_sha256: str) -> Tombstone:
        """The tombstone of a record whose stored bytes have that SHA-256."""
        return cls(
            store=record.store,
            version=record.version,
            term=record.term,
            term_start=record.term_start,
            parent=record.parent,
            record_sha256=record_sha256,
            schema=record.schema,
            state=record.state,
            step=record.step,
        )

    def to_bytes(self) -> bytes:
        """What is stored, unsigned."""
        body: dict[str, Value] = {
            "store": bytes.fromhex(self.store),
            "spec": SPEC,
            "version": self.version,
            "term": self.term,
            "term_start": self.term_start,
            "parent": None if self.parent is None else bytes.fromhex(self.parent),
            "record_sha256": bytes.fromhex(self.record_sha256),
            "schema": None if self.schema is None else self.schema.to_value(),
            "state": word_bytes(self.state),
            "step": self.step,
            "kind": "collected",
        }
        return Envelope(self.TYPE, pack(body)).to_bytes()


@dataclass(frozen=True, slots=True)
class Slot:
    """What is stored under a version's key.

    Attributes:
        record: The record or the tombstone.
        data: The stored bytes.
        sha256: Of the record's stored bytes; for a tombstone, of those that it replaced.
    """

    record: VersionRecord | Tombstone
    data: bytes
    sha256: str

    @property
    def version(self) -> int:
        """Its number."""
        return self.record.version


def parse_slot(data: bytes, *, store: str, version: int) -> Slot:
    """Reads what is stored under a version's key.

    Args:
        data: The stored bytes.
        store: The id that the record must carry.
        version: The number in the key.

    Raises:
        BadRecord: It is malformed, or of another store or version.
        LimitExceeded: It is over a limit.
    """
    where = f"record of version {version}"
    type_, fields = open_record(data, where)
    if type_ == Tombstone.TYPE:
        tombstone = _tombstone(fields)
        slot = Slot(tombstone, data, tombstone.record_sha256)
    elif type_ == VersionRecord.TYPE:
        slot = Slot(_version_record(fields), data, sha256(data))
    else:
        raise BadRecord(f"{where} is of type {type_[:32]!r}")
    if slot.record.store != store:
        raise BadRecord(f"{where} belongs to store {slot.record.store}, not {store}", version=version)
    if slot.version != version:
        raise BadRecord(f"{where} says that it is version {slot.version}", version=version)
    return slot


def read_files(fields: Fields, name: str) -> dict[str, Descriptor]:
    """A map of relative file names to descriptors (DS-FILE-1).

    Raises:
        BadRecord: A name that is absolute, has `..`, a backslash or a control character.
    """
    inner = fields.map(name, most=limits.FILES)
    return {check_file_name(file): Descriptor.read(inner.map(file, most=16)) for file in inner.names()}


def check_file_name(name: str) -> str:
    """Returns the name of a side file if it stays inside the directory that it is written to (DS-FILE-1)."""
    parts = name.split("/")
    plain = _NOT_PLAIN.search(name) is None
    if not plain or len(name.encode()) > limits.NAME_BYTES or {"", ".", ".."} & set(parts):
        raise BadRecord(f"{name[:80]!r} is not a relative file name", file=name[:80])
    return name


def _version_record(fields: Fields) -> VersionRecord:
    record = VersionRecord(
        store=fields.blob("store", size=16).hex(),
        version=fields.integer("version"),
        term=fields.integer("term"),
        term_start=fields.integer("term_start"),
        nonce=fields.blob("nonce", size=16),
        parent=fields.optional("parent", fields.digest),
        kind=_kind(fields),
        schema=_optional_map(fields, "schema", Descriptor.read),
        files=read_files(fields, "files"),
        state=fields.optional("state", fields.word),
        edges=tuple(
            Edge.read(Fields(row, f"{fields.where}, edge {i}"))
            for i, row in enumerate(fields.array("edges", most=limits.EDGES_PER_RECORD))
        ),
        external=_optional_map(fields, "external", External.read),
        last_anchor=fields.optional("last_anchor", fields.integer),
        step=fields.optional("step", fields.integer),
        resumed_from=fields.optional("resumed_from", fields.integer),
        time=fields.integer("time"),
        stats=_optional_map(fields, "stats", Stats.read),
        user=_user(fields),
        requires=Requires.read_from(fields.map("requires", most=16)),
    )
    _check_record(record, fields)
    return record


def _check_record(record: VersionRecord, fields: Fields) -> None:
    """The rules that a record must keep by itself (DS-VER-2)."""
    _check_place(record, fields)
    if (record.version == 0 and record.state is not None) != (record.external is not None):
        raise fields.bad("external", "must be in version 0 if that has a state, and only there")
    if record.kind is not Kind.CLAIM:
        _check_data(record, fields)
    elif record.edges or record.step is not None or record.term_start != record.version:
        raise fields.bad("kind", "is claim: no edges, no step, and its term starts with it (DS-CLAIM-1)")


def _check_place(record: VersionRecord | Tombstone, fields: Fields) -> None:
    if (record.parent is None) != (record.version == 0):
        raise fields.bad("parent", "must be nil for version 0, and only there")
    if (record.state is None) != (record.schema is None):
        raise fields.bad("state", "and schema must be nil together")


def _check_data(record: VersionRecord, fields: Fields) -> None:
    starts = record.version if record.kind is Kind.RESET else record.version - 1
    if record.version == 0 or record.term_start > starts:
        raise fields.bad("term_start", "is too high; version 0 is always a claim")
    if not record.edges or record.state is None or record.step is None:
        raise fields.bad("edges", "state, step and schema must be there in a record with data")
    for edge in record.edges:
        if (edge.target, edge.state) != (record.version, record.state):
            raise fields.bad("edges", "lead to another version or state than the record's")
        if record.kind is Kind.RESET and not edge.is_anchor:
            raise fields.bad("edges", "of a reset must be anchors")


def _tombstone(fields: Fields) -> Tombstone:
    if fields.text("kind") != "collected":
        raise fields.bad("kind", "of a tombstone is not 'collected'")
    tombstone = Tombstone(
        store=fields.blob("store", size=16).hex(),
        version=fields.integer("version"),
        term=fields.integer("term"),
        term_start=fields.integer("term_start"),
        parent=fields.optional("parent", fields.digest),
        record_sha256=fields.digest("record_sha256"),
        schema=_optional_map(fields, "schema", Descriptor.read),
        state=fields.optional("state", fields.word),
        step=fields.optional("step", fields.integer),
    )
    _check_place(tombstone, fields)
    if tombstone.term_start > tombstone.version:
        raise fields.bad("term_start", "is above the version")
    return tombstone


def _optional_map(fields: Fields, name: str, read: Callable[[Fields], T]) -> T | None:
    return fields.optional(name, lambda field_: read(fields.map(field_, most=64)))


def _kind(fields: Fields) -> Kind:
    try:
        return Kind(fields.text("kind", most=32))
    except ValueError as error:
        raise fields.bad("kind", "is unknown") from error


def stored_user(user: Mapping[str, Value]) -> dict[str, Value]:
    """`user` as readers will get it back: a copy that nobody else holds, within the limits.

    Raises:
        BadRecord: It holds what a record cannot.
        LimitExceeded: It is too large.
    """
    data = pack({"user": dict(user)})
    return _user(unpack(data, where="version record", max_bytes=limits.RECORD_BYTES))


def _user(fields: Fields) -> dict[str, Value]:
    user = fields.map("user", most=1024).raw()
    if len(pack(user)) > limits.USER_BYTES:  # type: ignore[arg-type]
        raise LimitExceeded(f"{fields.where}: 'user' is over {limits.USER_BYTES} bytes")
    return user  # type: ignore[return-value]
