"""From what is held to a version (spec, Reading): gather edges, plan, fetch, check, and compose the changes.

Nothing here writes to anybody's weights. What it returns are patches, each of them checked against the
digest of the state that they lead to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deltastore import codec
from deltastore.codec import kernels
from deltastore.codec.types import Change, Positions, SliceSpec, Whole
from deltastore.errors import (
    BadEdge,
    BadShard,
    Diverged,
    IntegrityError,
    LimitExceeded,
    NoPath,
    NoSuchVersion,
    NotFound,
    UsageError,
)
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.descriptors import ShardDescriptor, Slice, check_cover, resolve
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base
from deltastore.protocol.planning import Plan, cheapest, identity_edge
from deltastore.protocol.records import Kind, Slot, Tombstone
from deltastore.protocol.schema import Schema
from deltastore.shards import spec_of
from deltastore.state import HostState, Overlay, Patch, Reader
from deltastore.store import Store

_log = logging.getLogger(__name__)

Fetch = Callable[[ShardDescriptor], bytes]


class FailedEdge(BadEdge):
    """An edge that cannot be taken; `edge` says which, so that it can be avoided.

    `mismatch`: it does not fit the bits that it was laid over; they may be what is wrong.
    """

    def __init__(self, edge: Edge, problem: str, *, mismatch: bool = False) -> None:
        super().__init__(
            f"the edge {edge.base} -> {edge.target} cannot be taken: {problem}",
            hint="Nothing was changed; another way is tried if there is one",
            base=str(edge.base),
            target=edge.target,
        )
        self.edge = edge
        self.mismatch = mismatch


def plan(store: Store, target: Slot, *, held: Collection[Base], avoid: Collection[Edge] = ()) -> Plan:
    """The cheapest usable plan to a version (DS-PLAN-1).

    Args:
        store: Where the edges are.
        target: The version's slot; it holds a record with a state.
        held: Where the plan may start: versions, `"none"`, `"external"`.
        avoid: Edges that have failed before.

    Raises:
        NoPath: Nothing leads there.
    """
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


@dataclass(frozen=True, slots=True)
class Replay:
    """Takes the edges of plans.

    Attributes:
        schema: Of the target; deltas never cross schemas, so also of every state that is read on the way.
        state: Digest of the target.
        fetch: Gets a shard's stored bytes, checked against its descriptor.
        workers: Shards at once.
    """

    schema: Schema
    state: int | None
    fetch: Fetch
    workers: Workers = DEFAULT

    def run(
        self,
        plan: Plan,
        base: Reader | None,
        *,
        base_state: int | None = None,
        names: Collection[str] | None = None,
    ) -> dict[str, Patch]:
        """The changes from what is held to the target, composed and checked.

        Args:
            plan: What to take.
            base: The state at its start; None if that is `"none"`.
            base_state: Its digest; None likewise.
            names: Only these tensors (owners of their storage); all by default.

        Returns:
            One patch per tensor that changes; after an anchor, one for every tensor.

        Raises:
            FailedEdge: An edge is damaged, incomplete, or does not lead to its state from what is held.
            Diverged: The plan ends at another state than the target's.
        """
        overlay = Overlay(base)
        state = base_state
        for edge in plan.edges:
            if edge.base_state != state:
                raise FailedEdge(edge, "it starts from another state than the one before it leads to")
            state = edge.state
            try:
                self._take(edge, overlay, names)
            except (IntegrityError, NotFound) as error:
                raise FailedEdge(edge, str(error), mismatch=isinstance(error, BadEdge)) from error
        if state != self.state:
            raise Diverged("what is held, or the last edge, is not the state that the version's record names")
        return overlay.patches

    def _take(self, edge: Edge, overlay: Overlay, names: Collection[str] | None) -> None:
        """Lays one edge over what is there; its slices are disjoint, so all read the state before it."""
        if not edge.shards and not edge.is_anchor:
            return
        check_cover(self.schema, edge.shards)
        source = None if edge.is_anchor else overlay
        parts: dict[str, list[tuple[SliceSpec, Patch]]] = {}
        wanted = [shard for shard in edge.shards if self._touches(shard, names)]
        for done in self.workers.map(lambda shard: self._shard(shard, source, names), wanted):
            for spec, patch in done:
                parts.setdefault(spec.name, []).append((spec, patch))
        for name in sorted(parts):
            overlay.put(_join(parts[name], source))

    def _touches(self, shard: ShardDescriptor, names: Collection[str] | None) -> bool:
        return names is None or any(one.tensor.name in names for one in resolve(self.schema, shard.slices))

    def _shard(
        self, shard: ShardDescriptor, source: Reader | None, names: Collection[str] | None
    ) -> list[tuple[SliceSpec, Patch]]:
        """Fetches and decodes one shard and checks what each of its slices does to the digest (DS-READ-4)."""
        slices = list(resolve(self.schema, shard.slices))
        specs = [spec_of(one) for one in slices]
        data = self.fetch(shard)
        try:
            decoded = codec.get(shard.codec).decode(data, specs, raw_size=shard.raw_size)
        except (BadShard, LimitExceeded) as error:
            what = f"shard {shard.sha256}: {error.what}"
            raise type(error)(what, hint=error.hint, **(error.fields | {"shard": shard.sha256})) from error
        if sum(decoded.deltas) & MASK != shard.state_delta:
            raise BadShard(f"shard {shard.sha256}: its slices do not add up to its descriptor's digest")
        patches = []
        for one, spec, change, declared in zip(slices, specs, decoded.changes, decoded.deltas, strict=True):
            if names is not None and spec.name not in names:
                continue
            patch, delta = _evaluate(one, spec, change, source)
            if delta != declared:
                raise BadEdge(
                    f"tensor {spec.label!r} would not get the bits that its digest says",
                    hint="The base held here, or the edge, is not what it should be",
                    tensor=spec.name,
                    shard=shard.sha256,
                )
            if patch is not None:
                patches.append((spec, patch))
        return patches


def _evaluate(one: Slice, spec: SliceSpec, change: Change, source: Reader | None) -> tuple[Patch | None, int]:
    """The patch that a change is, in positions of its tensor, and what it does to the digest."""
    key = tensor_key(spec.name)
    if isinstance(change, Whole):
        delta = kernels.digest(change.lanes, key, spec.first_word)
        if source is not None:
            old = np.ascontiguousarray(source.read(spec.name, spec.start, spec.stop))
            delta = (delta - kernels.digest(old, key, spec.first_word)) & MASK
        if spec.whole:
            return Patch(one.tensor, None, change.lanes), delta
        return Patch(one.tensor, np.arange(spec.start, spec.stop), change.lanes), delta
    if change.positions.size == 0:
        return None, 0
    if source is None:
        raise BadShard(f"tensor {spec.label!r} is sparse in an anchor")
    held = source
    view = held.view(spec.name)
    if view is not None:
        values, delta = kernels.patch(spec, view[spec.start : spec.stop], change)
        return Patch(one.tensor, change.positions + spec.start, values), delta

    def read(positions: Positions) -> Lanes:
        return held.gather(spec.name, positions + spec.start)

    gathered = kernels.gather_words(spec, read, change.positions)
    values = kernels.new_bits(change, gathered.old)
    return Patch(one.tensor, change.positions + spec.start, values), gathered.delta(values)


def _join(parts: list[tuple[SliceSpec, Patch]], source: Reader | None) -> Patch:
    """The patches of one tensor's disjoint slices as one."""
    parts.sort(key=lambda part: part[0].start)
    if len(parts) == 1 and (source is not None or parts[0][1].positions is None):
        return parts[0][1]
    tensor = parts[0][1].tensor
    values = np.concatenate([patch.values for _, patch in parts])
    if values.size == tensor.lanes:
        return Patch(tensor, None, values)
    return Patch(tensor, np.concatenate([p.positions for _, p in parts if p.positions is not None]), values)


