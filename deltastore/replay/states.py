"""Whole states (spec, Reading): where a plan may start, detours round failures, a version from nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import cached_property

from deltastore.errors import NoPath, NoSuchVersion
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base
from deltastore.protocol.planning import Plan
from deltastore.protocol.records import Slot
from deltastore.protocol.schema import Schema
from deltastore.replay.edges import FailedEdge, Replay, shard_fetcher
from deltastore.replay.ways import plan
from deltastore.state import HostState, Patch
from deltastore.store import Store

_log = logging.getLogger(__name__)


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
