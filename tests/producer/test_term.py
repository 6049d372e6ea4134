"""A producer's reign: claims, fences, undecided commits, and who may take over from whom."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from record_samples import OTHER, SCHEMA, STORE, anchor, buried, claim, data, delta, short_log, slot

from deltastore.backends.base import Buffer, Put
from deltastore.backends.memory import MemoryBackend
from deltastore.backends.retry import RetryPolicy
from deltastore.errors import (
    AuthError,
    BackendError,
    BadRecord,
    Conflict,
    Diverged,
    Fenced,
    NotFound,
    OutcomeUnknown,
    TakeoverRefused,
    Unavailable,
    UnknownFeature,
    Unsupported,
)
from deltastore.producer.holder import Process, write_status
from deltastore.producer.term import Content, Genesis, Term
from deltastore.protocol import keys
from deltastore.protocol.chain import check_successor
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.features import Requires
from deltastore.protocol.identity import Identity
from deltastore.protocol.records import External, Kind, Slot, Stats, VersionRecord
from deltastore.runtime import Runtime
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, Operation

LOG = short_log()
ME = Process("here", 11)
YOU = Process("there", 22)
ONCE = RetryPolicy(deadline=0)


class Storage(MemoryBackend):
    """Memory with a clock that tests move, and with what was put."""

    def __init__(self) -> None:
        self.time = 5000.0
        self.puts: list[bytes] = []
        super().__init__(clock=lambda: self.time)

    def put_if_absent(self, key: str, data: Buffer) -> Put:
        self.puts.append(bytes(data))
        return super().put_if_absent(key, data)


def holding(slots: list[Slot], **identity: Any) -> Storage:
    storage = Storage()
    storage.put(keys.STORE, Identity(store=STORE, **identity).to_bytes())
    for one in slots:
        storage.put(keys.version(one.version), one.data)
    return storage


def opened(storage: MemoryBackend | FaultBackend) -> Store:
    return Store.open(storage, retry=ONCE, runtime=Runtime(now=lambda: 1e9, sleep=lambda _: None))


def begin(storage: MemoryBackend | FaultBackend, *, process: Process = ME, takeover: bool = True) -> Term:
    return Term.begin(opened(storage), takeover=takeover, process=process)


def record(found: Slot | None) -> VersionRecord:
    assert found is not None
    assert isinstance(found.record, VersionRecord)
    return found.record


def content(term: Term, **changes: Any) -> Content:
    last = term.last
    assert last is not None
    version, old = term.next_version, last.record.state
    state = 7000 + version
    edge = anchor(version, state) if old is None else delta(last.version, old, version, state)
    made = Content(
        schema=SCHEMA,
        files={},
        state=state,
        edge=edge,
        step=version,
        last_anchor=None,
        resumed_from=None,
        stats=Stats(1, 2, 3, 4),
        user={},
    )
    return replace(made, **changes)


def versions(storage: MemoryBackend) -> list[str]:
    return [info.key for info in storage.list("versions/")]


# --- Claims ---------------------------------------------------------------------------------------------


@pytest.mark.req("DS-CLAIM-1", "DS-CLAIM-2", "DS-CLAIM-4")
def test_the_first_claim_is_version_0_of_term_1() -> None:
    storage = holding([])
    term = begin(storage)
    assert (term.number, term.start, term.next_version, term.damaged) == (1, 0, 1, False)
    made = record(opened(storage).log.slot(0))
    assert (made.kind, made.parent, made.state, made.schema, made.external) == (
        Kind.CLAIM,
        None,
        None,
        None,
        None,
    )
    assert (made.edges, made.step, made.store) == ((), None, STORE)
    assert made.time == 10**12
    assert term.last == opened(storage).log.slot(0)


@pytest.mark.req("DS-CLAIM-4", "DS-VER-2")
def test_the_first_claim_on_an_external_base_has_its_state() -> None:
    storage = holding([])
    external = External("hf://a/b@c", {"model.safetensors": Descriptor("0d" * 32, 5)})
    Term.begin(opened(storage), process=ME, genesis=Genesis(SCHEMA, 77, external))
    made = record(opened(storage).log.slot(0))
    assert (made.schema, made.state, made.external) == (SCHEMA, 77, external)


@pytest.mark.req("DS-CLAIM-2", "DS-CLAIM-4", "DS-CHAIN-1", "DS-CHAIN-2", "DS-CHAIN-5")
def test_a_claim_after_data_carries_over_what_the_record_says() -> None:
    files = {"config.json": Descriptor("0d" * 32, 5)}
    last = slot(data(LOG[1], files=files, last_anchor=1, requires=Requires(gc=frozenset({"x"}))))
    storage = holding([*LOG[:2], last])
    term = begin(storage)
    made = record(opened(storage).log.slot(3))
    check_successor(last, slot(made))
    assert (made.term, made.term_start, made.parent) == (2, 3, last.sha256)
    assert (made.state, made.schema) == (1002, SCHEMA)
    assert (made.files, made.last_anchor, made.requires) == (files, 1, Requires(gc=frozenset({"x"})))
    assert made.external is None
    assert (term.number, term.start) == (2, 3)


@pytest.mark.req("DS-CLAIM-2", "DS-TOMB-2", "DS-CHAIN-1")
def test_a_claim_after_a_tombstone_follows_the_record_that_was_there() -> None:
    storage = holding([*LOG[:2], buried(LOG[2])])
    begin(storage)
    made = record(opened(storage).log.slot(3))
    assert (made.term, made.parent, made.state, made.schema) == (2, LOG[2].sha256, 1002, SCHEMA)


@pytest.mark.req("DS-CLAIM-2")
def test_every_claim_begins_a_new_term() -> None:
    storage = holding([])
    terms = [begin(storage) for _ in range(5)]
    assert [(term.number, term.start) for term in terms] == [(n + 1, n) for n in range(5)]
    slots = [opened(storage).log.require(n) for n in range(5)]
    for before, after in pairwise(slots):
        check_successor(before, after)
    assert len({record(one).nonce for one in slots}) == 5


@pytest.mark.req("DS-CLAIM-2")
def test_a_claim_comes_before_anything_else_of_the_writer() -> None:
    faulty = FaultBackend(holding(LOG))
    begin(faulty)
    writes = [op.key for op in faulty.operations if op.name.startswith("put")]
    assert writes == [keys.status("clock"), keys.version(5), keys.status("producer-3")]


@pytest.mark.req("DS-COMMIT-5", "DS-CLAIM-2")
def test_of_two_claims_at_once_one_is_told_of_the_other() -> None:
    storage = holding(LOG)
    winner: list[Term] = []

    def between(operation: Operation) -> Fault | None:
        if operation.name == "put_if_absent":
            winner.append(begin(storage, process=YOU))
        return None

    with pytest.raises(Conflict, match="another producer claimed version 5"):
        begin(FaultBackend(storage, between))
    assert versions(storage)[-1] == keys.version(5)
    assert winner[0].commit(content(winner[0])).version == 6


@pytest.mark.req("DS-COMMIT-4")
@pytest.mark.parametrize("landed", [False, True])
def test_a_claim_whose_outcome_is_unknown_is_begun_again(landed: bool) -> None:
    storage = holding(LOG)
    lost = Fault(after=Unavailable("lost")) if landed else Fault(before=Unavailable("lost"))
    blind = Fault(before=Unavailable("down"))

    def plan(operation: Operation) -> Fault | None:
        if operation.key != keys.version(5):
            return None
        return {"put_if_absent": lost, "get": blind}.get(operation.name)

    with pytest.raises(OutcomeUnknown):
        begin(FaultBackend(storage, plan))
    assert begin(storage).number == (4 if landed else 3)


@pytest.mark.parametrize("name", ["put", "head", "get"])
def test_a_status_that_cannot_be_written_or_read_stops_no_claim_that_may_be_made(name: str) -> None:
    def plan(operation: Operation) -> Fault | None:
        mine = operation.name == name and operation.key.startswith("status/producer")
        return Fault(before=AuthError("no")) if mine else None

    assert begin(FaultBackend(holding(LOG), plan)).number == 3


# --- Commits --------------------------------------------------------------------------------------------


@pytest.mark.req("DS-COMMIT-6", "DS-CHAIN-1", "DS-CHAIN-3", "DS-CHAIN-6")
def test_records_follow_one_another() -> None:
    storage = holding(LOG[:3])
    term = begin(storage)
    slots = [term.last, *[term.commit(content(term)) for _ in range(4)]]
    for before, after in pairwise(slots):
        assert before is not None
        assert after is not None
        check_successor(before, after)
        assert opened(storage).log.slot(after.version) == after
        assert (after.record.term, after.record.term_start) == (2, 3)
    assert term.last == slots[-1]
    assert term.next_version == 8


@pytest.mark.req("DS-CLAIM-4", "DS-FEAT-2")
def test_what_is_required_is_carried_along() -> None:
    requires = Requires(gc=frozenset({"x"}))
    storage = holding([LOG[0], slot(data(LOG[0], requires=requires))])
    term = begin(storage)
    assert record(term.commit(content(term))).requires == requires


@pytest.mark.req("DS-CLAIM-5", "DS-COMMIT-5")
def test_a_zombie_is_fenced_and_stays_so() -> None:
    storage = holding(LOG)
    zombie = begin(storage)
    zombie.commit(content(zombie))
    new = begin(storage, process=YOU)
    new.commit(content(new))
    before = storage.snapshot()
    for _ in range(2):
        with pytest.raises(Fenced, match="term 4") as caught:
            zombie.commit(content(zombie))
        assert (caught.value.fields["term"], caught.value.fields["version"]) == (4, 7)
    assert storage.snapshot() == before
    assert new.commit(content(new)).version == 9


@pytest.mark.req("DS-CLAIM-5", "DS-TOMB-2")
def test_a_zombie_is_fenced_by_a_claim_that_was_buried_since() -> None:
    storage = holding(LOG)
    zombie = begin(storage)
    begin(storage, process=YOU)
    storage.put(keys.version(6), buried(opened(storage).log.require(6)).data)
    with pytest.raises(Fenced):
        zombie.commit(content(zombie))


@pytest.mark.req("DS-COMMIT-5")
def test_a_record_of_ones_own_term_that_is_not_ones_own_is_a_conflict_and_no_fence() -> None:
    storage = holding(LOG)
    term = begin(storage)
    assert term.last is not None
    storage.put(keys.version(6), slot(data(term.last, user={"x": 1})).data)
    with pytest.raises(Conflict, match="version 6"):
        term.commit(content(term))


@pytest.mark.req("DS-COMMIT-7", "DS-EDGE-5", "DS-FILE-1")
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"step": -1}, BadRecord),
        ({"step": 2**53}, BadRecord),
        ({"state": 1}, BadRecord),
        ({"files": {"../x": SCHEMA}}, BadRecord),
        ({"edge": delta(4, 1, 6, 7006)}, Diverged),
        ({"schema": Descriptor("00" * 32, 1)}, Diverged),
    ],
    ids=["negative step", "huge step", "state", "file", "base", "schema"],
)
def test_content_that_breaks_a_rule_is_not_put_and_what_is_right_still_is(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    storage = holding(LOG)
    term = begin(storage)
    puts = len(storage.puts)
    with pytest.raises(error):
        term.commit(content(term, **changes))
    assert len(storage.puts) == puts
    assert term.commit(content(term)).version == 6


# --- Undecided ------------------------------------------------------------------------------------------


class Line:
    """A connection that can be cut: nothing about the slots of versions is answered while it is."""

    def __init__(self, storage: Storage, *, lands: bool) -> None:
        self.down = False
        self.error: BackendError = Unavailable("no answer")
        self._lands = lands
        self.backend = FaultBackend(storage, self._plan)

    def _plan(self, operation: Operation) -> Fault | None:
        if not self.down or not operation.key.startswith("versions/"):
            return None
        if operation.name == "put_if_absent" and self._lands:
            return Fault(after=self.error)
        return Fault(before=self.error)


@pytest.mark.req("DS-COMMIT-4", "DS-COMMIT-6")
@pytest.mark.parametrize("lands", [False, True])
def test_while_a_commit_is_undecided_only_the_same_content_may_be_tried(lands: bool) -> None:
    storage = holding(LOG)
    line = Line(storage, lands=lands)
    term = begin(line.backend)
    wanted, other = content(term, user={"n": 1}), content(term, user={"n": 2})
    line.down = True
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            term.commit(wanted)
    sent = storage.puts[-1] if lands else None
    puts = len(storage.puts)
    for down in (True, False):
        line.down = down
        with pytest.raises(OutcomeUnknown, match="undecided"):
            term.commit(other)
    assert len(storage.puts) == puts
    found = term.commit(wanted)
    assert record(found).user == {"n": 1}
    assert sent in (None, found.data)
    assert storage.get(keys.version(6), max_size=1 << 20) == found.data
    assert term.commit(content(term, user={"n": 3})).version == 7


@pytest.mark.req("DS-COMMIT-6")
def test_repetitions_are_the_same_bytes_though_time_and_randomness_go_on() -> None:
    storage = holding(LOG)
    times = iter(range(1000))
    line = Line(storage, lands=False)
    runtime = Runtime(now=lambda: float(next(times)), sleep=lambda _: None)
    term = Term.begin(Store.open(line.backend, retry=ONCE, runtime=runtime), takeover=True, process=ME)
    seen = set()
    wanted = content(term)
    line.down = True
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            term.commit(wanted)
        assert term._pending is not None
        seen.add(term._pending.to_bytes())
    line.down = False
    seen.add(term.commit(wanted).data)
    assert len(seen) == 1


@pytest.mark.req("DS-COMMIT-6")
def test_content_that_its_owner_has_changed_meanwhile_is_other_content() -> None:
    storage = holding(LOG)
    line = Line(storage, lands=False)
    term = begin(line.backend)
    inner: list[Any] = [1]
    wanted = content(term, user={"list": inner})
    line.down = True
    with pytest.raises(OutcomeUnknown):
        term.commit(wanted)
    inner.append(2)
    line.down = False
    with pytest.raises(OutcomeUnknown, match="undecided"):
        term.commit(wanted)
    inner.pop()
    assert term.commit(wanted).version == 6


@pytest.mark.req("DS-COMMIT-4", "DS-CLAIM-5")
@pytest.mark.parametrize("lands", [False, True])
def test_an_undecided_commit_is_decided_by_what_the_successor_found(lands: bool) -> None:
    storage = holding(LOG)
    line = Line(storage, lands=lands)
    zombie = begin(line.backend)
    wanted = content(zombie)
    line.down = True
    with pytest.raises(OutcomeUnknown):
        zombie.commit(wanted)
    new = begin(storage, process=YOU)
    line.down = False
    if lands:
        assert new.start == 7
        assert zombie.commit(wanted).version == 6
    else:
        assert new.start == 6
    with pytest.raises(Fenced):
        zombie.commit(wanted if not lands else content(zombie))


@pytest.mark.req("DS-COMMIT-3", "DS-TOMB-2")
def test_an_undecided_commit_that_was_buried_since_is_committed() -> None:
    storage = holding(LOG)
    line = Line(storage, lands=True)
    term = begin(line.backend)
    wanted = content(term)
    line.down = True
    with pytest.raises(OutcomeUnknown):
        term.commit(wanted)
    found = opened(storage).log.require(6)
    storage.put(keys.version(6), buried(found).data)
    line.down = False
    assert term.commit(wanted) == found
    with pytest.raises(NotFound):
        storage.get(keys.version(7), max_size=1)
    assert term.commit(content(term)).version == 7


@pytest.mark.req("DS-COMMIT-4")
def test_after_a_refusal_of_an_undecided_commit_other_content_is_still_refused() -> None:
    """The first put may be on its way although a later one was refused."""
    storage = holding(LOG)
    line = Line(storage, lands=False)
    term = begin(line.backend)
    line.down = True
    with pytest.raises(OutcomeUnknown):
        term.commit(content(term))
    line.error = AuthError("expired")
    with pytest.raises((AuthError, OutcomeUnknown)):
        term.commit(content(term))
    line.down = False
    with pytest.raises(OutcomeUnknown, match="undecided"):
        term.commit(content(term, step=99))
    assert term.commit(content(term)).version == 6


# --- Who may take over ----------------------------------------------------------------------------------


def owned(process: Process = YOU, **status: Any) -> Storage:
    """A log whose last record was just written by a process."""
    storage = holding([])
    term = begin(storage, process=process)
    if status:
        said = {"host": process.host, "pid": process.pid, "started": process.started, "closed": False}
        storage.put(keys.status(f"producer-{term.number}"), json.dumps({**said, **status}).encode())
    return storage


def refused(storage: Storage, process: Process = ME) -> None:
    before = versions(storage)
    with pytest.raises(TakeoverRefused, match="takeover=True"):
        begin(storage, process=process, takeover=False)
    assert versions(storage) == before


@pytest.mark.req("DS-CLAIM-3")
def test_a_young_log_of_a_writer_elsewhere_is_not_claimed_unasked() -> None:
    storage = owned()
    refused(storage)
    assert begin(storage, takeover=True).number == 2


@pytest.mark.req("DS-CLAIM-3")
@pytest.mark.parametrize(
    ("age", "allowed"), [(0, False), (899, False), (900, False), (901, True), (10**6, True), (-50, False)]
)
def test_age_is_by_the_clock_of_the_storage_alone(age: float, allowed: bool) -> None:
    storage = owned()
    storage.time += age
    if allowed:
        assert begin(storage, takeover=False).number == 2
    else:
        refused(storage)


@pytest.mark.req("DS-CLAIM-3")
def test_the_last_record_counts_and_not_the_claim() -> None:
    storage = holding([])
    term = begin(storage, process=YOU)
    storage.time += 890
    term.commit(content(term))
    storage.time += 20
    refused(storage)
    storage.time += 890
    assert begin(storage, takeover=False).number == 2


@pytest.mark.req("DS-CLAIM-3")
def test_a_writer_that_has_ended_is_followed_at_once() -> None:
    storage = holding([])
    term = begin(storage, process=YOU)
    term.commit(content(term))
    refused(storage)
    term.end()
    assert begin(storage, takeover=False).number == 2


@pytest.mark.req("DS-CLAIM-3")
def test_only_the_end_of_the_last_term_counts() -> None:
    storage = holding([])
    first = begin(storage, process=YOU)
    first.end()
    begin(storage, process=YOU)
    first.end()
    refused(storage)


@pytest.mark.req("DS-CLAIM-3")
def test_a_process_of_this_host_that_is_gone_is_followed_at_once() -> None:
    alive = Process("here", os.getpid())
    assert alive.started
    storage = owned(alive)
    refused(storage)
    assert begin(owned(alive, started="1"), takeover=False).number == 2
    assert begin(owned(alive, pid=2**22 + 1), takeover=False).number == 2
    refused(owned(alive, host="there", started="1"))


@pytest.mark.req("DS-CLAIM-3")
def test_a_process_may_follow_itself() -> None:
    assert begin(owned(ME), process=ME, takeover=False).number == 2


def test_a_process_whose_start_is_not_known_is_not_gone() -> None:
    here = Process("here", 1)
    assert not here.gone("there", 1, "")
    assert here.gone("here", 1, "whatever")
    assert not here.gone("here", os.getpid(), Process("here", os.getpid()).started)
    assert here.gone("here", os.getpid(), "0")


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"closed",
    "not UTF-8": b"\xff\xfe\x00",
    "an array": b"[]",
    "nil": b"null",
    "a number": b"1",
    "no host": b'{"pid": 1, "started": "", "closed": true}',
    "no closed": b'{"host": "here", "pid": 1, "started": ""}',
    "closed as text": b'{"host": "there", "pid": 22, "started": "", "closed": "yes"}',
    "closed as number": b'{"host": "there", "pid": 22, "started": "", "closed": 1}',
    "pid as text": b'{"host": "here", "pid": "x", "started": "", "closed": true}',
    "pid infinite": b'{"host": "here", "pid": 1e999, "started": "", "closed": true}',
    "pid nan": b'{"host": "here", "pid": NaN, "started": "", "closed": true}',
    "pid nil": b'{"host": "here", "pid": null, "started": "", "closed": true}',
    "deep": b"[" * 2000 + b"]" * 2000,
    "long": b'{"closed": true}' + b" " * 5000,
}


@pytest.mark.req("DS-CLAIM-3")
@pytest.mark.parametrize("name", GARBAGE)
def test_a_status_that_says_nothing_is_no_status(name: str) -> None:
    storage = owned()
    storage.put(keys.status("producer-1"), GARBAGE[name])
    refused(storage)
    storage.time += 1000
    assert begin(storage, takeover=False).number == 2


def test_a_status_is_for_people_to_read() -> None:
    storage = holding([])
    write_status(opened(storage), 7, YOU, closed=True)
    said = json.loads(storage.get(keys.status("producer-7"), max_size=4096))
    assert said == {"host": "there", "pid": 22, "started": YOU.started, "closed": True}


# --- Who may write at all -------------------------------------------------------------------------------


@pytest.mark.req("DS-FEAT-1", "DS-STORE-4", "DS-BACK-5")
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: holding([], requires=Requires(write=frozenset({"ranks"}))), UnknownFeature),
        (lambda: holding([], replica_of=OTHER), Unsupported),
        (
            lambda: holding([LOG[0], slot(data(LOG[0], requires=Requires(write=frozenset({"ranks"}))))]),
            UnknownFeature,
        ),
        (
            lambda: holding([LOG[0], slot(data(LOG[0], requires=Requires(read=frozenset({"ranks"}))))]),
            UnknownFeature,
        ),
    ],
    ids=["store", "replica", "newest record", "unreadable record"],
)
def test_a_log_that_this_release_may_not_write_is_not_claimed(
    make: Callable[[], Storage], error: type[Exception]
) -> None:
    storage = make()
    before = storage.snapshot()
    with pytest.raises(error):
        begin(storage)
    assert storage.snapshot() == before


@pytest.mark.req("DS-FEAT-1")
def test_a_feature_of_collectors_does_not_concern_a_writer() -> None:
    storage = holding(
        [LOG[0], slot(data(LOG[0], requires=Requires(gc=frozenset({"x"}))))],
        requires=Requires(gc=frozenset({"x"})),
    )
    assert begin(storage).number == 2


@pytest.mark.req("DS-STORE-3")
def test_a_log_of_another_store_is_not_claimed() -> None:
    storage = holding([slot(claim(None, store=OTHER))])
    with pytest.raises(BadRecord):
        begin(storage)
    assert versions(storage) == [keys.version(0)]
