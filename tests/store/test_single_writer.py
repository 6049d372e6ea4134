"""Commits where nothing is conditional: look before each put, stop at anything foreign, mend by a reset."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from log_samples import holding, opened
from record_samples import SCHEMA, anchor, buried, claim, data, delta, short_log, slot

from deltastore.backends.memory import MemoryBackend
from deltastore.errors import (
    AuthError,
    BadRecord,
    Conflict,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)
from deltastore.producer.holder import Process
from deltastore.producer.term import Content, Term
from deltastore.protocol import keys
from deltastore.protocol.commit import Outcome
from deltastore.protocol.identity import CommitMode
from deltastore.protocol.records import Kind, Slot, Stats, VersionRecord
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, Operation, Plan

LOG = short_log()
OURS = data(LOG[1])
KEY, PARENT = keys.version(2), keys.version(1)
ME = Process("here", 1)


def alone(slots: list[Slot]) -> MemoryBackend:
    return holding(slots, conditional=False, commit=CommitMode.SINGLE_WRITER)


def stored(backend: MemoryBackend, version: int = 2) -> bytes | None:
    try:
        return backend.get(keys.version(version), max_size=1 << 20)
    except NotFound:
        return None


def commit(backend: MemoryBackend | FaultBackend) -> Outcome:
    return opened(backend).log.commit(OURS, before=LOG[1])[0]


@pytest.mark.req("DS-SINGLE-1")
def test_parent_and_slot_are_read_before_the_put_and_the_slot_after_it() -> None:
    faulty = FaultBackend(alone(LOG[:2]))
    store = opened(faulty)
    before = len(faulty.operations)
    assert store.log.commit(OURS, before=LOG[1])[0] is Outcome.COMMITTED
    asked = [(op.name, op.key) for op in faulty.operations[before:]]
    assert asked == [("get", PARENT), ("get", KEY), ("put", KEY), ("get", KEY)]


@pytest.mark.req("DS-SINGLE-1")
def test_a_parent_that_was_buried_is_still_the_parent() -> None:
    assert commit(alone([LOG[0], buried(LOG[1])])) is Outcome.COMMITTED


@pytest.mark.req("DS-SINGLE-1")
@pytest.mark.parametrize(
    "parent",
    [slot(data(LOG[0], time=5)), buried(slot(data(LOG[0], time=5))), None],
    ids=["foreign", "buried foreign", "gone"],
)
def test_a_parent_that_is_not_what_was_left_there_stops_the_writer(parent: Slot | None) -> None:
    backend = alone([LOG[0], *([parent] if parent else [])])
    with pytest.raises(Conflict, match="version 1"):
        commit(backend)
    assert stored(backend) is None


@pytest.mark.req("DS-SINGLE-1", "DS-COMMIT-3")
@pytest.mark.parametrize(
    "theirs", [slot(replace(OURS, time=5)), slot(claim(LOG[1])), buried(slot(replace(OURS, time=5)))]
)
def test_a_foreign_record_in_the_slot_is_a_conflict_and_stays(theirs: Slot) -> None:
    backend = alone([*LOG[:2], theirs])
    with pytest.raises(Conflict):
        commit(backend)
    assert stored(backend) == theirs.data


@pytest.mark.req("DS-SINGLE-1")
def test_what_is_there_already_is_not_put_again() -> None:
    for found, outcome in ((slot(OURS), Outcome.COMMITTED), (buried(slot(OURS)), Outcome.SUPERSEDED)):
        faulty = FaultBackend(alone([*LOG[:2], found]))
        assert commit(faulty) is outcome
        assert "put" not in {op.name for op in faulty.operations}


def once(key: str, error: Exception) -> Plan:
    left = [Fault(before=error)]
    return lambda operation: left.pop() if operation.key == key and left else None


@pytest.mark.req("DS-SINGLE-1")
@pytest.mark.parametrize("error", [Unavailable("down"), Throttled("slower"), AuthError("no")])
@pytest.mark.parametrize("key", [KEY, PARENT])
def test_nothing_is_put_while_the_slots_cannot_be_read(error: Exception, key: str) -> None:
    """A slot that does not answer is not an empty one: a record of somebody else may be in it."""
    theirs = slot(replace(OURS, time=5))
    for there in (None, theirs):
        backend = alone([*LOG[:2], *([there] if there else [])])
        faulty = FaultBackend(backend, once(key, error))
        with pytest.raises(type(error)):
            commit(faulty)
        assert "put" not in {op.name for op in faulty.operations}
        assert stored(backend) == (there.data if there else None)


@pytest.mark.req("DS-COMMIT-3", "DS-COMMIT-4", "DS-SINGLE-1")
@pytest.mark.parametrize(
    "error", [Unavailable("no answer"), Throttled("slower"), OutcomeUnknown("timed out")]
)
def test_a_lost_reply_is_read_back(error: Exception) -> None:
    backend = alone(LOG[:2])
    faulty = FaultBackend(backend, lambda op: Fault(after=error) if op.name == "put" else None)
    assert commit(faulty) is Outcome.COMMITTED
    lost = FaultBackend(alone(LOG[:2]), lambda op: Fault(before=error) if op.name == "put" else None)
    with pytest.raises(OutcomeUnknown):
        commit(lost)


@pytest.mark.parametrize("error", [AuthError("no"), NoSpace("full")])
def test_a_refusal_is_definite_unless_the_record_is_there(error: Exception) -> None:
    with pytest.raises(type(error)):
        commit(FaultBackend(alone(LOG[:2]), lambda op: Fault(before=error) if op.name == "put" else None))
    there = FaultBackend(alone(LOG[:2]), lambda op: Fault(after=error) if op.name == "put" else None)
    assert commit(there) is Outcome.COMMITTED


@pytest.mark.req("DS-COMMIT-3")
def test_a_record_that_was_overwritten_at_once_is_a_conflict() -> None:
    backend = alone(LOG[:2])
    theirs = slot(replace(OURS, time=5))

    def meanwhile(operation: Operation) -> Fault | None:
        if operation.name == "get" and operation.key == KEY and stored(backend) is not None:
            backend.put(KEY, theirs.data)
        return None

    with pytest.raises(Conflict):
        commit(FaultBackend(backend, meanwhile))


# --- Damage ---------------------------------------------------------------------------------------------


def content(version: int, **changes: Any) -> Content:
    made = Content(
        schema=SCHEMA,
        files={},
        state=5000 + version,
        edge=anchor(version, 5000 + version),
        step=version,
        last_anchor=version,
        resumed_from=None,
        stats=Stats(1, 2, 3, 4),
        user={},
    )
    return replace(made, **changes)


def begin(store: Store) -> Term:
    return Term.begin(store, takeover=True, process=ME)


@pytest.mark.req("DS-SINGLE-3", "DS-SINGLE-2")
@pytest.mark.parametrize(
    "damage", [b"", b"garbage", LOG[2].data[:-9]], ids=["nothing", "garbage", "cut short"]
)
def test_behind_a_damaged_record_comes_a_reset_whose_parent_is_the_damage(damage: bytes) -> None:
    backend = alone(LOG[:2])
    backend.put(KEY, damage)
    store = opened(backend)
    term = begin(store)
    assert (term.damaged, term.next_version) == (True, 3)
    reset = term.commit(content(3))
    assert not term.damaged
    record = reset.record
    assert isinstance(record, VersionRecord)
    assert record.kind is Kind.RESET
    assert record.parent == hashlib.sha256(damage).hexdigest()
    assert record.term > LOG[1].record.term
    assert record.term_start == 3
    assert store.log.slot(3) == reset
    after = term.commit(content(4, edge=delta(3, 5003, 4, 5004)))
    assert after.record.term == record.term
    assert after.record.parent == reset.sha256
    assert stored(backend) == damage


@pytest.mark.req("DS-SINGLE-3")
def test_the_term_of_a_reset_is_above_all_that_the_damaged_records_can_have_had() -> None:
    """Each of the damaged slots may have held a claim."""
    backend = alone(LOG[:2])
    for version in (2, 3, 4):
        backend.put(keys.version(version), b"garbage")
    term = begin(opened(backend))
    assert term.next_version == 5
    assert term.number > LOG[1].record.term + 3
    backend = alone([])
    backend.put(keys.version(0), b"garbage")
    backend.put(keys.version(1), b"garbage")
    assert begin(opened(backend)).number > 2


@pytest.mark.req("DS-SINGLE-3", "DS-COMMIT-7")
def test_a_reset_is_anchor_only() -> None:
    backend = alone(LOG[:2])
    backend.put(KEY, b"garbage")
    term = begin(opened(backend))
    with pytest.raises(BadRecord):
        term.commit(content(3, edge=delta(2, 1002, 3, 5003)))
    assert stored(backend, 3) is None


@pytest.mark.req("DS-CHAIN-7")
def test_in_a_conditional_store_damage_stops_the_writer() -> None:
    backend = holding(LOG[:2])
    backend.put(KEY, b"garbage")
    with pytest.raises(BadRecord):
        begin(opened(backend))
    assert stored(backend, 3) is None


@pytest.mark.req("DS-SINGLE-1", "DS-COMMIT-5")
def test_a_second_writer_is_noticed_at_the_next_commit() -> None:
    backend = alone([])
    term = begin(opened(backend))
    term.commit(content(1))
    backend.put(PARENT, slot(data(LOG[0])).data)
    with pytest.raises(Conflict):
        term.commit(content(2, edge=delta(1, 5001, 2, 5002)))
    assert stored(backend) is None
