"""Rules broken on purpose: the explorer finds a history for each, so it would find them in the code."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from scenarios import collector, producer, reader, running, scenario, zombie

from deltastore.backends import Put
from deltastore.backends.base import Backend, Buffer
from deltastore.consumer.follow import Follower
from deltastore.errors import AuthError, Conflict, NotFound, OutcomeUnknown, Unavailable
from deltastore.producer import term as term_module
from deltastore.producer.term import Content, Term
from deltastore.protocol import chain, keys
from deltastore.protocol.commit import Outcome, judge
from deltastore.protocol.records import Slot, VersionRecord
from deltastore.protocol.wire import sha256
from deltastore.store import log as log_module
from deltastore.store.log import Log
from deltastore.testing.explore import Actor, Mishap, Scenario, Stage, Violation, explore, replay

Patch = pytest.MonkeyPatch


def caught(what: Scenario, about: str, mishaps: Collection[Mishap] = ()) -> None:
    with pytest.raises(Violation) as found:
        explore(what, mishaps=mishaps, most_runs=3000)
    assert about in found.value.problem
    with pytest.raises(Violation, match=about):
        replay(what, found.value.schedule)


def fight() -> Scenario:
    return scenario({"new": producer("1"), "zombie": zombie("1", "2")}, running)


def test_a_commit_by_overwriting(monkeypatch: Patch) -> None:
    def put(self: Log, record: VersionRecord, data: bytes, _before: Slot | None) -> Outcome:
        self._backend.put(keys.version(record.version), data)
        return Outcome.COMMITTED

    monkeypatch.setattr(Log, "_put_if_absent", put)
    caught(fight(), "became another record")
    caught(scenario({"a": producer(), "b": producer()}), "became another record")


def test_a_commit_by_looking_and_then_writing(monkeypatch: Patch) -> None:
    """A conditional create that a backend makes of a check and a write."""

    def put(self: Log, record: VersionRecord, data: bytes, _before: Slot | None) -> Outcome:
        try:
            return self._judge(
                record.version, data, self._backend.get(keys.version(record.version), max_size=1 << 20)
            )
        except NotFound:
            self._backend.put(keys.version(record.version), data)
            return Outcome.COMMITTED

    monkeypatch.setattr(Log, "_put_if_absent", put)
    caught(fight(), "became another record")


def absent_means_failed(monkeypatch: Patch) -> None:
    """Reads back once; what is not there was not committed, so that other content may be tried."""

    def settle(self: Log, send: Callable[[], bool], version: int, data: bytes) -> Outcome:
        try:
            if send():
                return Outcome.COMMITTED
        except Unavailable:
            pass
        try:
            return self._judge(version, data, self._backend.get(keys.version(version), max_size=1 << 20))
        except NotFound as error:
            raise AuthError("it was not committed") from error

    original = Term.commit

    def commit(self: Term, content: Content) -> Slot:
        try:
            return original(self, content)
        except AuthError:
            self._pending = None
            raise

    monkeypatch.setattr(Log, "_settle", settle)
    monkeypatch.setattr(Term, "commit", commit)


def test_absence_when_reading_back_taken_for_failure(monkeypatch: Patch) -> None:
    absent_means_failed(monkeypatch)
    explore(scenario({"a": producer("1")}), mishaps=[Mishap.LOST_REPLY, Mishap.LOST_REQUEST])
    caught(scenario({"a": producer("1")}), "Conflict", [Mishap.LATE])


def test_a_rebuilt_record_overwritten_by_the_late_one(monkeypatch: Patch) -> None:
    """Without a conditional create the same mistake loses an acknowledged version."""
    absent_means_failed(monkeypatch)

    class Overwriting:
        def __init__(self, inner: Backend) -> None:
            self._inner = inner

        def put(self, key: str, data: Buffer) -> Put:
            self._inner.put(key, data)
            return Put.CREATED

    def put(self: Log, record: VersionRecord, data: bytes, _before: Slot | None) -> Outcome:
        return self._settle(
            lambda: Overwriting(self._backend).put(keys.version(record.version), data) is Put.CREATED,
            record.version,
            data,
        )

    monkeypatch.setattr(Log, "_put_if_absent", put)
    caught(scenario({"a": producer("1")}), "became another record", [Mishap.LATE])


def test_other_content_while_the_outcome_is_unknown(monkeypatch: Patch) -> None:
    original = Term.commit

    def commit(self: Term, content: Content) -> Slot:
        self._pending = None
        return original(self, content)

    monkeypatch.setattr(Term, "commit", commit)
    caught(scenario({"a": producer("1")}), "Conflict", [Mishap.LATE])


def twin(actor: Actor) -> Actor:
    """The same process forked: its random bytes are those of its twin, its clock is its own."""

    def run(stage: Stage) -> None:
        runtime = replace(stage.runtime, random_bytes=bytes)
        actor(replace(stage, runtime=runtime))

    return run


def test_an_equal_nonce_taken_for_ours(monkeypatch: Patch) -> None:
    def by_nonce(data: bytes, sha256: str, found: Slot | None) -> Outcome:
        if found is not None and isinstance(found.record, VersionRecord) and found.record.nonce == bytes(16):
            return Outcome.COMMITTED
        return judge(data, sha256, found)

    twins = scenario({"a": twin(producer("1")), "b": twin(producer("1"))})
    assert explore(twins).complete
    monkeypatch.setattr(log_module, "judge", by_nonce)
    caught(twins, "both have committed")


def unchecked(monkeypatch: Patch) -> None:
    """Takes away the check of one's own records, which would catch the mutant before the explorer does."""

    class Chain:
        newest = staticmethod(chain.newest)

        @staticmethod
        def check_successor(before: Slot, after: Slot) -> None:
            return

    monkeypatch.setattr(log_module, "chain", Chain)


