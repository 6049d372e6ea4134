"""Every answer to the put of a record, and what is made of it after reading it back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from log_samples import Clock, holding, opened
from record_samples import OTHER, buried, claim, data, sha, short_log, slot

from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.errors import (
    AuthError,
    BackendError,
    BadRecord,
    Conflict,
    Diverged,
    LimitExceeded,
    NoSpace,
    NotFound,
    OutcomeUnknown,
    Throttled,
    Unavailable,
    Unsupported,
)
from deltastore.protocol import keys
from deltastore.protocol.commit import Outcome
from deltastore.protocol.features import Requires
from deltastore.protocol.limits import RECORD_BYTES
from deltastore.protocol.records import Slot, VersionRecord
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, Operation, Plan

LOG = short_log()
BEFORE = LOG[1]
OURS = data(BEFORE)
THEIRS = slot(data(BEFORE, time=5))
KEY = keys.version(2)
TRANSIENT = (Unavailable("no answer"), Throttled("slower", retry_after=0.5), OutcomeUnknown("timed out"))


def commit(
    backend: MemoryBackend | FaultBackend, record: VersionRecord = OURS, *, patience: float = 60
) -> Outcome:
    """Commits and checks that the slot returned is what is stored."""
    outcome, found = opened(backend, retry=RetryPolicy(deadline=patience)).log.commit(record, before=BEFORE)
    assert found == slot(record)
    return outcome


def stored(backend: MemoryBackend) -> bytes | None:
    try:
        return backend.get(KEY, max_size=1 << 20)
    except NotFound:
        return None


def on_put(*faults: Fault | None, reads: tuple[Fault | None, ...] = ()) -> Plan:
    """Faults of the first puts of the record, and of the first reads of its slot."""
    left = {"put_if_absent": list(faults), "get": list(reads)}

    def plan(operation: Operation) -> Fault | None:
        waiting = left.get(operation.name, [])
        return waiting.pop(0) if operation.key == KEY and waiting else None

    return plan


def always(name: str, error: BackendError) -> Plan:
    return lambda op: Fault(before=error) if (op.name, op.key) == (name, KEY) else None


@pytest.mark.req("DS-COMMIT-1", "DS-COMMIT-3")
def test_created_is_committed_by_one_conditional_put_and_is_not_read_back() -> None:
    backend = holding(LOG[:2])
    faulty = FaultBackend(backend)
    store = opened(faulty)
    before = len(faulty.operations)
    assert store.log.commit(OURS, before=BEFORE) == (Outcome.COMMITTED, slot(OURS))
    assert [(op.name, op.key) for op in faulty.operations[before:]] == [("put_if_absent", KEY)]
    assert stored(backend) == OURS.to_bytes()


@pytest.mark.req("DS-COMMIT-3")
def test_exists_with_the_same_bytes_is_committed() -> None:
    assert commit(holding([*LOG[:2], slot(OURS)])) is Outcome.COMMITTED


@pytest.mark.req("DS-COMMIT-3", "DS-COMMIT-5")
@pytest.mark.parametrize(
    "theirs",
    [THEIRS, slot(claim(BEFORE)), buried(THEIRS), slot(replace(OURS, user={"x": 1}))],
    ids=["another record", "a claim", "a tombstone of another", "the same nonce"],
)
def test_another_record_in_the_slot_is_a_conflict(theirs: Slot) -> None:
    backend = holding([*LOG[:2], theirs])
    with pytest.raises(Conflict) as caught:
        commit(backend)
    assert caught.value.fields["version"] == 2
    assert stored(backend) == theirs.data


@pytest.mark.req("DS-COMMIT-3", "DS-TOMB-2")
def test_a_tombstone_of_ours_is_committed_and_superseded() -> None:
    assert commit(holding([*LOG[:2], buried(slot(OURS))])) is Outcome.SUPERSEDED


@pytest.mark.req("DS-COMMIT-3")
@pytest.mark.parametrize("error", TRANSIENT, ids=["unavailable", "throttled", "unknown"])
def test_a_lost_reply_is_read_back_and_found_committed(error: BackendError) -> None:
    backend = holding(LOG[:2])
    assert commit(FaultBackend(backend, on_put(Fault(after=error)))) is Outcome.COMMITTED
    assert stored(backend) == OURS.to_bytes()


@pytest.mark.req("DS-COMMIT-3", "DS-COMMIT-4")
@pytest.mark.parametrize("error", TRANSIENT, ids=["unavailable", "throttled", "unknown"])
def test_a_lost_request_is_repeated_with_the_same_bytes(error: BackendError) -> None:
    backend = holding(LOG[:2])
    faulty = FaultBackend(backend, on_put(Fault(before=error), Fault(before=error)))
    assert commit(faulty) is Outcome.COMMITTED
    assert [op.name for op in faulty.operations if op.key == KEY] == ["put_if_absent", "get"] * 2 + [
        "put_if_absent"
    ]
    assert stored(backend) == OURS.to_bytes()


@pytest.mark.req("DS-COMMIT-3")
def test_a_lost_reply_and_a_conflict_meanwhile_is_a_conflict() -> None:
    backend = holding([*LOG[:2], THEIRS])
    with pytest.raises(Conflict):
        commit(FaultBackend(backend, on_put(Fault(before=Unavailable("no answer")))))
    with pytest.raises(Conflict):
        commit(FaultBackend(backend, on_put(Fault(after=Unavailable("no answer")))))


@pytest.mark.req("DS-COMMIT-4")
def test_absent_when_read_back_proves_nothing_and_the_put_is_repeated() -> None:
    """The reply of the first put is lost, and the read after it is answered too early."""
    backend = holding(LOG[:2])
    early = Fault(before=NotFound("not there yet"))
    faulty = FaultBackend(backend, on_put(Fault(after=Unavailable("no answer")), reads=(early,)))
    assert commit(faulty) is Outcome.COMMITTED
    assert stored(backend) == OURS.to_bytes()


@pytest.mark.req("DS-COMMIT-4")
def test_exists_and_then_absent_is_tried_again() -> None:
    backend = holding([*LOG[:2], slot(OURS)])
    faulty = FaultBackend(
        backend, on_put(reads=(Fault(before=NotFound("stale")), Fault(before=Unavailable("down"))))
    )
    assert commit(faulty) is Outcome.COMMITTED


@pytest.mark.req("DS-COMMIT-4")
@pytest.mark.parametrize("error", TRANSIENT, ids=["unavailable", "throttled", "unknown"])
@pytest.mark.parametrize("patience", [0, 20])
def test_what_stays_unanswered_is_unknown(error: BackendError, patience: float) -> None:
    faulty = FaultBackend(holding(LOG[:2]), always("put_if_absent", error))
    with pytest.raises(OutcomeUnknown, match="version 2"):
        commit(faulty, patience=patience)
    puts = [op for op in faulty.operations if op.name == "put_if_absent"]
    assert len(puts) == 1 if patience == 0 else len(puts) > 3


@pytest.mark.req("DS-COMMIT-4")
@pytest.mark.parametrize(
    "error", [*TRANSIENT, AuthError("no")], ids=["unavailable", "throttled", "unknown", "auth"]
)
def test_what_cannot_be_read_back_is_unknown(error: BackendError) -> None:
    def plan(operation: Operation) -> Fault | None:
        if operation.key != KEY:
            return None
        return Fault(before=error) if operation.name == "get" else Fault(after=Unavailable("no answer"))

    with pytest.raises(OutcomeUnknown):
        commit(FaultBackend(holding(LOG[:2]), plan), patience=3)


@pytest.mark.parametrize("error", [AuthError("read-only"), NoSpace("full")], ids=["auth", "space"])
def test_a_refusal_is_definite(error: BackendError) -> None:
    backend = holding(LOG[:2])
    faulty = FaultBackend(backend, always("put_if_absent", error))
    with pytest.raises(type(error)):
        commit(faulty)
    assert sum(op.name == "put_if_absent" for op in faulty.operations) == 1
    assert stored(backend) is None


@pytest.mark.req("DS-COMMIT-3")
@pytest.mark.parametrize("error", [AuthError("read-only"), NoSpace("full")], ids=["auth", "space"])
def test_a_refusal_of_what_was_stored_nonetheless_is_committed(error: BackendError) -> None:
    assert commit(FaultBackend(holding(LOG[:2]), on_put(Fault(after=error)))) is Outcome.COMMITTED


@pytest.mark.req("DS-COMMIT-3")
def test_a_refusal_of_a_slot_that_is_taken_is_a_conflict() -> None:
    faulty = FaultBackend(holding([*LOG[:2], THEIRS]), on_put(Fault(before=AuthError("no"))))
    with pytest.raises(Conflict):
        commit(faulty)


@pytest.mark.req("DS-COMMIT-4")
@pytest.mark.parametrize("error", [AuthError("expired"), NoSpace("full")], ids=["auth", "space"])
def test_a_refusal_after_a_lost_request_is_not_definite(error: BackendError) -> None:
    """The first put may still be on its way."""
    faulty = FaultBackend(
        holding(LOG[:2]), on_put(Fault(before=Unavailable("no answer")), Fault(before=error))
    )
    with pytest.raises(OutcomeUnknown):
        commit(faulty)


def test_a_refusal_whose_slot_cannot_be_asked_after_is_tried_again() -> None:
    plan = on_put(Fault(after=NoSpace("full")), reads=(Fault(before=Unavailable("down")),))
    assert commit(FaultBackend(holding(LOG[:2]), plan)) is Outcome.COMMITTED


@pytest.mark.req("DS-REC-1")
def test_garbage_in_the_slot_is_reported_and_stays() -> None:
    backend = holding(LOG[:2])
    backend.put(KEY, b"garbage")
    with pytest.raises(BadRecord):
        commit(backend)
    assert stored(backend) == b"garbage"


# --- What is not put at all -----------------------------------------------------------------------------

WRONG: dict[str, tuple[VersionRecord, type[Exception]]] = {
    "another store": (replace(OURS, store=OTHER), BadRecord),
    "no step": (replace(OURS, step=None), BadRecord),
    "a step past 2^53": (replace(OURS, step=2**53), BadRecord),
    "a file that leads out": (replace(OURS, files={"../x": BEFORE.record.schema}), BadRecord),  # type: ignore[dict-item]
    "too many words of the user": (replace(OURS, user={str(i): 0 for i in range(1025)}), LimitExceeded),
    "another parent": (replace(OURS, parent=sha("x")), Diverged),
    "another term": (replace(OURS, term=2), Diverged),
    "an earlier step": (replace(OURS, step=0), Diverged),
    "fewer requirements": (data(slot(data(LOG[0], requires=Requires(gc=frozenset({"x"}))))), Diverged),
    "over the limit": (replace(OURS, user={"x": "y" * RECORD_BYTES}), Unsupported),
}


@pytest.mark.req("DS-COMMIT-7", "DS-LIMIT-2")
@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_no_reader_would_take_is_not_put(name: str) -> None:
    record, error = WRONG[name]
    backend = holding(LOG[:2])
    before = (
        slot(data(LOG[0], requires=Requires(gc=frozenset({"x"})))) if name == "fewer requirements" else BEFORE
    )
    with pytest.raises(error):
        opened(backend).log.commit(record, before=before)
    assert stored(backend) is None


@pytest.mark.req("DS-COMMIT-3")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_same_record_can_be_committed_again_whatever_happened_before(after: bool, times: int) -> None:
    backend = holding(LOG[:2])
    lost = Fault(after=Unavailable("no answer")) if after else Fault(before=Unavailable("no answer"))
    reads = (Fault(before=Unavailable("down")),) * times
    store: Store = opened(FaultBackend(backend, on_put(*(lost,) * times, reads=reads)))
    attempts: list[Callable[[], object]] = [lambda: store.log.commit(OURS, before=BEFORE)] * times
    for attempt in attempts:
        with pytest.raises(OutcomeUnknown):
            attempt()
    assert store.log.commit(OURS, before=BEFORE) == (Outcome.COMMITTED, slot(OURS))


def test_waiting_ends_at_the_deadline() -> None:
    clock = Clock()
    faulty = FaultBackend(holding(LOG[:2]), always("put_if_absent", Unavailable("no answer")))
    store = Store.open(faulty, retry=RetryPolicy(deadline=30), runtime=clock.runtime())
    with pytest.raises(OutcomeUnknown):
        store.log.commit(OURS, before=BEFORE)
    assert 25 < clock.now <= 31
