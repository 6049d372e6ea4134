"""STORE.json: what a store is, created once (spec, STORE.json)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from deltastore.errors import BadRecord, LimitExceeded
from deltastore.protocol.features import Requires
from deltastore.protocol.limits import STORE_BYTES
from deltastore.protocol.wire import SPEC, Fields, distinct

FORMAT: Final = "deltastore"
DEFAULT_GRACE: Final = 24 * 3600
_ID: Final = re.compile(r"[0-9a-f]{32}")


class CommitMode(StrEnum):
    """How writers of a store commit."""

    CONDITIONAL = "conditional"
    SINGLE_WRITER = "single-writer"


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A store that this one continues: records up to `last` carry its id."""

    store: str
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The content of STORE.json (DS-STORE-1).

    Attributes:
        store: Random id, 32 hexadecimal digits.
        first_version: Where galloping starts; 0 unless the log was promoted from a replica.
        commit: How writers commit.
        grace: Seconds for which a collector leaves young objects alone.
        requires: Features that every reader, writer or collector must know.
        lineage: Stores that this one continues, oldest first.
        replica_of: The store that it is a mirror of; producers refuse it then.
    """

    store: str
    first_version: int = 0
    commit: CommitMode = CommitMode.CONDITIONAL
    grace: int = DEFAULT_GRACE
    requires: Requires = Requires()
    lineage: tuple[Ancestor, ...] = field(default=())
    replica_of: str | None = None

    def to_bytes(self) -> bytes:
        """What is stored: JSON, for people to read."""
        value = {
            "format": FORMAT,
            "spec": SPEC,
            "store": self.store,
            "first_version": self.first_version,
            "commit": self.commit.value,
            "grace": self.grace,
            "requires": self.requires.to_value(),
            "lineage": [{"store": a.store, "last": a.last} for a in self.lineage],
            "replica_of": self.replica_of,
        }
        return json.dumps(value, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Identity:
        """Reads STORE.json.

        Raises:
            BadRecord: It is malformed, or of another format or spec version.
            LimitExceeded: It is over the limit.
        """
        fields = _load(data)
        if fields.text("format") != FORMAT:
            raise fields.bad("format", f"is not {FORMAT!r}: this is another kind of store")
        if fields.integer("spec") != SPEC:
            raise BadRecord(
                f"STORE.json is of spec version {fields.integer('spec')}", hint="Upgrade deltastore"
            )
        try:
            commit = CommitMode(fields.text("commit"))
        except ValueError as error:
            raise fields.bad("commit", "is unknown") from error
        return cls(
            store=_id(fields, "store"),
            first_version=fields.integer("first_version"),
            commit=commit,
            grace=fields.integer("grace"),
            requires=Requires.read_from(fields.map("requires", most=16)),
            lineage=tuple(_ancestor(row) for row in fields.array("lineage", most=1024)),
            replica_of=_id(fields, "replica_of") if fields.has("replica_of") else None,
        )

    def store_of(self, version: int) -> str:
        """The store id that the record of a version must carry (DS-STORE-3)."""
        return next((a.store for a in self.lineage if version <= a.last), self.store)


def _load(data: bytes) -> Fields:
    if len(data) > STORE_BYTES:
        raise LimitExceeded(f"STORE.json has {len(data)} bytes, over the limit of {STORE_BYTES}")
    try:
        value = _tuples(json.loads(data.decode(), object_pairs_hook=distinct, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"STORE.json is not valid JSON: {error}") from error
    return Fields(value, "STORE.json")


def _tuples(value: object) -> object:
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {_tuples(key): _tuples(item) for key, item in value.items()}
    if isinstance(value, str):
        value.encode()  # refuses half of a surrogate pair, which JSON can hold and UTF-8 cannot
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _id(fields: Fields, name: str) -> str:
    value = fields.text(name)
    if not _ID.fullmatch(value):
        raise fields.bad(name, "is not 32 hexadecimal digits")
    return value


def _ancestor(row: object) -> Ancestor:
    fields = Fields(row, "STORE.json, lineage")
    return Ancestor(_id(fields, "store"), fields.integer("last"))
