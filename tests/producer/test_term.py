"""A producer's reign: claims, fences, and commits whose outcome is unknown."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from record_samples import SCHEMA, STORE, buried, data, delta, slot
from term_samples import LOG, ME, ONCE, YOU, Storage, begin, content, holding, opened, record, versions

from deltastore.errors import (
    AuthError,
    BackendError,
    BadRecord,
    Conflict,
    Diverged,
    Fenced,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from deltastore.producer.term import Genesis, Term
from deltastore.protocol import keys
from deltastore.protocol.chain import check_successor
from deltastore.protocol.descriptors import Descriptor
from deltastore.protocol.features import Requires
from deltastore.protocol.limits import MAX_INT
from deltastore.protocol.records import External, Kind
from deltastore.runtime import Runtime
from deltastore.store import Store
from deltastore.testing import Fault, FaultBackend, Operation

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
    own = keys.status("producer-3")
    assert writes == [keys.status("clock"), own, keys.version(5), own]


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


@pytest.mark.parametrize(
    ("now", "stored"),
    [
        (float("nan"), 0),
        (float("-inf"), 0),
        (-5.0, 0),
        (float("inf"), MAX_INT),
        (1e15, MAX_INT),
        (1e308, MAX_INT),
        (1.5, 1500),
    ],
)
def test_a_clock_that_is_wrong_stops_nobody(now: float, stored: int) -> None:
    storage = holding([])
    store = Store.open(storage, retry=ONCE, runtime=Runtime(now=lambda: now, sleep=lambda _: None))
    Term.begin(store, process=ME)
    assert record(opened(storage).log.slot(0)).time == stored
