"""The server's side (spec, Reading): follow a store, stage while serving, and swap weights in place.

A target holds exactly one version of the store, or is poisoned and says so. Silent drift is the one fault
that must be impossible.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from deltastore.consumer.cache import Cache
from deltastore.consumer.directory import DirectoryTarget
from deltastore.consumer.follow import Follower
from deltastore.consumer.reading import Held, Progress, Reading
from deltastore.consumer.staged import Staged
from deltastore.consumer.targets import Changes, Target, TensorsTarget
from deltastore.errors import (
    Conflict,
    DeltaStoreError,
    NoSuchVersion,
    Poisoned,
    Throttled,
    Unavailable,
    UnreachableError,
    UsageError,
)
from deltastore.parallel import DEFAULT, Workers
from deltastore.protocol.records import Slot, VersionRecord
from deltastore.protocol.schema import Schema
from deltastore.replay import schema_of
from deltastore.store import Store, VersionInfo
from deltastore.tensors.host import HostTensor

if TYPE_CHECKING:
    import torch

    from deltastore.tensors.convert import Tensor

_log = logging.getLogger(__name__)

Check = Literal["touched", "full"]


class Consumer:
    """Keeps a target at versions of a store.

    Args:
        store: Where from.
        target: A module, a dict of tensors, the path of a checkpoint directory, or a target of your own; None
            only reads.
        base: This machine's copy of the store's external base, if it has one.
        cache: A directory for fetched shards and floors, shared by the consumers of a host.
        min_version: Never go below this version; for consumers without a cache of their own.
        check: `"touched"` checks what a version changes; `"full"` also every byte after each commit.
        full_check_every: Seconds between checks of every byte, made at the next update; None for never.
        workers: Shards fetched at once; cores bound how many are decoded.
        progress: Told after each object that was fetched: bytes so far, and bytes of the plan. Called from
            the workers' threads, one at a time.
    """

    def __init__(
        self,
        store: Store,
        target: torch.nn.Module | Mapping[str, Tensor] | Target[Any] | str | PathLike[str] | None = None,
        *,
        base: str | PathLike[str] | None = None,
        cache: str | PathLike[str] | Cache | None = None,
        min_version: int | None = None,
        check: Check = "touched",
        full_check_every: float | None = 1800.0,
        workers: Workers = DEFAULT,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(store, Store):
            raise UsageError(f"{store!r} is not a store", hint="Pass Store.open(...)")
        if check not in {"touched", "full"}:
            raise UsageError(f"check={check!r}", hint="It is 'touched' or 'full'")
        self.store = store
        self._target = _target(target)
        kept = cache if isinstance(cache, Cache | None) else Cache(Path(cache))
        self._check = check
        self._every = full_check_every
        self._staging = threading.RLock()
        self._committing = threading.RLock()
        self._follower = Follower(store, cache=kept, min_version=min_version)
        self._reading = Reading(
            store, base=None if base is None else Path(base), cache=kept, workers=workers, progress=progress
        )
        self._held: Held | None = None
        self._info: VersionInfo | None = None
        self._poisoned = False
        self._epoch = 0
        self._looked = False
        self._checked = store.runtime.monotonic()
        self.last_pause = 0.0

    @property
    def version(self) -> int | None:
        """The version that the target holds; None before the first commit, or if it is poisoned."""
        return None if self._held is None else self._held.version

    @property
    def info(self) -> VersionInfo | None:
        """What that version is."""
        return self._info if self._held is not None else None

    @property
    def poisoned(self) -> bool:
        """Whether the target's bits are no version's; it must not be served."""
        return self._poisoned

    # --- Following --------------------------------------------------------------------------------------

    def latest(self) -> VersionInfo:
        """The newest version of the store: one request when nothing is new.

        Raises:
            NoSuchVersion: The store holds no version yet.
            Diverged: The log does not continue what was seen before.
            StoreReplaced: Another store is at the root now.
        """
        with self._staging:
            return VersionInfo.of(self._follow())

    def update(self) -> VersionInfo | None:
        """Stages and commits the newest version, if the target does not hold it; what it is, or None."""
        with self._staging:
            self._notice()
            self._check_in_time()
            try:
                newest = self._follow()
            except NoSuchVersion:
                return None
            if newest.record.state is None or (self._held and self._held.version == newest.version):
                return None
            return self._stage(newest).commit()

    def watch(self, *, poll: float = 1.0, stop: threading.Event | None = None) -> Iterator[VersionInfo]:
        """Yields each version after it was committed to the target; polls while there is none.

        Args:
            poll: Seconds between polls.
            stop: Ends the iteration when it is set.

        Raises:
            DeltaStoreError: As `update`, except that versions out of reach are waited for.
        """
        stopping = stop or threading.Event()
        while not stopping.is_set():
            try:
                info = self.update()
            except UnreachableError as error:
                _log.warning("no way to the newest version yet", extra={"error": str(error)})
                info = None
            if info is not None:
                yield info
            else:
                stopping.wait(poll)

    # --- Staging ----------------------------------------------------------------------------------------

    def stage(self, version: int | None = None) -> Staged:
        """Fetches, checks and prepares a version while the target goes on serving; nothing of it changes.

        Args:
            version: Which; the newest by default.

        Raises:
            NoPath: Every way to it is missing or damaged.
            NoSuchVersion, Collected: It is not there.
            SchemaMismatch: The target does not fit.
            UsageError: It is older than what the target holds.
        """
        with self._staging:
            slot = self._follow(version)
            if self._held is not None and slot.version < self._held.version:
                raise UsageError(
                    f"version {slot.version} is older than version {self._held.version}, which is held",
                    hint="A consumer never goes down by itself; use a fresh one",
                    version=slot.version,
                )
            return self._stage(slot)

    def _stage(self, slot: Slot) -> Staged:
        target = self.need_target()
        self._notice()
        info, record = VersionInfo.of(slot), slot.record
        schema = schema_of(self.store, slot)
        if not isinstance(record, VersionRecord) or record.state is None:
            raise NoSuchVersion(f"version {slot.version} holds no weights", version=slot.version)
        target.bind(schema)
        self._look(target, schema)
        goal = Held(slot.version, schema, record.state, slot.sha256, record.files)
        epoch, held = self._epoch, self._held
        if held is not None and self._has(target, held, goal):
            return Staged(self, info, goal, epoch=epoch)
        before = self._reading.fetched
        reader = target if target.can_read_old() else None
        patches = self._reading.changes(slot, schema, held=held, reader=reader)
        prepared = target.stage(Changes(info, schema, patches, record.files, self.store))
        fetched = self._reading.fetched - before
        if self._epoch != epoch:
            self._reading.forget()  # a commit moved the target meanwhile: no edge is to blame
        return Staged(self, info, goal, epoch=epoch, prepared=prepared, bytes_fetched=fetched)

    def _look(self, target: Target[Any], schema: Schema) -> None:
        """Recognises, once, what a fresh target already holds (DS-READ-7)."""
        if self._looked or self._poisoned:
            return
        self._looked = True
        try:
            self._recognise(target, schema)
        except (Throttled, Unavailable):  # an outage is no answer, and without one an anchor is fetched
            self._looked = False
            raise

    def _recognise(self, target: Target[Any], schema: Schema) -> None:
        """Holds the version that schema and digest of all the target's bytes prove, if there is one."""
        if not target.can_read_old():
            return
        digest = target.state(schema)
        if digest is None:
            return
        for version in (target.hint(), self.store.log.first, self._follower.seen):
            slot = self.store.log.slot(version) if version is not None and version >= 0 else None
            record = slot.record if slot is not None else None
            if slot is None or not isinstance(record, VersionRecord) or record.schema is None:
                continue
            if (record.schema.sha256, record.state) == (schema.sha256, digest):
                held = Held(slot.version, schema, digest, slot.sha256, record.files)
                self._hold(held, VersionInfo.of(slot))
                return

    # --- Committing -------------------------------------------------------------------------------------

    def commit(self, staged: Staged) -> VersionInfo:
        """Swaps in what was staged; see `Staged.commit`."""
        if staged.consumer is not self:
            raise UsageError("this version was staged by another consumer", hint="Commit it there")
        with self._committing:
            self._notice()
            target, held = self.need_target(), self._held
            if held is not None and self._has(target, held, staged.goal):
                if staged.version >= held.version:
                    self._hold(staged.goal, staged.info)
                return staged.info
            prepared = staged.take()
            if prepared is None or staged.epoch != self._epoch:
                if prepared is not None:
                    target.discard(prepared)
                raise Conflict(
                    f"version {staged.version} was staged on another state than the target holds now",
                    hint="Stage it again; nothing was changed",
                    version=staged.version,
                )
            self._swap(target, prepared, staged)
            if self._check == "full":
                self.verify()
            return staged.info

    def discard(self, staged: Staged) -> None:
        """Forgets what was staged."""
        with self._committing:
            prepared = staged.take()
            if prepared is not None:
                self.need_target().discard(prepared)

    def _swap(self, target: Target[Any], prepared: object, staged: Staged) -> None:
        """Commits; from the first write to the last the target is nobody's version (DS-READ-10)."""
        before = (self._held, self._info, self._poisoned)
        begun = self.store.runtime.monotonic()
        self._hold(None, None, poisoned=True)
        try:
            target.commit(prepared)
        except DeltaStoreError:
            self._hold(before[0], before[1], poisoned=before[2])
            raise
        except Exception as error:
            what = f"a commit of version {staged.version} broke off: {error!r}"
            raise self._poison(what) from error
        self.last_pause = self.store.runtime.monotonic() - begun
        self._hold(staged.goal, staged.info)

    def verify(self) -> None:
        """Checks every byte of the target against the digest of the version that it holds.

        Raises:
            Poisoned: They differ: stop serving; the next update takes an anchor.
        """
        with self._committing:
            target, held = self.need_target(), self._held
            self._checked = self.store.runtime.monotonic()
            if self._poisoned:
                raise self._poison("the weights are no version's since an update broke off or a check failed")
            if held is None:
                return
            if not target.intact() or target.state(held.schema) != held.state:
                raise self._poison(f"the weights are no longer those of version {held.version}")

    def _check_in_time(self) -> None:
        if (
            self._every is not None
            and not self._poisoned
            and self.store.runtime.monotonic() - self._checked >= self._every
        ):
            self.verify()

    @staticmethod
    def _has(target: Target[Any], held: Held, goal: Held) -> bool:
        """Whether nothing of the target would change, whatever the numbers of the versions."""
        return held.same_bits(goal) and (held.files == goal.files or not target.holds_files)

    def _notice(self) -> None:
        """Forgets what is held where the target is no longer the memory, or the files, that hold it."""
        with self._committing:
            if self._target is not None and not self._target.intact():
                _log.warning("the target was replaced; looking at it anew")
                self._hold(None, None, poisoned=self._poisoned)
                self._looked = False

    def _hold(self, held: Held | None, info: VersionInfo | None, *, poisoned: bool = False) -> None:
        """What the target holds from now on; whatever was staged before no longer fits."""
        self._held, self._info, self._poisoned = held, info, poisoned
        self._epoch += 1
        self._reading.forget()

    def _poison(self, what: str) -> Poisoned:
        self._hold(None, None, poisoned=True)
        return Poisoned(what, hint="Do not serve; update() brings the target back from an anchor")

    # --- Reading without a target -----------------------------------------------------------------------

    def host_tensors(
        self, version: int | None = None, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, HostTensor]]:
        """Names and bits of a version, ties included, independent of the target.

        Args:
            version: Which; the newest by default.
            names: Only these; fetches only the shards that hold them.
        """
        with self._staging:
            slot = self._follow() if version is None else self._follower.slot(version, follow=False)
            found = list(self._reading.tensors(slot, names))
        yield from found

    def tensors(
        self, version: int | None = None, names: Collection[str] | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Like `host_tensors`, as torch tensors of their own memory, for loaders that want an iterator."""
        from deltastore.tensors import torch as adapter

        for name, host in self.host_tensors(version, names):
            yield name, adapter.from_host(host)

    def close(self) -> None:
        """Ends the use of the store; the target stays what it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _follow(self, version: int | None = None) -> Slot:
        """The slot of a version, or the newest one; what is held is forgotten where it is on a lost fork."""
        slot = self._follower.newest() if version is None else self._follower.slot(version)
        if self._follower.take_fork():
            self._hold(None, None, poisoned=self._poisoned)
        return slot

    def need_target(self) -> Target[Any]:
        """The target; a `UsageError` where there is none."""
        if self._target is None:
            raise UsageError("this consumer has no target", hint="Pass one, or read with tensors()")
        return self._target


def _target(target: object) -> Target[Any] | None:
    if target is None:
        return None
    if isinstance(target, Target):
        return target
    if isinstance(target, str | PathLike):
        return DirectoryTarget(Path(target))
    return TensorsTarget(target)  # type: ignore[arg-type]
