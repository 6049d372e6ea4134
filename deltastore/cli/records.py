"""All that is stored about one version, gathered for `deltastore show` and as plain values for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from deltastore.cli import text
from deltastore.errors import DeltaStoreError
from deltastore.protocol.descriptors import ShardDescriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.records import Slot, Tombstone, VersionRecord
from deltastore.protocol.schema import Schema
from deltastore.protocol.wire import Envelope
from deltastore.store import Store


@dataclass(frozen=True, slots=True)
class Way:
    """An edge to the version, or what is left of one.

    Attributes:
        key: Of its own record; None if it is embedded in the version's.
        edge: The edge; None where its record cannot be read.
        problem: Why not.
    """

    key: str | None
    edge: Edge | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Whole:
    """A version with all that belongs to it.

    Attributes:
        slot: Its record or tombstone.
        ways: Its edges, the embedded ones first.
        schema: None where it has none, or cannot be read.
        problem: Why it cannot be read.
    """

    slot: Slot
    ways: tuple[Way, ...]
    schema: Schema | None
    problem: str = ""

    @property
    def damaged(self) -> bool:
        """Whether something of it cannot be read."""
        return bool(self.problem) or any(way.edge is None for way in self.ways)

    @property
    def signatures(self) -> int:
        """How many signatures the record has; this release checks none."""
        return len(Envelope.from_bytes(self.slot.data, where=f"version {self.slot.version}").signatures)


def gather(store: Store, slot: Slot) -> Whole:
    """Fetches what the record of a version names, but for shards and files."""
    ways = tuple(_ways(store, slot))
    if slot.record.schema is None:
        return Whole(slot, ways, None)
    try:
        return Whole(slot, ways, store.schema(slot.record.schema))
    except DeltaStoreError as error:
        return Whole(slot, ways, None, str(error))


def _ways(store: Store, slot: Slot) -> Iterator[Way]:
    """The embedded edges and those that were added, each once."""
    record = slot.record
    embedded = () if isinstance(record, Tombstone) else record.edges
    yield from (Way(None, edge) for edge in embedded)
    for key in store.edge_keys(slot.version, slot.version).get(slot.version, []):
        try:
            edge = store.edge(key).edge
        except DeltaStoreError as error:
            yield Way(key, None, str(error))
        else:
            if edge not in embedded:
                yield Way(key, edge)


def fields(whole: Whole) -> dict[str, object]:
    """The fields of the JSON object of a version."""
    slot, record = whole.slot, whole.slot.record
    return {
        "version": slot.version,
        "kind": "collected" if isinstance(record, Tombstone) else record.kind.value,
        "step": record.step,
        "store": record.store,
        "term": record.term,
        "term_start": record.term_start,
        "parent": record.parent,
        "state": text.digest(record.state),
        "record_sha256": slot.sha256,
        "record_bytes": len(slot.data),
        "signatures": whole.signatures,
        **({} if isinstance(record, Tombstone) else _own(record)),
        "schema": _schema(whole),
        "edges": [_way(way) for way in whole.ways],
    }


def _own(record: VersionRecord) -> dict[str, object]:
    """What a tombstone does not keep."""
    return {
        "time": record.time / 1000,
        "nonce": record.nonce,
        "last_anchor": record.last_anchor,
        "resumed_from": record.resumed_from,
        "external": record.external.to_value() if record.external else None,
        "files": {name: file.to_value() for name, file in record.files.items()},
        "stats": record.stats.to_value() if record.stats else None,
        "user": record.user,
        "requires": record.requires.to_value(),
    }


def _schema(whole: Whole) -> dict[str, object] | None:
    named, schema = whole.slot.record.schema, whole.schema
    if named is None:
        return None
    if schema is None:
        return {"sha256": named.sha256, "size": named.size, "problem": whole.problem}
    return {
        "sha256": named.sha256,
        "size": named.size,
        "tensors": len(schema.tensors),
        "ties": {t.name: t.alias_of for t in schema.tensors if t.alias_of is not None},
        "dtypes": dict(Counter(tensor.dtype for tensor in schema.owners)),
        "lanes": schema.lanes,
        "weight_bytes": schema.nbytes,
    }


def _way(way: Way) -> dict[str, object]:
    edge = way.edge
    if edge is None:
        return {"key": way.key, "problem": way.problem}
    return {
        "key": way.key,
        "embedded": way.key is None,
        "base": edge.base,
        "base_state": text.digest(edge.base_state),
        "target": edge.target,
        "state": text.digest(edge.state),
        "stored_bytes": edge.size,
        "shards": [_shard(shard) for shard in edge.shards],
    }


def _shard(shard: ShardDescriptor) -> dict[str, object]:
    """As stored; bytes become hexadecimal, words big-endian, which is their usual form."""
    stored = shard.to_value()
    return dict(stored) if isinstance(stored, dict) else {}
