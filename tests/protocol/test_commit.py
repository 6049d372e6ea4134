"""What reading a slot back says of a put, and who may claim unasked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from record_samples import buried, data, edited, short_log, slot

from deltastore.protocol.commit import TAKEOVER_AGE, Holder, Outcome, judge, may_claim
from deltastore.protocol.records import Slot, Tombstone

LOG = short_log()
OURS = slot(data(LOG[1]))


def outcome(found: Slot | None) -> Outcome:
    return judge(OURS.data, OURS.sha256, found)


@pytest.mark.req("DS-COMMIT-4")
def test_an_absent_slot_proves_nothing() -> None:
    assert outcome(None) is Outcome.UNKNOWN


@pytest.mark.req("DS-COMMIT-3")
def test_the_same_bytes_are_ours() -> None:
    assert outcome(Slot(OURS.record, bytes(OURS.data), OURS.sha256)) is Outcome.COMMITTED


@pytest.mark.req("DS-COMMIT-3")
def test_an_equal_nonce_or_even_an_equal_record_is_not_ours() -> None:
    assert outcome(slot(data(LOG[1], time=5))) is Outcome.CONFLICT
    twin = edited(OURS.data, lambda body: body.update(unknown=None))
    assert outcome(Slot(OURS.record, twin, OURS.sha256)) is Outcome.CONFLICT


@pytest.mark.req("DS-COMMIT-3")
def test_a_tombstone_is_ours_by_the_hash_that_it_keeps() -> None:
    assert outcome(buried(OURS)) is Outcome.SUPERSEDED
    assert outcome(buried(slot(data(LOG[1], time=5)))) is Outcome.CONFLICT
    record = buried(OURS).record
    assert isinstance(record, Tombstone)
    other = replace(record, record_sha256="00" * 32)
    assert outcome(Slot(other, other.to_bytes(), other.record_sha256)) is Outcome.CONFLICT


@pytest.mark.req("DS-CLAIM-3")
@pytest.mark.parametrize(
    ("owner", "allowed"),
    [
        (Holder(closed=False, gone=False, age=0), False),
        (Holder(closed=False, gone=False, age=-50), False),
        (Holder(closed=False, gone=False, age=TAKEOVER_AGE), False),
        (Holder(closed=False, gone=False, age=TAKEOVER_AGE + 1), True),
        (Holder(closed=True, gone=False, age=0), True),
        (Holder(closed=False, gone=True, age=0), True),
    ],
)
def test_a_living_writer_is_not_taken_over_unasked(owner: Holder, allowed: bool) -> None:
    assert may_claim(owner, takeover=False) is allowed
    assert may_claim(owner, takeover=True)


@pytest.mark.req("DS-CLAIM-3")
def test_a_record_is_young_for_900_seconds() -> None:
    assert TAKEOVER_AGE == 900
