"""Skips (spec, Skips): one edge over several versions, made of the shards of the edges between them.

No weights are held, and none are looked at: what the shards of successive deltas do to a slice adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from deltastore.codec import merging
from deltastore.errors import (
    BadEdge,
    IntegrityError,
    NoPath,
    NotFound,
    SchemaMismatch,
    Unsupported,
    UsageError,
)
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.descriptors import ShardDescriptor, Slice, check_cover, resolve
from deltastore.protocol.digest import MASK
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.records import Slot
from deltastore.protocol.schema import Schema
from deltastore.replay import FailedEdge, plan, schema_of, shard_fetcher
from deltastore.shards import make_merged
from deltastore.store import Store, VersionInfo

SkipBase = int | Literal["external"]
"""Where a skip can begin."""
Column = Sequence[tuple[Edge, ShardDescriptor]]
"""The shards of successive edges for the same slices, oldest first."""


def add_skip(store: Store, target: Slot, base: SkipBase, *, workers: Workers = DEFAULT) -> Edge:
    """Gives a version an edge from an older one, reading what it takes from the store.

    The cheapest edges that lead there are merged, skips among them: one over 64 versions is best made of
    those over 8. Memory is that of the shards merged at a time, as they are stored, and a part of their
    streams.

    Args:
        store: Where the versions are.
        target: The slot of the newer one.
        base: The older one, at least two below, or the external base; both of one schema.
        workers: Groups of shards fetched and merged at once.

    Returns:
        The skip; the one that is there already, if there is one.

    Raises:
        UsageError: There is nothing in between to be skipped.
        SchemaMismatch: The two versions have different schemas.
        Unsupported: Some edge in between cannot be merged: its codec or its cut is another.
        Collected, NoSuchVersion: One of the two versions holds no weights any more, or does not yet.
        NoPath: A version in between was reset or collected.
        BadEdge: An edge in between is damaged or lost, and no other leads over it; no skip was added.
    """
    start, schema = _ends(store, target, base)
    avoid: set[Edge] = set()
    failed: FailedEdge | UnfitEdge | None = None
    while True:
        edges = _chain(store, target, base, avoid, failed)
        if len(edges) == 1 and (edges[0].base, edges[0].target) == (base, target.version):
            return edges[0]
        try:
            _check_states(start, edges, target)
            columns = _columns(schema, edges)
            shards = tuple(workers.map(lambda column: _merged(store, schema, column), columns))
        except (FailedEdge, UnfitEdge) as error:
            avoid.add(error.edge)
            failed = error
        else:
            skip = Edge(base, edges[0].base_state, target.version, edges[-1].state, shards)
            return _add(store, schema, skip)


class UnfitEdge(Unsupported):
    """A sound edge that cannot become part of a skip; `edge` says which, so that it can be avoided."""

    def __init__(self, edge: Edge, problem: str) -> None:
        super().__init__(
            f"the edge {edge.base} -> {edge.target} cannot become part of a skip: {problem}",
            hint="No skip was added; versions are read without it",
            base=str(edge.base),
            target=edge.target,
        )
        self.edge = edge


def _ends(store: Store, target: Slot, base: SkipBase) -> tuple[Slot, Schema]:
    """The slot of the older version, and the schema of both (DS-EDGE-5)."""
    first = 0 if base == "external" else base
    if first >= target.version - 1:
        raise UsageError(
            f"there is no version between {base} and {target.version} to be skipped",
            hint="Name a base that is two or more below the target",
        )
    start = store.log.require(first)
    for slot in (start, target):
        VersionInfo.of(slot)
    schema = schema_of(store, target)
    if schema_of(store, start).sha256 != schema.sha256:
        raise SchemaMismatch(
            f"versions {base} and {target.version} have different schemas, and no edge crosses them",
            hint="Choose a base behind the change",
        )
    return start, schema


def _chain(
    store: Store, target: Slot, base: SkipBase, avoid: set[Edge], failed: FailedEdge | UnfitEdge | None
) -> list[Edge]:
    """The cheapest edges from base to target; claims, which are free and change nothing, are left out."""
    try:
        edges = plan(store, target, held={base}, avoid=avoid, since=0 if base == "external" else base).edges
    except NoPath as error:
        raise failed or NoPath(
            f"no edges lead from version {base} to {target.version}",
            hint="A version in between was reset or collected: choose a base behind it",
            version=target.version,
        ) from error
    chain = [edge for edge in edges if edge.shards]
    if not chain:
        raise UsageError(
            f"nothing changes from version {base} to {target.version}: what lies between are claims",
            hint="Readers pass over them without a skip",
        )
    return chain


def _check_states(start: Slot, edges: Sequence[Edge], target: Slot) -> None:
    """Each edge starts from the state that the one before leads to (DS-SKIP-1)."""
    state = start.record.state
    for edge in edges:
        if edge.base_state != state:
            raise FailedEdge(edge, "it starts from another state than the one before it leads to")
        state = edge.state
    if state != target.record.state:
        raise FailedEdge(edges[-1], "it leads to another state than its target's")


def _columns(schema: Schema, edges: Sequence[Edge]) -> list[Column]:
    """What is merged with what: all that the newest edge has a shard for, in its cut (DS-SKIP-4)."""
    newest = edges[-1]
    cut = [shard.slices for shard in newest.shards]
    columns: list[list[tuple[Edge, ShardDescriptor]]] = [[] for _ in cut]
    for edge in edges:
        _check_shards(schema, edge)
        shards = {shard.slices: shard for shard in edge.shards}
        if shards.keys() != set(cut):
            raise UnfitEdge(edge, f"it is cut into other shards than {newest.base} -> {newest.target}")
        for column, slices in zip(columns, cut, strict=True):
            column.append((edge, shards[slices]))
    return [*columns]


def _check_shards(schema: Schema, edge: Edge) -> None:
    """Whether the shards of an edge cover the schema, and can be merged."""
    try:
        check_cover(schema, edge.shards)
        for shard in edge.shards:
            merging.check_codec(shard.codec)
    except IntegrityError as error:
        raise FailedEdge(edge, str(error)) from error
    except Unsupported as error:
        raise UnfitEdge(edge, error.what) from error


def _merged(store: Store, schema: Schema, column: Column) -> ShardDescriptor:
    """Makes and stores one shard of the skip."""
    fetch = shard_fetcher(store)
    shards = []
    for edge, descriptor in column:
        try:
            shards.append((descriptor, fetch(descriptor)))
        except (IntegrityError, NotFound) as error:
            raise FailedEdge(edge, str(error)) from error
    slices = list(resolve(schema, column[0][1].slices))
    try:
        shard = make_merged(schema, slices, shards, nonce=store.runtime.random_bytes(16))
    except IntegrityError:
        for (edge, _), one in zip(column, shards, strict=True):
            _check_alone(schema, slices, edge, one)
        raise
    store.put_object(shard.data)
    return shard.descriptor


def _check_alone(
    schema: Schema, slices: Sequence[Slice], edge: Edge, shard: tuple[ShardDescriptor, bytes]
) -> None:
    """Says so if it is this edge's shard that a merge has failed for."""
    try:
        make_merged(schema, slices, [shard], nonce=bytes(16))
    except IntegrityError as error:
        raise FailedEdge(edge, str(error)) from error


def _add(store: Store, schema: Schema, skip: Edge) -> Edge:
    """Adds the edge, if it leads to the state of its target (DS-ANCHOR-1)."""
    total = (skip.base_state or 0) + sum(shard.state_delta for shard in skip.shards)
    if total & MASK != skip.state:
        raise BadEdge(
            f"the skip from version {skip.base} would lead to state {total & MASK:016x}, not the version's",
            hint="No skip was added; report this",
            target=skip.target,
        )
    owner = store.identity.store_of(skip.target)
    store.add_edge(EdgeRecord(store=owner, schema=schema.sha256, edge=skip))
    return skip
