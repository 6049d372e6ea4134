"""From what a reader holds to the bits of a version (spec, Reading): starts, plans, fetches and detours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltastore.consumer.cache import Cache
from deltastore.errors import NoPath, UsageError
from deltastore.parallel import Workers
from deltastore.protocol.descriptors import Descriptor, ShardDescriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.keys import Base
from deltastore.protocol.planning import Plan
from deltastore.protocol.records import Slot, VersionRecord
from deltastore.protocol.schema import Schema
from deltastore.replay import Replay, Start, schema_of, shard_fetcher, with_detours
from deltastore.state import HostState, Patch, Reader
from deltastore.store import Store
from deltastore.tensors.files import open_checkpoint
from deltastore.tensors.host import HostTensor

AGAIN: Final = 60.0
"""Seconds after which edges that failed are tried again, if nothing else leads on (DS-READ-6)."""
Progress = Callable[[int, int], None]
"""Told after each object: bytes fetched of a plan, and bytes of the plan."""


@dataclass(frozen=True, slots=True)
class Held:
    """A version that a target holds.

    Attributes:
        version: Its number.
        schema: What it consists of.
        state: Its digest.
        record: SHA-256 of its record's stored bytes.
        files: Its side files.
    """

    version: int
    schema: Schema
    state: int
    record: str
    files: Mapping[str, Descriptor]

    def same_bits(self, other: Held) -> bool:
        """Whether both are the same state, whatever their numbers."""
        return (self.schema.sha256, self.state) == (other.schema.sha256, other.state)


class Reading:
    """How one consumer gets bits out of a store.

    Attributes:
        fetched: Bytes fetched so far.
    """

    def __init__(
        self,
        store: Store,
        *,
        base: Path | None,
        cache: Cache | None,
        workers: Workers,
        progress: Progress | None = None,
    ) -> None:
        self._store = store
        self._base = base
        self._cache = cache
        self._workers = workers
        self._progress = progress
        self._lock = threading.Lock()
        self._begun = self._goal = 0
        self._avoid: set[Edge] = set()
        self._gave_up: float | None = None
        self._doubt: set[Base] = set()
        self.fetched = 0

    def changes(
        self,
        slot: Slot,
        schema: Schema,
        *,
        held: Held | None = None,
        reader: Reader | None = None,
        names: Collection[str] | None = None,
    ) -> Mapping[str, Patch]:
        """The changes from what is held, or from nothing, to a version; each checked against its digest.

        Args:
            slot: The version's.
            schema: Its schema.
            held: The version that `reader` holds.
            reader: The bits of that version.
            names: Only these tensors, owners of their storage.

        Raises:
            NoPath: Every way there is missing or damaged.
        """
        starts: set[Base] = set()
        usable = held is not None and (held.version < slot.version or held.state == slot.record.state)
        if usable and held is not None and reader is not None and held.schema.sha256 == schema.sha256:
            starts.add(held.version)
            if held.version == 0:
                starts.add("external")
        base = Start(schema, None if "external" in starts else self._external())
        starts |= base.held
        replay = Replay(schema, slot.record.state, self._fetch, self._workers)

        def run(chosen: Plan) -> Mapping[str, Patch]:
            self._begun, self._goal = self.fetched, chosen.size
            if chosen.start in base.held:
                return base.run(replay, chosen, names)
            return replay.run(chosen, reader, base_state=held.state if held else None, names=names)

        try:
            return with_detours(self._store, slot, held=starts, avoid=self._avoid, doubt=self._doubt, run=run)
        except NoPath as error:
            self._give_up()
            raise self._explained(error) from error

    def _give_up(self) -> None:
        """Failed edges are not fetched again with every poll, but now and then: somebody may mend them."""
        now = self._store.runtime.monotonic()
        if self._gave_up is None:
            self._gave_up = now
        elif now - self._gave_up >= AGAIN:
            self.forget()

    def tensors(self, slot: Slot, names: Collection[str] | None) -> Iterator[tuple[str, HostTensor]]:
        """Names and bits of a version from nothing, ties included.

        Raises:
            UsageError: A name that it does not have.
        """
        schema = schema_of(self._store, slot)
        wanted = [t.name for t in schema.tensors] if names is None else list(names)
        for name in wanted:
            if name not in schema:
                raise UsageError(f"version {slot.version} has no tensor {name!r}", tensor=name)
        owners = {schema[name].alias_of or name for name in wanted}
        patches = self.changes(slot, schema, names=owners)
        for name in wanted:
            spec = schema[name]
            yield name, HostTensor(spec.dtype, spec.shape, patches[spec.alias_of or name].values)

    def forget(self) -> None:
        """Edges that failed are given another chance: what is held has changed, or nothing else is left."""
        self._avoid.clear()
        self._gave_up = None
        self._doubt.clear()

    def _external(self) -> HostState | None:
        return None if self._base is None else open_checkpoint(self._base)

    def _explained(self, error: NoPath) -> NoPath:
        """The same error, with the external base named where there is one that may be what is lacking."""
        first = self._store.log.slot(0) if self._store.log.first == 0 else None
        record = first.record if first is not None else None
        if not isinstance(record, VersionRecord) or record.external is None:
            return error
        hint = f"The store begins with the checkpoint {record.external.url}: pass your copy of it as base="
        return NoPath(error.what, hint=f"{hint}, or wait for an anchor", **error.fields)

    def _fetch(self, shard: ShardDescriptor) -> bytes:
        download = shard_fetcher(self._store)
        data = download(shard) if self._cache is None else self._cache.fetch(shard, download)
        with self._lock:
            self.fetched += len(data)
            if self._progress is not None:
                self._progress(self.fetched - self._begun, self._goal)
        return data