def state_at(
    store: Store,
    target: Slot,
    *,
    external: HostState | None = None,
    avoid: set[Edge] | None = None,
    workers: Workers = DEFAULT,
) -> HostState:
    """The whole state of a version, from the store alone or on top of its external base.

    Args:
        store: Where it is.
        target: The version's slot.
        external: The external base, if it is at hand; not changed.
        avoid: Edges that have failed before; failing ones are added.
        workers: Shards at once.

    Raises:
        NoPath: Nothing leads there.
    """
    schema = schema_of(store, target)
    replay = Replay(schema, target.record.state, shard_fetcher(store), workers)
    state = HostState.empty(schema)
    base = Start(schema, external)

    def run(chosen: Plan) -> Mapping[str, Patch]:
        return base.run(replay, chosen)

    state.apply(with_detours(store, target, held=base.held, avoid=avoid, run=run))
    return state


class Start:
    """Where one who holds no version begins: from nothing, or from the external base if that is at hand.

    Args:
        schema: Of the target; a base of another one is none.
        external: The external base.
    """

    def __init__(self, schema: Schema, external: HostState | None) -> None:
        fits = external is not None and external.schema.sha256 == schema.sha256
        self._external = external if fits else None
        self.schema = schema

    @property
    def held(self) -> set[Base]:
        """What plans may start from."""
        return {"none"} if self._external is None else {"none", "external"}

    @cached_property
    def _state(self) -> int | None:
        return None if self._external is None else self._external.digest()

    def run(self, replay: Replay, chosen: Plan, names: Collection[str] | None = None) -> dict[str, Patch]:
        """Whole tensors of the target; arguments and errors as for `Replay.run`."""
        if chosen.start != "external" or self._external is None:
            return replay.run(chosen, None, names=names)
        patches = replay.run(chosen, self._external, base_state=self._state, names=names)
        found = {}
        for tensor in self.schema.owners:
            if names is None or tensor.name in names:
                whole = Patch(tensor, None, self._external.lanes(tensor.name))
                patch = patches.get(tensor.name)
                found[tensor.name] = whole if patch is None else patch.over(whole)
        return found


