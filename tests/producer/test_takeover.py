"""Who may take over from whom, and who may write at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from record_samples import OTHER, claim, data, slot
from term_samples import LOG, ME, YOU, Storage, begin, content, holding, opened, versions

from deltastore.errors import (
    BadRecord,
    OutcomeUnknown,
    TakeoverRefused,
    Unavailable,
    UnknownFeature,
    Unsupported,
)
from deltastore.producer.holder import Process, write_status
from deltastore.protocol import keys
from deltastore.protocol.features import Requires
from deltastore.testing import Fault, FaultBackend, Operation

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
def test_a_claim_whose_reply_was_lost_does_not_lock_its_own_process_out() -> None:
    storage = holding([])
    silent = [True]

    def lost(op: Operation) -> Fault | None:
        if op.key.startswith("versions/") and op.name == "put_if_absent" and silent[0]:
            return Fault(after=Unavailable("no reply"))
        if op.key == keys.version(0) and op.name == "get" and silent[0]:
            return Fault(before=Unavailable("no reply"))
        return None

    faulty = FaultBackend(storage, lost)
    with pytest.raises(OutcomeUnknown):
        begin(faulty, takeover=False)
    silent[0] = False
    assert begin(faulty, takeover=False).number == 2


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
