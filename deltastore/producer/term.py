"""One producer's reign over the log (spec, Terms and claims; Writing): claim, then commit strictly in order.

All steps are synchronous calls on the store, so that an explorer can stop between any two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deltastore.errors import BadRecord, Conflict, Fenced, OutcomeUnknown, TakeoverRefused
from deltastore.producer.holder import Process, read_holder, write_status
from deltastore.protocol import features, keys, limits
from deltastore.protocol.commit import may_claim
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.edges import Edge
from deltastore.protocol.identity import CommitMode
from deltastore.protocol.records import External, Kind, Slot, Stats, Tombstone, VersionRecord
from deltastore.protocol.wire import Value, sha256
from deltastore.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a data record says beside its place in the log."""

    schema: Descriptor
    files: Mapping[str, Descriptor]
    state: int
    edge: Edge
    step: int
    last_anchor: int | None
    resumed_from: int | None
    stats: Stats
    user: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Genesis:
    """What version 0 claims on top of an external base."""

    schema: Descriptor
    state: int
    external: External


class Term:
    """A reign that has begun.

    Attributes:
        number: Its number.
        last: The newest slot of the log as this producer knows it: its claim, or what it committed last.
        start: The version of its first record.
    """

    def __init__(self, store: Store, claim: VersionRecord, last: Slot | None, process: Process) -> None:
        self._store = store
        self._process = process
        self._pending: VersionRecord | None = None
        self._pending_data = b""
        self.number = claim.term
        self.start = claim.term_start
        self._claim = claim
        self.last = last

    @classmethod
    def begin(
        cls,
        store: Store,
        *,
        takeover: bool = False,
        process: Process | None = None,
        genesis: Genesis | None = None,
    ) -> Term:
        """Claims the log (DS-CLAIM-1 to DS-CLAIM-4).

        Raises:
            TakeoverRefused: The last writer may be alive.
            Conflict: Another producer claimed at the same moment.
            OutcomeUnknown: It could not be learned whether the claim was committed; begin again.
        """
        store.check_writable()
        process = process or Process()
        try:
            newest = store.log.newest()
        except BadRecord:
            if store.identity.commit is not CommitMode.SINGLE_WRITER:
                raise
            return cls._behind_damage(store, process)
        if newest is not None:
            if not isinstance(newest.record, Tombstone):
                features.check(newest.record.requires, "write", where=f"version {newest.version}")
            if not may_claim(read_holder(store, newest, process), takeover=takeover):
                raise TakeoverRefused(
                    f"term {newest.record.term} wrote version {newest.version} recently and was not closed",
                    hint="If that producer is dead, pass takeover=True; if it lives, it would be fenced",
                    term=newest.record.term,
                )
        claim = _claim(store, newest, genesis)
        # Before the claim too: if that lands and its reply is lost, this process can still claim again.
        write_status(store, claim.term, process, closed=False)
        try:
            _, slot = store.log.commit(claim, before=newest)
        except Conflict as error:
            raise Conflict(
                f"another producer claimed version {claim.version} at the same moment",
                hint="Let one of them win, or try again",
                version=claim.version,
            ) from error
        write_status(store, claim.term, process, closed=False)
        return cls(store, claim, slot, process)

    @classmethod
    def _behind_damage(cls, store: Store, process: Process) -> Term:
        """A reign that starts with a reset, behind a newest record that is not readable (DS-SINGLE-3)."""
        version = store.log.newest_number()
        if version is None:
            raise BadRecord("the log is damaged where it is also empty")
        data = store.access.get(keys.version(version), most=limits.RECORD_BYTES)
        term, readable = _last_readable(store, version)
        reset = VersionRecord(
            store=store.identity.store,
            version=version + 1,
            term=term + 1,
            term_start=version + 1,
            nonce=store.runtime.random_bytes(16),
            parent=sha256(data),
            kind=Kind.RESET,
            files={} if readable is None else readable.files,
            time=_milliseconds(store),
            requires=store.identity.requires if readable is None else readable.requires,
        )
        return cls(store, reset, None, process)

    @property
    def before(self) -> VersionRecord | Tombstone:
        """What the next record follows: the last one, or what is left of those before a damaged one."""
        return self._claim if self.last is None else self.last.record

    @property
    def damaged(self) -> bool:
        """Whether nothing was committed yet and the next record must be a reset."""
        return self.last is None

    @property
    def next_version(self) -> int:
        """The number of the next record."""
        return self._claim.version if self.last is None else self.last.version + 1

    def commit(self, content: Content) -> Slot:
        """Commits the next record (DS-COMMIT-6).

        Raises:
            Fenced: A later term has begun. Terminal for this producer.
            OutcomeUnknown: Only the same content may be tried again; other content is refused.
            Conflict: The slot holds a record that no later term explains.
            IntegrityError: Readers would refuse the record; nothing was put, and other content may be tried.
        """
        record = self._record(content)
        if self._pending is not None:
            record = replace(record, nonce=self._pending.nonce, time=self._pending.time)
            if record.to_bytes() != self._pending_data:
                raise OutcomeUnknown(
                    f"version {record.version} is undecided and cannot become another record",
                    hint="Try the same content again, or open a new producer",
                    version=record.version,
                )
        else:
            self._pending_data = self._store.log.check(record, before=self.last).data
        self._pending = record
        try:
            _, slot = self._store.log.commit(record, before=self.last)
        except Conflict as error:
            self._pending = None
            raise self._explain(record.version, error) from error
        self._pending = None
        self.last = slot
        return slot

    def end(self) -> None:
        """Says that this producer is done, so that the next need not wait; not while a put is undecided."""
        write_status(self._store, self.number, self._process, closed=self._pending is None)

    def _record(self, content: Content) -> VersionRecord:
        before = self.before
        kind = Kind.RESET if self.last is None else Kind.DATA
        return VersionRecord(
            store=self._store.identity.store,
            version=self.next_version,
            term=self.number,
            term_start=self.start,
            nonce=self._store.runtime.random_bytes(16),
            parent=self._claim.parent if self.last is None else self.last.sha256,
            kind=kind,
            schema=content.schema,
            files=content.files,
            state=content.state,
            edges=(content.edge,),
            last_anchor=content.last_anchor,
            step=content.step,
            resumed_from=content.resumed_from,
            time=_milliseconds(self._store),
            stats=content.stats,
            user=content.user,
            requires=before.requires if isinstance(before, VersionRecord) else self._store.identity.requires,
        )

    def _explain(self, version: int, error: Conflict) -> Conflict | Fenced:
        found = self._store.log.slot(version)
        if found is not None and found.record.term > self.number:
            return Fenced(
                f"term {found.record.term} holds version {version}; this producer's term was {self.number}",
                hint="Another trainer took over: stop this one, its weights are no longer wanted",
                term=found.record.term,
                version=version,
            )
        return error


