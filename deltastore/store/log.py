"""The log of a store (spec, The log; Writing): slots, the newest version, the commit, finding by step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from deltastore.backends.base import Put
from deltastore.errors import (
    BackendError,
    BadRecord,
    Collected,
    Conflict,
    LimitExceeded,
    NoSuchVersion,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Unavailable,
    Unsupported,
)
from deltastore.protocol import chain, features, keys, limits
from deltastore.protocol.commit import Outcome, judge
from deltastore.protocol.identity import CommitMode
from deltastore.protocol.records import Kind, Slot, Stats, Tombstone, VersionRecord, parse_slot
from deltastore.protocol.wire import Value, sha256
from deltastore.store.access import Access

_TRANSIENT = (Throttled, Unavailable, OutcomeUnknown)
_HEAD_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """What a version is, for whoever holds or looks for it.

    Attributes:
        version: Its number.
        step: The training step; None for a claim.
        term: The producer's reign that it belongs to.
        kind: Data, claim or reset.
        state: State digest; None while the store holds no weights.
        schema: SHA-256 of its schema; None likewise.
        record_sha256: Of its record's stored bytes.
        time: When its producer made it, in Unix seconds by that host's clock; informative.
        stats: What it cost; None for a claim.
        resumed_from: The earlier version with the same state that training resumed from.
        user: What the trainer said of it.
    """

    version: int
    step: int | None
    term: int
    kind: Kind
    state: int | None
    schema: str | None
    record_sha256: str
    time: float
    stats: Stats | None
    resumed_from: int | None
    user: Mapping[str, Value]

    @classmethod
    def of(cls, slot: Slot) -> VersionInfo:
        """The info of a slot that holds a record.

        Raises:
            Collected: It holds a tombstone.
        """
        record = slot.record
        if isinstance(record, Tombstone):
            hint = "Take a newer version, or the one that a mirror kept"
            raise Collected(f"version {slot.version} was collected", hint=hint, version=slot.version)
        return cls(
            version=record.version,
            step=record.step,
            term=record.term,
            kind=record.kind,
            state=record.state,
            schema=record.schema.sha256 if record.schema else None,
            record_sha256=slot.sha256,
            time=record.time / 1000,
            stats=record.stats,
            resumed_from=record.resumed_from,
            user=record.user,
        )


class Log:
    """The slots of a store, dense from its first version on."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._backend = access.backend
        self._identity = access.identity

    @property
    def first(self) -> int:
        """The first version that can exist here."""
        return self._identity.first_version

    def slot(self, version: int) -> Slot | None:
        """What is stored under a version's key, or None while it is not committed.

        Raises:
            BadRecord: It is malformed, or of another store or version.
            UnknownFeature: It requires what this reader does not know.
        """
        try:
            data = self._access.get(keys.version(version), most=limits.RECORD_BYTES)
        except NotFound:
            return None
        return self._parse(version, data)

    def newest(self) -> Slot | None:
        """The newest slot, or None in an empty log (DS-GALLOP-1)."""
        version = self.newest_number()
        return None if version is None else self.slot(version)

    def newest_number(self, known: int | None = None) -> int | None:
        """The number of the newest slot, whatever it holds."""
        start = known if known is not None else self._head()
        if start < self.first or (known is None and not self._exists(start)):
            start = self.first - 1
        version = chain.newest(self._exists, known=start)
        return None if version < self.first else version

    def write_head(self, version: int) -> None:
        """Leaves a hint where galloping may start; nobody trusts it (DS-GALLOP-2)."""
        with contextlib.suppress(BackendError):
            self._backend.put(keys.HEAD, b"%d\n" % version)

    def check(self, record: VersionRecord, *, before: Slot | None) -> Slot:
        """The slot that a record would make; what no reader would take never enters the log (DS-COMMIT-7).

        Raises:
            IntegrityError: Readers would refuse it, by itself or behind `before`.
            Unsupported: It is too large.
        """
        data = record.to_bytes()
        if len(data) > limits.RECORD_BYTES:
            raise Unsupported(f"the record of version {record.version} would have {len(data)} bytes")
        slot = self._parse(record.version, data)
        if before is not None:
            chain.check_successor(before, slot)
        return slot

    def commit(self, record: VersionRecord, *, before: Slot | None) -> tuple[Outcome, Slot]:
        """Puts a version record: that is the commit (DS-COMMIT-1, DS-COMMIT-3 to DS-COMMIT-5, DS-COMMIT-7).

        Args:
            record: What to commit.
            before: The slot before it, or None for the first; single-writer mode checks it again.

        Returns:
            `COMMITTED` or `SUPERSEDED`, and the slot.

        Raises:
            Conflict: Another record has the slot.
            OutcomeUnknown: It could not be learned whether the put happened. Only the same record may be
                tried again.
            BackendError: The store definitely did not take it.
            IntegrityError: Readers would refuse the record; it was not put.
        """
        slot = self.check(record, before=before)
        data = slot.data
        put = self._put_alone if self._identity.commit is CommitMode.SINGLE_WRITER else self._put_if_absent
        open_puts = 0

        def attempt() -> Outcome:
            nonlocal open_puts
            outcome = put(record, data, before)
            if outcome is Outcome.UNKNOWN:
                open_puts += 1
                raise Unavailable(f"version {record.version} was put and cannot be read back")
            return outcome

        try:
            outcome = self._access.call(attempt)
        except BackendError as error:
            # A refusal says nothing of an earlier put of these bytes, which may still be on its way.
            if not open_puts:
                raise
            raise OutcomeUnknown(
                f"it is unknown whether version {record.version} was committed",
                hint="Try again with the same record, and with nothing else",
                version=record.version,
            ) from error
        if outcome is Outcome.CONFLICT:
            raise Conflict(
                f"version {record.version} is already another record",
                hint="Another producer writes here; open a new producer to go on behind it",
                version=record.version,
            )
        return outcome, slot

    def _put_if_absent(self, record: VersionRecord, data: bytes, _before: Slot | None) -> Outcome:
        def send() -> bool:
            return self._backend.put_if_absent(keys.version(record.version), data) is Put.CREATED

        return self._settle(send, record.version, data)

    def _put_alone(self, record: VersionRecord, data: bytes, before: Slot | None) -> Outcome:
        """A commit without a conditional create: sound while there is one writer (DS-SINGLE-1)."""
        key = keys.version(record.version)
        if before is not None:
            parent = self.slot(before.version)
            if parent is None or judge(before.data, before.sha256, parent) is Outcome.CONFLICT:
                raise Conflict(
                    f"version {before.version} is not what this writer left there",
                    hint="A second writer was here; commit a reset behind what is stored now",
                    version=before.version,
                )
        with contextlib.suppress(NotFound):
            return self._judge(record.version, data, self._access.get(key, most=limits.RECORD_BYTES))

        def send() -> bool:
            self._backend.put(key, data)
            return False

        return self._settle(send, record.version, data)

    def _settle(self, send: Callable[[], bool], version: int, data: bytes) -> Outcome:
        """Sends a put once; whatever its answer is, but that it created the object, it is read back."""
        refused = None
        try:
            if send():
                return Outcome.COMMITTED
        except _TRANSIENT:
            pass
        except BackendError as error:
            refused = error
        try:
            found = self._backend.get(keys.version(version), max_size=limits.RECORD_BYTES)
        except _TRANSIENT:
            return Outcome.UNKNOWN
        except BackendError:
            if refused is not None:
                raise refused from None
            return Outcome.UNKNOWN
        return self._judge(version, data, found)

    def _judge(self, version: int, data: bytes, found: bytes) -> Outcome:
        if found == data:
            return Outcome.COMMITTED
        return judge(data, sha256(data), self._parse(version, found))

    # --- Finding ----------------------------------------------------------------------------------------

    def require(self, version: int) -> Slot:
        """The slot of a version that must exist.

        Raises:
            NoSuchVersion: It is not committed.
        """
        slot = self.slot(version) if version >= self.first else None
        if slot is None:
            raise NoSuchVersion(f"version {version} does not exist", version=version)
        return slot

    def find(self, *, version: int | None = None, step: int | None = None) -> VersionInfo:
        """A version by its number or by its training step; the newest where neither is given.

        Steps never fall within a term, so each term is bisected, newest first: for a step that was
        trained twice the highest version wins.

        Raises:
            NoSuchVersion: There is none.
            Collected: There was.
        """
        return VersionInfo.of(self.locate(version=version, step=step))

    def locate(self, *, version: int | None = None, step: int | None = None) -> Slot:
        """The slot that `find` is about, also where it holds a tombstone.

        Raises:
            NoSuchVersion: There is none.
        """
        if version is not None:
            return self.require(version)
        newest = self.newest()
        if newest is None:
            raise NoSuchVersion("the store has no versions yet", hint="Publish one first")
        if step is None:
            return newest
        for first, last in self.terms(newest):
            slot = self._bisect(first.version, last.version, step)
            if slot is not None:
                return slot
        raise NoSuchVersion(f"no version was published at step {step}", step=step)

    def terms(self, newest: Slot) -> Iterator[tuple[Slot, Slot]]:
        """The first (a claim or a reset) and the last slot of each term, newest term first."""
        last = newest
        while True:
            start = max(last.record.term_start, self.first)
            yield (last if start == last.version else self.require(start)), last
            if start == self.first:
                return
            last = self.require(start - 1)

    def _bisect(self, low: int, high: int, step: int) -> Slot | None:
        """The highest version from `low` to `high` with that step."""
        found = None
        while low <= high:
            middle = (low + high) // 2
            slot = self.require(middle)
            at = slot.record.step
            if at is not None and at > step:
                high = middle - 1
            else:
                found = slot if at == step else found
                low = middle + 1
        return found

    # --- One slot ---------------------------------------------------------------------------------------

    def _parse(self, version: int, data: bytes) -> Slot:
        slot = parse_slot(data, store=self._identity.store_of(version), version=version)
        if not isinstance(slot.record, Tombstone):
            features.check(slot.record.requires, "read", where=f"version {version}")
            if slot.record.kind is Kind.RESET and self._identity.commit is CommitMode.CONDITIONAL:
                raise BadRecord(f"version {version} is a reset, which only a single-writer store may hold")
        return slot

    def _exists(self, version: int) -> bool:
        try:
            self._access.call(partial(self._backend.head, keys.version(version)))
        except NotFound:
            return False
        return True

    def _head(self) -> int:
        try:
            text = self._access.get(keys.HEAD, most=_HEAD_BYTES)
        except (BackendError, LimitExceeded):
            return -1
        digits = text.strip()
        return min(int(digits), limits.MAX_INT) if digits.isdigit() else -1
