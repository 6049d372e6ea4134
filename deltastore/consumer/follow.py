"""Finding what is new (spec, Reading): one request when nothing is, the chain checked, floors never passed.

After a minute of empty polls the store's identity is read again, and so is the record that was seen last.
"""

from __future__ import annotations

import logging
from typing import Final

from deltastore.consumer.cache import Cache
from deltastore.errors import BadRecord, Collected, Diverged, NoSuchVersion, StoreReplaced, UsageError
from deltastore.protocol import chain
from deltastore.protocol.identity import CommitMode
from deltastore.protocol.records import Kind, Slot, Tombstone
from deltastore.store import Store

_log = logging.getLogger(__name__)
IDENTITY_EVERY: Final = 60.0
"""Seconds of empty polls after which the identity of the store is checked."""


class Follower:
    """The end of a log as one reader has seen it."""

    def __init__(self, store: Store, *, cache: Cache | None, min_version: int | None) -> None:
        self._store = store
        self._cache = cache
        kept = cache.floor(store.identity.store) if cache is not None else None
        self._floor = max(-1, *(v for v in (kept, min_version) if v is not None), -1)
        self._least = self._floor
        self._last: Slot | None = None
        self._asked = store.runtime.monotonic()
        self._forked = False

    def take_fork(self) -> bool:
        """Whether a single-writer log was mended behind what was seen, since this was asked last.

        What is held may then be on the fork that was lost, and only an anchor leads on.
        """
        forked, self._forked = self._forked, False
        return forked

    @property
    def seen(self) -> int | None:
        """The newest version that was seen."""
        return None if self._last is None else self._last.version

    def newest(self) -> Slot:
        """The newest slot.

        Raises:
            NoSuchVersion: The log is empty.
            Diverged: It does not continue what was seen, or ends below it.
            StoreReplaced: Another store is at the root now.
        """
        if self._last is None:
            found = self._store.log.newest()
            if found is None:
                self._quiet()
                self._refuse_below(-1)
                raise NoSuchVersion("the store has no versions yet", hint="Wait for its producer")
        else:
            found = self._after(self._last)
            if found is None:
                self._quiet()
                return self._last
        self._refuse_below(found.version)
        if isinstance(found.record, Tombstone):
            raise Collected(f"version {found.version} was collected while it was read", hint="Try again")
        self._see(found)
        return found

    def slot(self, version: int, *, follow: bool = True) -> Slot:
        """The slot of a version by number.

        Args:
            version: Which.
            follow: Whether it is to be held, not only read.

        Raises:
            NoSuchVersion: It is not committed.
            Collected: It was collected.
            UsageError: It is to be held, and below what this reader may go down to.
            StoreReplaced: It is another record than the one that was seen.
        """
        found = self._store.log.require(version)
        if isinstance(found.record, Tombstone):
            raise Collected(f"version {version} was collected", hint="Take a newer one", version=version)
        last = self._last
        if last is not None and version == last.version and found.sha256 != last.sha256:
            raise _replaced(version)
        if not follow:
            return found
        if version < self._least:
            raise UsageError(
                f"version {version} is below version {self._least}, which may not be left",
                hint="It is min_version, or what a consumer with this cache has seen",
                version=version,
            )
        if last is not None and version == last.version + 1:
            self._link(last, found)
        if version > self._floor:
            self._see(found)
        return found

    def _after(self, last: Slot) -> Slot | None:
        log, following = self._store.log, last.version + 1
        try:
            found = log.slot(following)
        except BadRecord:
            if self._store.identity.commit is CommitMode.CONDITIONAL:
                raise
            return self._behind_damage(following)
        if found is None:
            return None
        self._link(last, found)
        newest = log.newest_number(known=following)
        return found if newest in {None, following} else log.require(newest or following)

    def _behind_damage(self, version: int) -> Slot | None:
        """The newest slot of a single-writer log with a damaged one in it: a reset leads on (DS-SINGLE-4)."""
        newest = self._store.log.newest_number(known=version)
        if newest in {None, version}:
            _log.warning("the newest record is damaged; waiting for a reset", extra={"version": version})
            return None
        self._forked = True
        return self._store.log.require(newest or version)

    def _link(self, before: Slot, after: Slot) -> None:
        """Checks the chain; a single-writer log may have been mended with a reset (DS-SINGLE-4)."""
        try:
            chain.check_successor(before, after)
        except Diverged:
            if self._store.identity.commit is CommitMode.CONDITIONAL:
                raise
            reset = not isinstance(after.record, Tombstone) and after.record.kind is Kind.RESET
            if not reset and self._stored(before.version) == before.sha256:
                raise
            _log.warning("the log was mended; going on from an anchor", extra={"version": after.version})
            self._forked = True

    def _stored(self, version: int) -> str | None:
        try:
            slot = self._store.log.slot(version)
        except BadRecord:
            return None
        return None if slot is None else slot.sha256

    def _quiet(self) -> None:
        """After a minute without anything new: is it still the same store (DS-STORE-2)?"""
        now = self._store.runtime.monotonic()
        if now - self._asked < IDENTITY_EVERY:
            return
        self._asked = now
        self._store.check_identity()
        if self._last is None:
            return
        stored = self._stored(self._last.version)
        damaged = stored is None and self._store.identity.commit is CommitMode.SINGLE_WRITER
        if stored != self._last.sha256 and not damaged:
            raise _replaced(self._last.version)

    def _see(self, slot: Slot) -> None:
        self._last = slot if self._last is None or slot.version > self._last.version else self._last
        self._asked = self._store.runtime.monotonic()
        if slot.version > self._floor:
            self._floor = slot.version
            if self._cache is not None:
                self._cache.raise_floor(self._store.identity.store, slot.version)

    def _refuse_below(self, version: int) -> None:
        """Never accepts a lower log than was seen before (DS-FLOOR-1)."""
        if version < self._floor:
            raise Diverged(
                f"the log ends at version {version}, and version {self._floor} was seen before",
                hint="The store was rolled back or this is a stale replica; nothing was changed",
                version=version,
                floor=self._floor,
            )


def _replaced(version: int) -> StoreReplaced:
    return StoreReplaced(
        f"version {version} is another record than the one that was read",
        hint="The log was rewritten; open the store anew if that was meant",
        version=version,
    )