def _claim(store: Store, newest: Slot | None, genesis: Genesis | None) -> VersionRecord:
    first = store.log.first
    before = newest.record if newest is not None else None
    record = VersionRecord(
        store=store.identity.store,
        version=first if newest is None else newest.version + 1,
        term=1 if before is None else before.term + 1,
        term_start=first if newest is None else newest.version + 1,
        nonce=store.runtime.random_bytes(16),
        parent=None if newest is None else newest.sha256,
        kind=Kind.CLAIM,
        time=_milliseconds(store),
    )
    if before is not None:
        record = replace(record, schema=before.schema, state=before.state)
    elif genesis is not None:
        record = replace(record, schema=genesis.schema, state=genesis.state, external=genesis.external)
    if isinstance(before, VersionRecord):
        record = replace(record, files=before.files, last_anchor=before.last_anchor, requires=before.requires)
    return record


def _last_readable(store: Store, version: int) -> tuple[int, VersionRecord | None]:
    """A term that none below a damaged version has, and the newest record below it that can be read."""
    for number in range(version - 1, store.log.first - 1, -1):
        try:
            slot = store.log.slot(number)
        except BadRecord:
            continue
        if slot is not None:
            record = slot.record if isinstance(slot.record, VersionRecord) else None
            return slot.record.term + (version - number), record
    return version + 1, None


def _milliseconds(store: Store) -> int:
    """The time as records hold it, whatever the clock says: nobody decides anything by it."""
    now = store.runtime.now() * 1000
    return int(min(now, limits.MAX_INT)) if now > 0 else 0