def with_claims(monkeypatch: Patch, change: Callable[[VersionRecord, Slot | None], VersionRecord]) -> None:
    unchecked(monkeypatch)
    original = term_module._claim

    def claim(store: object, newest: Slot | None, genesis: None) -> VersionRecord:
        return change(original(store, newest, genesis), newest)  # type: ignore[arg-type]

    monkeypatch.setattr(term_module, "_claim", claim)


def test_a_claim_without_a_new_term(monkeypatch: Patch) -> None:
    with_claims(monkeypatch, lambda r, newest: r if newest is None else replace(r, term=newest.record.term))
    caught(fight(), "has term 1 after term 1")


def test_a_claim_that_skips_terms(monkeypatch: Patch) -> None:
    with_claims(monkeypatch, lambda r, newest: r if newest is None else replace(r, term=r.term + 1))
    caught(fight(), "has term 3 after term 1")


def test_a_claim_that_forgets_the_state(monkeypatch: Patch) -> None:
    with_claims(monkeypatch, lambda r, _: replace(r, state=None, schema=None))
    caught(fight(), "changes the state")


def test_a_claim_with_a_parent_that_was_read_too_early(monkeypatch: Patch) -> None:
    with_claims(
        monkeypatch, lambda r, newest: r if newest is None else replace(r, parent=newest.record.parent)
    )
    caught(fight(), "as its parent")


def test_a_producer_that_goes_on_behind_whatever_took_its_slot(monkeypatch: Patch) -> None:
    """Instead of being fenced it commits one further, on top of the record that it finds."""
    original = Term.commit

    def commit(self: Term, content: Content) -> Slot:
        try:
            return original(self, content)
        except Conflict:
            assert self.last is not None
            self.last = self._store.log.slot(self.last.version + 1)
            raise OutcomeUnknown("try again") from None

    unchecked(monkeypatch)
    monkeypatch.setattr(Term, "commit", commit)
    monkeypatch.setattr(Term, "_explain", lambda _self, _version, error: error)
    with pytest.raises(Violation):
        explore(fight(), most_runs=3000)


def test_a_record_put_two_ahead(monkeypatch: Patch) -> None:
    """Goes on to N + 2 while it is unknown whether N + 1 was committed."""
    original = Term.commit

    def commit(self: Term, content: Content) -> Slot:
        try:
            return original(self, content)
        except OutcomeUnknown:
            assert self._pending is not None
            record, self._pending = self._pending, None
            data = record.to_bytes()
            self.last = Slot(record, data, sha256(data))
            return self.last

    monkeypatch.setattr(Term, "commit", commit)
    caught(scenario({"a": producer("1", "2")}), "version 2, which is not there", [Mishap.LOST_REQUEST])


def freeing(version: int) -> Actor:
    """A collector that deletes records instead of burying them."""

    def actor(stage: Stage) -> None:
        stage.backend.delete([keys.version(version)])

    return actor


@pytest.mark.req("DS-TOMB-2")
def test_a_freed_slot() -> None:
    caught(scenario({"c": freeing(1), "a": producer("1")}, running), "was freed")


def test_a_buried_record_whose_hash_was_lost(monkeypatch: Patch) -> None:
    """A tombstone that does not say whose grave it is breaks the chain."""

    def actor(stage: Stage) -> None:
        honest = stage.backend.get(keys.version(0), max_size=1 << 20)
        stage.backend.put(keys.version(1), honest)

    caught(scenario({"c": actor, "a": producer("1")}, running), "says that it is version 0")


def test_a_reader_without_a_memory(monkeypatch: Patch) -> None:
    """It gallops from an old hint and takes what exists there for the newest."""

    def newest(self: Follower) -> Slot:
        return self._store.log.require(1)

    monkeypatch.setattr(Follower, "newest", newest)
    caught(scenario({"a": producer("1"), "r": reader(2)}, running), "after 3 was committed")


def test_the_scenarios_hold_without_a_mutant() -> None:
    for what in (fight(), scenario({"c": collector(1, patience=2), "a": producer("1")}, running)):
        assert explore(what).complete