def schema_of(store: Store, slot: Slot) -> Schema:
    """The schema of a version.

    Raises:
        NoSuchVersion: It holds no weights: nothing was published before it.
    """
    if slot.record.schema is None:
        raise NoSuchVersion(
            f"version {slot.version} is a claim from before the first publish and holds no weights",
            hint="Take a later version",
            version=slot.version,
        )
    return store.schema(slot.record.schema)


def with_detours(
    store: Store,
    target: Slot,
    *,
    held: Collection[Base],
    run: Callable[[Plan], Mapping[str, Patch]],
    avoid: set[Edge] | None = None,
    doubt: set[Base] | None = None,
) -> Mapping[str, Patch]:
    """Plans and runs until a plan succeeds; a failing edge is remembered and routed around (DS-READ-6).

    An edge that does not fit the bits of a version that is held may be sound, and these bits not: the same
    edge is good where it is laid over an anchor. So that start is doubted first, and the edge only if no
    other start leads to the target.

    Args:
        store: Where the edges are.
        target: The version's slot.
        held: Where plans may start.
        run: Takes a plan.
        avoid: Edges that have failed before; failing ones are added.
        doubt: Starts that are doubted; likewise.

    Raises:
        NoPath: No plan is left.
    """
    bad = set() if avoid is None else avoid
    doubted = set() if doubt is None else doubt
    suspects: set[Edge] = set()
    while True:
        try:
            chosen = plan(store, target, held=[base for base in held if base not in doubted], avoid=bad)
        except NoPath:
            if not doubted:
                raise
            bad |= suspects
            doubted.clear()
            continue
        try:
            return run(chosen)
        except FailedEdge as error:
            _log.warning("edge failed", extra={"target": error.edge.target, "error": str(error)})
            if error.mismatch and isinstance(chosen.start, int) and error.edge not in suspects:
                suspects.add(error.edge)
                doubted.add(chosen.start)
            else:
                bad.add(error.edge)


def shard_fetcher(store: Store) -> Fetch:
    """Fetches shards from a store, checked by length and SHA-256."""
    return lambda shard: store.get_object(shard.sha256, shard.size)
