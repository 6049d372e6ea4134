"""Taking edges (spec, Reading): fetch, decode, check, and compose the changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from deltastore import codec, threads
from deltastore.codec import kernels
from deltastore.codec.types import Change, Positions, SliceSpec, Whole
from deltastore.errors import BadEdge, BadShard, Diverged, IntegrityError, LimitExceeded, NotFound
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.descriptors import ShardDescriptor, Slice, check_cover, resolve
from deltastore.protocol.digest import MASK, Lanes, tensor_key
from deltastore.protocol.edges import Edge
from deltastore.protocol.planning import Plan
from deltastore.protocol.schema import Schema
from deltastore.shards import spec_of
from deltastore.state import Overlay, Patch, Reader, evaluate, slice_digest
from deltastore.store import Store

Fetch = Callable[[ShardDescriptor], bytes]


def shard_fetcher(store: Store) -> Fetch:
    """Fetches shards from a store, checked by length and SHA-256."""
    return lambda shard: store.get_object(shard.sha256, shard.size)


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
        wanted = None if names is None else self._closed(plan, names)
        for edge in plan.edges:
            if edge.base_state != state:
                raise FailedEdge(edge, "it starts from another state than the one before it leads to")
            state = edge.state
            try:
                self._take(edge, overlay, wanted)
            except (IntegrityError, NotFound) as error:
                raise FailedEdge(edge, str(error), mismatch=isinstance(error, BadEdge)) from error
        if state != self.state:
            raise Diverged("what is held, or the last edge, is not the state that the version's record names")
        if names is None:
            return overlay.patches
        return {name: patch for name, patch in overlay.patches.items() if name in names}

    def _closed(self, plan: Plan, names: Collection[str]) -> set[str]:
        """These tensors, and all that lie in one shard with them where reading it needs the base of all."""
        closed = set(names)
        together = [
            {one.tensor.name for one in resolve(self.schema, shard.slices)}
            for edge in plan.edges
            for shard in edge.shards
            if codec.reads_base(shard.codec)
        ]
        while grown := [group for group in together if not closed.isdisjoint(group) and not group <= closed]:
            closed.update(*grown)
        return closed

    def _take(self, edge: Edge, overlay: Overlay, names: Collection[str] | None) -> None:
        """Lays one edge over what is there; its slices are disjoint, so all read the state before it."""
        if not edge.shards and not edge.is_anchor:
            return
        check_cover(self.schema, edge.shards)
        source = None if edge.is_anchor else overlay
        parts: dict[str, list[tuple[SliceSpec, Patch]]] = {}
        wanted = [shard for shard in edge.shards if self._touches(shard, names)]
        for done in self.workers.map(lambda shard: self._fetched(shard, source, names), wanted):
            for spec, patch in done:
                parts.setdefault(spec.name, []).append((spec, patch))
        for name in sorted(parts):
            overlay.put(_join(parts[name], source))

    def _touches(self, shard: ShardDescriptor, names: Collection[str] | None) -> bool:
        return names is None or any(one.tensor.name in names for one in resolve(self.schema, shard.slices))

    def _fetched(
        self, shard: ShardDescriptor, source: Reader | None, names: Collection[str] | None
    ) -> list[tuple[SliceSpec, Patch]]:
        data = self.fetch(shard)
        with threads.core():
            return self._shard(shard, data, source, names)

    def _shard(
        self, shard: ShardDescriptor, data: bytes, source: Reader | None, names: Collection[str] | None
    ) -> list[tuple[SliceSpec, Patch]]:
        """Decodes one shard and checks what it does to the digest (DS-READ-4).

        Slice by slice where the shard declares that; in sum where all slices are evaluated.
        """
        slices = list(resolve(self.schema, shard.slices))
        specs = [spec_of(one) for one in slices]
        try:
            base = None if source is None else _SlicesOf(source, specs)
            decoded = codec.decode(shard.codec, data, specs, raw_size=shard.raw_size, base=base)
        except (BadShard, LimitExceeded) as error:
            what = f"shard {shard.sha256}: {error.what}"
            raise type(error)(what, hint=error.hint, **(error.fields | {"shard": shard.sha256})) from error
        declared = [delta for delta in decoded.deltas if delta is not None]
        if len(declared) == len(slices) and sum(declared) & MASK != shard.state_delta:
            raise BadShard(f"shard {shard.sha256}: its slices do not add up to its descriptor's digest")
        wanted = [at for at, spec in enumerate(specs) if names is None or spec.name in names]
        patches = []
        total, complete = 0, len(wanted) == len(slices)

        def evaluate(group: list[int]) -> list[tuple[Patch | None, int]]:
            return [_evaluate(slices[at], specs[at], decoded.changes[at], source) for at in group]

        groups = threads.groups(wanted, lambda at: specs[at].nbytes)
        done = chain.from_iterable(threads.spread(evaluate, groups))
        for at, (patch, delta) in zip(wanted, done, strict=True):
            spec = specs[at]
            if decoded.deltas[at] not in {None, delta}:
                raise _misfit(f"tensor {spec.label!r}", shard=shard.sha256, tensor=spec.name)
            total += delta
            if patch is not None:
                patches.append((spec, patch))
        if complete and total & MASK != shard.state_delta:
            raise _misfit(f"shard {shard.sha256}: its tensors", shard=shard.sha256)
        return patches


@dataclass(frozen=True, slots=True)
class _SlicesOf:
    """Slices of whatever holds the state, as the base of a shard."""

    source: Reader
    specs: Sequence[SliceSpec]

    def read(self, index: int, start: int, stop: int) -> Lanes:
        """See `Base.read`."""
        spec = self.specs[index]
        return np.ascontiguousarray(self.source.read(spec.name, spec.start + start, spec.start + stop))

    def view(self, index: int) -> Lanes | None:
        """See `Base.view`."""
        spec = self.specs[index]
        lanes = self.source.view(spec.name)
        return None if lanes is None else lanes[spec.start : spec.stop]


def _misfit(what: str, **fields: str) -> BadEdge:
    return BadEdge(
        f"{what} would not get the bits that the digest says",
        hint="The base held here, or the edge, is not what it should be",
        **fields,
    )


def _evaluate(one: Slice, spec: SliceSpec, change: Change, source: Reader | None) -> tuple[Patch | None, int]:
    """The patch that a change is, in positions of its tensor, and what it does to the digest."""
    if isinstance(change, Whole):
        delta = kernels.digest(change.lanes, tensor_key(spec.name), spec.first_word)
        if source is not None:
            delta = (delta - slice_digest(source, spec)) & MASK
        if spec.whole:
            return Patch(one.tensor, None, change.lanes), delta
        return Patch(one.tensor, np.arange(spec.start, spec.stop), change.lanes), delta
    if change.positions.size == 0:
        return None, 0
    if source is None:
        raise BadShard(f"tensor {spec.label!r} is sparse in an anchor")
    if change.delta is None:
        values, delta = evaluate(source, spec, change)
    else:
        values, delta = change.values, change.delta
    return Patch(one.tensor, _placed(change.positions, spec), values), delta


def _placed(positions: Positions, spec: SliceSpec) -> Positions:
    """Positions of a slice as those of its tensor."""
    return positions + spec.start if spec.start else positions


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
