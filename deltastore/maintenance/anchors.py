"""Anchors for versions that exist (spec, Anchors): from the store alone, one shard of weights at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deltastore.errors import BadEdge
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.descriptors import ShardDescriptor, Slice
from deltastore.protocol.digest import MASK
from deltastore.protocol.edges import Edge, EdgeRecord
from deltastore.protocol.planning import Plan
from deltastore.protocol.records import Slot
from deltastore.replay import FailedEdge, Replay, Start, plan, schema_of, shard_fetcher
from deltastore.shards import dense, make_anchor
from deltastore.slicing import SHARD_BYTES, cut
from deltastore.state import HostState, Patch
from deltastore.store import Store


def add_anchor(
    store: Store,
    target: Slot,
    *,
    codec: str = "plane",
    external: HostState | None = None,
    workers: Workers = DEFAULT,
    shard_bytes: int = SHARD_BYTES,
) -> Edge:
    """Gives a version an anchor, reading what it takes from the store.

    Memory is that of one shard's tensors, and not of a model: each is rebuilt, encoded, stored and forgotten.

    Args:
        store: Where the version is.
        target: Its slot.
        codec: An anchor codec.
        external: The external base, where it is at hand.
        workers: Shards fetched at once.
        shard_bytes: Bytes of weights per shard; best the same as those of the deltas.

    Raises:
        NoPath: The version cannot be rebuilt.
        BadEdge: What was rebuilt is not the version's state; no anchor was added.
    """
    schema = schema_of(store, target)
    builder = _Builder(store, target, Start(schema, external), codec, workers)
    shards = [builder.shard(group) for group in cut(schema, shard_bytes=shard_bytes)]
    total = sum(shard.state_delta for shard in shards) & MASK
    if target.record.state is None or total != target.record.state:
        raise BadEdge(
            f"the anchor of version {target.version} would have state {total:016x}, not the version's",
            hint="No anchor was added; report this",
            target=target.version,
        )
    edge = Edge("none", None, target.version, total, tuple(shards))
    owner = store.identity.store_of(target.version)
    store.add_edge(EdgeRecord(store=owner, schema=schema.sha256, edge=edge))
    return edge


class _Builder:
    """Rebuilds the tensors of one shard after the other along one plan."""

    def __init__(self, store: Store, target: Slot, start: Start, codec: str, workers: Workers) -> None:
        self._store = store
        self._target = target
        self._schema = start.schema
        self._codec = codec
        self._start = start
        self._replay = Replay(start.schema, target.record.state, shard_fetcher(store), workers)
        self._avoid: set[Edge] = set()
        self._plan: Plan | None = None
        self._names: Collection[str] = ()
        self._patches: Mapping[str, Patch] = {}

    def shard(self, group: list[Slice]) -> ShardDescriptor:
        """Makes and stores the shard of a group of slices."""
        names = {one.tensor.name for one in group}
        if names != self._names:
            self._names, self._patches = names, self._rebuild(names)
        denses = [dense(one, self._patches[one.tensor.name].values[one.start : one.stop]) for one in group]
        nonce = self._store.runtime.random_bytes(16)
        shard = make_anchor(self._codec, self._schema, group, denses, nonce=nonce, check=True)
        self._store.put_object(shard.data)
        return shard.descriptor

    def _rebuild(self, names: set[str]) -> Mapping[str, Patch]:
        while True:
            if self._plan is None:
                self._plan = plan(self._store, self._target, held=self._start.held, avoid=self._avoid)
            try:
                return self._start.run(self._replay, self._plan, names)
            except FailedEdge as error:
                self._avoid.add(error.edge)
                self._plan = None
