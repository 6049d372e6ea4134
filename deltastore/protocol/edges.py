"""Edges: ways from one state to another, and the records of those added later (spec, Edge).

What an edge's shards must be to a schema is in `descriptors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from deltastore.errors import BadRecord
from deltastore.protocol import limits
from deltastore.protocol.descriptors import ShardDescriptor
from deltastore.protocol.digest import MASK
from deltastore.protocol.features import Requires
from deltastore.protocol.keys import Base
from deltastore.protocol.wire import SPEC, Envelope, Fields, Value, open_record, pack, word_bytes


@dataclass(frozen=True, slots=True)
class Edge:
    """A way from one state to another.

    Attributes:
        base: A version below `target`, `"none"` (an anchor) or `"external"`.
        base_state: State digest at the base; None for an anchor.
        target: The version that it leads to.
        state: State digest at the target.
        shards: What to fetch.
    """

    base: Base
    base_state: int | None
    target: int
    state: int
    shards: tuple[ShardDescriptor, ...]

    @property
    def is_anchor(self) -> bool:
        """Whether it starts from nothing."""
        return self.base == "none"

    @property
    def size(self) -> int:
        """Stored bytes of its shards."""
        return sum(shard.size for shard in self.shards)

    def to_value(self) -> Value:
        """As stored."""
        return {
            "base": self.base,
            "base_state": word_bytes(self.base_state),
            "target": self.target,
            "state": word_bytes(self.state),
            "shards": [shard.to_value() for shard in self.shards],
        }

    @classmethod
    def read(cls, fields: Fields) -> Edge:
        """Reads and checks one (DS-EDGE-1, DS-EDGE-2)."""
        rows = fields.array("shards", most=limits.SHARDS_PER_EDGE)
        edge = cls(
            base=_base(fields),
            base_state=fields.optional("base_state", fields.word),
            target=fields.integer("target"),
            state=fields.word("state"),
            shards=tuple(
                ShardDescriptor.read(Fields(row, f"{fields.where}, shard {i}")) for i, row in enumerate(rows)
            ),
        )
        if (edge.base_state is None) != edge.is_anchor:
            raise fields.bad("base_state", "must be nil for an anchor, and only there")
        if isinstance(edge.base, int) and edge.base >= edge.target:
            raise fields.bad("base", f"is not below target {edge.target}")
        total = (edge.base_state or 0) + sum(shard.state_delta for shard in edge.shards)
        if total & MASK != edge.state:
            raise BadRecord(
                f"{fields.where}: base state and shard deltas do not add up to state {edge.state:016x}"
            )
        return edge


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeRecord:
    """An edge that was added to an existing version: an anchor or a skip (DS-EDGE-3)."""

    store: str
    schema: str
    edge: Edge
    requires: Requires = Requires()

    TYPE: ClassVar[str] = "edge"

    def to_bytes(self) -> bytes:
        """What is stored, unsigned."""
        body: dict[str, Value] = {
            "store": bytes.fromhex(self.store),
            "spec": SPEC,
            "schema": bytes.fromhex(self.schema),
            "edge": self.edge.to_value(),
            "requires": self.requires.to_value(),
        }
        return Envelope(self.TYPE, pack(body)).to_bytes()


def parse_edge(data: bytes, *, store: str) -> EdgeRecord:
    """Reads a stored edge record; its key is compared by the caller.

    Raises:
        BadRecord: It is malformed, or of another store.
        LimitExceeded: It is over a limit.
    """
    type_, fields = open_record(data, "edge record")
    if type_ != EdgeRecord.TYPE:
        raise BadRecord(f"edge record is of type {type_[:32]!r}")
    edge = Edge.read(fields.map("edge", most=64))
    fields.where = f"edge record {edge.base} -> {edge.target}"
    owner = fields.blob("store", size=16).hex()
    if owner != store:
        raise BadRecord(f"{fields.where} belongs to store {owner}, not {store}")
    requires = Requires.read_from(fields.map("requires", most=16))
    return EdgeRecord(store=owner, schema=fields.digest("schema"), edge=edge, requires=requires)


def _base(fields: Fields) -> Base:
    match fields.raw().get("base"):
        case "none":
            return "none"
        case "external":
            return "external"
        case _:
            return fields.integer("base")
