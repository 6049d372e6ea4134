"""Slots, the newest of them, hints that lie, and versions by step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_samples import holding, opened
from record_samples import OTHER, STORE, anchor, buried, claim, data, edited, short_log, slot

from deltastore.backends.memory import MemoryBackend
from deltastore.errors import (
    AuthError,
    BadRecord,
    Collected,
    LimitExceeded,
    NoSuchVersion,
    Unavailable,
    UnknownFeature,
)
from deltastore.protocol import keys
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import Ancestor, CommitMode
from deltastore.protocol.limits import RECORD_BYTES
from deltastore.protocol.records import Kind, Slot, Tombstone
from deltastore.store import VersionInfo
from deltastore.testing import Fault, FaultBackend, Plan

LOG = short_log()


def chained(count: int, start: Slot | None = None) -> list[Slot]:
    slots = [start or slot(claim(None))]
    while len(slots) < count:
        slots.append(slot(data(slots[-1])))
    return slots


def test_an_empty_log_has_no_slots() -> None:
    log = opened(holding()).log
    assert log.slot(0) is None
    assert log.newest() is None
    assert log.newest_number() is None
    with pytest.raises(NoSuchVersion):
        log.require(0)
    with pytest.raises(NoSuchVersion, match="no versions yet"):
        log.find()


def test_a_slot_is_what_is_stored_under_its_number() -> None:
    log = opened(holding([*LOG[:2], buried(LOG[2]), *LOG[3:]])).log
    assert log.slot(1) == LOG[1]
    assert log.slot(2) == buried(LOG[2])
    assert log.slot(5) is None
    assert log.newest() == LOG[4]


@pytest.mark.req("DS-VER-3", "DS-STORE-3", "DS-REC-1", "DS-SIG-1")
@pytest.mark.parametrize(
    "stored",
    [
        LOG[2].data,
        b"",
        b"garbage",
        LOG[1].data[:-1],
        LOG[1].data + b"\0",
        slot(data(LOG[0], store=OTHER)).data,
    ],
    ids=["another number", "nothing", "garbage", "cut short", "longer", "another store"],
)
def test_a_slot_that_is_malformed_or_of_elsewhere_is_refused(stored: bytes) -> None:
    backend = holding(LOG)
    backend.put(keys.version(1), stored)
    with pytest.raises(BadRecord):
        opened(backend).log.slot(1)


@pytest.mark.req("DS-LIMIT-1")
def test_a_slot_over_the_limit_is_not_read() -> None:
    backend = holding(LOG)
    backend.put(keys.version(1), bytes(RECORD_BYTES + 1))
    with pytest.raises(LimitExceeded):
        opened(backend).log.slot(1)


@pytest.mark.req("DS-FEAT-1")
def test_a_record_that_needs_an_unknown_feature_to_read_is_refused_by_name() -> None:
    record = data(LOG[0], requires=Requires(read=frozenset({"sparse-heads"})))
    with pytest.raises(UnknownFeature, match="version 1 requires sparse-heads to read"):
        opened(holding([LOG[0], slot(record)])).log.slot(1)
    for other in ("write", "gc"):
        record = data(LOG[0], requires=Requires(**{other: frozenset({"x"})}))
        assert opened(holding([LOG[0], slot(record)])).log.slot(1) == slot(record)


@pytest.mark.req("DS-SINGLE-2")
def test_a_reset_is_only_in_a_single_writer_store() -> None:
    reset = slot(data(LOG[2], kind=Kind.RESET, edges=(anchor(3, 1003),), term=2, term_start=3))
    slots = [*LOG[:3], reset]
    with pytest.raises(BadRecord, match="reset"):
        opened(holding(slots)).log.slot(3)
    assert opened(holding(slots, commit=CommitMode.SINGLE_WRITER)).log.slot(3) == reset


@pytest.mark.req("DS-STORE-3")
def test_records_of_a_promoted_log_carry_the_ids_of_their_time() -> None:
    lineage = (Ancestor(OTHER, 1),)
    old = [slot(claim(None, store=OTHER))]
    old.append(slot(data(old[0])))
    new = slot(claim(old[1], store=STORE))
    log = opened(holding([*old, new], lineage=lineage)).log
    assert [log.slot(version) for version in range(3)] == [*old, new]
    for version, record in ((1, data(old[0], store=STORE)), (2, claim(old[1], store=OTHER))):
        backend = holding([*old, new], lineage=lineage)
        backend.put(keys.version(version), record.to_bytes())
        with pytest.raises(BadRecord):
            opened(backend).log.slot(version)


# --- The newest -----------------------------------------------------------------------------------------

HINTS = [None, b"", b"\n", b"garbage", b"-1", b"1.5", b"0x3", b"\xff", b"4" * 64, b"9" * 64, b"1" * 65]
HINTS += [b"2\n3", b" 3 ", b"+3"]
HINTS += [str(n).encode() + b"\n" for n in (0, 1, 4, 5, 6, 100, 2**53 - 1, 2**53, 2**64)]


@pytest.mark.req("DS-GALLOP-2")
@pytest.mark.parametrize("hint", HINTS)
@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_hint_is_never_believed(hint: bytes | None, length: int) -> None:
    backend = holding(LOG[:length])
    if hint is not None:
        backend.put(keys.HEAD, hint)
    assert opened(backend).log.newest_number() == (length - 1 if length else None)


@pytest.mark.req("DS-GALLOP-2")
@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=70), st.integers(0, 5))
def test_no_hint_leads_astray(hint: bytes, length: int) -> None:
    backend = holding(LOG[:length])
    backend.put(keys.HEAD, hint)
    assert opened(backend).log.newest_number() == (length - 1 if length else None)


@pytest.mark.req("DS-GALLOP-2")
@pytest.mark.parametrize("error", [Unavailable("down"), AuthError("no")])
def test_a_hint_that_cannot_be_read_is_done_without(error: Exception) -> None:
    faulty = FaultBackend(holding(LOG), lambda op: Fault(before=error) if op.key == keys.HEAD else None)
    assert opened(faulty).log.newest() == LOG[4]


@pytest.mark.req("DS-GALLOP-2")
def test_a_good_hint_saves_the_way() -> None:
    slots = chained(130)
    backend = FaultBackend(holding(slots))
    log = opened(backend).log
    log.write_head(128)
    assert backend.get(keys.HEAD, max_size=64) == b"128\n"
    before = len(backend.operations)
    assert log.newest_number() == 129
    with_hint = len(backend.operations) - before
    backend.put(keys.HEAD, b"")
    before = len(backend.operations)
    assert log.newest_number() == 129
    assert with_hint <= 5 < len(backend.operations) - before <= 20


@pytest.mark.req("DS-GALLOP-2")
def test_a_hint_that_cannot_be_written_stops_nobody() -> None:
    faulty = FaultBackend(
        holding(LOG), lambda op: Fault(before=AuthError("no")) if op.name == "put" else None
    )
    opened(faulty).log.write_head(3)
    assert faulty.operations[-1].key == keys.HEAD


@pytest.mark.req("DS-GALLOP-1")
def test_from_a_known_version_nothing_new_is_one_request_and_no_listing() -> None:
    backend = FaultBackend(holding(LOG))
    log = opened(backend).log
    before = len(backend.operations)
    assert log.newest_number(known=4) == 4
    assert [op.key for op in backend.operations[before:]] == [keys.version(5)]
    log.newest()
    assert "list" not in {op.name for op in backend.operations}


@pytest.mark.req("DS-GALLOP-1")
def test_a_log_may_begin_above_zero() -> None:
    slots = chained(3, slot(claim(LOG[4])))
    log = opened(holding(slots, first_version=5)).log
    assert log.newest_number() == 7
    with pytest.raises(NoSuchVersion):
        log.require(4)
    assert opened(holding([], first_version=5)).log.newest_number() is None


def failing_at(index: int) -> Plan:
    return lambda operation: Fault(before=AuthError("no")) if operation.index == index else None


def test_an_error_while_galloping_is_not_taken_for_absence() -> None:
    """A listing or a head that fails must never make a log look shorter than it is."""
    healthy = FaultBackend(holding(LOG))
    assert opened(healthy).log.newest() == LOG[4]
    for index, operation in enumerate(healthy.operations):
        if operation.key == keys.HEAD:
            continue
        faulty = FaultBackend(holding(LOG), failing_at(index))
        with pytest.raises(AuthError):
            opened(faulty).log.newest()


# --- Finding --------------------------------------------------------------------------------------------


def terms_of(*terms: list[int], graves: frozenset[int] = frozenset()) -> list[Slot]:
    """A log of claims, each followed by data of these steps."""
    slots: list[Slot] = []
    for steps in terms:
        slots.append(slot(claim(slots[-1] if slots else None)))
        for step in steps:
            slots.append(slot(data(slots[-1], step=step)))
    return [buried(one) if one.version in graves else one for one in slots]


@pytest.mark.req("DS-CHAIN-4")
@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 6), max_size=5).map(sorted), min_size=1, max_size=4),
    st.frozensets(st.integers(0, 12)),
    st.integers(0, 7),
)
def test_a_step_is_found_as_by_looking_at_every_version(
    terms: list[list[int]], graves: frozenset[int], step: int
) -> None:
    slots = terms_of(*terms, graves=graves - {sum(map(len, terms)) + len(terms) - 1})
    log = opened(holding(slots)).log
    right = [one for one in slots if one.record.step == step]
    if not right:
        with pytest.raises(NoSuchVersion):
            log.find(step=step)
    elif isinstance(right[-1].record, Tombstone):
        with pytest.raises(Collected, match=f"version {right[-1].version} "):
            log.find(step=step)
    else:
        assert log.find(step=step).version == right[-1].version


def test_for_a_step_that_was_trained_twice_the_highest_version_wins() -> None:
    log = opened(holding(terms_of([1, 2, 3, 4], [2, 3], [3, 3]))).log
    assert [log.find(step=step).version for step in (1, 2, 3, 4)] == [1, 6, 10, 4]


def test_versions_are_found_by_number_and_the_newest_by_nothing() -> None:
    log = opened(holding([*LOG[:2], buried(LOG[2]), *LOG[3:]])).log
    assert log.find() == VersionInfo.of(LOG[4])
    assert log.find(version=1) == VersionInfo.of(LOG[1])
    with pytest.raises(Collected):
        log.find(version=2)
    with pytest.raises(NoSuchVersion):
        log.find(version=5)
    with pytest.raises(NoSuchVersion):
        log.find(version=-1)


def test_terms_are_listed_from_the_newest_on() -> None:
    slots = terms_of([1, 2], [], [3])
    newest = slots[-1]
    found = [(a.version, b.version) for a, b in opened(holding(slots)).log.terms(newest)]
    assert found == [(4, 5), (3, 3), (0, 2)]


def test_the_step_of_a_reset_that_begins_its_term_is_found() -> None:
    reset = slot(data(LOG[2], kind=Kind.RESET, edges=(anchor(3, 1003),), term=2, term_start=3, step=77))
    log = opened(holding([*LOG[:3], reset], commit=CommitMode.SINGLE_WRITER)).log
    assert log.find(step=77).version == 3
    assert log.find(step=2).version == 2


def test_steps_are_found_in_a_log_that_begins_within_a_term() -> None:
    slots = chained(8)[5:]
    log = opened(holding(slots, first_version=5)).log
    assert [log.find(step=step).version for step in (5, 6, 7)] == [5, 6, 7]
    with pytest.raises(NoSuchVersion):
        log.find(step=4)


def test_the_info_of_a_version_says_what_its_record_says() -> None:
    record = data(LOG[1], user={"loss": 0.5}, resumed_from=1)
    info = VersionInfo.of(slot(record))
    assert (info.version, info.step, info.term, info.kind) == (2, 2, 1, Kind.DATA)
    assert (info.state, info.resumed_from, info.user, info.stats) == (1002, 1, {"loss": 0.5}, record.stats)
    assert info.time == record.time / 1000
    assert info.record_sha256 == slot(record).sha256
    assert VersionInfo.of(LOG[0]).schema is None


def test_the_log_of_another_handle_is_seen() -> None:
    backend = MemoryBackend("test-log-two-handles")
    for key, (stored, _) in holding(LOG[:2]).snapshot().items():
        backend.put(key, stored)
    log = opened(MemoryBackend("test-log-two-handles")).log
    assert log.newest_number() == 1
    backend.put(keys.version(2), LOG[2].data)
    assert log.newest() == LOG[2]


@pytest.mark.req("DS-REC-3")
def test_a_record_of_a_later_release_with_more_fields_is_read() -> None:
    later: Any = edited(LOG[1].data, lambda body: body.update(later=1))
    backend = holding(LOG[:1])
    backend.put(keys.version(1), later)
    found = opened(backend).log.slot(1)
    assert found is not None
    assert found.record == LOG[1].record
