"""Ways to a version (spec, Reading): its own edges, those that were added, and the cheapest of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from deltastore import codec
from deltastore.errors import IntegrityError, NoPath, NotFound, UsageError
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base
from deltastore.protocol.planning import Plan, cheapest, identity_edge
from deltastore.protocol.records import Kind, Slot, Tombstone
from deltastore.store import Store

_log = logging.getLogger(__name__)


def plan(
    store: Store,
    target: Slot,
    *,
    held: Collection[Base],
    avoid: Collection[Edge] = (),
    since: int | None = None,
) -> Plan:
    """The cheapest usable plan to a version (DS-PLAN-1).

    Args:
        store: Where the edges are.
        target: The version's slot; it holds a record with a state.
        held: Where the plan may start: versions, `"none"`, `"external"`.
        avoid: Edges that have failed before.
        since: The first version into which edges that were added are looked for; by default the last anchor.

    Raises:
        NoPath: Nothing leads there.
    """
    if since is not None:
        return _plan(store, target, since, held=held, avoid=avoid)
    record = target.record
    low = 0 if isinstance(record, Tombstone) or record.last_anchor is None else record.last_anchor
    try:
        return _plan(store, target, low, held=held, avoid=avoid)
    except NoPath:
        if low == 0:
            raise
    # The newest anchor is lost or damaged: what was added before it was not looked at yet.
    return _plan(store, target, 0, held=held, avoid=avoid)


def _plan(store: Store, target: Slot, low: int, *, held: Collection[Base], avoid: Collection[Edge]) -> Plan:
    """The cheapest plan over embedded edges, claims, and edge records into versions from `low` on."""
    side = store.edge_keys(low, target.version)

    def edges_into(version: int) -> Iterator[Edge]:
        slot = target if version == target.version else _readable(store, version)
        if slot is None or isinstance(slot.record, Tombstone) or slot.record.schema is None:
            return
        if slot.record.kind is Kind.CLAIM and slot.record.state is not None:
            base: Base = "external" if version == 0 else version - 1
            yield identity_edge(base, version, slot.record.state)
        yield from filter(_usable, slot.record.edges)
        for key in side.get(version, []):
            edge = _added(store, key, slot)
            if edge is not None and _usable(edge):
                yield edge

    return cheapest(target.version, held=held, edges_into=edges_into, avoid=avoid)


def _readable(store: Store, version: int) -> Slot | None:
    """The slot of a version on the way; one that is damaged only means a detour."""
    try:
        return store.log.slot(version)
    except IntegrityError as error:
        _log.warning("record passed over", extra={"version": version, "error": str(error)})
        return None


def _usable(edge: Edge) -> bool:
    """Whether this release has the codecs of an edge, and they are of its kind (DS-CODEC-1)."""
    codecs = codec.ANCHOR if edge.is_anchor else codec.DELTA
    return all(shard.codec in codecs for shard in edge.shards)


def _added(store: Store, key: str, slot: Slot) -> Edge | None:
    """An edge from its own record, or None if it is gone or wrong: it does not exist then (DS-EDGE-4)."""
    try:
        record = store.edge(key)
    except (NotFound, IntegrityError, UsageError) as error:
        _log.warning("edge record passed over", extra={"key": key, "error": str(error)})
        return None
    target = slot.record
    if target.schema is None or record.schema != target.schema.sha256 or record.edge.state != target.state:
        _log.warning("edge record leads to another state than its version's", extra={"key": key})
        return None
    return record.edge
